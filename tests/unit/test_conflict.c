/* Lost races over a lake in a folder, without FUSE: what the path shows, what is kept, what each resolution does. */
#include "conflict_fixture.h"
#include "fs/fsck.h"
#include "fs/tree_apply.h"

#include <fcntl.h>

/* "f" was changed here from "base" to "ours" and elsewhere to `winner` (NULL: removed), which came first. */
static void lose(const char *path, const char *winner)
{
    assert_path(path, "base");
    struct inode *in = begin_write(path, "ours");
    if (winner)
        theirs(path, winner);
    else
        remove_object(path);
    end_write(in);
    EVENTUALLY(n_conflicts() == 1);
}

static void lose_f(const char *winner)
{
    theirs("f", "base");
    start();
    lose("f", winner);
}

static void reopen(void)
{
    fs_fixture_close(&fx);
    start();
}

START_TEST(path_shows_the_winner_and_ours_is_kept)
{
    lose_f("theirs, longer");
    assert_path("f", "theirs, longer");
    struct conflict c;
    struct meta_dentry d = {0};
    ck_assert_int_eq(conflict_get(fx.fs->meta, id_at("f"), &c), 0);
    ck_assert(etag_is_set(&c.base));
    ck_assert(etag_is_set(&c.winner));
    ck_assert(!etag_equal(&c.base, &c.winner));
    ck_assert_int_eq(conflict_name(fx.fs->meta, c.id, &d), 0);
    INODE_REF in = NULL;
    ck_assert_int_eq(inode_get(fx.fs, d.ino, &in), 0);
    ck_assert(content_is_dirty(in));
    ck_assert_int_eq(cache_evict(fx.fs->cache, in->rec.vid), -EBUSY);
    meta_dentry_clear(&d);
    conflict_clear(&c);
}
END_TEST

START_TEST(path_shows_ours_while_a_writer_has_it_open)
{
    theirs("f", "base");
    start();
    assert_path("f", "base");
    struct inode *in = begin_write("f", "ours");
    ck_assert_int_eq(content_open(in, true, false), 0); /* another writer, which writes nothing */
    struct publish_counts n;
    theirs("f", "theirs");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), -ESTALE);
    content_release(in, true);
    publish_count(fx.fs->pub, "f", &n);
    ck_assert_uint_eq(n.unsettled, 1);
    ck_assert_uint_eq(n_conflicts(), 0);
    assert_path("f", "ours");
    ck_assert_int_eq(publish_retry(fx.fs->pub, "f"), 0);
    ck_assert_int_eq(publish_skip(fx.fs->pub, "f"), 0);
    end_write(in);
    EVENTUALLY(n_conflicts() == 1);
    assert_path("f", "theirs");
}
END_TEST

START_TEST(path_shows_ours_while_a_mapping_can_still_be_written)
{
    theirs("f", "base");
    start();
    assert_path("f", "base");
    struct inode *in = begin_write("f", "ours");
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert_int_eq(cache_file_set_passthrough(in->cf, CACHE_PASS_WRITE), 0);
    mutex_lock(&in->mu); /* as io_mode.c does where the kernel has passthrough */
    in->io.kernel_writes = true;
    mutex_unlock(&in->mu);
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", cache_file_fd(in->cf));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    theirs("f", "theirs");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), -ESTALE);
    content_release(in, true);
    fault("op=put,action=error:-EIO");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), -EIO); /* as it is done every 5 minutes */
    fault("");
    ck_assert_uint_eq(n_conflicts(), 0);
    assert_path("f", "ours");
    inode_put(in);
    ck_assert_int_eq(close(fd), 0);
    EVENTUALLY(n_conflicts() == 1);
    assert_path("f", "theirs");
}
END_TEST

START_TEST(release_while_the_store_is_asked_sets_aside_once)
{
    theirs("f", "base");
    start();
    assert_path("f", "base");
    struct inode *in = begin_write("f", "ours");
    theirs("f", "theirs");
    ck_assert_int_eq(publish_now(fx.fs, in, clock_mono_ns() + 10 * NS_PER_S), -ESTALE);
    fault("op=head,action=delay:200ms");
    uint64_t ino = in->ino;
    end_write(in);
    g_usleep(100000);
    publish_writers_gone(fx.fs, ino); /* it looks at it already, and is told once more */
    EVENTUALLY(n_conflicts() > 0);
    g_usleep(600000);
    ck_assert_uint_eq(n_conflicts(), 1);
    assert_path("f", "theirs");
}
END_TEST

START_TEST(open_reader_keeps_reading_ours)
{
    theirs("f", "base");
    start();
    assert_path("f", "base");
    struct inode *in = begin_write("f", "ours");
    char buf[16] = "";
    ck_assert_int_eq(content_open(in, false, false), 0);
    theirs("f", "theirs");
    content_release(in, true);
    EVENTUALLY(n_conflicts() == 1);
    ck_assert_int_eq(cache_file_read(in->cf, buf, 15, 0), 4);
    ck_assert_str_eq(buf, "ours");
    content_release(in, false);
    inode_put(in);
    assert_path("f", "theirs");
}
END_TEST

START_TEST(path_shows_nothing_where_the_base_was_removed)
{
    lose_f(NULL);
    assert_path("f", "(none)");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), 0);
    all_published();
    assert_object("f", "ours");
    assert_path("f", "ours");
    ck_assert_uint_eq(n_conflicts(), 0);
}
END_TEST

START_TEST(path_shows_ours_until_the_store_tells_what_won)
{
    theirs("f", "base");
    start();
    assert_path("f", "base");
    struct inode *in = begin_write("f", "ours");
    theirs("f", "theirs");
    fault("op=head,action=error:-EIO");
    end_write(in);
    struct publish_counts n = {0};
    EVENTUALLY((publish_count(fx.fs->pub, "f", &n), n.unsettled == 1));
    assert_path("f", "ours");
    fault("");
    EVENTUALLY(n_conflicts() == 1);
    assert_path("f", "theirs");
}
END_TEST

START_TEST(keep_mine_overwrites_what_stands_there_now)
{
    lose_f("theirs");
    theirs("f", "a third one");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), 0);
    assert_path("f", "ours");
    all_published();
    assert_object("f", "ours");
    ck_assert_uint_eq(n_conflicts(), 0);
}
END_TEST

START_TEST(keep_mine_meets_another_version_as_a_new_conflict)
{
    lose_f("theirs");
    fault("op=put,action=delay:500ms");
    uint64_t id = id_at("f");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id), 0);
    theirs("f", "a third one");
    EVENTUALLY(n_conflicts() == 1);
    ck_assert_uint_gt(id_at("f"), id);
    assert_path("f", "a third one");
    assert_object("f", "a third one");
}
END_TEST

START_TEST(keep_mine_leaves_newer_unpublished_content_alone)
{
    lose_f("theirs");
    end_write(begin_write("f", "newer"));
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), -EEXIST);
    assert_path("f", "newer");
    ck_assert_uint_eq(n_conflicts(), 1);
}
END_TEST

START_TEST(keep_mine_leaves_a_file_alone_that_somebody_writes)
{
    lose_f("theirs");
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), -EBUSY);
    content_release(in, true);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), 0);
}
END_TEST

START_TEST(keep_theirs_drops_ours)
{
    lose_f("theirs");
    uint64_t id = id_at("f");
    struct meta_dentry d = {0};
    ck_assert_int_eq(conflict_name(fx.fs->meta, id, &d), 0);
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id), 0);
    all_published();
    assert_path("f", "theirs");
    ck_assert_uint_eq(n_conflicts(), 0);
    struct meta_inode rec;
    EVENTUALLY(meta_inode_get(fx.fs->meta, d.ino, &rec) == -ENOENT);
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id), -ENOENT);
    meta_dentry_clear(&d);
}
END_TEST

START_TEST(save_as_publishes_ours_under_another_name)
{
    lose_f("theirs");
    theirs("taken", "x");
    ck_assert_int_eq(conflict_save_as(fx.fs, id_at("f"), "f"), -EEXIST);
    ck_assert_int_eq(conflict_save_as(fx.fs, id_at("f"), "f.ours"), 0);
    all_published();
    assert_object("f", "theirs");
    assert_object("f.ours", "ours");
    assert_path("f", "theirs");
    assert_path("f.ours", "ours");
    ck_assert_uint_eq(n_conflicts(), 0);
    INODE_REF in = fs_fixture_inode(&fx, "f.ours");
    struct stat st;
    inode_stat(in, &st);
    ck_assert_uint_eq(st.st_nlink, 1);
    ck_assert(!content_is_dirty(in));
}
END_TEST

/* A partial edit needs the object it was made from, which is gone. */
START_TEST(what_is_not_here_any_more_is_not_made_up)
{
    enum { SIZE = 1 << 20 };
    g_autofree char *big = g_strnfill(SIZE, 'b');
    fs_fixture_object(&fx, "f", big, SIZE);
    start();
    INODE_REF in = fs_fixture_inode(&fx, "f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "x", 1, SIZE / 2);
    theirs("f", "theirs");
    content_release(in, true);
    EVENTUALLY(n_conflicts() == 1);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), -ESTALE);
    ck_assert_int_eq(conflict_save_as(fx.fs, id_at("f"), "g"), -ESTALE);
    assert_path("f", "theirs");
    assert_path("g", "(none)");
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id_at("f")), 0);
}
END_TEST

/* By a node number that the kernel looked up before it was told. */
START_TEST(writer_that_comes_too_late_writes_to_the_loser)
{
    theirs("f", "base");
    start();
    INODE_REF in = fs_fixture_inode(&fx, "f");
    lose("f", "theirs");
    uint64_t id = id_at("f");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "OURS", 4, 0);
    fs_fixture_write(&fx, "latest", "1", 1);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "latest", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "latest", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    ck_assert_uint_eq(id_at("f"), id);
    assert_path("f", "theirs");
    ck_assert_int_eq(conflict_save_as(fx.fs, id, "g"), 0);
    all_published();
    assert_object("f", "theirs");
    assert_object("g", "OURS");
    assert_object("latest", "1");
}
END_TEST

START_TEST(loser_that_was_skipped_has_nothing_to_publish_at_the_next_start)
{
    theirs("f", "base");
    start();
    struct inode *in = fs_fixture_inode(&fx, "f");
    lose("f", "theirs");
    int skipped = 0;
    EVENTUALLY(skipped == 1 || (skipped = publish_skip(fx.fs->pub, "f")) == 1); /* its thread may still hold it */
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_abandon(in, true); /* killed before the release */
    inode_put(in);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx);
    struct publish_counts n;
    publish_count(fx.fs->pub, "", &n);
    ck_assert_uint_eq(n.ops, 0);
    ck_assert_uint_eq(n_conflicts(), 1);
}
END_TEST

/* What a listing says that began before the loser was set aside, and saw the object that ours was made from. */
static void apply_old_row(uint64_t stamp, const struct etag *base)
{
    struct list_row row = {.name = (char[]){"f"}, .size = 4, .etag = *base};
    struct meta_batch *b = meta_batch_new(fx.fs->meta);
    mutex_lock(&fx.fs->ns);
    ck_assert_int_eq(tree_apply_row(fx.fs, b, META_ROOT_INO, &row, stamp), 0);
    ck_assert_int_eq(meta_commit(b, false), 0);
    publish_apply(fx.fs, true);
    mutex_unlock(&fx.fs->ns);
    meta_batch_free(b);
}

START_TEST(listing_of_before_brings_nothing_back)
{
    static const char *const winners[] = {NULL, "theirs"};
    theirs("f", "base");
    start();
    assert_path("f", "base");
    struct meta_dentry d = {0};
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, META_ROOT_INO, "f", &d), 0);
    uint64_t stamp = meta_last_seq(fx.fs->meta);
    lose("f", winners[_i]);
    apply_old_row(stamp, &d.uetag);
    assert_path("f", _i ? "theirs" : "(none)");
    INODE_REF root = NULL;
    ck_assert_int_eq(inode_get(fx.fs, META_ROOT_INO, &root), 0);
    ck_assert_int_eq(tree_refresh(fx.fs, root, true), 0);
    assert_path("f", _i ? "theirs" : "(none)");
    ck_assert_uint_eq(n_conflicts(), 1);
    meta_dentry_clear(&d);
}
END_TEST

START_TEST(lost_link_keeps_its_target)
{
    start();
    fs_fixture_write(&fx, "first", "1", 1); /* the store is probed, the root listed */
    all_published();
    theirs("l", "a file");
    struct node_spec spec = {.parent = META_ROOT_INO,
                             .name = "l",
                             .mode = S_IFLNK | 0777,
                             .target = "first",
                             .who = {fx.fs->uid, fx.fs->gid}};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fx.fs, &spec, false, &in), 0);
    EVENTUALLY(n_conflicts() == 1);
    assert_path("l", "a file");
    ck_assert_int_eq(conflict_save_as(fx.fs, id_at("l"), "link"), 0);
    all_published();
    struct obj_info info = {0};
    ck_assert_int_eq(objstore_head(fx.fs->store, "link", &info), 0);
    ck_assert_str_eq(info.symlink, "first");
    obj_info_clear(&info);
    assert_object("l", "a file");
}
END_TEST

START_TEST(conflict_survives_a_restart)
{
    lose_f("theirs");
    uint64_t id = id_at("f");
    reopen();
    ck_assert_uint_eq(id_at("f"), id);
    assert_path("f", "theirs");
    struct publish_counts n;
    publish_count(fx.fs->pub, "f", &n);
    ck_assert_uint_eq(n.conflicts, 1);
    ck_assert_uint_eq(n.unsettled, 0);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id), 0);
    all_published();
    assert_object("f", "ours");
}
END_TEST

START_TEST(conflict_not_yet_set_aside_is_by_the_next_start)
{
    theirs("f", "base");
    start();
    assert_path("f", "base");
    struct inode *in = begin_write("f", "ours");
    theirs("f", "theirs");
    fault("op=head,action=error:-EIO");
    end_write(in);
    struct publish_counts n = {0};
    EVENTUALLY((publish_count(fx.fs->pub, "f", &n), n.unsettled == 1));
    reopen();
    EVENTUALLY(n_conflicts() == 1);
    assert_path("f", "theirs");
}
END_TEST

START_TEST(what_was_closed_later_waits_for_a_decision)
{
    fs_fixture_object(&fx, "d/shard", "base", 4);
    start();
    lose("d/shard", "theirs");
    fs_fixture_write(&fx, "d/latest", "1", 1);
    ck_assert_int_eq(publish_wait(fx.fs->pub, "d/latest", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    reopen();
    ck_assert_int_eq(publish_wait(fx.fs->pub, "d/latest", clock_mono_ns() + 20 * NS_PER_S, NULL, NULL), -EIO);
    ck_assert(!fs_fixture_object_exists(&fx, "d/latest"));
    ck_assert_int_eq(publish_skip(fx.fs->pub, "d/shard"), 1);
    all_published();
    assert_object("d/latest", "1");
    assert_object("d/shard", "theirs");
    ck_assert_uint_eq(n_conflicts(), 1);
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("d/shard")), 0);
    all_published();
    assert_object("d/shard", "ours");
}
END_TEST

START_TEST(ours_goes_upstream_before_what_waited_for_it)
{
    fs_fixture_object(&fx, "d/shard", "base", 4);
    start();
    lose("d/shard", "theirs");
    fs_fixture_write(&fx, "d/latest", "1", 1);
    fs_fixture_close(&fx);
    fs_fixture_open(&fx); /* nothing is published meanwhile */
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("d/shard")), 0);
    INODE_REF dir = fs_fixture_inode(&fx, "d");
    struct meta_dentry shard = {0}, latest = {0};
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, dir->ino, "shard", &shard), 0);
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, dir->ino, "latest", &latest), 0);
    ck_assert_uint_gt(shard.op_seq, 0);
    ck_assert_uint_lt(shard.op_seq, latest.op_seq);
    meta_dentry_clear(&shard);
    meta_dentry_clear(&latest);
    fs_fixture_start(&fx);
    all_published();
    assert_object("d/shard", "ours");
    assert_object("d/latest", "1");
}
END_TEST

START_TEST(another_name_of_the_loser_lives_on)
{
    theirs("f", "base");
    start();
    assert_path("f", "base");
    INODE_REF in = fs_fixture_inode(&fx, "f");
    INODE_REF link = NULL;
    ck_assert_int_eq(tree_link(fx.fs, in->ino, META_ROOT_INO, "other", &link), 0);
    all_published();
    lose("f", "theirs");
    struct stat st;
    inode_stat(in, &st);
    ck_assert_uint_eq(st.st_nlink, 1);
    assert_path("f", "theirs");
    assert_path("other", "ours");
    ck_assert_int_eq(conflict_keep_theirs(fx.fs, id_at("f")), 0);
    all_published();
    inode_stat(in, &st);
    ck_assert_uint_eq(st.st_nlink, 1);
    assert_object("other", "ours");
    ck_assert(!content_is_dirty(in));
}
END_TEST

/* What was not changed of a large file is in the object of its other name only, which is removed: at the path of the lost one stands theirs. */
START_TEST(what_a_loser_rests_on_is_not_the_object_that_won)
{
    enum { PART = 64 << 10, SIZE = 16 * PART };
    fx.cfg.part_size = PART;
    g_autofree char *big = g_strnfill(SIZE, 'b'), *path = g_build_filename(fx.lake, "f", NULL), *got = NULL;
    start();
    fs_fixture_write(&fx, "f", big, SIZE);
    all_published();
    INODE_REF in = fs_fixture_inode(&fx, "f");
    INODE_REF link = NULL;
    ck_assert_int_eq(tree_link(fx.fs, in->ino, META_ROOT_INO, "g", &link), 0);
    all_published();
    ck_assert_str_eq(in->rec.base_key, "g");
    int r = -EBUSY;
    EVENTUALLY(r == 0 || (r = cache_evict(fx.fs->cache, in->rec.vid)) == 0);
    fault("op=part,key=g,action=error:-EIO;op=part-copy,key=g,action=error:-EIO");
    ck_assert_int_eq(content_open(in, true, false), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, "x", 1, SIZE / 2);
    theirs("f", "theirs");
    content_release(in, true);
    EVENTUALLY(n_conflicts() == 1);
    struct cfile *cf = NULL;
    ck_assert_int_eq(content_use(in, &cf), 0);
    ck_assert(!cache_file_complete(cf));
    content_unuse(in, cf);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "g"), 0);
    fault("");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("f")), 0);
    all_published();
    gsize n = 0;
    ck_assert(g_file_get_contents(path, &got, &n, NULL));
    big[SIZE / 2] = 'x';
    ck_assert(n == SIZE && memcmp(got, big, SIZE) == 0);
    ck_assert(!fs_fixture_object_exists(&fx, "g"));
}
END_TEST

START_TEST(rename_onto_a_name_changed_elsewhere_keeps_both)
{
    theirs("a", "ours");
    theirs("b", "base");
    start();
    assert_path("a", "ours");
    assert_path("b", "base");
    theirs("b", "theirs");
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "a", META_ROOT_INO, "b", 0), 0);
    EVENTUALLY(n_conflicts() == 1);
    assert_path("b", "theirs");
    assert_path("a", "(none)");
    assert_object("a", "ours");
    ck_assert_int_eq(conflict_keep_mine(fx.fs, id_at("b")), 0);
    all_published();
    assert_object("b", "ours");
    ck_assert(!fs_fixture_object_exists(&fx, "a"));
}
END_TEST

START_TEST(attributes_alone_are_no_conflict)
{
    theirs("f", "base");
    start();
    fs_fixture_write(&fx, "first", "1", 1); /* the store is probed */
    all_published();
    assert_path("f", "base");
    struct meta_dentry d = {0};
    ck_assert_int_eq(meta_dentry_get(fx.fs->meta, META_ROOT_INO, "f", &d), 0);
    theirs("f", "theirs");
    fs_fixture_change_attributes(&fx, d.ino);
    meta_dentry_clear(&d);
    ck_assert_int_eq(publish_retry(fx.fs->pub, ""), 1); /* now, not in 5 s */
    all_published();
    ck_assert_uint_eq(n_conflicts(), 0);
    assert_path("f", "theirs");
}
END_TEST

START_TEST(renamed_or_removed_meanwhile_is_no_conflict)
{
    theirs("f", "base");
    theirs("g", "base");
    start();
    assert_path("f", "base");
    assert_path("g", "base");
    struct inode *f = begin_write("f", "ours"), *g = begin_write("g", "ours");
    theirs("f", "theirs");
    theirs("g", "theirs");
    fault("op=head,action=error:-EIO");
    end_write(f);
    end_write(g);
    struct publish_counts n = {0};
    EVENTUALLY((publish_count(fx.fs->pub, "", &n), n.unsettled >= 1));
    ck_assert_int_eq(tree_rename(fx.fs, META_ROOT_INO, "f", META_ROOT_INO, "h", 0), 0);
    ck_assert_int_eq(tree_unlink(fx.fs, META_ROOT_INO, "g"), 0);
    fault("");
    all_published();
    ck_assert_uint_eq(n_conflicts(), 0);
    assert_object("h", "ours");
    assert_object("f", "theirs");
    assert_object("g", "theirs");
}
END_TEST

START_TEST(overwrite_makes_no_conflict)
{
    fx.cfg.conflict = CONFLICT_OVERWRITE;
    theirs("f", "base");
    start();
    assert_path("f", "base");
    struct inode *in = begin_write("f", "ours");
    theirs("f", "theirs");
    end_write(in);
    all_published();
    assert_object("f", "ours");
    ck_assert_uint_eq(n_conflicts(), 0);
}
END_TEST

static char *fsck_report(bool repair)
{
    char *text = NULL, *msg = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct fsck_options o = {.cache_dir = fx.cache_dir, .repair = repair, .out = out};
    struct fsck_result res;
    ck_assert_int_eq(fs_fsck(&o, &res, &msg), 0);
    ck_assert_uint_eq(res.left, 0);
    (void)fclose(out);
    return text;
}

START_TEST(fsck_knows_conflicts)
{
    lose_f("theirs");
    fs_fixture_close(&fx);
    char *text = fsck_report(false);
    ck_assert_str_eq(text, "f: conflict 1; our copy is kept, see `sluice conflicts`\n");
    free(text);
    free(fsck_report(true));
    start();
    ck_assert_uint_eq(n_conflicts(), 1);
}
END_TEST

START_TEST(loser_is_found_again_without_the_database)
{
    lose_f("theirs");
    fs_fixture_close(&fx);
    g_autofree char *cmd = g_strdup_printf("rm -r '%s/meta'", fx.cache_dir);
    ck_assert_int_eq(system(cmd), 0);
    free(fsck_report(true));
    start();
    EVENTUALLY(n_conflicts() == 1);
    assert_path("f", "theirs");
    ck_assert_int_eq(conflict_save_as(fx.fs, id_at("f"), "g"), 0);
    all_published();
    assert_object("g", "ours");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("conflict");
    TCase *tc = tcase_create("conflict");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, path_shows_the_winner_and_ours_is_kept);
    tcase_add_test(tc, path_shows_ours_while_a_writer_has_it_open);
    tcase_add_test(tc, path_shows_ours_while_a_mapping_can_still_be_written);
    tcase_add_test(tc, release_while_the_store_is_asked_sets_aside_once);
    tcase_add_test(tc, open_reader_keeps_reading_ours);
    tcase_add_test(tc, path_shows_nothing_where_the_base_was_removed);
    tcase_add_test(tc, path_shows_ours_until_the_store_tells_what_won);
    tcase_add_test(tc, keep_mine_overwrites_what_stands_there_now);
    tcase_add_test(tc, keep_mine_meets_another_version_as_a_new_conflict);
    tcase_add_test(tc, keep_mine_leaves_newer_unpublished_content_alone);
    tcase_add_test(tc, keep_mine_leaves_a_file_alone_that_somebody_writes);
    tcase_add_test(tc, keep_theirs_drops_ours);
    tcase_add_test(tc, save_as_publishes_ours_under_another_name);
    tcase_add_test(tc, what_is_not_here_any_more_is_not_made_up);
    tcase_add_test(tc, writer_that_comes_too_late_writes_to_the_loser);
    tcase_add_test(tc, loser_that_was_skipped_has_nothing_to_publish_at_the_next_start);
    tcase_add_loop_test(tc, listing_of_before_brings_nothing_back, 0, 2);
    tcase_add_test(tc, lost_link_keeps_its_target);
    tcase_add_test(tc, conflict_survives_a_restart);
    tcase_add_test(tc, conflict_not_yet_set_aside_is_by_the_next_start);
    tcase_add_test(tc, what_was_closed_later_waits_for_a_decision);
    tcase_add_test(tc, ours_goes_upstream_before_what_waited_for_it);
    tcase_add_test(tc, another_name_of_the_loser_lives_on);
    tcase_add_test(tc, what_a_loser_rests_on_is_not_the_object_that_won);
    tcase_add_test(tc, rename_onto_a_name_changed_elsewhere_keeps_both);
    tcase_add_test(tc, attributes_alone_are_no_conflict);
    tcase_add_test(tc, renamed_or_removed_meanwhile_is_no_conflict);
    tcase_add_test(tc, overwrite_makes_no_conflict);
    tcase_add_test(tc, fsck_knows_conflicts);
    tcase_add_test(tc, loser_is_found_again_without_the_database);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
