/* Inodes without a name that a worker left: they go when the kernel does not know them, and not before. A thread of the test answers for notifier and kernel. */
#include "cache/cache_internal.h"
#include "cache_scan.h"
#include "fs/content.h"
#include "fs/event_apply.h"
#include "fs/events.h"
#include "fs/notifier.h"
#include "fs/reap.h"
#include "fs/replay.h"
#include "fs/request.h"
#include "fs/tree.h"
#include "takeover.h"
#include "tests/support/checks.h"

#include <check.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
    int ends[2]; /* worker's, kernel's */
    pthread_t thread;
    /* atomic */
    _Atomic uint64_t knows; /* an inode, 0 none */
    atomic_uint n_asked;
    atomic_bool mute;
} kernel;

struct question {
    struct fuse_out_header head;
    struct fuse_notify_inval_inode_out inode;
};

static void *kernel_main(void *arg)
{
    struct question q;
    while (recv(kernel.ends[1], &q, sizeof(q), 0) == sizeof(q)) {
        struct notifier_answer old = {q.head.unique - 1, q.inode.ino, -ENOENT}; /* to a worker before */
        struct notifier_answer a = {q.head.unique, q.inode.ino, q.inode.ino == kernel.knows ? 0 : -ENOENT};
        kernel.n_asked++;
        if (kernel.mute)
            continue;
        (void)!send(kernel.ends[1], &old, sizeof(old), MSG_NOSIGNAL);
        (void)!send(kernel.ends[1], &a, sizeof(a), MSG_NOSIGNAL);
    }
    return NULL;
}

static void setup(void)
{
    takeover_setup();
    kernel.knows = 0;
    kernel.n_asked = 0;
    kernel.mute = false;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, kernel.ends), 0);
}

static void teardown(void)
{
    takeover_teardown();
    close(kernel.ends[0]);
    (void)shutdown(kernel.ends[1], SHUT_RDWR);
    if (kernel.thread)
        (void)pthread_join(kernel.thread, NULL);
    close(kernel.ends[1]);
}

/* The last worker, with a kernel that knows one inode. */
static void open_and_start(uint64_t knows)
{
    kernel.knows = knows;
    takeover_open(false);
    ck_assert_int_eq(pthread_create(&kernel.thread, NULL, kernel_main, NULL), 0);
    fx.fs->notify_fd = kernel.ends[0];
    fs_fixture_start(&fx);
}

static bool record_is_there(uint64_t ino)
{
    struct meta_inode rec = {0};
    bool there = meta_inode_get(fx.fs->meta, ino, &rec) == 0;
    meta_inode_clear(&rec);
    return there;
}

/* The record of what is removed may wait for the disk. */
static bool cached_is_there(uint64_t vid)
{
    struct meta_cached c;
    return meta_cached_get(fx.fs->meta, vid, &c) == 0 && !cache_scan_is_dying(&c);
}

static void wait_reaped(void)
{
    for (unsigned i = 0; i < 1000 && record_is_there(shared->ino); i++)
        g_usleep(10000);
    ck_assert(!record_is_there(shared->ino));
    ck_assert(!cached_is_there(shared->vid));
}

static void wait_asked(unsigned n)
{
    for (unsigned i = 0; i < 1000 && kernel.n_asked < n; i++)
        g_usleep(10000);
    ck_assert_uint_eq(kernel.n_asked, n);
    g_usleep(100000); /* the answer is read, and would have been acted upon */
}

/* Written, closed, removed; its FORGET was read, or never comes. */
static void work_remove(void)
{
    struct handle *h = takeover_create("f");
    struct inode *in = inode_ref(h->in);
    inode_kernel_ref(in);
    takeover_write(h, "text", 0);
    takeover_flush(h);
    takeover_release(h);
    shared->vid = in->rec.vid;
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    ck_assert(cached_is_there(shared->vid));
}

START_TEST(what_the_kernel_does_not_know_goes_at_once)
{
    takeover_run(work_remove, false);
    open_and_start(0);
    wait_reaped();
    ck_assert_uint_eq(kernel.n_asked, 1);
}
END_TEST

START_TEST(what_two_workers_left_goes)
{
    takeover_run(work_remove, false);
    takeover_run(takeover_nothing, false);
    open_and_start(0);
    wait_reaped();
}
END_TEST

START_TEST(what_the_kernel_knows_goes_with_its_forget)
{
    takeover_run(work_remove, false);
    open_and_start(shared->ino);
    wait_asked(1);
    for (unsigned i = 0; i < 3; i++) { /* a request for it */
        INODE_REF in = NULL;
        ck_assert_int_eq(inode_get(fx.fs, shared->ino, &in), 0);
    }
    wait_asked(1);
    ck_assert(record_is_there(shared->ino));
    ck_assert(cached_is_there(shared->vid));
    inode_kernel_forget(fx.fs, shared->ino, 1);
    wait_reaped();
    ck_assert_uint_eq(kernel.n_asked, 1);
}
END_TEST

START_TEST(forget_that_comes_while_it_is_used_counts)
{
    takeover_run(work_remove, false);
    open_and_start(shared->ino);
    wait_asked(1);
    INODE_REF in = NULL;
    ck_assert_int_eq(inode_get(fx.fs, shared->ino, &in), 0);
    kernel.knows = 0;
    inode_kernel_forget(fx.fs, shared->ino, 1);
    ck_assert(record_is_there(shared->ino));
    inode_put(g_steal_pointer(&in));
    wait_reaped();
}
END_TEST

static void work_unlink_open(void)
{
    struct handle *h = takeover_create("f");
    takeover_write(h, "text", 0);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
}

START_TEST(open_file_is_asked_for_when_it_is_released)
{
    takeover_run(work_unlink_open, false);
    open_and_start(0);
    g_usleep(200000);
    ck_assert_uint_eq(kernel.n_asked, 0);
    takeover_release(takeover_handle(shared->fh));
    wait_reaped();
}
END_TEST

static void work_make_known(void)
{
    struct inode *in = takeover_make("f");
    shared->ino = in->ino;
    inode_kernel_ref(in);
    content_release(in, true);
}

/* A FORGET that takes all that this worker counted need not take all that there are. */
START_TEST(file_removed_after_the_takeover_goes_when_the_kernel_says_so)
{
    takeover_run(work_make_known, false);
    open_and_start(shared->ino);
    INODE_REF in = fs_fixture_inode(&fx, "f");
    inode_kernel_ref(in);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "f"), 0);
    inode_put(g_steal_pointer(&in));
    ck_assert_uint_eq(kernel.n_asked, 0);
    inode_kernel_forget(fx.fs, shared->ino, 1);
    wait_asked(1);
    ck_assert(record_is_there(shared->ino));
    kernel.knows = 0;
    inode_kernel_forget(fx.fs, shared->ino, 1);
    wait_reaped();
}
END_TEST

static void work_tmpfile(void)
{
    struct node_spec spec = {.parent = META_ROOT_INO, .mode = S_IFREG | 0644};
    INODE_REF in = NULL;
    request_begin(70, 3);
    ck_assert_int_eq(tree_tmpfile(fx.fs, &spec, &in), 0);
    inode_kernel_ref(in); /* for the reply, before which the worker dies */
    request_end();
    shared->ino = in->ino;
}

/* The kernel knows nothing of it yet, and will ask for it. */
START_TEST(what_a_request_made_that_may_come_again_stays_until_none_does)
{
    takeover_run(work_tmpfile, false);
    open_and_start(0);
    g_usleep(200000);
    ck_assert_uint_eq(kernel.n_asked, 0);
    ck_assert(record_is_there(shared->ino));
    atomic_store(&fx.fs->replay.caught_up, true); /* replay_expire() looks at it once a second */
    wait_reaped();
}
END_TEST

START_TEST(silent_kernel_keeps_nobody_from_ending)
{
    takeover_run(work_remove, false);
    kernel.mute = true;
    open_and_start(0);
    wait_asked(1);
    ck_assert(record_is_there(shared->ino));
}
END_TEST

static bool is_told(int timeout_ms)
{
    struct pollfd p = {.fd = kernel.ends[1], .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1;
}

START_TEST(kernel_is_told_of_a_change_when_it_is_committed)
{
    takeover_open(false);
    fx.fs->notify_fd = kernel.ends[0];
    for (unsigned i = 0; i < 2; i++) { /* what was waited for the first time covers nothing that was said since */
        char note[64];
        mutex_lock(&fx.fs->ns);
        notify_entry(fx.fs, META_ROOT_INO, "f");
        ck_assert(!is_told(200));
        mutex_unlock(&fx.fs->ns);
        ck_assert(is_told(20000));
        ck_assert_int_gt(recv(kernel.ends[1], note, sizeof(note), 0), 0);
    }
}
END_TEST

/* Attributes and pages: what was read was not what the store has. */
START_TEST(kernel_is_told_of_bytes_that_were_wrong)
{
    struct {
        struct fuse_out_header head;
        struct fuse_notify_inval_inode_out inode;
    } note;
    takeover_open(false);
    fx.fs->notify_fd = kernel.ends[0];
    fx.fs->cache->cfg.wrong(fx.fs->cache->cfg.dropped_ctx, 77);
    ck_assert(is_told(20000));
    ck_assert_int_gt(recv(kernel.ends[1], &note, sizeof(note), 0), 0);
    ck_assert_int_eq(note.head.error, FUSE_NOTIFY_INVAL_INODE);
    ck_assert_uint_eq(note.inode.ino, 77);
    ck_assert_int_eq(note.inode.off, 0);
    ck_assert_int_eq(note.inode.len, 0);
}
END_TEST

static uint64_t dir_of_lost;

/* Names go that the kernel knows: by what the store has, and by a program. It is not told. */
static void work_lose(void)
{
    fs_fixture_object(&fx, "d/gone", "1", 1);
    fs_fixture_object(&fx, "d/other", "1", 1);
    fs_fixture_object(&fx, "d/removed", "1", 1);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    const char *paths[] = {"d/gone", "d/other", "d/removed"};
    for (unsigned i = 0; i < G_N_ELEMENTS(paths); i++) {
        INODE_REF in = fs_fixture_inode(&fx, paths[i]);
        inode_kernel_ref(in);
    }
    g_autofree char *gone = g_build_filename(fx.lake, "d/gone", NULL);
    ck_assert_int_eq(unlink(gone), 0);
    fs_fixture_object(&fx, "d/other", "22", 2);
    ck_assert_int_eq(tree_refresh(fx.fs, dir, true), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, dir->ino, "removed"), 0);
    shared->ino = dir->ino;
    (void)atomic_fetch_add(&fx.session->head->notes_said, 1); /* by the thread that is killed before it tells */
}

static void take_lost(struct fs *fs, uint64_t parent, const char *name)
{
    ck_assert_str_eq(name, "gone");
    dir_of_lost = parent;
}

START_TEST(kernel_is_told_again_of_a_name_that_is_gone)
{
    struct {
        struct fuse_out_header head;
        struct fuse_notify_inval_entry_out entry;
        char name[16];
    } note;
    takeover_run(work_lose, false);
    takeover_open(false);
    dir_of_lost = 0;
    ck_assert_int_eq(tree_lost_each(fx.fs, take_lost), 0);
    ck_assert_uint_eq(dir_of_lost, shared->ino);
    fx.fs->notify_fd = kernel.ends[0];
    notify_take_over(fx.fs);
    ck_assert(is_told(20000));
    ck_assert_int_gt(recv(kernel.ends[1], &note, sizeof(note), 0), 0);
    ck_assert_int_eq(note.head.error, FUSE_NOTIFY_INVAL_ENTRY);
    ck_assert_uint_eq(note.entry.parent, shared->ino);
    ck_assert_str_eq(note.name, "gone");
}
END_TEST

struct told {
    unsigned names, dirs, expired, attributes;
};

/* What the kernel is told of "d" and of "d/f", which it knows, up to the attributes of the latter. */
static void take_notes(uint64_t d, uint64_t f, struct told *ret)
{
    struct {
        struct fuse_out_header head;
        union {
            struct fuse_notify_inval_inode_out inode;
            struct {
                struct fuse_notify_inval_entry_out entry;
                char name[16];
            };
        };
    } note;
    for (bool last = false; !last;) {
        ck_assert(is_told(20000));
        ck_assert_int_gt(recv(kernel.ends[1], &note, sizeof(note), 0), 0);
        bool of_name = note.head.error == FUSE_NOTIFY_INVAL_ENTRY;
        ck_assert(of_name || (note.head.error == FUSE_NOTIFY_INVAL_INODE && note.inode.off == -1));
        ck_assert(!of_name || (note.entry.parent == d && g_str_equal(note.name, "f")) ||
                  (note.entry.parent == META_ROOT_INO && g_str_equal(note.name, "d")));
        ret->names += of_name;
        ret->dirs += of_name && note.entry.parent == META_ROOT_INO;
        ret->expired += of_name && note.entry.flags == FUSE_EXPIRE_ONLY;
        ret->attributes += !of_name;
        last = !of_name && note.inode.ino == f;
    }
}

/* Without the flag for it a name goes altogether, which nobody minds who works with a file, but with a directory. */
START_TEST(directories_in_use_stay_where_the_kernel_cannot_doubt)
{
    takeover_open(false);
    fs_fixture_write(&fx, "d/f", "1", 1);
    fs_fixture_write(&fx, "d/unknown", "1", 1);
    INODE_REF d = fs_fixture_inode(&fx, "d");
    INODE_REF f = fs_fixture_inode(&fx, "d/f");
    inode_kernel_ref(d);
    inode_kernel_ref(f);
    fx.fs->notify_fd = kernel.ends[0];
    for (unsigned expires = 0; expires < 2; expires++) {
        struct told told = {0};
        atomic_store(&fx.fs->fuse_caps, expires ? FUSE_CAP_EXPIRE_ONLY : 0);
        notify_below(fx.fs, META_ROOT_INO);
        take_notes(d->ino, f->ino, &told);
        ck_assert_uint_eq(told.names, 1 + expires);
        ck_assert_uint_eq(told.dirs, expires);
        ck_assert_uint_eq(told.expired, 2 * expires);
        ck_assert_uint_eq(told.attributes, 2);
    }
}
END_TEST

static struct events *open_events(void)
{
    g_autofree char *secret = g_build_filename(fx.dir, "secret", NULL), *msg = NULL;
    ck_assert(g_file_set_contents_full(secret, "a-secret-of-events-1\n", -1, G_FILE_SET_CONTENTS_NONE, 0600, NULL));
    struct events *ev = NULL;
    ck_assert_int_eq(events_open(fx.fs, secret, &ev, &msg), 0);
    return ev;
}

/* The first thing that it is told is what was said after the start. */
START_TEST(kernel_of_a_new_mount_trusts_nothing_yet)
{
    struct {
        struct fuse_out_header head;
        struct fuse_notify_inval_entry_out entry;
        char name[16];
    } note;
    takeover_open(false);
    fs_fixture_write(&fx, "d/f", "1", 1);
    INODE_REF d = fs_fixture_inode(&fx, "d");
    inode_kernel_ref(d);
    fx.fs->notify_fd = kernel.ends[0];
    atomic_store(&fx.fs->fuse_caps, FUSE_CAP_EXPIRE_ONLY);
    struct events *ev = open_events();
    notify_entry(fx.fs, META_ROOT_INO, "after");
    ck_assert(is_told(20000));
    ck_assert_int_gt(recv(kernel.ends[1], &note, sizeof(note), 0), 0);
    ck_assert_int_eq(note.head.error, FUSE_NOTIFY_INVAL_ENTRY);
    ck_assert_str_eq(note.name, "after");
    events_close(ev);
}
END_TEST

/* A reference. */
static struct inode *known_to_kernel(const char *path)
{
    struct inode *in = fs_fixture_inode(&fx, path);
    inode_kernel_ref(in);
    return in;
}

static void tell_kernel_that_expires(void)
{
    fx.fs->notify_fd = kernel.ends[0];
    atomic_store(&fx.fs->fuse_caps, FUSE_CAP_EXPIRE_ONLY);
}

/* What came while nobody listened, and what is lost of a directory: the kernel trusts names for as long as it was told to. */
START_TEST(kernel_trusts_no_names_for_lost_events)
{
    takeover_run(takeover_nothing, false);
    takeover_open(false);
    fs_fixture_write(&fx, "d/f", "1", 1);
    INODE_REF d = known_to_kernel("d");
    INODE_REF f = known_to_kernel("d/f");
    tell_kernel_that_expires();
    struct told all = {0}, one = {0};
    struct events *ev = open_events();
    take_notes(d->ino, f->ino, &all);
    ck_assert_uint_eq(all.expired, 2);
    ck_assert(event_doubt_dir(fx.fs, "d/"));
    take_notes(d->ino, f->ino, &one);
    ck_assert_uint_ge(one.expired, 1);
    events_close(ev);
}
END_TEST

/* Notes wait while it is locked. */
static void wait_for(void *mutex)
{
    g_mutex_lock(mutex);
    g_mutex_unlock(mutex);
}

START_TEST(directory_that_is_doubted_again_and_again_is_looked_at_once)
{
    GMutex held;
    g_mutex_init(&held);
    takeover_open(false);
    fs_fixture_object(&fx, "d/f", "1", 1);
    INODE_REF d = known_to_kernel("d");
    INODE_REF f = known_to_kernel("d/f");
    tell_kernel_that_expires();
    for (unsigned i = 0; i < 2; i++) { /* what was looked at is doubted anew */
        struct told told = {0};
        g_mutex_lock(&held);
        ck_assert(workq_push(fx.fs->notify_q, false, wait_for, &held));
        ck_assert(event_doubt_dir(fx.fs, "d/"));
        unsigned load = workq_load(fx.fs->notify_q);
        for (unsigned k = 0; k < 3; k++)
            ck_assert(event_doubt_dir(fx.fs, "d/"));
        ck_assert_uint_eq(workq_load(fx.fs->notify_q), load);
        g_mutex_unlock(&held);
        take_notes(d->ino, f->ino, &told);
        ck_assert_uint_ge(told.expired, 1);
    }
    g_mutex_clear(&held);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("reap");
    TCase *tc = tcase_create("reap");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, kernel_is_told_of_a_change_when_it_is_committed);
    tcase_add_test(tc, kernel_is_told_of_bytes_that_were_wrong);
    tcase_add_test(tc, kernel_is_told_again_of_a_name_that_is_gone);
    tcase_add_test(tc, directories_in_use_stay_where_the_kernel_cannot_doubt);
    tcase_add_test(tc, kernel_of_a_new_mount_trusts_nothing_yet);
    tcase_add_test(tc, kernel_trusts_no_names_for_lost_events);
    tcase_add_test(tc, directory_that_is_doubted_again_and_again_is_looked_at_once);
    tcase_add_test(tc, what_the_kernel_does_not_know_goes_at_once);
    tcase_add_test(tc, what_two_workers_left_goes);
    tcase_add_test(tc, what_the_kernel_knows_goes_with_its_forget);
    tcase_add_test(tc, forget_that_comes_while_it_is_used_counts);
    tcase_add_test(tc, open_file_is_asked_for_when_it_is_released);
    tcase_add_test(tc, file_removed_after_the_takeover_goes_when_the_kernel_says_so);
    tcase_add_test(tc, what_a_request_made_that_may_come_again_stays_until_none_does);
    tcase_add_test(tc, silent_kernel_keeps_nobody_from_ending);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
