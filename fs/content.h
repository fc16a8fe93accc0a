/*
 * The content of regular files: who has it open, its state (meta.h enum content_state), its cache file.
 *
 * The content gate of an inode serialises changes of state (states.h): CLEAN/SEALED -> OPEN at the first write, OPEN -> CLOSING at a writer's flush,
 * OPEN/CLOSING -> SEALED at the last writer's release, SEALED -> CLEAN when published. It may be held across disk I/O, never across the store.
 */
#pragma once
#include "fs.h"

void content_gate_enter(struct inode *in);
void content_gate_leave(struct inode *in);

/* Opens (n_open, n_writers counted) and makes the cache file ready. trunc: O_TRUNC. -ESTALE: it is to be written, but its last name is gone, to what the store has there, or by a
 * program that was quicker: nobody has it open then. What is written would go with the last reference. */
int content_open(struct inode *in, bool for_write, bool trunc) MUST_CHECK;
/* For writing at its end only. */
int content_open_to_append(struct inode *in) MUST_CHECK;
/* A file just made by tree_create(open) or tree_tmpfile. */
int content_open_new(struct inode *in) MUST_CHECK;
/* The same of one that a worker before made and perhaps opened: counted as asked. */
int content_open_again(struct inode *in, bool for_write) MUST_CHECK;
/* What a worker before opened: counted, nothing else is changed. */
int content_adopt(struct inode *in, bool for_write) MUST_CHECK;
/* The record of an OPEN or CLOSING file that was taken over is brought up to date: its size, and a new generation for what is written from now on or was since
 * a snapshot of it was published. The cache file is in use. */
int content_take_over(struct inode *in) MUST_CHECK;
/* Counterpart of all; the last writer seals. */
void content_release(struct inode *in, bool for_write);
/* The same without sealing: the connection ended while the file was open, so nobody said that it is whole. */
void content_abandon(struct inode *in, bool for_write);
/* Whether it has a cache file: content_use() would make one. */
bool content_is_here(struct inode *in);
/* The cache file with a reference, opened if it is not; callers outside open handles (publisher, warm-up, truncate by path). */
int content_use(struct inode *in, struct cfile **ret) MUST_CHECK;
/* The same if it is open; NULL: it is not. */
struct cfile *content_use_open(struct inode *in);
void content_unuse(struct inode *in, struct cfile *cf);

/* First thing before any change of bytes: state becomes OPEN (journalled), dirty marks set. */
int content_begin_change(struct inode *in) MUST_CHECK;
/* Last thing after a change of bytes through us, also where the file was cut meanwhile: its size is what the cache says. */
void content_note_write(struct inode *in);
/* Absent bytes of an open, changed file come from src (key NULL: from nowhere, there are none). Journalled for every name, so that our own changes of that
 * object wait. -ENOENT: the file has no name. */
int content_set_base(struct inode *in, const struct cache_source *src) MUST_CHECK;
/* Where and how a file will be published, as far as can be guessed; false where no guess is possible. The caller frees the key; meta borrows the token. */
struct upload_plan {
    char *key;
    char token[TOKEN_MAX + 1];
    struct obj_meta meta;
};
bool content_plan_upload(struct inode *in, struct upload_plan *ret);
/* Parts of a file that is empty now are uploaded while it is written. */
void content_begin_stream(struct inode *in);
/* The same by one who holds the content gate. -EAGAIN: see cache_file_set_dirty(). */
int content_begin_change_gated(struct inode *in) MUST_CHECK;
/* The inode's record as it is now, with the cache file's source limit. */
int content_store(struct inode *in) MUST_CHECK;
/* The same for a file that has no source any more: kept (NULL: nothing) can be gone back to, also by who takes over. */
int content_put_away(struct inode *in, const struct io_kept *kept) MUST_CHECK;
/* What content_put_away() stored last. NULL: nothing. */
struct io_kept *content_kept(struct inode *in);
/* OPEN becomes CLEAN again with its old source: nothing was written. With the gate held. Not 0: something else came in between, so it is to be published. */
int content_restore(struct inode *in, const struct io_kept *kept) MUST_CHECK;
/* A writer's FLUSH: size and mtime are stored, state CLOSING, a journal record exists for each name (or its order is renewed). Durable as --close says. */
int content_flush(struct inode *in, bool want_sync) MUST_CHECK;
/* The same by one who holds the content gate; want_sync: of the bytes. */
int content_flush_gated(struct inode *in, bool want_sync) MUST_CHECK;
/* content_flush() before publish_now(): what a write() brought that was under way while the last snapshot was made counts, too. */
int content_flush_to_publish(struct inode *in, bool want_sync) MUST_CHECK;
/* Without writers: CLOSING or OPEN becomes SEALED and may be published. While a mapping can still write it stays CLOSING and is watched (mapped.h). */
int content_seal(struct inode *in) MUST_CHECK;
/* Of a file that is open. */
int content_truncate(struct inode *in, uint64_t size) MUST_CHECK;
int content_fallocate(struct inode *in, int mode, uint64_t off, uint64_t len)
    MUST_CHECK; /* the same; mode as of fallocate(2) */
/* Brings all bytes here and makes them a new version that needs nothing from the store; counted as a writer, so that it is not published before
 * content_end_detach(). A file that its writer never closed stays one; open_stays: so does one that somebody is writing, which else counts as closed. */
int content_detach(struct inode *in, bool open_stays) MUST_CHECK;
void content_end_detach(struct inode *in);
/* fsync: bytes and record survive power loss. */
int content_sync(struct inode *in) MUST_CHECK;
/* The same but for the journal, which the caller has synced before he counts on it. */
int content_sync_bytes(struct inode *in) MUST_CHECK;
/* OPEN though nobody has it open for writing: the daemon or the connection ended before its writer closed it. May be true for an instant while it is closed. */
bool content_is_unclosed(struct inode *in);
/* The text of user.sluice.intent for one name of a dirty file that is in use; none when it has no name any more, or is clean. With the gate, or while it is open.
 * A write() that the kernel passes through holds the cache file's lock to its end, which setting the text waits for, in a way that no signal ends; and that write() may wait for us, with the bytes of another
 * file of this mount. So while somebody has a name of it open to write it past us the text stays the one of when he opened it, that of an open file: the seal sets it (in->intent_late). */
void content_write_intent(struct inode *in);
/* Are the bytes that were closed last all still there, though more may have been added? As far as is known now. */
bool content_keeps_closed(struct inode *in);
/* True if content differs from the store or a name of it is unpublished. */
/* The bytes of sealed content are not those that were closed: it becomes QUARANTINED, and -EUCLEAN is returned; -EAGAIN: it is not that version any more. */
int content_give_up(struct inode *in, uint64_t gen) MUST_CHECK;
bool content_is_dirty(struct inode *in);
