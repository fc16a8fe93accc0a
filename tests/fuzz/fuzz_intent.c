/* The intent beside a cache file, from which a lost database is rebuilt: a path that is taken stays below the root. */
#include "../../fs/rebuild.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = g_strndup((const char *)data, size);
    struct intent *in = g_new0(struct intent, 1);
    if (intent_parse(in, text)) {
        g_autofree char *whole = g_strconcat("/", in->path, "/", NULL);
        PROMISE(!strstr(whole, "/../") && !strstr(whole, "/./") && !strstr(whole, "//"));
        PROMISE(in->mode <= 07777 && in->size < NUMBER_LIMIT && in->vid == 0);
        (void)doubt(in);
    }
    intent_free(in);
    return 0;
}
