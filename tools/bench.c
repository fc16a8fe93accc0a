/*
 * What `sluice bench` measures: a table of items on one big file, and one of items on small files for each number of threads.
 *
 * Calls run in the threads of bench_run(); the starting thread only draws progress. Shared between threads: struct bench, constant while
 * they run, except that each has its own buffer and the items on the big file, which close it, have one thread.
 */
#include "tools/bench.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "tools/ctl_client.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BIG_FILE    0u /* number of the file in its stamps */
#define BIG_NAME    "big"
#define KIB         1024u
#define LIST_CALLS  8u
#define WATCH_US    20000
#define PROGRESS_NS (NS_PER_S / 4)
#define CTL_QUIET_S 60
#define ALL_OF_IT   1u
#define A_QUARTER   4u
#define A_SIXTEENTH 16u

struct bench {
    struct bench_options *o;
    struct bench_data data;
    char *big_path;
    bool asks; /* the daemon of the sluice mount answers */
    char *io;  /* owned; what it said last of the big file */
    struct bench_job job;
    uint8_t *bufs[BENCH_MAX_THREADS]; /* owned, one per thread of the job */
    uint64_t shown_ns;
    uint64_t call_bytes, total_bytes; /* of the job */
    bool per_file;                    /* a call of it is a file */
    /* the big file */
    int fd;
    const uint8_t *map;
    uint64_t block;
    uint64_t written_from_ns;
    /* the small files of one set */
    int small_dir;
    uint64_t first_small; /* number of the first in its stamps */
    unsigned n_small;
};

struct item {
    const char *name, *unit;
    bench_call_fn *call;
    uint64_t block; /* of the big file a call takes; 0: small files */
    unsigned share; /* one of `share` parts of the big file is read */
    const char *pages;
};

/* ---- calls ---- */

static int write_all(int fd, const uint8_t *buf, uint64_t len)
{
    while (len > 0) {
        ssize_t n = RET_ERRNO(write(fd, buf, len));
        if (n < 0 && n != -EINTR)
            return (int)n;
        if (n > 0) {
            buf += n;
            len -= (uint64_t)n;
        }
    }
    return 0;
}

/* A file that ends before has lost bytes: -EBADMSG. */
static int read_all(int fd, uint8_t *buf, uint64_t off, uint64_t len)
{
    while (len > 0) {
        ssize_t n = RET_ERRNO(pread(fd, buf, len, (off_t)off));
        if (n <= 0 && n != -EINTR)
            return n < 0 ? (int)n : -EBADMSG;
        if (n > 0) {
            buf += n;
            off += (uint64_t)n;
            len -= (uint64_t)n;
        }
    }
    return 0;
}

/* Blocks that the big file has; the last may be short. */
static uint64_t n_blocks(const struct bench *b)
{
    return (b->o->size_bytes + b->block - 1) / b->block;
}

static uint64_t block_len(const struct bench *b, uint64_t off)
{
    return MIN(b->block, b->o->size_bytes - off);
}

static int call_write(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    uint64_t off = i * b->block, len = block_len(b, off);
    bench_data_stamp(&b->data, b->bufs[thread], BIG_FILE, off, len);
    int r = write_all(b->fd, b->bufs[thread], len);
    if (r < 0 || off + len < b->o->size_bytes)
        return r;
    r = RET_ERRNO(close(b->fd));
    b->fd = -1;
    return r;
}

static int read_block(struct bench *b, unsigned thread, uint64_t block)
{
    uint64_t off = block * b->block, len = block_len(b, off);
    int r = read_all(b->fd, b->bufs[thread], off, len);
    return r < 0 ? r : bench_data_check(&b->data, b->bufs[thread], BIG_FILE, off, len, false);
}

static int call_read(void *ctx, unsigned thread, uint64_t i)
{
    return read_block(ctx, thread, i);
}

static int call_random(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    return read_block(b, thread, bench_mix(b->data.seed ^ i) % n_blocks(b));
}

static int call_mmap(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    uint64_t off = i * b->block;
    return bench_data_check(&b->data, b->map + off, BIG_FILE, off, block_len(b, off), true);
}

struct small_name {
    char s[24];
};

static struct small_name small_name(uint64_t i)
{
    struct small_name name;
    g_snprintf(name.s, sizeof name.s, "%08" G_GUINT64_FORMAT, i);
    return name;
}

static int call_small_write(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    CLEANUP_FD int fd = RET_ERRNO(openat(b->small_dir, small_name(i).s, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (fd < 0)
        return fd;
    bench_data_stamp(&b->data, b->bufs[thread], b->first_small + i, 0, BENCH_SMALL_BYTES);
    int r = write_all(fd, b->bufs[thread], BENCH_SMALL_BYTES);
    return r < 0 ? r : RET_ERRNO(close(steal_fd(&fd)));
}

static int call_small_stat(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    struct stat st;
    int r = RET_ERRNO(fstatat(b->small_dir, small_name(i).s, &st, AT_SYMLINK_NOFOLLOW));
    return r == 0 && st.st_size != BENCH_SMALL_BYTES ? -EBADMSG : r;
}

static int call_small_read(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    CLEANUP_FD int fd = RET_ERRNO(openat(b->small_dir, small_name(i).s, O_RDONLY | O_CLOEXEC));
    if (fd < 0)
        return fd;
    int r = read_all(fd, b->bufs[thread], 0, BENCH_SMALL_BYTES);
    if (r == 0)
        r = bench_data_check(&b->data, b->bufs[thread], b->first_small + i, 0, BENCH_SMALL_BYTES, false);
    return r < 0 ? r : RET_ERRNO(close(steal_fd(&fd)));
}

static int call_list(void *ctx, unsigned thread, uint64_t i)
{
    struct bench *b = ctx;
    int fd = RET_ERRNO(openat(b->small_dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return fd;
    DIR *d = fdopendir(fd);
    if (!d) {
        (void)close(fd); /* nothing was read or written */
        return -ENOMEM;
    }
    unsigned n = 0;
    errno = 0;
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    int r = errno ? -errno : n == b->n_small ? 0 : -EBADMSG;
    (void)closedir(d); /* cannot fail on what was opened */
    return r;
}

static const struct item write_item = {"write", "MB/s", call_write, BENCH_BLOCK, ALL_OF_IT, NULL};
static const struct item big_items[] = {
    {"read", "MB/s", call_read, BENCH_BLOCK, ALL_OF_IT, "warm"},
    {"read-again", "MB/s", call_read, BENCH_BLOCK, ALL_OF_IT, "dropped"},
    {"mmap", "MB/s", call_mmap, BENCH_BLOCK, ALL_OF_IT, "warm"},
    {"random-128k", "MB/s", call_random, 128 * KIB, A_QUARTER, "dropped"},
    {"random-4k", "reads/s", call_random, BENCH_PAGE, A_SIXTEENTH, "dropped"},
};
static const struct item small_items[] = {
    {"small-write", "files/s", call_small_write, 0, 0, NULL},
    {"small-stat", "files/s", call_small_stat, 0, 0, "warm"},
    {"small-read", "files/s", call_small_read, 0, 0, "warm"},
};
static const struct item list_item = {"readdir", "lists/s", call_list, 0, 0, NULL};

/* ---- one item ---- */

static bool watch(void *ctx, uint64_t n_done)
{
    struct bench *b = ctx;
    (void)usleep(WATCH_US); /* only a pause */
    uint64_t now = clock_mono_ns();
    if (now - b->shown_ns < PROGRESS_NS)
        return false;
    b->shown_ns = now;
    uint64_t files = b->per_file ? b->job.n_calls : 1;
    json_t *line = json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "event", "progress", "item", b->job.name, "files_done",
                             (json_int_t)(b->per_file ? n_done : n_done / b->job.n_calls), "files_total",
                             (json_int_t)files, "bytes_done", (json_int_t)MIN(n_done * b->call_bytes, b->total_bytes),
                             "bytes_total", (json_int_t)b->total_bytes);
    progress_line(&b->o->progress, line);
    json_decref(line);
    return false; /* signals just end the process */
}

static int take_buffers(struct bench *b, unsigned threads)
{
    for (unsigned i = 0; i < threads; i++) {
        b->bufs[i] = bench_data_copy(&b->data);
        if (!b->bufs[i])
            return -ENOMEM;
    }
    return 0;
}

static void drop_buffers(struct bench *b)
{
    for (unsigned i = 0; i < BENCH_MAX_THREADS; i++)
        g_clear_pointer(&b->bufs[i], g_free);
}

static int complain_of(const char *item, int r)
{
    complain("%s: %s", item, r == -EBADMSG ? "something else came back than was written" : err_text(r));
    return r;
}

/* Makes n_calls of the item, total_bytes in all, and prints the row. */
static int run_item(struct bench *b, const struct item *item, unsigned threads, uint64_t n_calls, const char *pages)
{
    struct bench_result result = {.unit = item->unit, .pages = pages, .io = item->block ? b->io : NULL};
    b->job = (struct bench_job){
        .name = item->name, .call = item->call, .watch = watch, .ctx = b, .n_calls = n_calls, .threads = threads};
    b->per_file = item->block == 0;
    progress_restart(&b->o->progress, item->name);
    int r = take_buffers(b, threads);
    if (r == 0)
        r = bench_run(&b->job, &result.row);
    drop_buffers(b);
    progress_erase(&b->o->progress);
    if (r < 0)
        return complain_of(item->name, r);
    result.row.bytes = b->total_bytes;
    bench_report_row(b->o, &result);
    return 0;
}

/* ---- the big file ---- */

static void on_info(void *ctx, const json_t *line)
{
    struct bench *b = ctx;
    const char *io = json_string_value(json_object_get(line, "io"));
    if (!io)
        return;
    g_free(b->io);
    b->io = g_strdup(io);
}

/* How the open file is reached. */
static void ask_io(struct bench *b)
{
    char *paths[] = {b->big_path, NULL};
    if (b->asks) /* without an answer the row says nothing */
        (void)ctl_request_paths(paths, json_pack("{s:s}", "verb", "info"), CTL_QUIET_S, on_info, b);
}

static int open_big(struct bench *b, int flags)
{
    b->fd = RET_ERRNO(open(b->big_path, flags | O_CLOEXEC, 0644));
    if (b->fd < 0)
        return complain_of(b->big_path, b->fd);
    ask_io(b);
    return 0;
}

static int write_big(struct bench *b)
{
    b->block = write_item.block;
    b->call_bytes = b->block;
    b->total_bytes = b->o->size_bytes;
    int r = open_big(b, O_WRONLY | O_CREAT | O_EXCL);
    if (r < 0)
        return r;
    b->written_from_ns = clock_mono_ns();
    return run_item(b, &write_item, 1, n_blocks(b), write_item.pages);
}

/* Waits until the big file is in the store. */
static int publish_big(struct bench *b)
{
    char *paths[] = {b->big_path, NULL};
    progress_restart(&b->o->progress, "published");
    json_t *req = json_pack("{s:s,s:I}", "verb", "wait", "timeout_s", (json_int_t)0);
    int code = ctl_request_paths(paths, req, CTL_QUIET_S, progress_on_line, &b->o->progress);
    uint64_t ns = clock_mono_ns() - b->written_from_ns;
    progress_erase(&b->o->progress);
    if (code != EXIT_DONE)
        return -EIO; /* ctl_request complained */
    const struct bench_result result = {.row = {.op = "write-published",
                                                .threads = 1,
                                                .n_ops = 1,
                                                .bytes = b->o->size_bytes,
                                                .elapsed_ns = ns,
                                                .p50_ns = ns,
                                                .p99_ns = ns},
                                        .unit = "MB/s",
                                        .io = b->io};
    bench_report_row(b->o, &result);
    return 0;
}

static int map_big(struct bench *b)
{
    void *map = mmap(NULL, b->o->size_bytes, PROT_READ, MAP_SHARED, b->fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    b->map = map;
    return 0;
}

static int read_big(struct bench *b, const struct item *item)
{
    b->block = item->block;
    uint64_t n = MAX(n_blocks(b) / item->share, 1);
    b->call_bytes = b->block;
    b->total_bytes = MIN(n * b->block, b->o->size_bytes);
    int r = open_big(b, O_RDONLY);
    if (r < 0)
        return r;
    const char *pages = item->pages;
    if (g_str_equal(pages, "dropped") && !bench_pages_drop(b->fd, b->o->size_bytes))
        pages = "kept";
    bool maps = item->call == call_mmap;
    r = maps ? map_big(b) : 0;
    if (r == -ENODEV) {
        complain("%s: left out, this filesystem does not map files", item->name);
        r = 0;
    } else if (r < 0) {
        complain_of(item->name, r);
    } else {
        r = run_item(b, item, 1, n, pages);
    }
    if (b->map)
        (void)munmap((void *)(uintptr_t)b->map, b->o->size_bytes); /* cannot fail on what was mapped */
    b->map = NULL;
    (void)close(b->fd); /* only read */
    b->fd = -1;
    return r;
}

static int measure_big(struct bench *b)
{
    int r = write_big(b);
    if (r == 0 && b->asks)
        r = publish_big(b);
    for (unsigned i = 0; i < G_N_ELEMENTS(big_items) && r == 0; i++)
        r = read_big(b, &big_items[i]);
    return r;
}

/* ---- small files ---- */

static int measure_small(struct bench *b, const char *work_dir, unsigned set)
{
    unsigned threads = b->o->threads[set];
    b->n_small = threads * b->o->small_files;
    b->first_small = (uint64_t)(set + 1) << 32;
    g_autofree char *dir = g_strdup_printf("%s/small-%u", work_dir, set);
    int r = RET_ERRNO(mkdir(dir, 0755));
    CLEANUP_FD int fd = r < 0 ? r : RET_ERRNO(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return complain_of(dir, fd);
    b->small_dir = fd;
    for (unsigned i = 0; i < G_N_ELEMENTS(small_items) && r == 0; i++) {
        b->call_bytes = small_items[i].call == call_small_stat ? 0 : BENCH_SMALL_BYTES;
        b->total_bytes = b->n_small * b->call_bytes;
        r = run_item(b, &small_items[i], threads, b->n_small, small_items[i].pages);
    }
    b->call_bytes = 0;
    b->total_bytes = 0;
    return r < 0 ? r : run_item(b, &list_item, threads, MAX(LIST_CALLS, threads), list_item.pages);
}

/* ---- the whole ---- */

uint64_t bench_bytes(const struct bench_options *o)
{
    uint64_t n = o->size_bytes;
    for (size_t i = 0; i < o->n_threads; i++)
        n += (uint64_t)o->threads[i] * o->small_files * BENCH_SMALL_BYTES;
    return n;
}

/* Says where this is, and finds out whether a daemon can be asked. */
static void start(struct bench *b)
{
    struct mount_point mp = {0};
    bool ours = mount_holds(b->o->dir, &mp);
    b->asks = ours && ctl_daemon_pid(&mp) >= 0;
    if (ours && !b->asks)
        complain("the daemon of %s does not answer this user: when files are published is left out", mp.path);
    g_autofree char *dir = path_canonical(b->o->dir);
    const struct bench_place place = {.dir = dir, .mount = mp.path, .source = mp.source};
    bench_report_start(b->o, &place);
    mount_point_clear(&mp);
}

int bench_measure(struct bench_options *o, const char *work_dir)
{
    struct bench b = {.o = o, .fd = -1, .big_path = g_build_filename(work_dir, BIG_NAME, NULL)};
    int r = bench_data_init(&b.data);
    if (r < 0) {
        complain_of("bench", r);
    } else {
        start(&b);
        r = measure_big(&b);
    }
    for (unsigned i = 0; i < o->n_threads && o->small_files > 0 && r == 0; i++)
        r = measure_small(&b, work_dir, i);
    g_free(b.data.block);
    g_free(b.io);
    g_free(b.big_path);
    if (r == 0 && fflush(stdout) != 0)
        r = complain_of("the result", -errno);
    return r < 0 ? EXIT_FAILED : EXIT_DONE;
}
