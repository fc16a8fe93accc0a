/* The records of meta.h over a real database: every function, and that what was committed is there after reopening. */
#include "meta_fixture.h"
#include "tests/support/checks.h"

#include <pthread.h>
#include <sys/syscall.h>

static int n_syncs; /* atomic */
static bool slow_syncs;

/* Takes the place of the C library's for the whole program, the database's library included. */
int fdatasync(int fd)
{
    g_atomic_int_inc(&n_syncs);
    if (slow_syncs)
        g_usleep(20000);
    return (int)syscall(SYS_fdatasync, fd);
}

START_TEST(new_database_is_fresh_and_reopened_is_not)
{
    g_autofree char *uuid = g_strdup(meta_uuid(m));
    ck_assert_uint_eq(strlen(uuid), 32);
    ck_assert_uint_eq(strspn(uuid, "0123456789abcdef"), 32);
    meta_close(m);
    m = NULL;
    bool fresh = true;
    g_autofree char *msg = NULL;
    ck_assert_int_eq(meta_open(dir, "link", &m, &fresh, &msg), 0);
    ck_assert(!fresh);
    ck_assert_str_eq(meta_uuid(m), uuid);
    ck_assert(!meta_failed(m));
    g_autofree char *other = g_build_filename(dir, "other", NULL);
    struct meta *second = NULL;
    ck_assert_int_eq(meta_open(other, "link", &second, &fresh, &msg), 0);
    ck_assert(fresh);
    ck_assert_str_ne(meta_uuid(second), uuid);
    meta_close(second);
}
END_TEST

#define N_SYNCERS 8
#define N_ROUNDS  5

static void *commit_and_sync(void *arg)
{
    for (unsigned i = 0; i < N_ROUNDS; i++) {
        g_autofree char *name = g_strdup_printf("%s.%u", (const char *)arg, i);
        struct meta_batch *b = meta_batch_new(m);
        meta_value_put(b, name, "value", 5);
        commit(b);
        ck_assert_int_eq(i % 2 ? meta_sync(m) : meta_sync_from(m, meta_written(m)), 0);
    }
    return NULL;
}

START_TEST(threads_that_sync_at_once_share_syncs)
{
    static char names[N_SYNCERS][4];
    pthread_t threads[N_SYNCERS];
    slow_syncs = true;
    g_atomic_int_set(&n_syncs, 0);
    for (unsigned i = 0; i < N_SYNCERS; i++) {
        g_snprintf(names[i], sizeof names[i], "%u", i);
        ck_assert_int_eq(pthread_create(&threads[i], NULL, commit_and_sync, names[i]), 0);
    }
    for (unsigned i = 0; i < N_SYNCERS; i++)
        pthread_join(threads[i], NULL);
    slow_syncs = false;
    ck_assert_int_ge(g_atomic_int_get(&n_syncs), N_ROUNDS);
    ck_assert_int_lt(g_atomic_int_get(&n_syncs), N_SYNCERS * N_ROUNDS / 2);
    int before = g_atomic_int_get(&n_syncs);
    ck_assert_int_eq(meta_sync(m), 0);
    ck_assert_msg(g_atomic_int_get(&n_syncs) == before, "nothing new is synced");
}
END_TEST

START_TEST(other_identity_is_refused)
{
    meta_close(m);
    m = NULL;
    g_autofree char *msg = NULL;
    open_as("another", -EEXIST, &msg);
    ck_assert_ptr_nonnull(strstr(msg, "'link'"));
    ck_assert_ptr_nonnull(strstr(msg, "'another'"));
    m = open_as("link", 0, NULL);
}
END_TEST

START_TEST(second_process_is_refused)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct meta *again = NULL;
        bool fresh;
        char *msg = NULL;
        int r = meta_open(dir, "link", &again, &fresh, &msg);
        /* the build for coverage makes exit() of _exit(): that waits for threads that were not forked */
        _Exit(r == -EBUSY && msg && strstr(msg, dir) ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    g_autofree char *msg = NULL;
    open_as("link", -EBUSY, &msg); /* nor twice in one process */
    ck_assert_ptr_nonnull(strstr(msg, dir));
}
END_TEST

START_TEST(missing_current_file_is_refused_not_restarted)
{
    struct meta_batch *b = meta_batch_new(m);
    meta_value_put(b, "a", "1", 1);
    commit(b);
    meta_close(m);
    m = NULL;
    g_autofree char *current = g_build_filename(dir, "meta", "CURRENT", NULL);
    ck_assert_int_eq(g_unlink(current), 0);
    g_autofree char *msg = NULL;
    open_as("link", -EBADMSG, &msg);
    ck_assert_ptr_nonnull(strstr(msg, "damaged"));
}
END_TEST

/* ---- records ---- */

static int collect_ids(void *ctx, const struct meta_dentry *d)
{
    g_string_append_printf(ctx, "%s:%lu ", d->name, (unsigned long)d->id);
    return 0;
}

static int collect_names(void *ctx, const struct meta_dentry *d)
{
    g_string_append_printf(ctx, "%s ", d->name);
    return 0;
}

static uint64_t add_name(uint64_t parent, const char *name, uint64_t ino)
{
    g_autofree char *own = g_strdup(name);
    struct meta_dentry d = {.parent = parent, .name = own, .ino = ino, .type = S_IFREG};
    struct meta_batch *b = meta_batch_new(m);
    meta_dentry_put(b, &d);
    commit(b);
    ck_assert_uint_ne(d.id, 0);
    return d.id;
}

static char *list(uint64_t parent, uint64_t after)
{
    GString *s = g_string_new(NULL);
    ck_assert_int_eq(meta_dentry_each(m, parent, after, collect_names, s), 0);
    return g_string_free(s, FALSE);
}

static char *links(uint64_t ino)
{
    GString *s = g_string_new(NULL);
    ck_assert_int_eq(meta_link_each(m, ino, collect_names, s), 0);
    return g_string_free(s, FALSE);
}

START_TEST(inode_is_kept_over_reopen_and_gone_after_del)
{
    char key[] = "a/b", target[] = "t";
    struct meta_inode in = {.ino = 77,
                            .mode = S_IFREG | 0640,
                            .size = 5,
                            .mtime_ns = -3,
                            .base_key = key,
                            .target = target},
                      out;
    ck_assert_int_eq(meta_inode_get(m, 77, &out), -ENOENT);
    struct meta_batch *b = meta_batch_new(m);
    meta_inode_put(b, &in);
    ck_assert_int_eq(meta_inode_get(m, 77, &out), -ENOENT); /* not before commit */
    commit(b);
    reopen();
    ck_assert_int_eq(meta_inode_get(m, 77, &out), 0);
    ck_assert(out.ino == 77 && out.mode == (S_IFREG | 0640) && out.size == 5 && out.mtime_ns == -3);
    ck_assert_str_eq(out.base_key, "a/b");
    struct meta_inode copy;
    meta_inode_copy(&copy, &out);
    meta_inode_clear(&out);
    ck_assert_str_eq(copy.target, "t");
    meta_inode_clear(&copy);
    b = meta_batch_new(m);
    meta_inode_del(b, 77);
    commit(b);
    ck_assert_int_eq(meta_inode_get(m, 77, &out), -ENOENT);
}
END_TEST

static int stop_at_second(void *ctx, const struct meta_inode *in)
{
    uint64_t *last = ctx;
    ck_assert_uint_gt(in->ino, *last);
    *last = in->ino;
    return in->ino >= 256 ? 99 : 0;
}

START_TEST(inode_each_is_ascending_and_stops)
{
    struct meta_batch *b = meta_batch_new(m);
    static const uint64_t inos[] = {65536, 2, 256, 255};
    for (unsigned i = 0; i < G_N_ELEMENTS(inos); i++)
        meta_inode_put(b, &(struct meta_inode){.ino = inos[i]});
    commit(b);
    uint64_t last = 0;
    ck_assert_int_eq(meta_inode_each(m, stop_at_second, &last), 99);
    ck_assert_uint_eq(last, 256);
}
END_TEST

static void put_size(uint64_t ino, uint64_t size)
{
    struct meta_batch *b = meta_batch_new(m);
    meta_inode_put(b, &(struct meta_inode){.ino = ino, .size = size});
    commit(b);
}

/* Its size by a reader; 0: there is none. */
static uint64_t size_by(struct meta_near *rd, uint64_t ino)
{
    struct meta_inode in;
    int r = meta_near_inode(rd, ino, &in);
    ck_assert(r == -ENOENT || (r == 0 && in.ino == ino && in.size > 0));
    return r == 0 ? in.size : 0;
}

START_TEST(inodes_are_read_in_any_order)
{
    for (uint64_t ino = 10; ino <= 1000; ino += 10)
        put_size(ino, ino);
    struct meta_near *rd = meta_near_new(m);
    for (uint64_t ino = 0; ino <= 1010; ino++)
        ck_assert_uint_eq(size_by(rd, ino), ino % 10 == 0 && ino <= 1000 ? ino : 0);
    for (uint64_t ino = 1000; ino > 0; ino -= 10)
        ck_assert_uint_eq(size_by(rd, ino), ino);
    for (uint64_t i = 0, ino = 10; i < 100; i++, ino = (ino + 370) % 1000 + 10) /* near and far, there and back */
        ck_assert_uint_eq(size_by(rd, ino), ino % 10 == 0 ? ino : 0);
    ck_assert(size_by(rd, 10) == 10 && size_by(rd, 10) == 10);
    meta_near_free(rd);
    meta_near_free(NULL);
}
END_TEST

START_TEST(who_reads_many_inodes_sees_what_is_committed_meanwhile)
{
    for (uint64_t ino = 1; ino <= 100; ino++)
        put_size(ino, 1);
    struct meta_near *rd = meta_near_new(m);
    for (uint64_t ino = 1; ino <= 100; ino++) {
        for (uint64_t near = 1; near < ino % 4; near++)
            ck_assert_uint_eq(size_by(rd, MIN(ino + near, 100)), 1);
        put_size(ino, 1000 + ino);
        ck_assert_uint_eq(size_by(rd, ino), 1000 + ino);
        ck_assert_uint_eq(size_by(rd, ino), 1000 + ino);
        struct meta_batch *b = meta_batch_new(m);
        meta_inode_del(b, ino);
        commit(b);
        ck_assert_uint_eq(size_by(rd, ino), 0);
        put_size(1000 + ino, 2);
        ck_assert_uint_eq(size_by(rd, 1000 + ino), 2);
    }
    meta_near_free(rd);
}
END_TEST

START_TEST(dentry_each_is_by_id_and_resumes_after)
{
    uint64_t z = add_name(5, "z", 100);
    uint64_t a = add_name(5, "a", 101);
    add_name(5, "m", 102);
    add_name(6, "other", 103);
    g_autofree char *all = list(5, 0);
    ck_assert_str_eq(all, "z a m ");
    g_autofree char *after_z = list(5, z);
    ck_assert_str_eq(after_z, "a m ");
    g_autofree char *after_a = list(5, a);
    ck_assert_str_eq(after_a, "m ");
    g_autofree char *none = list(5, UINT64_MAX);
    ck_assert_str_eq(none, "");
}
END_TEST

START_TEST(dentry_put_again_keeps_its_id)
{
    uint64_t id = add_name(5, "a", 100);
    struct meta_dentry d;
    ck_assert_int_eq(meta_dentry_get(m, 5, "a", &d), 0);
    ck_assert_uint_eq(d.id, id);
    d.usize = 17;
    struct meta_batch *b = meta_batch_new(m);
    meta_dentry_put(b, &d);
    commit(b);
    meta_dentry_clear(&d);
    g_autoptr(GString) s = g_string_new(NULL);
    ck_assert_int_eq(meta_dentry_each(m, 5, 0, collect_ids, s), 0);
    g_autofree char *want = g_strdup_printf("a:%lu ", (unsigned long)id);
    ck_assert_str_eq(s->str, want);
    ck_assert_int_eq(meta_dentry_get(m, 5, "a", &d), 0);
    ck_assert_uint_eq(d.usize, 17);
    struct meta_dentry copy;
    meta_dentry_copy(&copy, &d);
    meta_dentry_clear(&d);
    ck_assert_str_eq(copy.name, "a");
    meta_dentry_clear(&copy);
}
END_TEST

static void check_near(struct meta_near *near, unsigned i, bool there)
{
    struct meta_inode in;
    struct meta_dentry d;
    g_autofree char *name = g_strdup_printf("%u", i);
    ck_assert_int_eq(meta_near_inode(near, 1000 + i, &in), there ? 0 : -ENOENT);
    ck_assert_int_eq(meta_near_dentry(near, i % 3, name, &d), there ? 0 : -ENOENT);
    if (!there)
        return;
    ck_assert_uint_eq(in.ino, 1000 + i);
    ck_assert_uint_eq(in.size, i);
    ck_assert_str_eq(d.name, name);
    ck_assert_uint_eq(d.parent, i % 3);
    ck_assert_uint_eq(d.ino, 1000 + i);
    meta_inode_clear(&in);
    meta_dentry_clear(&d);
}

START_TEST(near_records_are_those_that_gets_give)
{
    enum { N = 500 };
    struct meta_near *none = meta_near_new(m);
    check_near(none, 1, false);
    struct meta_batch *b = meta_batch_new(m);
    for (unsigned i = 0; i < N; i++) {
        if (i % 7 == 3) /* gaps, and runs of them */
            i += i % 11;
        g_autofree char *name = g_strdup_printf("%u", i);
        struct meta_dentry d = {.parent = i % 3, .name = name, .ino = 1000 + i, .type = S_IFREG};
        meta_inode_put(b, &(struct meta_inode){.ino = 1000 + i, .mode = S_IFREG, .size = i});
        meta_dentry_put(b, &d);
    }
    commit(b);
    check_near(none, 1, true); /* what was committed since is seen */
    meta_near_free(none);
    struct meta_near *near = meta_near_new(m);
    for (unsigned k = 0; k < 6 * N; k++) { /* upwards, downwards, far apart */
        unsigned i = k < 2 * N ? k / 2 : k < 4 * N ? 2 * N - k / 2 : k * 7919 % (N + 50);
        struct meta_inode in;
        bool there = meta_inode_get(m, 1000 + i, &in) == 0;
        if (there)
            meta_inode_clear(&in);
        check_near(near, i, there);
    }
    meta_near_free(near);
    meta_near_free(NULL);
}
END_TEST

START_TEST(link_each_gives_every_name_of_the_inode_only)
{
    add_name(5, "a", 100);
    add_name(6, "b", 100);
    add_name(6, "c", 101);
    g_autofree char *two = links(100);
    ck_assert_str_eq(two, "a b ");
    g_autofree char *none = links(10);
    ck_assert_str_eq(none, "");
}
END_TEST

START_TEST(name_that_moved_to_another_inode_leaves_the_first)
{
    uint64_t id = add_name(5, "a", 100);
    char name[] = "a";
    struct meta_dentry d = {.parent = 5, .name = name, .id = id, .ino = 200, .type = S_IFREG};
    struct meta_batch *b = meta_batch_new(m);
    meta_dentry_put(b, &d);
    commit(b);
    g_autofree char *old = links(100);
    g_autofree char *now = links(200);
    ck_assert_str_eq(old, "");
    ck_assert_str_eq(now, "a ");
}
END_TEST

START_TEST(dentry_del_removes_record_and_indexes)
{
    ck_assert_int_eq(meta_dir_has_entries(m, 5), 0);
    add_name(5, "a", 100);
    ck_assert_int_eq(meta_dir_has_entries(m, 5), 1);
    ck_assert_int_eq(meta_dir_has_entries(m, 4), 0);
    struct meta_dentry d;
    ck_assert_int_eq(meta_dentry_get(m, 5, "a", &d), 0);
    struct meta_batch *b = meta_batch_new(m);
    meta_dentry_del(b, &d);
    commit(b);
    meta_dentry_clear(&d);
    ck_assert_int_eq(meta_dentry_get(m, 5, "a", &d), -ENOENT);
    ck_assert_int_eq(meta_dir_has_entries(m, 5), 0);
    g_autofree char *l = links(100);
    ck_assert_str_eq(l, "");
    g_autoptr(GString) dump = g_string_new(NULL);
    ck_assert_int_eq(meta_dump(m, dump), 0);
    ck_assert_ptr_null(strstr(dump->str, "\nlink"));
    ck_assert_ptr_null(strstr(dump->str, "\nname"));
    ck_assert_ptr_null(strstr(dump->str, "\ndentry"));
}
END_TEST

struct nested {
    struct meta_batch *b;
    unsigned n;
};

static int change_while_iterating(void *ctx, const struct meta_dentry *d)
{
    struct nested *n = ctx;
    struct meta_inode in;
    n->n++;
    ck_assert_int_eq(meta_inode_get(m, d->ino, &in), -ENOENT);
    struct meta_dentry same;
    ck_assert_int_eq(meta_dentry_get(m, d->parent, d->name, &same), 0);
    meta_dentry_clear(&same);
    meta_dentry_del(n->b, d);
    struct meta_batch *own = meta_batch_new(m);
    meta_value_put(own, d->name, "x", 1);
    commit(own);
    return 0;
}

START_TEST(callbacks_may_read_build_batches_and_commit)
{
    add_name(5, "a", 100);
    add_name(5, "b", 101);
    struct nested n = {.b = meta_batch_new(m)};
    ck_assert_int_eq(meta_dentry_each(m, 5, 0, change_while_iterating, &n), 0);
    commit(n.b);
    ck_assert_uint_eq(n.n, 2);
    ck_assert_int_eq(meta_dir_has_entries(m, 5), 0);
}
END_TEST

static int collect_xattr(void *ctx, const char *name, size_t len)
{
    g_string_append_printf(ctx, "%s=%zu ", name, len);
    return 0;
}

START_TEST(xattrs_belong_to_their_inode_and_go_with_it)
{
    struct meta_batch *b = meta_batch_new(m);
    meta_xattr_put(b, 7, "user.a", "v\0w", 3);
    meta_xattr_put(b, 7, "user.b", "", 0);
    meta_xattr_put(b, 8, "user.c", "z", 1);
    commit(b);
    g_autoptr(GBytes) v = NULL;
    ck_assert_int_eq(meta_xattr_get(m, 7, "user.a", &v), 0);
    ck_assert_uint_eq(g_bytes_get_size(v), 3);
    ck_assert_mem_eq(g_bytes_get_data(v, NULL), "v\0w", 3);
    g_autoptr(GString) s = g_string_new(NULL);
    ck_assert_int_eq(meta_xattr_each(m, 7, collect_xattr, s), 0);
    ck_assert_str_eq(s->str, "user.a=3 user.b=0 ");
    GBytes *none = NULL;
    ck_assert_int_eq(meta_xattr_get(m, 7, "user", &none), -ENOENT);
    b = meta_batch_new(m);
    meta_xattr_del(b, 7, "user.b");
    commit(b);
    ck_assert_int_eq(meta_xattr_get(m, 7, "user.b", &none), -ENOENT);
    b = meta_batch_new(m);
    meta_xattr_put(b, 7, "user.d", "1", 1); /* put and removed in one batch */
    meta_inode_del(b, 7);
    commit(b);
    g_string_truncate(s, 0);
    ck_assert_int_eq(meta_xattr_each(m, 7, collect_xattr, s), 0);
    ck_assert_str_eq(s->str, "");
    ck_assert_int_eq(meta_xattr_each(m, 8, collect_xattr, s), 0);
    ck_assert_str_eq(s->str, "user.c=1 ");
}
END_TEST

static int collect_op(void *ctx, const struct meta_op *op)
{
    g_string_append_printf(ctx, "%lu:%s ", (unsigned long)op->seq, op->kind == OP_SYNC ? op->name : op->key);
    return 0;
}

START_TEST(ops_come_in_order_of_seq)
{
    char f[] = "f", k[] = "k";
    struct meta_batch *b = meta_batch_new(m);
    meta_op_put(b, &(struct meta_op){.seq = 300, .kind = OP_SYNC, .parent = 5, .name = f});
    meta_op_put(b, &(struct meta_op){.seq = 2, .kind = OP_DELETE, .key = k, .err = -5, .state = OPS_PARKED});
    meta_op_put(b, &(struct meta_op){.seq = 4, .kind = OP_SYNC, .parent = 5, .name = f});
    commit(b);
    b = meta_batch_new(m);
    meta_op_del(b, 4);
    commit(b);
    reopen();
    g_autoptr(GString) s = g_string_new(NULL);
    ck_assert_int_eq(meta_op_each(m, collect_op, s), 0);
    ck_assert_str_eq(s->str, "2:k 300:f ");
}
END_TEST

static int collect_part(void *ctx, const struct meta_part *p)
{
    g_string_append_printf(ctx, "%u=%s ", p->number, p->etag.s);
    return 0;
}

static int count_upload(void *ctx, const struct meta_upload *u)
{
    ++*(unsigned *)ctx;
    return 0;
}

START_TEST(uploads_and_their_parts_are_kept_and_removed_together)
{
    char key[] = "k", id[] = "id";
    struct meta_batch *b = meta_batch_new(m);
    meta_upload_put(b, &(struct meta_upload){.vid = 9, .key = key, .upload_id = id, .part_bytes = 8 << 20, .gen = 2});
    meta_upload_put(b, &(struct meta_upload){.vid = 10, .key = key, .upload_id = id});
    for (uint32_t n = 1; n <= 300; n++)
        meta_part_put(b, &(struct meta_part){.vid = 9, .number = n, .size = n, .etag = {"e"}});
    meta_part_put(b, &(struct meta_part){.vid = 10, .number = 1, .etag = {"x"}});
    commit(b);
    b = meta_batch_new(m);
    for (uint32_t n = 4; n <= 300; n++)
        meta_part_del(b, 9, n);
    commit(b);
    reopen();
    struct meta_upload u;
    ck_assert_int_eq(meta_upload_get(m, 9, &u), 0);
    ck_assert(u.vid == 9 && u.part_bytes == 8 << 20 && u.gen == 2);
    ck_assert_str_eq(u.upload_id, "id");
    meta_upload_clear(&u);
    g_autoptr(GString) s = g_string_new(NULL);
    ck_assert_int_eq(meta_part_each(m, 9, collect_part, s), 0);
    ck_assert_str_eq(s->str, "1=e 2=e 3=e ");
    b = meta_batch_new(m);
    meta_upload_del(b, 9);
    commit(b);
    g_string_truncate(s, 0);
    ck_assert_int_eq(meta_part_each(m, 9, collect_part, s), 0);
    ck_assert_int_eq(meta_part_each(m, 10, collect_part, s), 0);
    ck_assert_str_eq(s->str, "1=x ");
    unsigned n = 0;
    ck_assert_int_eq(meta_upload_each(m, count_upload, &n), 0);
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(meta_upload_get(m, 9, &u), -ENOENT);
}
END_TEST

static int count_cached(void *ctx, const struct meta_cached *c)
{
    ++*(unsigned *)ctx;
    return 0;
}

START_TEST(cached_del_removes_segments_and_checksums_of_that_file)
{
    struct meta_segment seg = {.present = {0xff, 1}}, got;
    struct meta_batch *b = meta_batch_new(m);
    for (uint64_t vid = 20; vid <= 21; vid++) {
        meta_cached_put(b, &(struct meta_cached){.vid = vid, .ino = 3, .bytes = 1000, .flags = CACHED_HOT});
        meta_segment_put(b, vid, 0, &seg);
        meta_segment_put(b, vid, 4, &seg);
        for (uint64_t chunk = 0; chunk < 1000; chunk++)
            meta_chunk_crc_put(b, vid, chunk, (uint32_t)chunk);
    }
    commit(b);
    reopen();
    uint32_t crc;
    ck_assert_int_eq(meta_chunk_crc_get(m, 20, 999, &crc), 0);
    ck_assert_uint_eq(crc, 999);
    ck_assert_int_eq(meta_segment_get(m, 20, 4, &got), 0);
    ck_assert_mem_eq(&got, &seg, sizeof(seg));
    ck_assert_int_eq(meta_segment_get(m, 20, 1, &got), -ENOENT);
    b = meta_batch_new(m);
    meta_cached_del(b, 20);
    commit(b);
    struct meta_cached c;
    ck_assert_int_eq(meta_cached_get(m, 20, &c), -ENOENT);
    ck_assert_int_eq(meta_segment_get(m, 20, 4, &got), -ENOENT);
    for (uint64_t chunk = 0; chunk < 1000; chunk++) {
        ck_assert_int_eq(meta_chunk_crc_get(m, 20, chunk, &crc), -ENOENT);
        ck_assert_int_eq(meta_chunk_crc_get(m, 21, chunk, &crc), 0);
    }
    ck_assert_int_eq(meta_cached_get(m, 21, &c), 0);
    ck_assert(c.vid == 21 && c.bytes == 1000 && c.flags == CACHED_HOT);
    unsigned n = 0;
    ck_assert_int_eq(meta_cached_each(m, count_cached, &n), 0);
    ck_assert_uint_eq(n, 1);
}
END_TEST

static int collect_value(void *ctx, const char *name, const void *value, size_t len)
{
    g_string_append_printf(ctx, "%s=%.*s ", name, (int)len, (const char *)value);
    return 0;
}

START_TEST(values_are_found_by_name_and_prefix)
{
    struct meta_batch *b = meta_batch_new(m);
    meta_value_put(b, "pin.a", "1", 1);
    meta_value_put(b, "pin.b", "2", 1);
    meta_value_put(b, "pin", "0", 1);
    meta_value_put(b, "q", "3", 1);
    commit(b);
    b = meta_batch_new(m);
    meta_value_del(b, "pin.a");
    commit(b);
    g_autoptr(GBytes) v = NULL;
    ck_assert_int_eq(meta_value_get(m, "pin", &v), 0);
    ck_assert_mem_eq(g_bytes_get_data(v, NULL), "0", 1);
    GBytes *none = NULL;
    ck_assert_int_eq(meta_value_get(m, "pin.a", &none), -ENOENT);
    g_autoptr(GString) s = g_string_new(NULL);
    ck_assert_int_eq(meta_value_each(m, "pin.", collect_value, s), 0);
    ck_assert_str_eq(s->str, "pin.b=2 ");
    g_string_truncate(s, 0);
    ck_assert_int_eq(meta_value_each(m, "", collect_value, s), 0);
    ck_assert_str_eq(s->str, "pin=0 pin.b=2 q=3 ");
}
END_TEST

START_TEST(numbers_come_back_and_other_values_are_none)
{
    uint64_t n = 5;
    struct meta_batch *b = meta_batch_new(m);
    meta_value_put_u64(b, "n", UINT64_MAX);
    meta_value_put(b, "text", "abc", 3);
    commit(b);
    ck_assert_int_eq(meta_value_get_u64(m, "text", &n), -EBADMSG);
    ck_assert_int_eq(meta_value_get_u64(m, "none", &n), -ENOENT);
    ck_assert_uint_eq(n, 5);
    ck_assert_int_eq(meta_value_get_u64(m, "n", &n), 0);
    ck_assert_uint_eq(n, UINT64_MAX);
}
END_TEST

START_TEST(dump_shows_one_line_per_record_even_for_odd_names)
{
    add_name(5, "two\nlines", 100);
    g_autoptr(GString) dump = g_string_new(NULL);
    ck_assert_int_eq(meta_dump(m, dump), 0);
    ck_assert_ptr_nonnull(strstr(dump->str, "name='two\\nlines' ino=100"));
    ck_assert_ptr_nonnull(strstr(dump->str, "identity='link'"));
    ck_assert_ptr_null(strstr(dump->str, "BAD"));
    unsigned lines = 0;
    for (const char *p = dump->str; *p; p++)
        lines += *p == '\n';
    ck_assert_uint_eq(lines, 6); /* dentry, header, link, name, two counters */
}
END_TEST

START_TEST(dump_shows_every_kind_of_record)
{
    char key[] = "k", id[] = "id", name[] = "f";
    struct meta_dentry d = {.parent = 5,
                            .name = name,
                            .ino = 7,
                            .type = S_IFREG,
                            .flags = DENTRY_UPSTREAM,
                            .op_seq = 3,
                            .ukey = key,
                            .uetag = {"e1"},
                            .usize = 9,
                            .umtime_ns = -4};
    struct meta_batch *b = meta_batch_new(m);
    meta_inode_put(b, &(struct meta_inode){
                          .ino = 7, .mode = S_IFREG | 0640, .size = 9, .vid = 20, .mtime_ns = -3, .base_key = key});
    meta_dentry_put(b, &d);
    meta_op_put(b, &(struct meta_op){
                       .seq = 3, .kind = OP_SYNC, .parent = 5, .name = name, .place = 2, .turn = 1, .unclosed = true});
    meta_op_put(b, &(struct meta_op){.seq = 4, .kind = OP_DELETE, .key = key, .err = -EIO, .state = OPS_PARKED});
    meta_upload_put(b, &(struct meta_upload){.vid = 20, .key = key, .upload_id = id, .part_bytes = 8, .gen = 2});
    meta_part_put(b, &(struct meta_part){.vid = 20, .number = 1, .size = 8, .crc32c = 0xab, .etag = {"e2"}});
    meta_cached_put(b, &(struct meta_cached){.vid = 20, .ino = 7, .bytes = 9, .flags = CACHED_HOT, .tier = 1});
    meta_segment_put(b, 20, 6, &(struct meta_segment){.present = {0xff, 1}, .dirty = {2}});
    meta_chunk_crc_put(b, 20, 5, 0xcd);
    meta_reply_put(b, &(struct meta_reply){.generation = 1, .place = 2, .unique = 30, .ino = 7});
    meta_xattr_put(b, 7, "user.x", "SECRET", 6);
    meta_value_put(b, "v", "SECRET", 6);
    commit(b);
    g_autoptr(GString) dump = g_string_new(NULL);
    ck_assert_int_eq(meta_dump(m, dump), 0);
    static const char *const wanted[] = {
        "inode ino=7 mode=100640 ",
        " size=9 mtime_ns=-3 ",
        " vid=20 ",
        " base_key='k' ",
        "target=- ",
        "dentry parent=5 ",
        " op_seq=3 ukey='k' uetag='e1' usize=9 ",
        " umtime_ns=-4\n",
        "link ino=7 parent=5 ",
        "op seq=3 kind=sync ",
        " name='f' ",
        " place=2 turn=1 unclosed=1\n",
        "op seq=4 kind=delete ",
        " err='EIO' ",
        "upload vid=20 key='k' upload_id='id' part_bytes=8 gen=2\n",
        "part vid=20 number=1 size=8 crc32c=000000ab etag='e2'\n",
        "cached vid=20 ino=7 bytes=9 ",
        " flags=0x2 tier=1\n",
        "segment vid=20 segment=6 present=9 dirty=1\n",
        "crc vid=20 chunk=5 crc32c=000000cd\n",
        "reply generation=1 place=2 unique=30 ino=7\n",
        "xattr ino=7 name='user.x' bytes=6\n",
        "value name='v' bytes=6\n",
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(wanted); i++)
        ck_assert_msg(strstr(dump->str, wanted[i]) != NULL, "not in the dump: %s\n%s", wanted[i], dump->str);
    ck_assert_ptr_null(strstr(dump->str, "BAD"));
    ck_assert_ptr_null(strstr(dump->str, "SECRET"));
}
END_TEST

/* ---- batches, crashes, damage ---- */

START_TEST(freed_batch_leaves_nothing_and_commit_empties_it)
{
    struct meta_batch *b = meta_batch_new(m);
    meta_value_put(b, "a", "1", 1);
    meta_batch_free(b);
    GBytes *v = NULL;
    ck_assert_int_eq(meta_value_get(m, "a", &v), -ENOENT);
    b = meta_batch_new(m);
    meta_value_put(b, "a", "1", 1);
    ck_assert_int_eq(meta_commit(b, true), 0);
    struct meta_batch *del = meta_batch_new(m);
    meta_value_del(del, "a");
    commit(del);
    ck_assert_int_eq(meta_commit(b, false), 0); /* must not bring it back */
    meta_batch_free(b);
    ck_assert_int_eq(meta_value_get(m, "a", &v), -ENOENT);
    ck_assert_int_eq(meta_sync(m), 0);
}
END_TEST

#define ADD(name) tcase_add_test(t, name)

int main(void)
{
    Suite *s = suite_create("meta");
    TCase *t = tcase_create("store");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, setup, teardown);
    ADD(threads_that_sync_at_once_share_syncs);
    ADD(new_database_is_fresh_and_reopened_is_not);
    ADD(other_identity_is_refused);
    ADD(second_process_is_refused);
    ADD(missing_current_file_is_refused_not_restarted);
    ADD(inode_is_kept_over_reopen_and_gone_after_del);
    ADD(inode_each_is_ascending_and_stops);
    ADD(inodes_are_read_in_any_order);
    ADD(who_reads_many_inodes_sees_what_is_committed_meanwhile);
    ADD(dentry_each_is_by_id_and_resumes_after);
    ADD(dentry_put_again_keeps_its_id);
    ADD(near_records_are_those_that_gets_give);
    ADD(link_each_gives_every_name_of_the_inode_only);
    ADD(name_that_moved_to_another_inode_leaves_the_first);
    ADD(dentry_del_removes_record_and_indexes);
    ADD(callbacks_may_read_build_batches_and_commit);
    ADD(xattrs_belong_to_their_inode_and_go_with_it);
    ADD(ops_come_in_order_of_seq);
    ADD(uploads_and_their_parts_are_kept_and_removed_together);
    ADD(cached_del_removes_segments_and_checksums_of_that_file);
    ADD(values_are_found_by_name_and_prefix);
    ADD(numbers_come_back_and_other_values_are_none);
    ADD(dump_shows_one_line_per_record_even_for_odd_names);
    ADD(dump_shows_every_kind_of_record);
    ADD(freed_batch_leaves_nothing_and_commit_empties_it);
    suite_add_tcase(s, t);
    return run_suite(s);
}
