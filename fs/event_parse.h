/*
 * S3 event notifications as services send them, made into a list of keys: pure, bytes in, records out.
 *
 * Read are lists of records as AWS, Ceph and MinIO send them, the envelope of SNS around such a list, and the single events of EventBridge. What a record says beyond bucket, key
 * and etag is not used: an event is taken for a hint that a name is to be looked at, and what is there is asked of the store.
 *
 * Keys: AWS and MinIO send them URL-encoded ('+' is a space), EventBridge and Ceph as they are, some versions of Ceph encoded too. Where that is not known and the two readings
 * differ, the record has both keys: looking at a name that did not change costs a request and harms nothing.
 */
#pragma once
#include "base/err.h"
#include "types.h"

#include <glib.h>
#include <stdbool.h>

struct event_record {
    bool created; /* an object is there, or was changed; else one was removed */
    bool vague; /* keys[0] was not valid UTF-8, which JSON cannot carry: only its directory is known ("a/b/", or "") */
    char *bucket;  /* owned */
    char *keys[2]; /* owned, any byte but NUL, prefix included; the second may be NULL */
    struct etag
        etag; /* of what was made, without quotes, "" where the event does not tell, or tells of something else than content */
};

struct event_list {
    GPtrArray *records;  /* struct event_record, owned */
    unsigned n_others;   /* events that change no name: of tags, of a test, ... */
    char *subscribe_url; /* owned; SNS wants this address to be visited before it sends anything, else NULL */
};

/* -EBADMSG: not JSON, or none of the forms above; *ret is untouched then. */
int event_parse(const char *text, size_t len, struct event_list *ret) MUST_CHECK;
void event_list_clear(struct event_list *list);
