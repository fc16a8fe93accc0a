/*
 * Private to cache/: which tier holds the local file of a content, found again, made, and moved.
 *
 * A file moves in three ways: copied while closed (to memory, where it is pinned), copied while open (from memory to a disk, before it is changed), or
 * abandoned while open (its disk is bypassed): then it begins anew, absent, elsewhere. A move of an open file puts the new local file behind the same descriptor numbers
 * (dup3), so whoever is about to use one gets either file: after a copy both hold the same, an abandoned file's users look at move_gen afterwards. Files that the kernel has (passthrough) or
 * that are dirty are never moved.
 */
#pragma once
#include "cache_tier.h"

/* Finds or makes local file and entry for a claimed vid. *fd and *e are set as far as it got. -ENODATA: the bytes are gone, -EIO: their disk is. */
int place_open(struct cache *c, uint64_t vid, uint64_t ino, uint64_t size, const struct cache_source *src, int *fd,
               struct cache_entry **e) MUST_CHECK;
/* CACHED_* of a pin. */
uint32_t place_pin_flags(enum cache_pin pin);
/* vid is claimed and closed: moved into memory if it is pinned there. Unpinned it stays there until it is dropped. Failing leaves it where it is. */
void place_settle(struct cache *c, struct cache_entry *e);
/* Before the first change: dirty bytes belong on a disk. -EIO: there is none, -ETXTBSY: the kernel has the file. */
int place_for_writing(struct cfile *cf) MUST_CHECK;
/* An open clean file leaves a tier that is not used any more, or goes from nowhere to a disk, if it can. Never waits for a disk that is not used: a file that is
 * being resized or saved stays for now. */
void place_abandon(struct cfile *cf);
