/*
 * Private to the upload code of cache/: one session per cfile (upload_session.c, upload_part.c), the pool all sessions share
 * (upload_pool.c), the stream behind the write front (upload_stream.c), copies inside the store (upload_copy.c), parts shared with earlier objects (upload_delta.c) and publishing (cache_publish.c).
 *
 * A session is made with the first stream or publish of a cfile, hangs on cf->upload and lives until the cfile goes; whoever holds a
 * reference of the cfile may use it. Its multipart upload comes and goes meanwhile (upload_id NULL: none).
 *
 * States of a part, all under u->mu:
 *
 *   none --queue--> queued --worker--> sending --stored, not written meanwhile--> stored --written--> stale --queue--> queued
 *    ^                 |                  |----- stored, but written meanwhile ------------------------^
 *    +--- cancelled ---+---- failed ------+   (back to stale when the store holds an older version of the part)
 *
 * A stale part is compared by CRC32C before it is sent again: bytes that did not change cost a read, not a request.
 *
 * Locks: u->mu (UPLOAD) before pool->mu (UPLOAD_POOL) before those of the files; none is held over store, disk or database calls.
 */
#pragma once
#include "base/sync.h"
#include "cache_internal.h"
#include "upload_layout.h"

#include <glib.h>

enum upload_part_state { PART_NONE, PART_QUEUED, PART_SENDING, PART_STORED, PART_STALE };

struct upload_part {
    int state;       /* enum upload_part_state, moved by upload_part_move only */
    bool copied;     /* made by part copy: crc32c is not known */
    uint64_t writes; /* grows with each write to the range: what was read before a change is not current */
    /* what the store holds; etag not set: nothing */
    uint64_t size;
    uint32_t crc32c;
    struct etag etag;
    uint8_t sha256[OBJ_DIGEST_BYTES]; /* zeros: not known */
    bool saved;                       /* copied from an earlier object that has the same bytes */
};

#define UPLOAD_SPANS_MAX 32
struct upload_span {
    uint64_t start, end;
};

struct upload {
    /* immutable after new */
    struct cfile *cf; /* borrowed: outlives the session */
    struct upload_pool *pool;
    struct upload_layout layout;

    struct mutex mu;     /* UPLOAD */
    struct cond changed; /* a part ended, created, publish ended */
    /* guarded by mu */
    char *key;       /* owned; NULL: no upload planned */
    char *upload_id; /* owned; NULL: not created */
    struct posix_attr posix;
    char token[TOKEN_MAX + 1];
    GArray *parts; /* struct upload_part, as many as were touched */
    uint64_t stored_bytes;
    uint32_t n_active; /* parts queued or sending */
    int err;           /* first failure since it was cleared */
    bool creating;
    bool publishing, abort_wanted;
    bool dropping; /* a thread is taking the upload away: nobody begins anything */
    bool copying;  /* parts are copied from the source or fail */
    int give_up;   /* atomic: requests of its parts end soon */
    bool copy_unchanged;
    bool maybe_completed; /* a Complete of unknown outcome may be at work in the store */
    bool token_spoilt;    /* and parts were stored since: an object with the token need not be of them */
    GPtrArray *bases;     /* struct cache_delta_base, owned: objects that may share parts; NULL: none asked for */
    unsigned bases_as_of; /* c->delta_made when they were asked for */
    unsigned n_drops;     /* what was asked before one of these is not believed: it may have what was dropped */
    GBytes *sums;         /* borrowed from the request while publishing, NULL: none */
    uint64_t size;        /* of the file as the running publish or copy sees it; streaming: 0, whole parts only */
    /* stream: guarded by mu */
    bool streaming;
    uint64_t front;       /* everything before it was written */
    uint32_t next_part;   /* first part not yet queued by the stream */
    uint64_t retry_at_ns; /* nothing is streamed before, after a failure */
    uint32_t n_sending;   /* parts of the stream on their way to the store */
    uint32_t window_8ths; /* how many may be, in eighths: at least one, never less than before */
    uint64_t fastest_ns;  /* of the parts it sent */
    uint32_t n_ahead;
    struct upload_span ahead[UPLOAD_SPANS_MAX]; /* written beyond the front, ascending, disjoint */

    /* guarded by pool->mu */
    GQueue todo; /* part numbers + 1 */
    bool ready;  /* in pool->ready */
};

/* ---- upload_session.c ---- */

/* The cfile's session, NULL if none was made. */
struct upload *upload_of(struct cfile *cf);
/* The cfile's session, made if there is none. */
struct upload *upload_ensure(struct cfile *cf);
/* Part i, the table grown to hold it. The pointer is valid until the next call. */
struct upload_part *upload_part_locked(struct upload *u, uint32_t i) REQUIRES(u->mu);
void upload_part_move(struct upload_part *p, enum upload_part_state to);
/* Marks what lies in [off, end) as written; end UINT64_MAX: all from off. */
void upload_mark_written_locked(struct upload *u, uint64_t off, uint64_t end) REQUIRES(u->mu);
void upload_queue_part_locked(struct upload *u, uint32_t i) REQUIRES(u->mu);
/* Takes back what no worker has begun. The caller has a reference of the cfile. */
void upload_cancel_locked(struct upload *u) REQUIRES(u->mu);
/* Cancels and waits until no worker is on this session. */
void upload_quiesce_locked(struct upload *u) REQUIRES(u->mu);
/* The same, but requests under way for parts are ended too: not for what is to be published. */
void upload_give_up_locked(struct upload *u) REQUIRES(u->mu);
/* Creates the multipart upload if there is none and records it. One thread does it, others wait. */
int upload_create(struct upload *u) EXCLUDES(u->mu);
/* Forgets the upload: parts none, id gone. The store and the records are not touched. Nothing may be active. */
void upload_reset_locked(struct upload *u) REQUIRES(u->mu);
/* Aborts the upload in the store and forgets it, records included. Nothing may be active. An upload that could not be aborted keeps its record. */
void upload_drop(struct upload *u) EXCLUDES(u->mu);
/* Before the upload is taken away while others may use the session: nothing is begun until upload_end_drop(). False: it is being published. */
bool upload_begin_drop_locked(struct upload *u) REQUIRES(u->mu);
/* The upload is dropped: others are let in again. */
void upload_let_in_locked(struct upload *u) REQUIRES(u->mu);
/* Drops the upload and lets others in again. */
void upload_end_drop(struct upload *u) EXCLUDES(u->mu);
/* Removes the records of the upload that rec names, if they still are of that one. */
int upload_forget_record(struct cache *c, const struct meta_upload *rec) MUST_CHECK;
/* Aborts what rec names, then removes the record if it still names it. 0 when nothing is left. */
int upload_abort_recorded(struct cache *c, const struct meta_upload *rec) MUST_CHECK;
/* Aborts the upload that is recorded for vid, if there is one, and forgets it. */
int upload_clear_record(struct cache *c, uint64_t vid) MUST_CHECK;
/* Name of the meta value that keeps the token of vid's upload. */
char *upload_token_name(uint64_t vid);
/* Name of the meta value that keeps how far the token of vid's upload can be trusted. */
char *upload_doubt_name(uint64_t vid);
/* Says so with the batch: a Complete is about to be sent, or, spoilt, a part was stored after one. */
void upload_doubt_put(struct meta_batch *b, uint64_t vid, bool spoilt);
/* What was said last of the recorded upload. */
int upload_doubt_get(struct cache *c, uint64_t vid, bool *ret_completing, bool *ret_spoilt) MUST_CHECK;

/* ---- upload_part.c ---- */

/* Brings part i to the store, or finds that it is there. Called by pool threads on queued parts. */
void upload_part_run(struct upload *u, uint32_t i) EXCLUDES(u->mu);

/* ---- upload_copy.c ---- */

/* What to return where reading the file's bytes for `key` failed with r: -ENODATA when they were to come from another object that is not what it was. */
int upload_read_error(struct cfile *cf, const char *key, int r) MUST_CHECK;

/* Whether what was read of the file is what it held when it was sealed: 0 or -EUCLEAN. sums NULL: not known, 0. */
int upload_check_sums(GBytes *sums, const char *key, const void *buf, uint64_t off, uint64_t len) MUST_CHECK;

/* ---- upload_delta.c ---- */

/* Whether sums of parts are to be taken. */
bool upload_delta_wanted(const struct upload *u);
/* Finds the bases of the upload that is about to begin, was taken over or has an active part: its key does not change meanwhile. */
void upload_delta_ask(struct upload *u) EXCLUDES(u->mu);
void upload_delta_reset_locked(struct upload *u) REQUIRES(u->mu);
/* The upload was taken over from its records: those of its parts that a base has count as copied. */
void upload_delta_resumed(struct upload *u) EXCLUDES(u->mu);
struct upload_delta_job {
    const char *key, *upload_id;
    uint64_t off;
    const void *buf;       /* the part's bytes */
    const uint8_t *sha256; /* of them */
};
/* Has the part (number and size are in) made from an earlier object that holds these bytes there. False: it is to be sent. */
bool upload_delta_copy(struct upload *u, const struct upload_delta_job *j, struct obj_part *part) EXCLUDES(u->mu);
/* A part was copied from the file's own source: its sum, if that is a base. */
void upload_delta_inherit(struct upload *u, const char *src, const struct etag *etag, uint32_t i, uint64_t len,
                          uint8_t sum[OBJ_DIGEST_BYTES]) EXCLUDES(u->mu);
/* The object was made from the parts as they are. */
void upload_delta_made(struct upload *u, const char *key, const struct etag *etag, uint64_t size) EXCLUDES(u->mu);

/* ---- upload_resume.c ---- */

/* Takes over an upload that an earlier run recorded for the same key: its parts become stale ones, compared before use. Another key, another
 * layout, or an upload that is gone: aborted and forgotten. *ret_done: the upload is gone because it was completed, and the object holds what the
 * records say: *ret_info tells of it (to be cleared by the caller). */
int upload_resume(struct upload *u, const char *key, uint64_t size, bool *ret_done, struct obj_info *ret_info)
    MUST_CHECK;

/* ---- upload_pool.c ---- */

/* Queue part i of u; round-robin over sessions. Called with u->mu held. */
void upload_pool_push(struct upload *u, uint32_t i);
/* Removes all of u's parts that no worker has taken and appends their numbers (uint32_t) to out. Called with u->mu held. */
void upload_pool_take_back(struct upload *u, GArray *out);
/* Aborts a recorded upload behind; takes over the record's strings. */
void upload_pool_abort_later(struct upload_pool *pool, struct meta_upload *rec);
/* More than half of the workers have nothing to do. Called with u->mu held. */
bool upload_pool_is_idle(struct upload_pool *pool);
/* Memory for n bytes of a part out of the one budget; waits its turn. NULL: out of memory or stopping. */
void *upload_buf_get(struct upload_pool *pool, size_t n);
void upload_buf_put(struct upload_pool *pool, void *buf, size_t n);
/* Most bytes ever out at once, and the budget (tests). */
uint64_t upload_pool_peak_bytes(struct upload_pool *pool);
uint64_t upload_pool_budget_bytes(struct upload_pool *pool);

/* ---- upload_stream.c ---- */

/* Queues the parts that lie a part behind the front. */
void upload_stream_advance_locked(struct upload *u) REQUIRES(u->mu);
/* Before a part of the stream is sent: waits until fewer are on their way than may be, which one of these ends, or until it is no stream any more. The next one may be read then. */
void upload_stream_enter(struct upload *u) EXCLUDES(u->mu);
/* After it. */
void upload_stream_leave(struct upload *u) EXCLUDES(u->mu);
/* A part was sent in that time: perhaps more of them may be on their way at once. */
void upload_stream_widen_locked(struct upload *u, uint64_t took_ns) REQUIRES(u->mu);
/* Takes note of a write for the front. */
void upload_stream_note_locked(struct upload *u, uint64_t off, uint64_t len) REQUIRES(u->mu);
