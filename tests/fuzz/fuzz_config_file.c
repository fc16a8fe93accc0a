/* Configuration files and option values: a refusal says why, and what was taken passes the dump that `sluice status --config` prints. */
#include "fs/config.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[32];
    int fd = fuzz_file(data, size, path);
    struct config cfg;
    config_init(&cfg);
    g_autofree char *msg = NULL;
    int r = config_read_file(&cfg, path, &msg);
    (void)close(fd);
    PROMISE((r < 0) == (msg != NULL));
    g_autofree char *wrong = NULL;
    if (r == 0)
        r = config_validate(&cfg, &wrong);
    g_autoptr(GString) out = g_string_new(NULL);
    config_dump(&cfg, "/cache", out);
    PROMISE(out->len > 0);
    config_clear(&cfg);
    g_autofree char *text = g_strndup((const char *)data, size);
    uint64_t v = 0;
    (void)!parse_size(text, &v);
    (void)!parse_duration(text, &v);
    return 0;
}
