/*
 * Requests that got no reply, and that the store may carry out later.
 *
 * A DELETE, a copy or a PUT for which the store knows no condition does what it was sent for whenever it is carried out: by then something newer may stand at the key. So before it is
 * sent a record says so, which the commit of a definite outcome removes. When the reply did not come, or the worker was killed before, the key rests for --late-requests: what else
 * is to be published or deleted there waits for that, in its place in the order. The same op may try again, and deletes may follow a delete: they do the same.
 * Value "late/KEY": seq of the op, "delete" or "write", until when the key rests (wall clock, ns; 0: the outcome is not known).
 */
#pragma once
#include "publish_internal.h"

/* For queue_init(), queue_fini(). */
GHashTable *late_table_new(void);
/* Reads the records; before the publisher's threads start. */
int late_load(struct publisher *p) MUST_CHECK;

/* The op is about to send such a request, unless the store can do all of caps (enum objstore_cap bits; 0: no store can): puts the record into the batch. */
void late_put(struct meta_batch *b, struct op *o, uint32_t caps);
/* The same before a delete, in a batch of its own. */
int late_note_delete(struct op *o) MUST_CHECK;
/* What the op's thread sends from here on is its. */
void late_begin(void);
/* The run is over: the key rests if a request of it got no reply. */
void late_end(struct op *o);
/* The batch records what the op made of its key. */
void late_settle(struct meta_batch *b, const struct op *o);
/* From when on the op may send anything (monotonic clock, ns; 0: now), with the publisher's mu held. */
uint64_t late_until_locked(const struct op *o);
