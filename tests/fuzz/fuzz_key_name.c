/* Keys of a listing as names of a directory: a name is never one the kernel gives a meaning to, and leads back to its key alone. */
#include "../../s3/s3_uri.h"
#include "fs/tree_apply.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *name = (const char *)data;
    bool prefix = size > 0 && name[size - 1] == '/';
    size_t len = prefix ? size - 1 : size;
    if (!tree_name_ok(name, len))
        return 0;
    PROMISE(len > 0 && len < 4096 && !memchr(name, '/', len) && !memchr(name, '\0', len));
    PROMISE(!(len == 1 && name[0] == '.') && !(len == 2 && name[0] == '.' && name[1] == '.'));
    g_autofree char *own = g_strndup(name, len);
    g_autofree char *key = g_strconcat("dir/", own, prefix ? "/" : NULL, NULL);
    PROMISE(strlen(key) == 4 + size && memcmp(key + 4, data, size) == 0);
    g_autoptr(GString) coded = g_string_new(NULL);
    g_autoptr(GString) back = g_string_new(NULL);
    s3_uri_encode(coded, key, strlen(key), true);
    PROMISE(s3_uri_decode(back, coded->str, coded->len, false) == 0 && strcmp(back->str, key) == 0);
    return 0;
}
