#include "fs_fixture.h"

#include "base/sm.h"
#include "fs/content.h"
#include "fs/links.h"
#include "fs/publish.h"
#include "fs/tree.h"
#include "objstore_links.h"

#include <check.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void make_dirs(const char *path)
{
    ck_assert_int_eq(g_mkdir_with_parents(path, 0700), 0);
}

void fs_fixture_init(struct fs_fixture *fx)
{
    *fx = (struct fs_fixture){0};
    sm_strict(true);
    fx->dir = g_dir_make_tmp("sluice-unit-XXXXXX", NULL);
    ck_assert_ptr_nonnull(fx->dir);
    fx->lake = g_build_filename(fx->dir, "lake", NULL);
    fx->cache_dir = g_build_filename(fx->dir, "cache", NULL);
    make_dirs(fx->lake);
    config_init(&fx->cfg);
    fx->cfg.source = g_strconcat("file://", fx->lake, NULL);
    fx->cfg.mountpoint = g_build_filename(fx->dir, "mnt", NULL);
    fx->cfg.cache_dir = g_strdup(fx->cache_dir);
    fx->cfg.cache_size = (struct size_or_percent){.bytes = 64u << 20};
    fx->cfg.free_space = (struct size_or_percent){.bytes = 1};
    fx->cfg.uid = getuid();
    fx->cfg.gid = getgid();
    fx->cfg.file_mode = 0644;
    fx->cfg.dir_mode = 0755;
    (void)log_open(NULL, LOG_LEVEL_NOTICE); /* what a wait that ran out of time waited for is one */
}

void fs_fixture_open_unserved(struct fs_fixture *fx)
{
    char *msg = NULL;
    const struct fs_setup setup = {.cfg = &fx->cfg, .session = fx->session};
    int r = fs_open(&setup, &fx->fs, &msg);
    ck_assert_msg(r == 0, "%s: %s", err_name(r), msg ? msg : "no message");
}

void fs_fixture_open(struct fs_fixture *fx)
{
    fs_fixture_open_unserved(fx);
    links_serve(fx->fs);
}

void fs_fixture_start(struct fs_fixture *fx)
{
    ck_assert_int_eq(fs_start(fx->fs), 0);
}

void fs_fixture_close(struct fs_fixture *fx)
{
    fs_close(fx->fs);
    fx->fs = NULL;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

void fs_fixture_fini(struct fs_fixture *fx)
{
    fs_fixture_close(fx);
    (void)nftw(fx->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS); /* what is left in $TMPDIR hurts no other test */
    config_clear(&fx->cfg);
    g_free(fx->dir);
    g_free(fx->lake);
    g_free(fx->cache_dir);
}

void fs_fixture_break_database(struct fs_fixture *fx)
{
    struct rlimit old, tight = {0};
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    tight.rlim_max = old.rlim_max;
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
    struct meta_batch *b = meta_batch_new(fx->fs->meta);
    g_autofree char *big = g_strnfill(20000, 'x');
    meta_value_put(b, "big", big, strlen(big));
    ck_assert_int_lt(meta_commit(b, false), 0);
    meta_batch_free(b);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);
}

void fs_fixture_silence_link(struct fs_fixture *fx, const char *dir, uint64_t timeout_ns)
{
    const struct objstore_config sc = {.source = "s3://bucket",
                                       .endpoint_url = "http://127.0.0.1:1",
                                       .no_sign_request = true,
                                       .max_connections = 16,
                                       .op_timeout_ns = timeout_ns};
    struct objstore *st = NULL;
    g_autofree char *msg = NULL;
    ck_assert_msg(objstore_open(&sc, &st, &msg) == 0, "%s", msg);
    ck_assert_int_eq(objstore_links_replace(fx->fs->store, dir, st), 0);
}

void fs_fixture_object(struct fs_fixture *fx, const char *key, const char *data, size_t len)
{
    g_autofree char *path = g_build_filename(fx->lake, key, NULL);
    g_autofree char *dir = g_path_get_dirname(path);
    make_dirs(dir);
    ck_assert(g_file_set_contents(path, data, (gssize)len, NULL));
}

bool fs_fixture_object_exists(struct fs_fixture *fx, const char *key)
{
    g_autofree char *path = g_build_filename(fx->lake, key, NULL);
    return access(path, F_OK) == 0;
}

static uint64_t enter_dir(struct fs *fs, uint64_t parent, const char *name)
{
    INODE_REF in = NULL;
    int r = tree_lookup(fs, parent, name, &in);
    if (r == -ENOENT) {
        struct node_spec spec = {.parent = parent, .name = name, .mode = S_IFDIR | 0755, .who = {fs->uid, fs->gid}};
        r = tree_create(fs, &spec, false, &in);
    }
    ck_assert_int_eq(r, 0);
    return in->ino;
}

void fs_fixture_pwrite(struct inode *in, const char *data, size_t len, uint64_t off)
{
    ck_assert_int_eq(cache_file_write(in->cf, data, len, off), (ssize_t)len);
    content_note_write(in);
}

void fs_fixture_write(struct fs_fixture *fx, const char *path, const char *data, size_t len)
{
    struct fs *fs = fx->fs;
    g_auto(GStrv) parts = g_strsplit(path, "/", -1);
    unsigned last = g_strv_length(parts) - 1;
    uint64_t dir = META_ROOT_INO;
    for (unsigned i = 0; i < last; i++)
        dir = enter_dir(fs, dir, parts[i]);
    struct node_spec spec = {.parent = dir, .name = parts[last], .mode = S_IFREG | 0644, .who = {fs->uid, fs->gid}};
    INODE_REF in = NULL;
    ck_assert_int_eq(tree_create(fs, &spec, true, &in), 0);
    ck_assert_int_eq(content_open_new(in), 0);
    ck_assert_int_eq(content_begin_change(in), 0);
    fs_fixture_pwrite(in, data, len, 0);
    ck_assert_int_eq(content_flush(in, false), 0);
    content_release(in, true);
}

struct inode *fs_fixture_inode(struct fs_fixture *fx, const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx->fs, path, &in);
    ck_assert_msg(r == 0, "%s: %s", path, err_name(r));
    return in;
}

uint64_t fs_fixture_ino(struct fs_fixture *fx, const char *path)
{
    struct inode *in = NULL;
    int r = tree_resolve(fx->fs, path, &in);
    if (r == -ENOENT)
        return 0;
    ck_assert_msg(r == 0, "%s: %s", path, err_name(r));
    uint64_t ino = in->ino;
    inode_put(in);
    return ino;
}

void fs_fixture_change_attributes(struct fs_fixture *fx, uint64_t ino)
{
    struct meta_dentry d = {0};
    struct meta_batch *b = meta_batch_new(fx->fs->meta);
    mutex_lock(&fx->fs->ns);
    ck_assert_int_eq(meta_link_first(fx->fs->meta, ino, &d), 0);
    d.flags |= DENTRY_META_DIRTY;
    publish_name(fx->fs, b, &d, PUBLISH_META);
    meta_dentry_put(b, &d);
    ck_assert_int_eq(meta_commit(b, false), 0);
    publish_apply(fx->fs, true);
    mutex_unlock(&fx->fs->ns);
    meta_batch_free(b);
    meta_dentry_clear(&d);
}

uint64_t fs_fixture_cached(struct fs_fixture *fx, const char *path)
{
    INODE_REF in = fs_fixture_inode(fx, path);
    struct meta_cached c;
    mutex_lock(&in->mu);
    uint64_t vid = in->rec.vid;
    mutex_unlock(&in->mu);
    if (vid == 0 || meta_cached_get(fx->fs->meta, vid, &c) < 0)
        return 0;
    struct cfile *cf = NULL;
    ck_assert_int_eq(content_use(in, &cf), 0);
    uint64_t n = cache_file_present_bytes(cf);
    content_unuse(in, cf);
    return n;
}

bool fs_fixture_pinned(struct fs_fixture *fx, const char *path)
{
    INODE_REF in = fs_fixture_inode(fx, path);
    mutex_lock(&in->mu);
    bool pinned = in->rec.flags & INODE_PINNED;
    mutex_unlock(&in->mu);
    return pinned;
}
