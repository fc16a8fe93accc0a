/*
 * Requests that got no reply, and that the store may carry out later.
 *
 * A DELETE, a copy or a write may do what it was sent for whenever it is carried out: by then something newer may stand at the key, or be gone. A condition helps only where it names a
 * version that cannot stand there again: not where nothing was to stand there (the object may have been removed since), not for empty objects, nor for deletes (the same bytes have the same etag). So
 * before such a request is sent a record says so, which the commit of a definite outcome removes. When the reply did not come, or the worker was killed before, the key rests for
 * --late-requests: what else is to be published or deleted there waits for that, in its place in the order. The same op may try again with the same content and attributes, and deletes may follow a
 * delete: they do the same. The time counts from the first answer of the store after that: one that hangs for longer, and goes on, carries out what came meanwhile in any order. A thread asks for all
 * such keys, and who wants to change one does. A copy takes what its source has when it is carried out: nothing is published there either, unless the store compares that first.
 * Value "late/KEY": "delete" (deletes may go) or "write" (the op may try again), seq of the op, what it sends, until when the key rests (wall clock, ns; 0: the outcome is not known); one a
 * line. After a start it rests for the full time: the process that sent the request may have lived until just now, and clocks are set.
 */
#pragma once
#include "publish_internal.h"

/* What is about to be sent. */
struct late_request {
    uint32_t caps; /* enum objstore_cap bits: a store that can do all of these carries nothing out late; 0: none can */
    const char *src;  /* key that it is copied from, NULL */
    bool empty;       /* what is copied: nothing tells one empty object from another */
    const char *what; /* content and attributes, "" where nothing but the op tells them */
};

/* For queue_init(), queue_fini(). */
struct late_keys *late_new(void);
void late_free(struct late_keys *l);
/* Reads the records; before the publisher's threads start. */
int late_load(struct publisher *p) MUST_CHECK;
/* The thread that asks for keys of which nothing was heard since they began to rest. It ends with the publisher: interrupt once `stopping` is set, then stop. */
int late_start(struct publisher *p) MUST_CHECK;
void late_interrupt_locked(struct publisher *p) REQUIRES(p->mu);
void late_stop(struct publisher *p);

/* The op is about to send that: puts the record into the batch. -EAGAIN: its key rests. */
int late_put(struct meta_batch *b, struct op *o, const struct late_request *req) MUST_CHECK;
/* The same before a delete, in a batch of its own. */
int late_note_delete(struct op *o) MUST_CHECK;
/* What the op's thread sends from here on is its. */
void late_begin(void);
/* Before the op changes anything: is the store there again, where its key rests and nothing was heard since? An error: it is not known. */
int late_hear(struct op *o) MUST_CHECK;
/* The run is over, with that: the key rests if a request of it got no reply. */
void late_end(struct op *o, int r);
/* The batch records what the op made of its key. */
void late_settle(struct meta_batch *b, const struct op *o);
/* From when on the op may change anything in the store (monotonic clock, ns; 0: now). */
uint64_t late_until_locked(struct publisher *p, const struct op *o) REQUIRES(p->mu);
