/* Checksums of closed files, taken before they are asked for. */
#pragma once
#include "publish_internal.h"

/* A file was sealed: its checksums are due a little later. */
void sums_note_locked(struct publisher *p, uint64_t ino) REQUIRES(p->mu);
/* Takes and stores them now. 0 also when there is nothing to do; -EAGAIN: a writer came. */
int sums_make(struct publisher *p, uint64_t ino) MUST_CHECK;
void *sums_thread(void *publisher);
