/* Closed files that are open again: what of them is published while they are, and who waits for them. */
#include "order_fixture.h"

#include <sys/syscall.h>
#include <unistd.h>

static int logs_wait; /* atomic: syncs of the journal once f is noted take as long */

/* Takes the place of the C library's for the whole program. */
int fdatasync(int fd)
{
    g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd), *path = g_file_read_link(link, NULL);
    bool log = path && g_str_has_suffix(path, ".log");
    for (int i = 0; i < 1000 && log && g_atomic_int_get(&logs_wait) && publish_has_note(fx.fs, "f"); i++)
        g_usleep(10000);
    return (int)syscall(SYS_fdatasync, fd);
}

/* Closed, opened to append and written to. */
static struct inode *append(const char *path)
{
    struct inode *in = fs_fixture_inode(&fx, path);
    ck_assert_int_eq(content_open_to_append(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "2", 1, 1);
    return in;
}

static struct inode *overwrite(const char *path)
{
    struct inode *in = begin_write(path);
    content_note_write(in);
    return in;
}

static int publish_closed(struct inode *in)
{
    return publish_closed_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S);
}

static void assert_keeps(struct inode *in, bool want, bool want_due)
{
    bool due;
    ck_assert_int_eq(publish_keeps_others(fx.fs, in->ino, &due), want);
    ck_assert_int_eq(due, want_due);
}

static void assert_object(const char *key, const char *want)
{
    g_autofree char *path = g_build_filename(fx.lake, key, NULL), *data = NULL;
    ck_assert(g_file_get_contents(path, &data, NULL, NULL));
    ck_assert_str_eq(data, want);
}

START_TEST(what_was_added_to_is_published_while_it_is_open)
{
    close_file("log");
    struct inode *in = append("log");
    close_file("ckpt");
    assert_waits("ckpt", "log");
    assert_keeps(in, true, true);
    ck_assert_int_eq(publish_closed(in), 0);
    assert_object("log", "12");
    assert_keeps(in, false, false);
    assert_waits("ckpt", "(nothing)");
    fs_fixture_pwrite(in, "3", 1, 2);
    end_write(in);
    publish_all();
    assert_object("log", "123");
}
END_TEST

START_TEST(what_waits_for_others_itself_is_not_due)
{
    close_file("first");
    close_file("log");
    struct inode *in = append("log");
    assert_keeps(in, true, false);
    end_write(in);
}
END_TEST

START_TEST(what_is_held_is_not_published_while_it_is_open)
{
    close_file("log.tmp");
    struct inode *in = append("log.tmp");
    assert_keeps(in, false, false);
    ck_assert_int_eq(publish_closed(in), 0);
    ck_assert(!fs_fixture_object_exists(&fx, "log.tmp"));
    end_write(in);
}
END_TEST

/* 0: it is written in its middle; 1: cut; 2: taken over by another worker. */
START_TEST(what_is_overwritten_is_not_published_while_it_is_open)
{
    close_file("f");
    struct inode *in = _i == 0 ? overwrite("f") : append("f");
    if (_i == 1)
        ck_assert_int_eq(content_truncate(in, 0), 0);
    if (_i == 2) {
        mutex_lock(&in->mu);
        in->sealed_changes = in->n_changes; /* both are 0 in another worker */
        mutex_unlock(&in->mu);
        ck_assert_int_eq(content_adopt(in, true), 0);
    }
    close_file("latest");
    assert_keeps(in, true, true);
    ck_assert(!content_keeps_closed(in));
    ck_assert_int_eq(publish_closed(in), -ECANCELED);
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    assert_waits("latest", "f");
    ck_assert_int_eq(publish_skip(fx.fs->pub, "f"), 1);
    assert_waits("latest", "(nothing)");
    if (_i == 2)
        content_release(in, true);
    end_write(in);
    ck_assert(content_keeps_closed(in = fs_fixture_inode(&fx, "f")));
    inode_put(in);
    publish_all();
    assert_object("f", _i == 0 ? "2" : _i == 1 ? "" : "12");
}
END_TEST

static void *publish_closed_main(void *in)
{
    return GINT_TO_POINTER(publish_closed(in));
}

/* 0: it was cut and is being written; 1: it is about to be overwritten. */
START_TEST(what_is_overwritten_behind_the_gate_is_not_published_while_it_is_open)
{
    pthread_t thread;
    void *r;
    close_file("f");
    struct inode *in = append("f");
    close_file("latest");
    g_atomic_int_set(&logs_wait, 1);
    ck_assert_int_eq(thread_start(&thread, "closed", publish_closed_main, in), 0);
    while (!publish_has_note(fx.fs, "f"))
        g_usleep(1000);
    if (_i == 0) {
        ck_assert_int_eq(content_truncate(in, 0), 0);
        fs_fixture_pwrite(in, "x", 1, 0);
    } else {
        inode_put(begin_write("f"));
    }
    g_atomic_int_set(&logs_wait, 0);
    ck_assert_int_eq(pthread_join(thread, &r), 0);
    ck_assert_int_eq(GPOINTER_TO_INT(r), -ECANCELED);
    ck_assert(!fs_fixture_object_exists(&fx, "f"));
    assert_waits("latest", "f");
    if (_i == 1)
        content_release(in, true);
    end_write(in);
    publish_all();
    assert_object("f", _i == 0 ? "x" : "22");
}
END_TEST

START_TEST(what_is_opened_to_be_overwritten_keeps_what_was_closed_until_it_is)
{
    close_file("f");
    struct inode *in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert(content_keeps_closed(in));
    fs_fixture_pwrite(in, "2", 1, 0);
    ck_assert(!content_keeps_closed(in));
    end_write(in);
    in = append("f");
    ck_assert(content_keeps_closed(in));
    end_write(in);
}
END_TEST

START_TEST(file_of_which_one_descriptor_was_closed_is_let_go_until_the_next_close)
{
    close_file("closed");
    struct inode *other = append("closed");
    struct inode *in = create_open("log");
    fs_fixture_pwrite(in, "1", 1, 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    assert_keeps(in, false, false);
    ck_assert_int_eq(publish_skip(fx.fs->pub, "closed"), 1);
    close_file("ckpt");
    assert_waits("ckpt", "log");
    publish_let_go(fx.fs, in->ino);
    assert_waits("ckpt", "(nothing)");
    ck_assert_int_eq(content_flush(in, false), 0);
    assert_waits("ckpt", "log");
    end_write(in);
    end_write(other);
}
END_TEST

START_TEST(what_was_closed_is_not_let_go)
{
    close_file("f");
    struct inode *in = append("f");
    close_file("latest");
    publish_let_go(fx.fs, in->ino);
    assert_waits("latest", "f");
    end_write(in);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_open");
    TCase *tc = tcase_create("open");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, what_was_added_to_is_published_while_it_is_open);
    tcase_add_test(tc, what_waits_for_others_itself_is_not_due);
    tcase_add_test(tc, what_is_held_is_not_published_while_it_is_open);
    tcase_add_loop_test(tc, what_is_overwritten_is_not_published_while_it_is_open, 0, 3);
    tcase_add_loop_test(tc, what_is_overwritten_behind_the_gate_is_not_published_while_it_is_open, 0, 2);
    tcase_add_test(tc, what_is_opened_to_be_overwritten_keeps_what_was_closed_until_it_is);
    tcase_add_test(tc, file_of_which_one_descriptor_was_closed_is_let_go_until_the_next_close);
    tcase_add_test(tc, what_was_closed_is_not_let_go);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
