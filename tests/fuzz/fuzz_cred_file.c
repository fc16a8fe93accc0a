/* The shared files of the AWS tools, both made of the input, and every question asked of them. */
#include "../../s3/s3_cred_int.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const profiles[] = {"default", "a", "b", ""};
    char path[32];
    int fd = fuzz_file(data, size, path);
    struct cred_env env = {.credentials_file = path, .config_file = path};
    struct cred_files *f = NULL;
    g_autoptr(GString) why = g_string_new(NULL);
    (void)!log_open("/dev/null", LOG_LEVEL_ERR);
    int r = cred_files_load(&env, &f, why);
    PROMISE((r < 0) == (why->len > 0));
    for (unsigned i = 0; r == 0 && i < G_N_ELEMENTS(profiles); i++) {
        enum cred_profile_kind kind;
        g_string_truncate(why, 0);
        if (cred_profile_kind(f, profiles[i], &kind, why) < 0)
            PROMISE(why->len > 0);
        (void)cred_files_endpoint(f, profiles[i], "s3");
        (void)cred_files_get(f, profiles[i], "aws_secret_access_key");
    }
    cred_files_free(f);
    (void)close(fd);
    log_close();
    return 0;
}
