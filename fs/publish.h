/*
 * The journal's executor: brings the store in line with the names, in order.
 *
 * Each journal record (meta_op) is an op in memory. OP_SYNC makes upstream equal to one name: uploads content, or copies in the store when the content is
 * there under another key, or rewrites metadata, or puts a directory's marker; then queues the delete of what the name left behind. OP_DELETE removes a key.
 *
 * Order (--order ancestor): an op's visible step waits for everything earlier in its directory or below, whatever it was renamed to since; a delete waits for every earlier publish of the
 * link, and for those that succeed them (written again, renamed over), so that what a marker names is not removed before the marker is replaced; ops on one key, or on a key that another op still copies from (a rename, or a file whose absent bytes are there), are serial; what goes to `a` waits until all that
 * leaves `a/...` has left, what goes to `a/...` until what leaves `a` has. Markers and metadata-only ops take no part in the order.
 * A rename inside one directory, from a name that is not held, is no second close: the name has the turn of its close among what is beside it. So a file that says that others are whole
 * is to be closed after them, or has a held name until then (--hold), or comes from another directory: those get their turn when they are renamed.
 * Failures are tried again for ever with capped backoff; what cannot succeed is parked and named. A copy from an object that was removed elsewhere, or archived, becomes an upload of what
 * is here, at the same place in the order.
 */
#pragma once
#include "fs.h"

#include <jansson.h>

int publish_open(struct fs *fs, struct publisher **ret) MUST_CHECK; /* loads the journal; no threads yet */
int publish_start(struct publisher *p) MUST_CHECK;
void publish_interrupt(struct publisher *p); /* whoever waits for it returns soon */
void publish_stop(struct publisher *p);      /* ends threads; running uploads are left for the next start */
void publish_close(struct publisher *p);
void publish_stale_wait(
    struct fs *fs); /* after fs_interrupt(): until no thread of the cache looks at a name any more */

/* ---- under ns, while the caller builds its batch; effective at publish_apply() after the commit ---- */

#define PROBE_DIR                                                                                                      \
    ".sluice-probe" /* below it the store's capabilities are tried out, each cache folder in its own; never listed */

enum publish_why {
    PUBLISH_CONTENT, /* closed with new content */
    PUBLISH_PLACE,   /* renamed or linked */
    PUBLISH_META,    /* attributes only: waits 5 s, takes no part in the order */
    PUBLISH_MARKER,  /* directory: waits 5 s, only if still empty then */
};
/* Of names that a local-only rule keeps here (local.h) there are none: what follows is without effect for them. */
/* The name needs upstream work: gives it a journal record (d->op_seq) or renews the one it has; d must be put by the caller afterwards. Names of losers are left as they are. */
void publish_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, enum publish_why why) REQUIRES(fs->ns);
/* The same for one more name of a file (PUBLISH_PLACE): it has the place of the others, one of which it may be about to replace. */
void publish_linked(struct fs *fs, struct meta_batch *b, struct meta_dentry *d) REQUIRES(fs->ns);
/* The same for a name that was moved along with a directory (PUBLISH_PLACE, content that is upstream): all with one wave, a number of meta_next_seq(), have the same turn in the order,
 * so that they need not wait for each other. */
void publish_moved(struct fs *fs, struct meta_batch *b, struct meta_dentry *d, uint64_t wave) REQUIRES(fs->ns);
/* The record that the name was given last is waited for by what waits for all before seq: a delete made meanwhile, say. */
void publish_before(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d, uint64_t seq) REQUIRES(fs->ns);
/* The content that the record just given to the name is to bring was visible before all that is queued: what replaces it where it was comes later. */
#define PUBLISH_FIRST 1u /* that place and turn */
void publish_first(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d) REQUIRES(fs->ns);
/* Where the record that the name was given last stands in the order, if it was given one; 0: as it does. */
void publish_place_at(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d, uint64_t place, uint64_t turn)
    REQUIRES(fs->ns);
/* When it is the turn of closed content that is to be sent from here, among what is in its directory: it grows. 0: the record is of something else, or of content that nobody waits for. */
uint64_t publish_turn(struct fs *fs, uint64_t op_seq) REQUIRES(fs->ns);
/* Was the record made for attributes only (PUBLISH_META)? Then nobody waits for it. */
bool publish_is_of_attributes(struct fs *fs, uint64_t op_seq) REQUIRES(fs->ns);
/* May others wait for the record? Also where its content is only to be moved in the store. */
bool publish_is_waited_for(struct fs *fs, uint64_t op_seq) REQUIRES(fs->ns);
/* A loser's name that has gone back into the tree: its record is made anew with the same place in the order. */
void publish_again(struct fs *fs, struct meta_batch *b, struct meta_dentry *d) REQUIRES(fs->ns);
/* What was closed before is to be sent from here now: the name gets a journal record (PUBLISH_CONTENT). Where publishing asked for that it has the same place in the order as the one before. */
void publish_renew(struct fs *fs, struct meta_batch *b, struct meta_dentry *d) REQUIRES(fs->ns);
/* Its content was closed, so what was closed later waits for it, also when it is opened again and after the next start. */
void publish_note_closed(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d) REQUIRES(fs->ns);
/* It is about to be changed again, and what was closed is upstream: what was closed later does not wait for what will be. */
void publish_note_shown(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d) REQUIRES(fs->ns);
/* The name, which was given a record last, replaces one whose record was old_seq, or takes over that delete: what waited for that waits for it. */
void publish_succeed(struct fs *fs, struct meta_batch *b, const struct meta_dentry *d, uint64_t old_seq)
    REQUIRES(fs->ns);
/* The name's record goes away. */
void publish_drop_name(struct fs *fs, struct meta_batch *b, struct meta_dentry *d) REQUIRES(fs->ns);
/* Queues a delete of key while it has etag; "": of what is known to be ours by the note of a try that was cut off, by an earlier delete that is not done, or as an empty marker, and of
 * nothing else. keep_ino: an open, deleted file that still reads from it, or 0. */
void publish_delete(struct fs *fs, struct meta_batch *b, const char *key, const struct etag *etag, uint64_t keep_ino)
    REQUIRES(fs->ns);
/* The object at key belongs to the name not_id no more: a name that has taken the place will overwrite it, else it is deleted. */
void publish_disown(struct fs *fs, struct meta_batch *b, const char *key, const struct etag *etag, uint64_t not_id,
                    uint64_t keep_ino) REQUIRES(fs->ns);
/* The record of the file says that its bytes are in the object base now, NULL: here. That is what is kept for its queued names, until they need it no more. */
void publish_rebased(struct fs *fs, uint64_t ino, const char *base) REQUIRES(fs->ns);
/* A new name takes key: if a delete of it is queued or another op still copies from it, that delete is withdrawn (or will not happen) and
 * true says what object stands there. */
bool publish_inherit(struct fs *fs, struct meta_batch *b, const char *key, struct etag *ret_etag) REQUIRES(fs->ns);
/* The record of the delete that it would withdraw, if that was queued in a batch before; 0: there is none. */
uint64_t publish_delete_of(struct fs *fs, const char *key) REQUIRES(fs->ns);
/* May an object of ours stand at key though no record says so? Then a delete of it with no etag finds out, and deletes only that. */
bool publish_has_note(struct fs *fs, const char *key);
/* After the commit: queued changes take effect in memory, inodes that it changed may leave it. Also called (to forget them) when the commit failed. */
void publish_apply(struct fs *fs, bool committed) REQUIRES(fs->ns);

/* ---- any time ---- */

#define STORE_CAPS_VALUE "store-caps" /* what it gave, for the next start; above 32 bits the revision of the probe */
#define PROBE_REVISION   3u           /* grows with what is probed: what an earlier one gave is probed again */
/* What the store that key is in can do is found out before the first change, once. */
int publish_probe(struct fs *fs, const char *key) MUST_CHECK;
/* Has a publisher thread do that behind: parts are sent before the first change is made. */
void publish_probe_soon(struct fs *fs, const char *key);
/* Is the object at key being changed, moved or deleted by us, or about to be? */
bool publish_key_busy(struct publisher *p, const char *key);
/* Does --hold name this path? */
bool publish_is_held_name(struct fs *fs, const char *path);

/* The content of an inode moved to `state` (enum content_state): while OPEN its ops do not run, nor block others unless it was closed before. Callers hold the
 * content gate. */
void publish_content_state(struct fs *fs, uint64_t ino, uint32_t state);
/* The last writer of the inode is gone: a conflict of it is settled behind. */
void publish_writers_gone(struct fs *fs, uint64_t ino);
/* The same: where nothing was written the store is asked behind, by one HEAD, for what it had for the names meanwhile. */
void publish_look_again(struct inode *in);
/* Is the key to be deleted, or was it after `stamp` (listings must not show it)? */
bool publish_key_deleted(struct publisher *p, const char *key, uint64_t stamp);
/* The object at key is gone, somebody else removed it: no listing begun before this brings its name back. */
void publish_note_gone(struct publisher *p, const char *key);
/* Ops under a path prefix ("" = all, "a/b" itself or below). */
struct publish_counts {
    uint64_t files, bytes, ops, parked, conflicts, held, uploading;
    uint64_t stored; /* of bytes: what of the files now sent is in the store already */
    uint64_t
        unsettled; /* conflicts of which the path still shows ours; those about to be set aside are not among `conflicts`, which wait for a decision */
    int64_t oldest_ns; /* wall clock, 0 none */
};
void publish_count(struct publisher *p, const char *path, struct publish_counts *ret);
/* Is an object below path the source or base of something that is not done? */
bool publish_needs_below(struct publisher *p, const char *path);
/* The key of a delete at path or below that is refused; owned, NULL: there is none. *ret_err: what the last try came to; -EBUSY and -ENOSPC: who has the file open needs the object. */
char *publish_find_refused(struct publisher *p, const char *path, int *ret_err);
/* Returns once nobody holds the publisher's lock. */
void publish_touch(struct publisher *p);
/* Waits until nothing is left under path or the deadline (monotonic ns, 0 none) passes: 0, -ETIMEDOUT, -EIO when nothing of what is left gets on without a
 * decision: parked, lost, a delete that is refused, left open by a daemon that ended, or waiting for such, there or elsewhere. A file that was never closed does not count while a writer has it open.
 * tick is called about 4 times a second; non-zero from it ends the wait with -ECANCELED. */
int publish_wait(struct publisher *p, const char *path, uint64_t deadline_ns,
                 int (*tick)(void *ctx, const struct publish_counts *left), void *ctx) MUST_CHECK;
/* Publishes one file now and waits (close=remote, fsync=remote): ignores holds; snapshot while writers are active. When the program that asked waits no longer (patience.h) what
 * is being sent goes on behind. */
int publish_now(struct fs *fs, struct inode *in, uint64_t deadline_ns) MUST_CHECK;
/* The same of a file that was closed and is open again, which others wait for: only while all that was closed is still in it (content_keeps_closed()), else -ECANCELED. */
int publish_closed_now(struct fs *fs, struct inode *in, uint64_t deadline_ns) MUST_CHECK;
/* Does what was closed later wait for the file, which was closed and is open again? *ret_due: it waits for nobody itself, so that publish_closed_now() may do something. */
bool publish_keeps_others(struct fs *fs, uint64_t ino, bool *ret_due);
/* Others do not wait for the file any more, of which a descriptor was closed, but never the last. */
void publish_let_go(struct fs *fs, uint64_t ino);
/* For `info`: state ("uploading", "held", "parked", ...), error text, path that blocks it. Strings static or owned by the JSON object. */
void publish_describe(struct publisher *p, uint64_t op_seq, json_t *obj);
/* Each op with its path. */
void publish_each(struct publisher *p, void (*fn)(void *ctx, const struct meta_op *op, const char *path, int err),
                  void *ctx);
/* `publish --retry`: tries again now, also parked and held ones. `--skip`: parked ones and losers no longer block; a parked one's local copy stays until the
 * name's next change, a loser stays a conflict. Conflicts not set aside yet are left alone by both, unless --conflict overwrite leaves them as they are for ever;
 * losers are retried by conflict_keep_mine(). What was closed and is open again no longer blocks after --skip, and is published after its next close. Both return the number of ops touched, or -errno of the database: they may not be tried again after a crash, and not all were skipped. */
int publish_retry(struct publisher *p, const char *path);
int publish_skip(struct publisher *p, const char *path);
