/*
 * Private to cache/: files of which bytes may be gone though nothing says so: a machine that went down, a disk that failed and works again (cache_doubt.c).
 */
#pragma once
#include "cache_internal.h"
#include "cache_tier.h"

/* What the record of a start gets beside the flags it has. booted: the machine, or the disk of the database, may have lost what was not synced. */
uint32_t doubt_flags(struct cache *c, const struct meta_cached *rec, bool booted);
/* Before a disk that was bypassed is used again. lost: its file system says that not all was written. tier_sweep() saves the marks. No lock held. */
void doubt_tier(struct cache_tier *t, bool lost);
/* An open file of such a disk: what it holds is compared before it is read again. No lock held. */
void doubt_open(struct cfile *cf);
/* The kernel does not have it any more: the same, if it was put off. */
void doubt_given_back_locked(struct cfile *cf) REQUIRES(cf->mu);
