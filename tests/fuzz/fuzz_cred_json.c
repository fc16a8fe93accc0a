/* Keys as services and processes give them: what is taken is fit for a header. */
#include "../../s3/s3_cred_int.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = g_strndup((const char *)data, size);
    int64_t ns = 0;
    if (cred_parse_time(text, &ns) == 0)
        PROMISE(ns >= 0);
    for (int versioned = 0; versioned < 2; versioned++) {
        g_autoptr(GString) why = g_string_new(NULL);
        struct s3_keys keys = {0};
        int r =
            cred_keys_from_json((const char *)data, size, versioned ? "SessionToken" : "Token", versioned, &keys, why);
        PROMISE((r < 0) == (why->len > 0));
        if (r < 0)
            continue;
        PROMISE(keys.access_key[0] && keys.secret_key[0] && !strpbrk(keys.access_key, " \r\n") && keys.expires_ns >= 0);
        s3_keys_clear(&keys);
    }
    return 0;
}
