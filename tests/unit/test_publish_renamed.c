/* What waits for what when closed files are renamed, replaced or exchanged before they are published; over a lake in a folder, without FUSE. */
#include "order_fixture.h"

static const char *const shard_names[] = {"run/step_2/shard.new", "run/step_2/shard.tmp"};

START_TEST(delete_waits_for_what_was_closed_before_it_and_renamed_since)
{
    fs_fixture_object(&fx, "run/step_1/shard", "1", 1);
    close_file(shard_names[_i]);
    drop("run/step_1/shard");
    move(shard_names[_i], "run/step_2/shard");
    assert_waits("run/step_1/shard", "run/step_2/shard");
    open_again();
    assert_waits("run/step_1/shard", "run/step_2/shard");
    assert_order("run/step_2/shard -run/step_1/shard");
}
END_TEST

START_TEST(delete_waits_for_what_was_closed_before_it_and_moved_along_with_a_directory)
{
    fs_fixture_object(&fx, "run/step_1/shard", "1", 1);
    close_file("run/tmp-2/shard");
    drop("run/step_1/shard");
    move("run/tmp-2", "run/step_2");
    assert_order("run/step_2/shard -run/step_1/shard");
}
END_TEST

START_TEST(marker_waits_for_what_was_closed_before_it_and_renamed_since)
{
    close_file(shard_names[_i]);
    close_file("run/latest");
    move(shard_names[_i], "run/step_2/shard");
    assert_waits("run/latest", "run/step_2/shard");
    open_again();
    assert_waits("run/latest", "run/step_2/shard");
    assert_order("run/step_2/shard run/latest");
}
END_TEST

START_TEST(marker_waits_for_what_was_closed_twice_and_then_renamed)
{
    close_file("run/step_1/a");
    close_again("run/step_1/a");
    close_file("run/b");
    close_again("run/b");
    close_file("run/latest");
    move("run/step_1/a", "run/step_1/a2");
    move("run/b", "run/b2");
    open_again();
    assert_waits("run/latest", "run/step_1/a2");
    assert_order("run/step_1/a2 run/b2 run/latest");
}
END_TEST

START_TEST(what_was_closed_before_the_marker_goes_first_under_whatever_name_it_has)
{
    close_file("run/a");
    close_file("run/latest");
    close_file("run/b");
    move("run/b", "run/b2");
    move("run/a", "run/a2");
    move("run/a2", "run/a3");
    open_again();
    assert_order("run/a3 run/latest run/b2");
}
END_TEST

START_TEST(marker_that_was_held_waits_for_what_was_closed_beside_it_before_it_got_its_name)
{
    close_file("run/a");
    close_file("run/latest.tmp");
    close_file("run/b");
    move("run/latest.tmp", "run/latest");
    close_file("run/c");
    open_again();
    assert_order("run/a run/b run/latest run/c");
}
END_TEST

START_TEST(marker_that_is_renamed_waits_for_what_was_closed_below_before_that)
{
    close_file("run/latest.new");
    close_file("run/step_2/shard");
    move("run/latest.new", "run/latest");
    close_file("run/step_3/shard");
    assert_waits("run/latest", "run/step_2/shard");
    assert_order("run/step_2/shard run/latest run/step_3/shard");
}
END_TEST

START_TEST(what_comes_into_a_directory_waits_for_what_was_there)
{
    close_file("stage/latest");
    close_file("run/shard");
    move("stage/latest", "run/latest");
    assert_order("run/shard run/latest");
}
END_TEST

START_TEST(what_comes_up_into_a_directory_is_waited_for_as_before)
{
    close_file("run/step_1/shard");
    close_file("run/latest");
    move("run/step_1/shard", "run/shard");
    assert_order("run/shard run/latest");
}
END_TEST

static const char *const dir_names[] = {"step_1", "tmp-1"};

START_TEST(files_of_a_renamed_directory_go_in_the_order_in_which_they_were_closed)
{
    g_autofree char *marker = g_strconcat(dir_names[_i], "/0", NULL), *a = g_strconcat(dir_names[_i], "/a", NULL);
    g_autofree char *b = g_strconcat(dir_names[_i], "/sub/b", NULL);
    close_file(marker);
    close_file(b);
    close_file(a);
    close_again(marker);
    move(dir_names[_i], "best");
    assert_waits("best/0", "best/sub/b");
    open_again();
    close_file("latest");
    move("best", "good");
    assert_order("good/sub/b good/a good/0 latest");
}
END_TEST

START_TEST(what_is_upstream_of_a_renamed_directory_goes_before_what_was_closed_there)
{
    fs_fixture_object(&fx, "d/a", "1", 1);
    fs_fixture_object(&fx, "d/b", "1", 1);
    close_file("d/sub/c");
    close_file("d/d");
    move("d", "e");
    move("e", "f");
    assert_waits("f/d", "f/sub/c");
    assert_order("f/a f/b f/sub/c f/d");
}
END_TEST

START_TEST(what_is_exchanged_is_there_before_anything_of_it_goes)
{
    fs_fixture_object(&fx, "a/x", "1", 1);
    fs_fixture_object(&fx, "b/y", "2", 1);
    exchange("a", "b");
    open_again();
    assert_waits("a/x", "b/x");
    assert_waits("b/y", "b/x");
    assert_order("b/x a/y -a/x -b/y");
}
END_TEST

/* Though that was closed before it got its turn. */
START_TEST(what_was_visible_is_at_its_new_place_before_it_is_replaced)
{
    fs_fixture_object(&fx, "run/a", "1", 1);
    close_file("run/b");
    exchange("run/b", "run/a");
    open_again();
    assert_order("run/b run/a");
}
END_TEST

START_TEST(files_of_exchanged_directories_go_in_the_order_in_which_they_were_closed)
{
    close_file("a/0");
    close_file("a/1");
    close_again("a/0");
    close_file("b/x");
    exchange("a", "b");
    open_again();
    assert_order("b/1 b/0 a/x");
}
END_TEST

START_TEST(exchanged_directories_are_published)
{
    fs_fixture_object(&fx, "a/x", "1", 1);
    fs_fixture_object(&fx, "b/x/y", "2", 1);
    exchange("a", "b");
    exchange("a/x", "b/x");
    close_file("a/z");
    move("a/z", "b/z");
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "a/x"));
    ck_assert(fs_fixture_object_exists(&fx, "b/x/y"));
    ck_assert(fs_fixture_object_exists(&fx, "b/z"));
}
END_TEST

START_TEST(exchange_is_no_second_close)
{
    close_file("run/a");
    close_file("run/latest");
    close_file("run/b");
    exchange("run/a", "run/b");
    open_again();
    assert_order("run/b run/latest run/a");
}
END_TEST

/* Where one waits for itself and gives way, that is to those it waits for, not to what was closed after it. */
START_TEST(circle_of_others_lets_no_marker_go)
{
    set_order(ORDER_MOUNT);
    close_file("d/shard");
    close_file("d/other");
    close_again("d/shard");
    close_file("latest");
    move("d/shard", "d/part");
    assert_order("d/other d/part latest");
}
END_TEST

START_TEST(what_replaces_a_deleted_name_is_waited_for_as_the_delete_was)
{
    fs_fixture_object(&fx, "run/latest", "1", 1);
    fs_fixture_object(&fx, "run/step_1/shard", "1", 1);
    drop("run/latest");
    drop("run/step_1/shard");
    close_file("run/new");
    move("run/new", "run/latest");
    assert_waits("run/step_1/shard", "run/latest");
    open_again();
    assert_order("run/latest -run/step_1/shard");
}
END_TEST

static void make_symlink(const char *target, const char *path)
{
    const char *name;
    struct inode *in = NULL;
    struct node_spec spec = {.mode = S_IFLNK | 0777, .target = target, .who = {fx.fs->uid, fx.fs->gid}};
    spec.parent = dir_of(path, &name);
    spec.name = name;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    inode_put(in);
}

/* A symbolic link, or another name of a closed file. */
START_TEST(what_is_made_at_a_deleted_name_is_waited_for_as_the_delete_was)
{
    fs_fixture_object(&fx, "run/latest", "1", 1);
    fs_fixture_object(&fx, "run/step_1/shard", "1", 1);
    drop("run/latest");
    drop("run/step_1/shard");
    if (_i == 0) {
        make_symlink("step_2", "run/latest");
    } else {
        close_file("run/new");
        link_to("run/new", "run/latest");
    }
    assert_waits("run/step_1/shard", "run/latest");
    open_again();
    assert_waits("run/step_1/shard", "run/latest");
    assert_order(_i == 0 ? "run/latest -run/step_1/shard" : "run/latest -run/step_1/shard run/new");
}
END_TEST

START_TEST(files_that_replace_a_deleted_directory_are_waited_for_as_the_deletes_were)
{
    fs_fixture_object(&fx, "run/last/shard", "1", 1);
    fs_fixture_object(&fx, "run/step_1/shard", "1", 1);
    drop("run/last/shard");
    INODE_REF run = fs_fixture_inode(&fx, "run");
    ck_assert_int_eq(tree_rmdir(fx.fs, run->ino, "last"), 0);
    drop("run/step_1/shard");
    close_file("run/new/shard");
    move("run/new", "run/last");
    assert_order("run/last/shard -run/step_1/shard");
}
END_TEST

START_TEST(marker_written_again_waits_for_what_was_renamed_after_that)
{
    close_file("run/a");
    close_file("run/latest");
    close_again("run/latest");
    move("run/a", "run/b");
    assert_waits("run/latest", "run/b");
    assert_order("run/b run/latest");
}
END_TEST

START_TEST(file_that_is_open_again_is_waited_for_when_it_was_renamed)
{
    close_file("step_1/a");
    struct inode *in = begin_write("step_1/a");
    move("step_1/a", "step_1/b");
    close_file("latest");
    assert_waits("latest", "step_1/b");
    assert_order("");
    end_write(in);
    assert_order("step_1/b latest");
}
END_TEST

START_TEST(file_whose_last_close_is_not_seen_yet_keeps_its_place_when_renamed)
{
    close_file("step_1/a");
    struct inode *in = begin_write("step_1/a");
    ck_assert_int_eq(content_flush(in, false), 0);
    close_file("latest");
    move("step_1/a", "step_1/b");
    assert_waits("latest", "step_1/b");
    content_release(in, true);
    inode_put(in);
    open_again();
    assert_order("step_1/b latest");
}
END_TEST

/* Also when the daemon is killed before it sees the close. */
START_TEST(file_that_was_only_flushed_keeps_its_place_when_renamed)
{
    close_file("step_1/x");
    struct inode *in = flush_new("step_1/a");
    close_file("latest");
    move("step_1/a", "step_1/b");
    assert_waits("latest", "step_1/x");
    if (_i == 0)
        content_release(in, true);
    else
        content_abandon(in, true);
    inode_put(in);
    open_again();
    assert_order("step_1/x step_1/b latest");
}
END_TEST

START_TEST(file_that_was_only_flushed_and_renamed_blocks_nobody_while_it_is_written)
{
    struct inode *in = flush_new("log");
    move("log", "log.1");
    ck_assert_int_eq(content_begin_change(in), 0);
    close_file("latest");
    assert_waits("latest", "(nothing)");
    content_abandon(in, true);
    inode_put(in);
    open_again();
    assert_order("latest");
}
END_TEST

/* It is visible under the old name then, and is to be so under the new one before the marker is. */
START_TEST(file_that_is_renamed_while_it_is_published_is_waited_for)
{
    static const char *const rules = "op=put,nth=1,action=delay:300ms;op=put,nth=2,count=1000000,action=error:-EIO;"
                                     "op=copy,count=1000000,action=error:-EIO";
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, rules), 0);
    close_file("step_1/a");
    close_file("latest");
    fs_fixture_start(&fx);
    while (!publish_has_note(fx.fs, "step_1/a"))
        g_usleep(1000);
    move("step_1/a", "step_1/b");
    assert_waits("latest", "step_1/b");
    while (!fs_fixture_object_exists(&fx, "step_1/a") || publish_has_note(fx.fs, "step_1/a"))
        g_usleep(1000);
    ck_assert(has_op("step_1/b"));
    assert_waits("latest", "step_1/b");
    ck_assert_int_eq(objstore_fault_set(fx.fs->store, "op=get,nth=1000000,action=error:-EIO"), 0);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), 0);
    ck_assert(fs_fixture_object_exists(&fx, "latest"));
    ck_assert(!fs_fixture_object_exists(&fx, "step_1/a"));
}
END_TEST

/* The delete of g/x has to go before g comes, and must not wait for what waits for that. */
START_TEST(what_takes_the_name_of_a_directory_does_not_wait_for_itself)
{
    fs_fixture_object(&fx, "g/x", "1", 1);
    close_file("a.tmp");
    close_file("f");
    drop("g/x");
    ck_assert_int_eq(tree_rmdir(fx.fs, META_ROOT_INO, "g"), 0);
    move("f", "g");
    move("a.tmp", "a");
    publish_all();
    ck_assert(fs_fixture_object_exists(&fx, "a"));
    ck_assert(fs_fixture_object_exists(&fx, "g"));
    ck_assert(!fs_fixture_object_exists(&fx, "g/x"));
}
END_TEST

/* A program that waits for the store when it closes a file, and opens it again at once. */
START_TEST(file_whose_closed_content_is_upstream_is_not_waited_for_when_it_is_open_again)
{
    struct inode *in = flush_new("log");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S), 0);
    content_release(in, true);
    inode_put(in);
    ck_assert(has_op("log")); /* nobody came to record it yet */
    in = begin_write("log");
    close_file("latest");
    assert_waits("latest", "(nothing)");
    move("log", "log.1");
    assert_waits("latest", "(nothing)");
    content_abandon(in, true);
    inode_put(in);
    open_again();
    assert_waits("latest", "(nothing)");
}
END_TEST

START_TEST(file_that_is_linked_and_loses_its_first_name_is_waited_for)
{
    close_file("run/a");
    close_file("run/step_1/a");
    close_file("run/latest");
    link_to("run/step_1/a", "run/step_1/b");
    drop("run/step_1/a");
    link_to("run/a", "run/b");
    drop("run/a");
    open_again();
    assert_order("run/step_1/b run/b run/latest");
}
END_TEST

/* Nobody sees what latest names then before it is closed, but what it named is not to go. 1: the closed one was renamed and is to be moved. */
START_TEST(file_that_is_open_is_waited_for_when_it_replaces_a_closed_one)
{
    fs_fixture_object(&fx, "run/step_1/shard", "1", 1);
    fs_fixture_object(&fx, "old", "1", 1);
    if (_i == 0)
        close_file("run/latest");
    else
        move("old", "run/latest");
    drop("run/step_1/shard");
    struct inode *in = create_open("run/l.tmp");
    move("run/l.tmp", "run/latest");
    assert_waits("run/step_1/shard", "run/latest");
    assert_order("");
    end_write(in);
    open_again();
    assert_waits("run/step_1/shard", "run/latest");
    assert_order(_i == 0 ? "run/latest -run/step_1/shard" : "run/latest -run/step_1/shard -old");
}
END_TEST

START_TEST(file_that_is_open_blocks_nobody_when_it_replaces_one_that_is_visible)
{
    fs_fixture_object(&fx, "run/latest", "1", 1);
    fs_fixture_object(&fx, "run/step_1/shard", "1", 1);
    drop("run/step_1/shard");
    struct inode *in = create_open("run/l.tmp");
    move("run/l.tmp", "run/latest");
    assert_waits("run/step_1/shard", "(nothing)");
    end_write(in);
}
END_TEST

START_TEST(what_takes_a_name_that_is_being_moved_waits_for_that_and_not_the_reverse)
{
    fs_fixture_object(&fx, "run/p", "1", 1);
    close_file("run/n");
    close_file("run/between");
    move("run/p", "run/q");
    if (_i == 0) {
        move("run/n", "run/p");
    } else {
        link_to("run/n", "run/p");
        drop("run/n");
    }
    assert_waits("run/q", "run/between");
    open_again();
    assert_waits("run/q", "run/between");
    assert_order("run/between run/q run/p");
}
END_TEST

/* Nothing but the file itself is in the way of its coming back. */
START_TEST(file_that_goes_and_comes_back_keeps_its_turn)
{
    fs_fixture_object(&fx, "run/a", "1", 1);
    close_again("run/a");
    close_file("run/m");
    move("run/a", "run/b");
    move("run/b", "run/a");
    assert_waits("run/m", "run/a");
    assert_order("run/a run/m");
}
END_TEST

static void park(const char *key)
{
    struct publisher *p = fx.fs->pub;
    mutex_lock(&p->mu);
    struct op *o = g_hash_table_lookup(p->by_key, key);
    ck_assert_ptr_nonnull(o);
    o->rec.state = OPS_PARKED;
    mutex_unlock(&p->mu);
}

static void change_attributes(const char *path)
{
    INODE_REF in = fs_fixture_inode(&fx, path);
    fs_fixture_change_attributes(&fx, in->ino);
}

START_TEST(attributes_take_nothing_out_of_the_order)
{
    fs_fixture_object(&fx, "run/a", "1", 1);
    if (_i == 0)
        move("run/a", "run/b");
    else
        close_file("run/b");
    close_file("run/latest");
    park("run/b");
    change_attributes("run/b");
    assert_waits("run/latest", "run/b");
    open_again();
    assert_order("run/b run/latest");
}
END_TEST

START_TEST(visible_files_that_are_exchanged_wait_for_their_directory)
{
    fs_fixture_object(&fx, "run/latest", "1", 1);
    fs_fixture_object(&fx, "run/cand", "2", 1);
    close_file("run/step2.bin");
    exchange("run/latest", "run/cand");
    close_file("run/step3.bin");
    open_again();
    assert_waits("run/latest", "run/step2.bin");
    assert_waits("run/cand", "run/step2.bin");
    assert_order("run/step2.bin run/cand run/latest run/step3.bin");
}
END_TEST

START_TEST(visible_files_of_two_directories_are_exchanged)
{
    set_order(ORDER_MOUNT);
    fs_fixture_object(&fx, "a/latest", "1", 1);
    fs_fixture_object(&fx, "b/cand", "2", 1);
    close_file("c/step2.bin");
    exchange("a/latest", "b/cand");
    publish_all();
}
END_TEST

/* What is left of a directory that becomes a file would be too much to be without. */
START_TEST(directory_that_is_exchanged_with_a_file_is_there_before_its_old_objects_go)
{
    fs_fixture_object(&fx, "x", "1", 1);
    fs_fixture_object(&fx, "d/f", "2", 1);
    fs_fixture_object(&fx, "d/g", "3", 1);
    if (_i == 0)
        exchange("x", "d");
    else
        exchange("d", "x");
    open_again();
    assert_waits("d/f", "x/f");
    assert_waits("d/g", "x/f");
    assert_order("-x x/f x/g -d/f -d/g d");
}
END_TEST

/* As content_seal() does where the kernel still has a mapping of the file to write from. */
static struct inode *close_mapped(const char *path)
{
    struct inode *in = flush_new(path);
    publish_content_state(fx.fs, in->ino, CONTENT_OPEN);
    return in;
}

START_TEST(mapped_file_blocks_nobody_when_it_is_renamed_or_linked)
{
    struct inode *in = close_mapped("a");
    if (_i == 0)
        move("a", "b");
    else
        link_to("a", "b");
    close_file("latest");
    assert_waits("latest", "(nothing)");
    end_write(in);
}
END_TEST

/* Its last close was seen by the start, which a second kill must not undo. */
START_TEST(file_that_a_start_closed_is_waited_for_after_the_next_one)
{
    struct inode *in = flush_new("x");
    content_abandon(in, true);
    inode_put(in);
    open_again();
    close_file("latest");
    in = begin_write("x");
    assert_waits("latest", "x");
    content_abandon(in, true);
    inode_put(in);
    open_again();
    assert_waits("latest", "x");
}
END_TEST

/* Before its attributes are sent; the one that writes is killed. */
START_TEST(file_of_which_only_attributes_are_to_be_sent_blocks_nobody_after_the_next_start)
{
    fs_fixture_object(&fx, "db", "1", 1);
    change_attributes("db");
    struct inode *in = begin_write("db");
    close_file("latest");
    assert_waits("latest", "(nothing)");
    content_abandon(in, true);
    inode_put(in);
    open_again();
    assert_waits("latest", "(nothing)");
}
END_TEST

static void *publish_now_main(void *in)
{
    return GINT_TO_POINTER(publish_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S));
}

/* What was written last, past us, is not in that snapshot. */
START_TEST(mapped_file_that_is_closed_while_a_snapshot_of_it_is_made_keeps_its_place)
{
    pthread_t thread;
    void *r;
    struct inode *in = flush_new("f");
    ck_assert_int_eq(
        objstore_fault_set(fx.fs->store, "op=head,nth=1,action=delay:1s;op=put,nth=2,count=1000000,action=error:-EIO"),
        0);
    ck_assert_int_eq(thread_start(&thread, "now", publish_now_main, in), 0);
    while (!fs_fixture_object_exists(&fx, "f"))
        g_usleep(1000);
    fs_fixture_pwrite(in, "2", 1, 0);
    content_release(in, true);
    close_file("latest");
    assert_waits("latest", "f");
    ck_assert_int_eq(pthread_join(thread, &r), 0);
    ck_assert_int_eq(GPOINTER_TO_INT(r), -EIO);
    assert_waits("latest", "f");
    inode_put(in);
    open_again();
    assert_waits("latest", "f");
    assert_order("f latest");
}
END_TEST

/* Its last bytes came past us, and no close after them. */
START_TEST(mapped_file_of_which_attributes_are_to_be_sent_is_waited_for_once_it_is_closed)
{
    struct inode *in = flush_new("f");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 20 * NS_PER_S), 0);
    change_attributes("f");
    fs_fixture_pwrite(in, "2", 1, 0);
    content_release(in, true);
    inode_put(in);
    close_file("latest");
    assert_waits("latest", "f");
    open_again();
    assert_waits("latest", "f");
    assert_order("f latest");
}
END_TEST

static struct inode *write_big(struct inode *in)
{
    fs_fixture_pwrite(in, "1", 1, 33u << 20);
    return in;
}

static uint64_t seq_at(const char *key)
{
    mutex_lock(&fx.fs->pub->mu);
    const struct op *o = g_hash_table_lookup(fx.fs->pub->by_key, key);
    ck_assert_ptr_nonnull(o);
    uint64_t seq = o->rec.seq;
    mutex_unlock(&fx.fs->pub->mu);
    return seq;
}

START_TEST(large_file_that_is_closed_again_waits_for_what_was_closed_before)
{
    static const char *const others[] = {"y", "d/y"};
    end_write(write_big(create_open("big")));
    close_file(others[_i]);
    end_write(write_big(begin_write("big")));
    uint64_t seq = seq_at("big");
    end_write(write_big(begin_write("big")));
    ck_assert_uint_eq(seq_at("big"), seq); /* nothing came after it: it is not begun anew */
    open_again();
    g_autofree char *want = g_strconcat(others[_i], " big", NULL);
    assert_order(want);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publish_renamed");
    TCase *tc = tcase_create("renamed");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, delete_waits_for_what_was_closed_before_it_and_renamed_since, 0, 2);
    tcase_add_test(tc, delete_waits_for_what_was_closed_before_it_and_moved_along_with_a_directory);
    tcase_add_loop_test(tc, marker_waits_for_what_was_closed_before_it_and_renamed_since, 0, 2);
    tcase_add_test(tc, marker_waits_for_what_was_closed_twice_and_then_renamed);
    tcase_add_test(tc, what_was_closed_before_the_marker_goes_first_under_whatever_name_it_has);
    tcase_add_test(tc, marker_that_was_held_waits_for_what_was_closed_beside_it_before_it_got_its_name);
    tcase_add_test(tc, marker_that_is_renamed_waits_for_what_was_closed_below_before_that);
    tcase_add_test(tc, what_comes_into_a_directory_waits_for_what_was_there);
    tcase_add_test(tc, what_comes_up_into_a_directory_is_waited_for_as_before);
    tcase_add_loop_test(tc, files_of_a_renamed_directory_go_in_the_order_in_which_they_were_closed, 0, 2);
    tcase_add_test(tc, what_is_upstream_of_a_renamed_directory_goes_before_what_was_closed_there);
    tcase_add_test(tc, what_is_exchanged_is_there_before_anything_of_it_goes);
    tcase_add_test(tc, what_was_visible_is_at_its_new_place_before_it_is_replaced);
    tcase_add_test(tc, files_of_exchanged_directories_go_in_the_order_in_which_they_were_closed);
    tcase_add_test(tc, exchanged_directories_are_published);
    tcase_add_test(tc, exchange_is_no_second_close);
    tcase_add_test(tc, circle_of_others_lets_no_marker_go);
    tcase_add_test(tc, what_replaces_a_deleted_name_is_waited_for_as_the_delete_was);
    tcase_add_loop_test(tc, what_is_made_at_a_deleted_name_is_waited_for_as_the_delete_was, 0, 2);
    tcase_add_test(tc, files_that_replace_a_deleted_directory_are_waited_for_as_the_deletes_were);
    tcase_add_test(tc, marker_written_again_waits_for_what_was_renamed_after_that);
    tcase_add_test(tc, file_that_is_open_again_is_waited_for_when_it_was_renamed);
    tcase_add_test(tc, file_whose_last_close_is_not_seen_yet_keeps_its_place_when_renamed);
    tcase_add_loop_test(tc, file_that_was_only_flushed_keeps_its_place_when_renamed, 0, 2);
    tcase_add_test(tc, file_that_was_only_flushed_and_renamed_blocks_nobody_while_it_is_written);
    tcase_add_test(tc, file_that_is_renamed_while_it_is_published_is_waited_for);
    tcase_add_test(tc, what_takes_the_name_of_a_directory_does_not_wait_for_itself);
    tcase_add_test(tc, file_whose_closed_content_is_upstream_is_not_waited_for_when_it_is_open_again);
    tcase_add_test(tc, file_that_is_linked_and_loses_its_first_name_is_waited_for);
    tcase_add_loop_test(tc, file_that_is_open_is_waited_for_when_it_replaces_a_closed_one, 0, 2);
    tcase_add_test(tc, file_that_is_open_blocks_nobody_when_it_replaces_one_that_is_visible);
    tcase_add_loop_test(tc, what_takes_a_name_that_is_being_moved_waits_for_that_and_not_the_reverse, 0, 2);
    tcase_add_test(tc, file_that_goes_and_comes_back_keeps_its_turn);
    tcase_add_loop_test(tc, attributes_take_nothing_out_of_the_order, 0, 2);
    tcase_add_test(tc, visible_files_that_are_exchanged_wait_for_their_directory);
    tcase_add_test(tc, visible_files_of_two_directories_are_exchanged);
    tcase_add_loop_test(tc, directory_that_is_exchanged_with_a_file_is_there_before_its_old_objects_go, 0, 2);
    tcase_add_loop_test(tc, mapped_file_blocks_nobody_when_it_is_renamed_or_linked, 0, 2);
    tcase_add_test(tc, file_that_a_start_closed_is_waited_for_after_the_next_one);
    tcase_add_test(tc, file_of_which_only_attributes_are_to_be_sent_blocks_nobody_after_the_next_start);
    tcase_add_test(tc, mapped_file_that_is_closed_while_a_snapshot_of_it_is_made_keeps_its_place);
    tcase_add_test(tc, mapped_file_of_which_attributes_are_to_be_sent_is_waited_for_once_it_is_closed);
    tcase_add_loop_test(tc, large_file_that_is_closed_again_waits_for_what_was_closed_before, 0, 2);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
