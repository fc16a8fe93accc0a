/*
 * The benchmark itself: a table of operations, each run by N threads (bench_run.h).
 *
 * The main thread starts the threads of a row, then only watches: it draws the progress line and looks for a signal, fifty times a second. A
 * first signal ends the measuring and still removes the keys; a second one gives that up too. All objects hold bytes of one random
 * buffer, so that a read can be checked in place: object i is the buffer, a range of it the same range of the buffer.
 * Shared between threads: the buffer and the options (constant), and the store.
 */
#include "tools/objbench.h"

#include "base/clock.h"
#include "tools/bench_run.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define RANGE_BYTES  (1u << 20)
#define SMALL_BYTES  4096u
#define LIST_CALLS   8u
#define LARGE_DIR    "large/"
#define SMALL_DIR    "small/"
#define PARTS_DIR    "parts/"
#define WATCH_MS     20
#define MAX_ATTEMPTS 3 /* at a key that will not go away */

struct bench {
    const struct objbench_options *o;
    struct objstore *st; /* owned */
    char *prefix;        /* owned; ends in '/' */
    uint8_t *buf;        /* owned; object_bytes or SMALL_BYTES, the larger */
    uint64_t max_large;  /* objects written so far, numbers below this exist or may */
    uint64_t max_small;
    unsigned n_signals;
    char *upload_id;      /* owned; of the parts of the row at work */
    struct bench_job job; /* the row at work */
    GArray *rows;         /* owned; struct bench_row */
};

struct op {
    const char *name;
    bench_call_fn *call; /* of a struct bench */
    bool small;
    uint64_t (*n_calls)(const struct bench *b, unsigned concurrency);
    uint64_t (*call_bytes)(const struct bench *b); /* NULL: none to speak of */
    int (*begin)(struct bench *b);                 /* not measured; NULL: nothing to do */
    int (*end)(struct bench *b);                   /* where begin succeeded, also after a failure */
};

/* ---- calls ---- */

static char *key_of(const struct bench *b, const char *dir, uint64_t i)
{
    return g_strdup_printf("%s%s%08" PRIu64, b->prefix, dir, i);
}

static uint64_t n_large(const struct bench *b, unsigned concurrency)
{
    uint64_t n = b->o->size_bytes / b->o->object_bytes;
    return MAX(n, concurrency);
}

static uint64_t n_parts(const struct bench *b, unsigned concurrency)
{
    return MIN(n_large(b, concurrency), objstore_limits(b->st)->parts_max);
}

static uint64_t n_small(const struct bench *b, unsigned concurrency)
{
    return b->o->n_small;
}

static uint64_t ranges_per_object(const struct bench *b)
{
    return (b->o->object_bytes + RANGE_BYTES - 1) / RANGE_BYTES;
}

static uint64_t n_ranges(const struct bench *b, unsigned concurrency)
{
    return n_large(b, concurrency) * ranges_per_object(b);
}

static uint64_t n_lists(const struct bench *b, unsigned concurrency)
{
    return MAX(LIST_CALLS, concurrency);
}

static uint64_t large_bytes(const struct bench *b)
{
    return b->o->object_bytes;
}

static uint64_t range_bytes(const struct bench *b)
{
    return MIN(b->o->object_bytes, RANGE_BYTES);
}

static uint64_t small_bytes(const struct bench *b)
{
    return SMALL_BYTES;
}

struct verify {
    const uint8_t *buf;
    uint64_t len, n_seen;
};

static int verify_sink(void *ctx, uint64_t off, const void *buf, size_t len)
{
    struct verify *v = ctx;
    if (off > v->len || len > v->len - off || memcmp(v->buf + off, buf, len) != 0)
        return -EBADMSG;
    v->n_seen += len;
    return 0;
}

static int get_range(struct bench *b, const char *key, uint64_t size, uint64_t off, uint64_t len)
{
    struct verify v = {.buf = b->buf, .len = size};
    int r = objstore_get(b->st, key, off, len, NULL, verify_sink, &v, NULL);
    return r == 0 && v.n_seen != len ? -EBADMSG : r;
}

static int put(struct bench *b, const char *dir, uint64_t i, uint64_t len)
{
    const struct obj_meta meta = {0};
    const struct obj_cond any = {.kind = OBJ_COND_NONE};
    g_autofree char *key = key_of(b, dir, i);
    return objstore_put(b->st, key, b->buf, len, &meta, &any, NULL);
}

static int call_put(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    return put(b, LARGE_DIR, i, b->o->object_bytes);
}

static int begin_parts(struct bench *b)
{
    const struct obj_meta meta = {0};
    g_autofree char *key = key_of(b, PARTS_DIR, 0);
    return objstore_mpu_create(b->st, key, &meta, &b->upload_id);
}

static int call_put_part(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    struct obj_part part = {.number = (uint32_t)i + 1, .size = b->o->object_bytes};
    g_autofree char *key = key_of(b, PARTS_DIR, 0);
    return objstore_mpu_part(b->st, key, b->upload_id, b->buf, &part);
}

static int end_parts(struct bench *b)
{
    g_autofree char *id = g_steal_pointer(&b->upload_id), *key = key_of(b, PARTS_DIR, 0);
    int r = objstore_mpu_abort(b->st, key, id);
    for (unsigned attempt = 1; r < 0 && attempt < MAX_ATTEMPTS && b->n_signals < 2; attempt++)
        r = objstore_mpu_abort(b->st, key, id);
    return r;
}

static int call_get(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    g_autofree char *key = key_of(b, LARGE_DIR, i);
    return get_range(b, key, b->o->object_bytes, 0, b->o->object_bytes);
}

static int call_get_range(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    uint64_t per = ranges_per_object(b), size = b->o->object_bytes;
    uint64_t off = i % per * RANGE_BYTES;
    g_autofree char *key = key_of(b, LARGE_DIR, i / per);
    return get_range(b, key, size, off, MIN(RANGE_BYTES, size - off));
}

static int call_small_put(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    return put(b, SMALL_DIR, i, SMALL_BYTES);
}

static int call_small_get(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    g_autofree char *key = key_of(b, SMALL_DIR, i);
    return get_range(b, key, SMALL_BYTES, 0, SMALL_BYTES);
}

static int call_small_head(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    struct obj_info info = {0};
    g_autofree char *key = key_of(b, SMALL_DIR, i);
    int r = objstore_head(b->st, key, &info);
    if (r == 0 && info.size != SMALL_BYTES)
        r = -EBADMSG;
    obj_info_clear(&info);
    return r;
}

static int count_row(void *ctx, const struct obj_entry *entry)
{
    (*(uint64_t *)ctx)++;
    return 0;
}

static int call_list(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    uint64_t n = 0;
    g_autofree char *dir = g_strconcat(b->prefix, SMALL_DIR, NULL);
    const struct obj_list_req req = {.prefix = dir, .delimiter = true};
    int r = objstore_list(b->st, &req, count_row, &n, NULL);
    return r == 0 && n != b->o->n_small ? -EBADMSG : r;
}

static int remove_key(struct bench *b, const char *dir, uint64_t i)
{
    const struct obj_cond any = {.kind = OBJ_COND_NONE};
    g_autofree char *key = key_of(b, dir, i);
    return objstore_delete(b->st, key, &any);
}

static int call_delete_large(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    return remove_key(b, LARGE_DIR, i);
}

static int call_delete_small(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    return remove_key(b, SMALL_DIR, i);
}

static uint64_t n_written_large(const struct bench *b, unsigned concurrency)
{
    return b->max_large;
}

static uint64_t n_written_small(const struct bench *b, unsigned concurrency)
{
    return b->max_small;
}

static const struct op ops[] = {
    {"put", call_put, false, n_large, large_bytes, NULL, NULL},
    {"put-part", call_put_part, false, n_parts, large_bytes, begin_parts, end_parts}, /* as a mount uploads */
    {"get", call_get, false, n_large, large_bytes, NULL, NULL},
    {"get-range", call_get_range, false, n_ranges, range_bytes, NULL, NULL},
    {"small-put", call_small_put, true, n_small, small_bytes, NULL, NULL},
    {"small-head", call_small_head, true, n_small, NULL, NULL, NULL},
    {"small-get", call_small_get, true, n_small, small_bytes, NULL, NULL},
    {"list", call_list, true, n_lists, NULL, NULL, NULL},
};
static const struct op delete_large = {"delete", call_delete_large, false, n_written_large, NULL, NULL, NULL};
static const struct op delete_small = {"small-delete", call_delete_small, true, n_written_small, NULL, NULL, NULL};

/* ---- one row ---- */

static bool signalled(struct bench *b, int timeout_ms)
{
    struct pollfd p = {.fd = b->o->signal_fd, .events = POLLIN};
    if (poll(&p, 1, timeout_ms) <= 0) /* a negative descriptor is never ready: only the pause */
        return false;
    char si[128]; /* a struct signalfd_siginfo */
    (void)!read(p.fd, si, sizeof(si));
    b->n_signals++;
    return true;
}

static bool watch(void *ctx, uint64_t n_done)
{
    struct bench *b = ctx;
    bool stop = signalled(b, WATCH_MS);
    if (stop && b->n_signals > 1)
        objstore_shutdown(b->st);
    if (b->o->progress)
        fprintf(stderr, "\r%-12s %3u threads %8" PRIu64 "/%-8" PRIu64, b->job.name, b->job.threads, n_done,
                b->job.n_calls);
    return stop;
}

static int run_row(struct bench *b, const struct op *op, unsigned concurrency)
{
    struct bench_row row;
    b->job = (struct bench_job){.name = op->name,
                                .call = op->call,
                                .watch = watch,
                                .ctx = b,
                                .n_calls = op->n_calls(b, concurrency),
                                .threads = concurrency};
    if (b->job.n_calls == 0)
        return 0;
    int r = op->begin ? op->begin(b) : 0;
    if (r < 0)
        return r;
    r = bench_run(&b->job, &row);
    int ended = op->end ? op->end(b) : 0;
    if (r == 0)
        r = ended;
    if (b->o->progress)
        fprintf(stderr, "\r%60s\r", "");
    if (r < 0)
        return r;
    row.bytes = op->call_bytes != NULL ? row.n_ops * op->call_bytes(b) : 0;
    if (op->call == call_get_range) /* the last range of an object may be short */
        row.bytes = row.n_ops / ranges_per_object(b) * b->o->object_bytes;
    g_array_append_val(b->rows, row);
    return 0;
}

/* ---- the whole ---- */

static int measure(struct bench *b, char **ret_msg)
{
    for (size_t c = 0; c < b->o->n_concurrency; c++) {
        unsigned concurrency = b->o->concurrency[c];
        b->max_large = MAX(b->max_large, n_large(b, concurrency));
        b->max_small = b->o->n_small;
        for (size_t i = 0; i < G_N_ELEMENTS(ops); i++) {
            if (ops[i].small && b->o->n_small == 0)
                continue;
            int r = run_row(b, &ops[i], concurrency);
            if (r == -EBADMSG)
                *ret_msg = g_strdup_printf("%s: the store gave back something else than was written", ops[i].name);
            else if (r < 0)
                *ret_msg = g_strdup_printf("%s: %s", ops[i].name, r == -EINTR ? "interrupted" : err_text(r));
            if (r < 0)
                return r;
        }
    }
    return 0;
}

/* Removes what was or may have been written. */
static int clean(struct bench *b)
{
    unsigned concurrency = 1;
    for (size_t c = 0; c < b->o->n_concurrency; c++)
        concurrency = MAX(concurrency, b->o->concurrency[c]);
    int r = 0;
    for (unsigned attempt = 0; attempt < MAX_ATTEMPTS && b->n_signals < 2; attempt++) {
        r = run_row(b, &delete_large, concurrency);
        if (r == 0)
            r = run_row(b, &delete_small, concurrency);
        if (r == 0)
            return 0;
    }
    return r < 0 ? r : -EINTR;
}

static int fill(struct bench *b, char **ret_msg)
{
    uint64_t len = MAX(b->o->object_bytes, SMALL_BYTES);
    b->buf = g_try_malloc(len);
    if (b->buf == NULL) {
        *ret_msg = g_strdup("not enough memory for one object; choose a smaller --object-size");
        return -ENOMEM;
    }
    uint64_t x = (uint64_t)clock_wall_ns() | 1; /* xorshift: bytes that do not compress */
    for (uint64_t i = 0; i + 8 <= len; i += 8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(b->buf + i, &x, 8);
    }
    memset(b->buf + len / 8 * 8, 0x5a, len % 8);
    uint64_t id = 0;
    if (getrandom(&id, sizeof(id), 0) != sizeof(id))
        id = x;
    b->prefix = g_strdup_printf(".sluice-objbench-%016" PRIx64 "/", id);
    return 0;
}

static int prepare(struct bench *b, uint32_t *ret_caps, char **ret_msg)
{
    int r = objstore_open(&b->o->store, &b->st, ret_msg);
    if (r < 0)
        return r;
    r = objstore_check(b->st, ret_msg);
    if (r < 0)
        return r;
    if (b->o->object_bytes > objstore_limits(b->st)->put_max_bytes) {
        *ret_msg = g_strdup_printf("--object-size is beyond the store's %" PRIu64 " bytes for one PUT",
                                   objstore_limits(b->st)->put_max_bytes);
        return -EFBIG;
    }
    r = fill(b, ret_msg);
    if (r < 0)
        return r;
    r = objstore_probe(b->st, b->prefix, ret_caps);
    if (r < 0)
        *ret_msg = g_strdup_printf(
            "the probe of the store failed: %s (the credentials must allow PUT, GET, LIST and DELETE)", err_text(r));
    return r;
}

int objbench_run(const struct objbench_options *o, FILE *out, char **ret_msg)
{
    struct bench b = {.o = o, .rows = g_array_new(FALSE, TRUE, sizeof(struct bench_row))};
    uint32_t caps = 0;
    char *msg = NULL;
    int r = prepare(&b, &caps, &msg);
    if (r == 0) {
        r = measure(&b, &msg);
        int rc = clean(&b);
        if (rc < 0) {
            g_autofree char *before = msg;
            msg = g_strdup_printf("%s%skeys remain under %s/%s: %s", before != NULL ? before : "",
                                  before != NULL ? "; " : "", objstore_source(b.st), b.prefix, err_text(rc));
            r = r < 0 ? r : rc;
        }
    }
    if (r == 0) {
        const struct objbench_report report = {.source = objstore_source(b.st),
                                               .identity = objstore_identity(b.st),
                                               .caps = caps,
                                               .options = o,
                                               .rows = &g_array_index(b.rows, struct bench_row, 0),
                                               .n_rows = b.rows->len};
        (o->json ? objbench_report_json : objbench_report_text)(&report, out);
    } else {
        *ret_msg = msg != NULL ? msg : g_strdup(err_text(r));
    }
    objstore_close(b.st);
    g_array_free(b.rows, TRUE);
    g_free(b.prefix);
    g_free(b.buf);
    return r;
}
