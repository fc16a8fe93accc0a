/*
 * Files that a program left open when a signal ended it (--orphan). The kernel closes them, which looks like any close; with `hold` it is none: what was written stays
 * here, as after the end of a daemon, until somebody closes the file in order.
 */
#pragma once
#include "handle.h"

/* A descriptor of the file that could be written by is closed by this thread. True: by the end of a program that a signal ended, and that is to be no close. */
bool orphan_note_close(struct handle *h, int tid) MUST_CHECK;
/* The last writer is gone: whether what it wrote is to stay open. */
bool orphan_stays_open(struct inode *in);
