/*
 * What a change of a file's content state writes: one batch under ns each, in memory and in the database. For content.c, with the content gate held.
 *
 * The gate does not keep writes out, so the size is the record's own, which each of them brings up to date when it is done (content_note_write, io_mode_look): what is
 * read of the cache file here may be older than what is stored meanwhile.
 */
#pragma once
#include "fs.h"

/* It has another cache file. */
int record_vid(struct inode *in, uint64_t vid) MUST_CHECK;
/* OPEN or CLOSING, written by a worker before: what nobody recorded of it, and what is written from now on, is another generation than what may be published. An OPEN file has this
 * size and, unless it was set, this mtime; so has a CLOSING one that was written past us. */
int record_taken_over(struct inode *in, uint64_t size, int64_t mtime_ns) MUST_CHECK;
/* Its mtime was set, which is stored, and bytes were written since: a worker that takes over is to know. The gate need not be held. */
void record_time_unset(struct inode *in);
/* Any state becomes OPEN. */
int record_open(struct inode *in) MUST_CHECK;
/* OPEN becomes CLOSING, with a journal record for each name. */
int record_closing(struct inode *in) MUST_CHECK;
/* The bytes are on the disk as of in->synced_changes. */
int record_synced(struct inode *in) MUST_CHECK;
/* CLOSING becomes SEALED. */
int record_quarantined(struct inode *in) MUST_CHECK;
int record_sealed(struct inode *in) MUST_CHECK;
/* Closed content that is all here needs its source no more: CLOSING, of another generation. synced: its bytes were synced just now. */
int record_detached(struct inode *in, bool synced) MUST_CHECK;
/* OPEN becomes CLEAN with its old origin. 1: that is not what it was, so the file is to be published. */
int record_restored(struct inode *in, const struct io_kept *kept) MUST_CHECK;
