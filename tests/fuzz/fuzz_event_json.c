/* Event notifications: what is taken names a bucket and keys that are text without NUL; what is refused leaves nothing behind. */
#include "fs/event_parse.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct event_list list = {0};
    int r = event_parse((const char *)data, size, &list);
    PROMISE(r == 0 || r == -EBADMSG);
    PROMISE((r == 0) == (list.records != NULL));
    if (r < 0)
        return 0;
    for (unsigned i = 0; i < list.records->len; i++) {
        const struct event_record *rec = list.records->pdata[i];
        PROMISE(rec->bucket && rec->keys[0] && strlen(rec->keys[0]) <= 4096 && strlen(rec->etag.s) <= ETAG_MAX);
        PROMISE(rec->vague || *rec->keys[0]);
        PROMISE(!rec->keys[1] || strcmp(rec->keys[0], rec->keys[1]) != 0);
        PROMISE(!rec->vague || !*rec->keys[0] || rec->keys[0][strlen(rec->keys[0]) - 1] == '/');
    }
    event_list_clear(&list);
    return 0;
}
