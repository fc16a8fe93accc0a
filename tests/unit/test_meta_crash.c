/* What a crash, a damaged file, another format or a full disk does to the database, and that numbers never repeat. */
#include "meta_fixture.h"
#include "tests/support/checks.h"

#include <dlfcn.h>
#include <sys/mount.h>

static bool scans_fail;

/* Takes the place of the library's for the whole program. */
void rocksdb_iter_get_error(const void *it, char **err);
void rocksdb_iter_get_error(const void *it, char **err)
{
    void (*real)(const void *, char **) = dlsym(RTLD_NEXT, "rocksdb_iter_get_error");
    real(it, err);
    if (scans_fail && !*err)
        *err = strdup("IO error: While pread: 000009.sst: Input/output error");
}

static int stop_at_second(void *ctx, const struct meta_inode *in)
{
    uint64_t *last = ctx;
    ck_assert_uint_gt(in->ino, *last);
    *last = in->ino;
    return in->ino >= 256 ? 99 : 0;
}

static void write_pairs(void)
{
    for (unsigned i = 0; i < 500; i++) {
        struct meta_batch *b = meta_batch_new(m);
        g_autofree char *left = g_strdup_printf("left.%03u", i);
        g_autofree char *right = g_strdup_printf("right.%03u", i);
        meta_value_put(b, left, "value", 5);
        meta_value_put(b, right, "value", 5);
        commit(b);
    }
}

static int count_value(void *ctx, const char *name, const void *value, size_t len)
{
    ++*(unsigned *)ctx;
    return 0;
}

static unsigned count_values(const char *prefix)
{
    unsigned n = 0;
    ck_assert_int_eq(meta_value_each(m, prefix, count_value, &n), 0);
    return n;
}

START_TEST(unsynced_commits_survive_kill)
{
    crash_after(write_pairs);
    m = open_as("link", 0, NULL);
    ck_assert_uint_eq(count_values("left."), 500);
    ck_assert_uint_eq(count_values("right."), 500);
}
END_TEST

START_TEST(torn_wal_tail_opens_and_loses_whole_batches_only)
{
    crash_after(write_pairs);
    g_autofree char *wal = meta_file(".log");
    GStatBuf st;
    ck_assert_int_eq(g_stat(wal, &st), 0);
    ck_assert_int_gt(st.st_size, 10000);
    ck_assert_int_eq(truncate(wal, st.st_size - 7), 0);
    m = open_as("link", 0, NULL);
    ck_assert_uint_eq(count_values("left."), 499);
    ck_assert_uint_eq(count_values("right."), 499);
}
END_TEST

START_TEST(flipped_byte_inside_the_wal_is_refused)
{
    crash_after(write_pairs);
    g_autofree char *wal = meta_file(".log");
    GStatBuf st;
    ck_assert_int_eq(g_stat(wal, &st), 0);
    int fd = open(wal, O_RDWR);
    ck_assert_int_ge(fd, 0);
    char byte;
    ck_assert_int_eq(pread(fd, &byte, 1, st.st_size / 2), 1);
    byte = (char)(byte ^ 0x40);
    ck_assert_int_eq(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    close(fd);
    g_autofree char *msg = NULL;
    open_as("link", -EBADMSG, &msg);
    ck_assert_ptr_nonnull(strstr(msg, dir));
}
END_TEST

/* Batches of many sizes, so that pieces of records end everywhere in sectors and blocks. */
static void write_numbered(void)
{
    g_autofree char *text = g_strnfill(40000, 'x');
    for (unsigned i = 0; i < 60; i++) {
        struct meta_batch *b = meta_batch_new(m);
        g_autofree char *name = g_strdup_printf("number.%03u", i);
        meta_value_put(b, name, text, i % 7 == 3 ? 40000 : (i * 331) % 3000);
        commit(b);
    }
}

static int next_number(void *ctx, const char *name, const void *value, size_t len)
{
    unsigned *n = ctx;
    ck_assert_uint_eq(strtoul(strchr(name, '.') + 1, NULL, 10), *n); /* none without those before it */
    ++*n;
    return 0;
}

static void zero(char *bytes, size_t size, size_t from, size_t len)
{
    if (from < size)
        memset(bytes + from, 0, MIN(len, size - from));
}

static void copy_over(const char *from, const char *to)
{
    g_autofree char *cmd = g_strdup_printf("rm -rf %s/%s && cp -a %s/%s %s/%s", dir, to, dir, from, dir, to);
    ck_assert_int_eq(system(cmd), 0);
}

/* Sectors, pages and whole ends that were appended, but had not reached the disk. */
START_TEST(wal_with_lost_sectors_opens_with_what_was_before_them)
{
    static const size_t lengths[] = {512, 4096, 40960, G_MAXSIZE / 2};
    unsigned best = 0, n_less = 0;
    gsize size;
    crash_after(write_numbered);
    g_autofree char *wal = meta_file(".log"), *all = NULL;
    ck_assert(g_file_get_contents(wal, &all, &size, NULL));
    ck_assert_uint_gt(size, 200000);
    copy_over("meta", "saved");
    for (size_t from = 4096, i = 0; from < size;
         from += (size_t)512 * 13, i++) { /* everywhere in a page and a block; behind the header record */
        g_autofree char *some = g_memdup2(all, size);
        zero(some, size, from, lengths[i % G_N_ELEMENTS(lengths)]);
        ck_assert(g_file_set_contents(wal, some, (gssize)size, NULL));
        m = open_as("link", 0, NULL);
        unsigned n = 0;
        ck_assert_int_eq(meta_value_each(m, "number.", next_number, &n), 0);
        ck_assert_uint_ge(n, best); /* all that was whole before the gap */
        n_less += n < 60;
        best = n;
        meta_close(m);
        copy_over("saved", "meta");
    }
    m = NULL;
    ck_assert_uint_gt(best, 50);
    ck_assert_uint_gt(n_less, 20);
}
END_TEST

/* ---- two logs ---- */

#define N_SMALL 60 /* batches of one piece each, all in the first block of a log */

static void write_small(void)
{
    g_autofree char *text = g_strnfill(300, 'x');
    for (unsigned i = 0; i < N_SMALL; i++) {
        struct meta_batch *b = meta_batch_new(m);
        g_autofree char *name = g_strdup_printf("number.%03u", i);
        meta_value_put(b, name, text, 10 * i % 300);
        commit(b);
    }
}

static size_t piece_end(const char *bytes, size_t at)
{
    const uint8_t *p = (const uint8_t *)bytes + at;
    return at + 7 + p[4] + ((size_t)p[5] << 8);
}

/* Moves the batches from the n-th piece on to a log of the next number, as a change of memtables would. Returns where the first one ends now. */
static size_t split_log(const char *wal, unsigned n, char **ret_next)
{
    g_autofree char *all = NULL, *folder = g_path_get_dirname(wal), *base = g_path_get_basename(wal);
    gsize size, at = 0;
    ck_assert(g_file_get_contents(wal, &all, &size, NULL));
    ck_assert_uint_lt(size, 32768);
    for (unsigned i = 0; i < n; i++) {
        ck_assert_int_eq(all[at + 6], 1); /* whole */
        at = piece_end(all, at);
    }
    ck_assert_uint_lt(at, size);
    g_autofree char *name = g_strdup_printf("%06lu.log", strtoul(base, NULL, 10) + 1);
    *ret_next = g_build_filename(folder, name, NULL);
    ck_assert(g_file_set_contents(wal, all, (gssize)at, NULL));
    ck_assert(g_file_set_contents(*ret_next, all + at, (gssize)(size - at), NULL));
    return at;
}

static unsigned count_numbers(void)
{
    unsigned n = 0;
    m = open_as("link", 0, NULL);
    ck_assert_int_eq(meta_value_each(m, "number.", next_number, &n), 0);
    return n;
}

/* What the older of two logs may look like: whole, its last batch torn, gone, or zeros; some batches gone, and all. */
START_TEST(batches_behind_a_lost_end_of_an_older_log_are_lost_too)
{
    enum { WHOLE, TORN, SHORT, ZEROS, EMPTY };
    crash_after(write_small);
    g_autofree char *wal = meta_file(".log"), *next = NULL;
    size_t end = split_log(wal, N_SMALL / 2, &next);
    g_autofree char *old = NULL;
    gsize size, before = 0;
    ck_assert(g_file_get_contents(wal, &old, &size, NULL));
    for (size_t at = 0; at < end; at = piece_end(old, at))
        before = at;
    const size_t ends[] = {[WHOLE] = end, [TORN] = end - 7, [SHORT] = before, [ZEROS] = end, [EMPTY] = 0};
    if (_i == ZEROS)
        zero(old, size, before - before % 512, 512);
    ck_assert(g_file_set_contents(wal, old, (gssize)ends[_i], NULL));
    unsigned n = count_numbers();
    if (_i == WHOLE)
        ck_assert_uint_eq(n, N_SMALL);
    else if (_i == EMPTY)
        ck_assert_uint_eq(n, 0);
    else
        ck_assert(n > N_SMALL / 4 && n < N_SMALL / 2);
    struct meta_batch *b = meta_batch_new(m); /* it goes on */
    meta_value_put(b, "other", "value", 5);
    commit(b);
    reopen();
    ck_assert_uint_eq(count_values("other"), 1);
}
END_TEST

/* The older one's batches are in a table already: what it looks like is of no account. */
START_TEST(log_that_is_not_replayed_may_have_lost_its_end)
{
    crash_after(write_small);
    g_autofree char *old = meta_file(".log"), *bytes = NULL;
    gsize size;
    ck_assert(g_file_get_contents(old, &bytes, &size, NULL));
    m = open_as("link", 0, NULL); /* to a table, and to another log */
    meta_close(m);
    m = NULL;
    crash_after(write_numbered);
    ck_assert(g_file_set_contents(old, bytes, (gssize)size / 2, NULL));
    ck_assert_uint_eq(count_numbers(), N_SMALL);
    g_autofree char *name = g_strdup_printf("number.%03u", N_SMALL - 1);
    GBytes *value = NULL;
    ck_assert_int_eq(meta_value_get(m, name, &value), 0);
    ck_assert_uint_eq(g_bytes_get_size(value), 40000); /* as the newer log has it */
    g_bytes_unref(value);
}
END_TEST

START_TEST(log_that_is_in_use_is_left_alone)
{
    write_numbered();
    g_autofree char *wal = meta_file(".log"), *path = g_path_get_dirname(wal);
    GStatBuf before, after;
    ck_assert_int_eq(g_stat(wal, &before), 0);
    int fd = open(wal, O_RDWR);
    ck_assert_int_eq(ftruncate(fd, before.st_size + 8192), 0); /* looks like a gap */
    meta_wal_mend(path);
    ck_assert_int_eq(g_stat(wal, &after), 0);
    ck_assert_int_eq(after.st_size, before.st_size + 8192);
    ck_assert_int_eq(ftruncate(fd, before.st_size), 0);
    close(fd);
}
END_TEST

START_TEST(database_of_another_format_is_refused)
{
    char identity[] = "link";
    struct meta_header h = {.format = META_FORMAT + 1, .identity = identity};
    struct meta_batch *b = meta_batch_new(m);
    meta_db_put(b, meta_key0(TAG_HEADER, NULL), meta_enc_header(&h));
    commit(b);
    meta_close(m);
    m = NULL;
    g_autofree char *msg = NULL;
    open_as("link", -ENOTSUP, &msg);
    ck_assert_ptr_nonnull(strstr(msg, "has format 2"));
}
END_TEST

START_TEST(database_without_header_but_with_records_is_refused)
{
    struct meta_batch *b = meta_batch_new(m);
    meta_db_del(b, meta_key0(TAG_HEADER, NULL));
    commit(b);
    meta_close(m);
    m = NULL;
    g_autofree char *msg = NULL;
    open_as("link", -EBADMSG, &msg);
}
END_TEST

START_TEST(record_that_cannot_be_decoded_is_ebadmsg_and_dumped_as_bad)
{
    struct meta_batch *b = meta_batch_new(m);
    meta_db_put(b, meta_key1(TAG_INODE, 7, NULL), g_string_new("\x01junk"));
    commit(b);
    struct meta_inode in = {.ino = 42};
    ck_assert_int_eq(meta_inode_get(m, 7, &in), -EBADMSG);
    ck_assert_uint_eq(in.ino, 42);
    uint64_t last = 0;
    ck_assert_int_eq(meta_inode_each(m, stop_at_second, &last), -EBADMSG);
    g_autoptr(GString) dump = g_string_new(NULL);
    ck_assert_int_eq(meta_dump(m, dump), 0);
    ck_assert_ptr_nonnull(strstr(dump->str, "\ninode BAD\n"));
}
END_TEST

START_TEST(counters_jump_far_when_the_last_limit_is_of_another_boot)
{
    uint64_t before = meta_next_ino(m);
    struct meta_counter c = {.limit = before + 1, .boot_id = "another-boot"};
    struct meta_batch *b = meta_batch_new(m);
    meta_db_put(b, meta_key0(TAG_COUNTER, "ino"), meta_enc_counter(&c));
    commit(b);
    reopen();
    ck_assert_uint_ge(meta_next_ino(m), before + (UINT64_C(1) << 32));
}
END_TEST

/* What the child handed out, seen by the parent. */
static uint64_t *shared_ids;

static void hand_out_ids(void)
{
    for (unsigned i = 0; i < 1500; i++) {
        shared_ids[0] = meta_next_ino(m);
        shared_ids[1] = meta_next_seq(m);
    }
}

START_TEST(counters_never_repeat_after_kill)
{
    shared_ids = g_malloc0(16);
    uint64_t last_ino = meta_next_ino(m), last_seq = meta_next_seq(m);
    ck_assert_uint_gt(last_ino, META_ROOT_INO);
    for (unsigned round = 0; round < 3; round++) {
        meta_close(m);
        m = NULL;
        int fds[2];
        ck_assert_int_eq(pipe(fds), 0);
        pid_t pid = fork();
        if (pid == 0) {
            m = open_as("link", 0, NULL);
            hand_out_ids();
            ck_assert_int_eq(write(fds[1], shared_ids, 16), 16);
            kill(getpid(), SIGKILL);
        }
        uint64_t got[2];
        close(fds[1]); /* a child that dies early is an end of file, not a hang */
        ck_assert_int_eq(read(fds[0], got, 16), 16);
        waitpid(pid, NULL, 0);
        close(fds[0]);
        ck_assert_uint_gt(got[0], last_ino);
        ck_assert_uint_gt(got[1], last_seq);
        m = open_as("link", 0, NULL);
        ck_assert_uint_ge(meta_last_seq(m), got[1]);
        last_ino = meta_next_ino(m);
        last_seq = meta_next_seq(m);
        ck_assert_uint_eq(meta_last_seq(m), last_seq);
        ck_assert_uint_gt(last_ino, got[0]);
        ck_assert_uint_gt(last_seq, got[1]);
    }
    g_free(shared_ids);
}
END_TEST

START_TEST(failed_write_stops_all_further_writes)
{
    struct rlimit old, tight = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY};
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    g_autofree char *big = g_strnfill(20000, 'x');
    struct meta_batch *b = meta_batch_new(m);
    meta_value_put(b, "before", "1", 1);
    ck_assert_int_eq(meta_commit(b, false), 0);
    ck_assert(!meta_failed(m));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
    meta_value_put(b, "big", big, strlen(big));
    ck_assert(!meta_is_stuck(m));
    ck_assert_int_eq(meta_commit(b, false), -EIO);
    ck_assert(meta_is_stuck(m) && !meta_is_stuck_by_read(m));
    ck_assert_int_lt(meta_try_disk(m), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
    ck_assert_int_eq(meta_try_disk(m), 0);
    ck_assert(meta_failed(m));
    meta_value_put(b, "after", "1", 1);
    ck_assert_int_eq(meta_commit(b, false), -EIO);
    meta_batch_free(b);
    ck_assert_int_eq(meta_sync(m), -EIO);
    reopen();
    ck_assert(!meta_failed(m));
    GBytes *v = NULL;
    ck_assert_int_eq(meta_value_get(m, "after", &v), -ENOENT);
    ck_assert_int_eq(meta_value_get(m, "big", &v), -ENOENT);
    ck_assert_int_eq(meta_value_get(m, "before", &v), 0);
    g_bytes_unref(v);
}
END_TEST

/* An inode with more attributes than fit into one block, in a table file of which one byte is wrong. */
static void damaged_attributes(void)
{
    g_autofree char *value = g_strnfill(1000, 'x');
    struct meta_batch *b = meta_batch_new(m);
    for (unsigned i = 0; i < 100; i++) {
        g_autofree char *name = g_strdup_printf("user.%03u", i);
        for (unsigned n = 0; n < 1000; n++)
            value[n] = (char)g_random_int_range('!', '~'); /* else they are packed into one block */
        meta_xattr_put(b, 7, name, value, 1000);
    }
    commit(b);
    reopen(); /* replays the WAL into a table */
    meta_close(m);
    m = NULL;
    g_autofree char *table = meta_file(".sst");
    GStatBuf st;
    char byte;
    ck_assert_int_eq(g_stat(table, &st), 0);
    int fd = open(table, O_RDWR);
    ck_assert_int_eq(pread(fd, &byte, 1, st.st_size / 2), 1);
    byte = (char)(byte ^ 0x40);
    ck_assert_int_eq(pwrite(fd, &byte, 1, st.st_size / 2), 1);
    close(fd);
    m = open_as("link", 0, NULL);
}

START_TEST(removal_that_could_not_be_read_stops_all_further_writes)
{
    damaged_attributes();
    struct meta_batch *b = meta_batch_new(m);
    meta_value_put(b, "with it", "1", 1);
    meta_inode_del(b, 7);
    ck_assert_int_eq(meta_commit(b, false), -EBADMSG);
    ck_assert(meta_failed(m));
    ck_assert(!meta_is_stuck(m)); /* another process would find the same */
    meta_value_put(b, "after", "1", 1);
    ck_assert_int_eq(meta_commit(b, false), -EIO);
    meta_batch_free(b);
    ck_assert_int_eq(meta_sync(m), -EIO);
}
END_TEST

/* As its disk may be better for another process, a fresh one is asked for. */
START_TEST(removal_that_the_disk_did_not_let_read_stops_all_further_writes)
{
    struct meta_batch *b = meta_batch_new(m);
    meta_xattr_put(b, 7, "user.a", "1", 1);
    commit(b);
    b = meta_batch_new(m);
    scans_fail = true;
    meta_inode_del(b, 7);
    scans_fail = false;
    ck_assert(!meta_is_stuck(m));
    ck_assert_int_eq(meta_commit(b, false), -EIO);
    ck_assert(meta_is_stuck(m) && meta_is_stuck_by_read(m));
    ck_assert_int_eq(meta_try_disk(m), 0);
    meta_value_put(b, "after", "1", 1);
    ck_assert_int_eq(meta_commit(b, false), -EIO);
    meta_batch_free(b);
    reopen();
    ck_assert(!meta_is_stuck(m));
}
END_TEST

static uint64_t size_of(const char *path)
{
    GStatBuf st;
    return g_stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Takes all that is free. */
static void fill_disk(const char *path)
{
    static const char zeros[65536];
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    while (write(fd, zeros, sizeof zeros) > 0)
        ;
    close(fd);
}

#define PAST_THE_LOG 640u /* 40 MiB: more than a write buffer, whose flush begins another log */

static int commit_much(unsigned n)
{
    g_autofree char *big = g_strnfill(64 << 10, 'x');
    struct meta_batch *b = meta_batch_new(m);
    int r = 0;
    for (unsigned i = 0; r == 0 && i < n; i++) {
        meta_value_put(b, "big", big, 64 << 10);
        r = meta_commit(b, false);
    }
    meta_batch_free(b);
    return r;
}

/* An eighth of it: more than all commits of a test write, however late the log is emptied. */
#define RESERVE_BYTES (50u << 20)

static void begin_on_small_disk(void)
{
    meta_close(m);
    ck_assert_int_eq(mount("none", dir, "tmpfs", 0, "size=400m,mode=0700"), 0);
    m = open_as("link", 0, NULL);
}

static void end_on_small_disk(void)
{
    meta_close(m);
    ck_assert_int_eq(umount(dir), 0);
    m = open_as("link", 0, NULL);
}

START_TEST(full_disk_without_reserve_ends_all_writes)
{
    begin_on_small_disk();
    g_autofree char *filler = g_build_filename(dir, "filler", NULL);
    fill_disk(filler);
    ck_assert_int_lt(commit_much(PAST_THE_LOG), 0);
    ck_assert(meta_failed(m));
    ck_assert_int_eq(meta_try_disk(m), -ENOSPC);
    ck_assert_int_eq(g_unlink(filler), 0);
    ck_assert_int_eq(meta_try_disk(m), 0);
    end_on_small_disk();
}
END_TEST

START_TEST(commits_go_on_while_the_disk_is_full)
{
    begin_on_small_disk();
    g_autofree char *filler = g_build_filename(dir, "filler", NULL), *reserve = g_build_filename(dir, "reserve", NULL);
    meta_keep_space(m, UINT64_MAX);
    ck_assert_uint_eq(size_of(reserve), RESERVE_BYTES);
    fill_disk(filler);
    ck_assert_int_eq(commit_much(PAST_THE_LOG), 0);
    ck_assert(!meta_failed(m));
    ck_assert_int_eq(unlink(filler), 0);
    for (unsigned i = 0; i < 100 && size_of(reserve) < RESERVE_BYTES; i++) {
        g_usleep(5000);
        ck_assert_int_eq(commit_much(1), 0);
    }
    ck_assert_uint_eq(size_of(reserve), RESERVE_BYTES);
    end_on_small_disk();
}
END_TEST

START_TEST(reserve_is_no_larger_than_asked_for)
{
    g_autofree char *reserve = g_build_filename(dir, "reserve", NULL);
    meta_keep_space(m, 1 << 20);
    ck_assert_uint_eq(size_of(reserve), 1 << 20);
}
END_TEST

START_TEST(full_disk_with_a_reserve_that_a_kill_left_opens)
{
    begin_on_small_disk();
    g_autofree char *filler = g_build_filename(dir, "filler", NULL), *reserve = g_build_filename(dir, "reserve", NULL);
    g_autofree char *text = g_strnfill(20 << 20, 'x');
    meta_close(m);
    ck_assert(g_file_set_contents(reserve, text, 20 << 20, NULL));
    fill_disk(filler);
    m = open_as("link", 0, NULL);
    ck_assert_int_eq(commit_much(16), 0);
    end_on_small_disk();
}
END_TEST

#define ID_THREADS 4
#define ID_EACH    5000

static void *take_ids(void *arg)
{
    uint64_t *ids = arg;
    for (unsigned i = 0; i < ID_EACH; i++)
        ids[i] = meta_next_ino(m);
    return NULL;
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

START_TEST(counters_are_unique_across_threads)
{
    g_autofree uint64_t *ids = g_new0(uint64_t, ID_THREADS * ID_EACH);
    pthread_t t[ID_THREADS];
    for (unsigned i = 0; i < ID_THREADS; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, take_ids, ids + i * ID_EACH), 0);
    for (unsigned i = 0; i < ID_THREADS; i++)
        pthread_join(t[i], NULL);
    qsort(ids, ID_THREADS * ID_EACH, sizeof(*ids), compare_u64);
    for (unsigned i = 1; i < ID_THREADS * ID_EACH; i++)
        ck_assert_uint_gt(ids[i], ids[i - 1]);
}
END_TEST

#define ADD(name) tcase_add_test(t, name)

int main(void)
{
    Suite *s = suite_create("meta_crash");
    TCase *t = tcase_create("store");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    ADD(unsynced_commits_survive_kill);
    ADD(torn_wal_tail_opens_and_loses_whole_batches_only);
    ADD(wal_with_lost_sectors_opens_with_what_was_before_them);
    ADD(log_that_is_in_use_is_left_alone);
    tcase_add_loop_test(t, batches_behind_a_lost_end_of_an_older_log_are_lost_too, 0, 5);
    ADD(log_that_is_not_replayed_may_have_lost_its_end);
    ADD(flipped_byte_inside_the_wal_is_refused);
    ADD(database_of_another_format_is_refused);
    ADD(database_without_header_but_with_records_is_refused);
    ADD(record_that_cannot_be_decoded_is_ebadmsg_and_dumped_as_bad);
    ADD(counters_jump_far_when_the_last_limit_is_of_another_boot);
    ADD(counters_never_repeat_after_kill);
    ADD(failed_write_stops_all_further_writes);
    ADD(removal_that_could_not_be_read_stops_all_further_writes);
    ADD(removal_that_the_disk_did_not_let_read_stops_all_further_writes);
    ADD(counters_are_unique_across_threads);
    ADD(reserve_is_no_larger_than_asked_for);
    if (geteuid() == 0) { /* a disk of its own */
        ADD(full_disk_without_reserve_ends_all_writes);
        ADD(commits_go_on_while_the_disk_is_full);
        ADD(full_disk_with_a_reserve_that_a_kill_left_opens);
    }
    suite_add_tcase(s, t);
    return run_suite(s);
}
