/* Manifests of all kinds: what is handed on is a name, what is refused says why. */
#include "fuzz.h"
#include "tools/manifest.h"

#include <glib.h>

#define MOST 2000

static bool take(void *ctx, const char *name, bool in_json)
{
    unsigned *n = ctx;
    PROMISE(*name);
    return ++*n < MOST;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (enum manifest_kind kind = MANIFEST_AUTO; kind <= MANIFEST_WEBDATASET; kind++) {
        char path[32];
        int fd = fuzz_file(data, size, path);
        FILE *in = fopen(path, "r");
        g_autofree char *error = NULL;
        unsigned n = 0;
        PROMISE(in);
        bool ok = manifest_read(in, kind, take, &n, &error);
        PROMISE(ok == (!error && n < MOST));
        (void)fclose(in);
        (void)close(fd);
    }
    return 0;
}
