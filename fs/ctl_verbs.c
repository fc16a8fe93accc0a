/*
 * The table of verbs, and those that speak to the publisher or the daemon: wait, drain, config, stop.
 */
#include "ctl_verbs.h"

#include "content.h"
#include "durable.h"
#include "handle.h"
#include "local.h"
#include "publish.h"
#include "recover.h"
#include "tree.h"
#include "unmount.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* ---- reading requests, writing lines ---- */

json_t *verb_string(const char *text)
{
    g_autofree char *valid = g_utf8_make_valid(text ? text : "", -1);
    return json_string(valid);
}

uint64_t verb_number(const json_t *req, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(req, name));
    return n > 0 ? (uint64_t)n : 0;
}

char *verb_clean_path(const char *path)
{
    g_auto(GStrv) parts = g_strsplit(path, "/", -1);
    g_autoptr(GString) out = g_string_new(NULL);
    for (unsigned i = 0; parts[i]; i++) {
        if (g_str_equal(parts[i], "..")) /* what it means depends on links; the command resolves it before it asks */
            return NULL;
        if (!*parts[i] || g_str_equal(parts[i], "."))
            continue;
        if (out->len > 0)
            g_string_append_c(out, '/');
        g_string_append(out, parts[i]);
    }
    return g_strdup(out->str);
}

char **verb_paths(struct ctl_client *client, const json_t *req)
{
    const json_t *list = json_object_get(req, "paths");
    g_autoptr(GPtrArray) paths = g_ptr_array_new_with_free_func(g_free);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        char *path = text ? verb_clean_path(text) : NULL;
        if (!path) {
            ctl_fail(client, "a path of the request makes no sense: '%s'", text ? text : "not a string");
            return NULL;
        }
        g_ptr_array_add(paths, path);
    }
    if (paths->len == 0) {
        ctl_fail(client, "the request has no paths");
        return NULL;
    }
    g_ptr_array_add(paths, NULL);
    return (char **)g_ptr_array_steal(paths, NULL);
}

const char *verb_err_text(int err)
{
    return err == -EXDEV ? "a symlink that leads out of the mount" : objstore_err_text(err);
}

int verb_error(struct ctl_client *client, const char *path, int err)
{
    json_t *o = json_pack("{s:s, s:s, s:s}", "event", "error", "error", verb_err_text(err), "errno", err_name(err));
    json_object_set_new(o, "path", verb_string(path));
    return ctl_emit(client, o);
}

#define LISTING_NS (250 * NS_PER_MS)

int verb_listing_tick(void *ctx)
{
    struct verb_listing *l = ctx;
    uint64_t now = clock_mono_ns();
    if (l->n_listed++ == 0) /* what is listed at once needs no line */
        l->next_ns = now + LISTING_NS;
    if (now < l->next_ns)
        return 0;
    l->next_ns = now + LISTING_NS;
    int r = ctl_emit(l->client,
                     json_pack("{s:s, s:I}", "event", "progress", "directories_listed", (json_int_t)l->n_listed));
    return r < 0 || ctl_gone(l->client) ? -ECANCELED : 0;
}

/* ---- wait, drain ---- */

static int tick(void *ctx, const struct publish_counts *left)
{
    struct ctl_client *client = ctx;
    int r = ctl_emit(client, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "event", "progress", "files_left",
                                       (json_int_t)left->files, "bytes_left", (json_int_t)(left->bytes - left->stored),
                                       "operations_left", (json_int_t)left->ops, "parked",
                                       (json_int_t)(left->parked + left->conflicts), "held", (json_int_t)left->held));
    return r < 0 || ctl_gone(client) ? 1 : 0;
}

static uint64_t deadline_of(const json_t *req)
{
    uint64_t s = verb_number(req, "timeout_s");
    return s ? clock_mono_ns() + MIN(s, 1000000000u) * NS_PER_S : 0;
}

static bool is_open(struct inode *in)
{
    mutex_lock(&in->mu);
    bool open = S_ISREG(in->rec.mode) && in->rec.content == CONTENT_OPEN;
    mutex_unlock(&in->mu);
    return open;
}

/* A file that is named is waited for also while it is still open for writing; a directory's open files are not. -EIO: nobody will close it. */
static int wait_closed(struct ctl_client *client, struct inode *in, uint64_t deadline_ns)
{
    for (bool was_unclosed = false; is_open(in);) {
        bool unclosed = content_is_unclosed(in);
        if (unclosed && was_unclosed)
            return -EIO;
        was_unclosed = unclosed;
        if (deadline_ns && clock_mono_ns() >= deadline_ns)
            return -ETIMEDOUT;
        if (tick(client, &(struct publish_counts){.files = 1, .bytes = in->rec.size}))
            return -ECANCELED;
        g_usleep(250 * 1000);
    }
    return 0;
}

/* Waits for where the path leads to be closed; names gets that and the symlinks on the way, which are to be published too. */
static int wait_named(struct fs *fs, struct ctl_client *client, const char *path, uint64_t deadline_ns,
                      GPtrArray *names)
{
    struct publish_counts c = {0};
    publish_count(fs->pub, path, &c);
    INODE_REF in = NULL;
    char *real = NULL;
    int r = tree_follow(fs, path, names, &real, &in);
    if (r == -ENOENT && c.ops > 0) { /* a delete to be published has no name any more */
        g_ptr_array_add(names, g_strdup(path));
        return 0;
    }
    if (r < 0)
        return r;
    g_ptr_array_add(names, real);
    return local_is(fs, real) ? 0 : wait_closed(client, in, deadline_ns);
}

static void fail_undecided(struct fs *fs, struct ctl_client *client, const char *path)
{
    int err = 0;
    g_autofree char *unclosed = NULL, *refused = publish_find_refused(fs->pub, path, &err);
    if (refused && (err == -EBUSY || err == -ENOSPC))
        ctl_fail(
            client,
            "'%s' was removed here, but somebody has it open and its bytes do not fit into the cache: its object is "
            "deleted once it is closed",
            refused);
    else if (refused)
        ctl_fail(client,
                 "'%s' was removed here, but the store refuses to delete it (%s): once the credentials may, `sluice "
                 "publish --retry`; with --skip the object stays and its name comes back",
                 refused, objstore_err_text(err));
    else if (recover_find_unclosed(fs, path, &unclosed))
        ctl_fail(
            client,
            "'%s' is not published: the daemon ended before its writer closed it. Open it for writing and close it "
            "(`: >>FILE`), or remove it",
            unclosed);
    else
        ctl_fail(client,
                 "'%s': what is left needs a decision: see `sluice conflicts` and `sluice info`, then `sluice publish`",
                 *path ? path : "/");
}

int verb_wait_below(struct fs *fs, struct ctl_client *client, const char *path, uint64_t deadline_ns)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    int r = 0;
    if (*path)
        r = wait_named(fs, client, path, deadline_ns, names);
    else
        g_ptr_array_add(names, g_strdup(""));
    const char *at = names->len > 0 ? names->pdata[names->len - 1] : path;
    for (unsigned i = 0; r == 0 && i < names->len; i++) {
        at = names->pdata[i];
        r = publish_wait(fs->pub, at, deadline_ns, tick, client);
    }
    if (r == -EIO)
        fail_undecided(fs, client, at);
    else if (r < 0 && r != -ECANCELED && r != -ETIMEDOUT)
        ctl_fail(client, "'%s': %s", path, verb_err_text(r));
    return r == 0 ? 0 : r == -ETIMEDOUT ? 3 : 1;
}

static int verb_wait(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_auto(GStrv) paths = verb_paths(client, req);
    uint64_t deadline_ns = deadline_of(req);
    int code = paths ? 0 : 1;
    for (unsigned i = 0; paths && paths[i] && !ctl_gone(client);
         i++) { /* what is wrong with one is no reason not to wait for the next */
        int one = verb_wait_below(fs, client, paths[i], deadline_ns);
        code = code == 1 || one == 1 ? 1 : MAX(code, one);
    }
    return paths && ctl_gone(client) ? 1 : code;
}

static int verb_drain(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    return verb_wait_below(fs, client, "", deadline_of(req));
}

/* ---- config, stop ---- */

static int verb_config(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    g_autoptr(GString) text = g_string_new(NULL);
    config_dump(fs->cfg, fs->cache_dir, text);
    json_t *o = json_pack("{s:s}", "event", "config");
    json_object_set_new(o, "text", verb_string(text->str));
    return ctl_emit(client, o) < 0 ? 1 : 0;
}

static int tick_durable(void *ctx, const struct durable_left *left)
{
    int r = ctl_emit(ctx, json_pack("{s:s, s:I, s:I}", "event", "progress", "files_left", (json_int_t)left->files,
                                    "bytes_left", (json_int_t)left->bytes));
    return r < 0 || ctl_gone(ctx) ? 1 : 0;
}

/* -ECANCELED: nobody waits for it any more. Another error is told: it keeps nobody from unmounting. */
static int make_durable(struct fs *fs, struct ctl_client *client)
{
    int files = durable_all(fs, false, tick_durable, client);
    if (files == -ECANCELED)
        return files;
    int journal = meta_sync(fs->meta);
    if (journal < 0)
        ctl_fail(client, "the mount stops, but its database could not be made durable: %s", err_text(journal));
    else if (files < 0)
        ctl_fail(client, "the mount stops, but the cache disk did not take all unpublished bytes: %s; see the log",
                 err_text(files));
    return journal < 0 ? journal : files;
}

#define RELEASE_TRIES 100 /* a program that closed a file did not wait for us to hear of it */
#define RELEASE_US    20000

/* What the kernel's EBUSY does not tell: it counts the uses of the one mount that is to go, not those of bind mounts of it and in containers, which would lose what they write. */
static bool is_held(struct fs *fs, struct ctl_client *client, uint64_t *ret_ino, int32_t *ret_tid)
{
    enum handles_held held = handle_held(fs, ret_ino, ret_tid);
    for (unsigned i = 0; held != HANDLES_NONE && (held == HANDLES_UNSURE || i < RELEASE_TRIES); i++) {
        if (ctl_gone(client) || atomic_load(&fs->stopping))
            return ctl_gone(client);
        g_usleep(RELEASE_US);
        held = handle_held(fs, ret_ino, ret_tid);
    }
    return held != HANDLES_NONE;
}

static void fail_held(struct fs *fs, struct ctl_client *client, uint64_t ino, int32_t tid)
{
    g_autofree char *path = NULL, *program = NULL;
    g_autofree char *comm = g_strdup_printf("/proc/%d/comm", tid);
    int r = tree_path_of(fs, ino, &path);
    if (tid > 0)
        (void)g_file_get_contents(comm, &program, NULL, NULL); /* it may have ended, and others have its file */
    g_autofree char *name = program ? g_utf8_make_valid(g_strchomp(program), -1) : NULL;
    g_autofree char *shown = r == 0 ? g_utf8_make_valid(*path ? path : "/", -1) : g_strdup("a file without a name");
    g_autofree char *by = name ? g_strdup_printf(" by %s (process %d)", name, tid) : NULL;
    ctl_fail(
        client,
        "%s is in use: '%s' was opened%s, here, through a bind mount or in a container (`fuser -vm %s` lists who uses it)",
        fs->mountpoint, shown, by ? by : "", fs->mountpoint);
}

static int verb_stop(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    uint64_t ino = 0;
    int32_t tid = 0;
    int synced = make_durable(fs, client);
    if (synced == -ECANCELED)
        return 1;
    if (is_held(fs, client, &ino, &tid)) {
        fail_held(fs, client, ino, tid);
        return 1;
    }
    int r = fs_unmount(fs->mountpoint, false);
    if (r == -EBUSY)
        ctl_fail(client, "%s is in use (open files or working directories: `fuser -vm %s` lists them)", fs->mountpoint,
                 fs->mountpoint);
    else if (r < 0)
        ctl_fail(client, "%s cannot be unmounted: only root can, or fusermount3, and that failed; see the log",
                 fs->mountpoint);
    if (r < 0)
        return 1;
    log_notice("ctl", "told to stop");
    fs_request_stop(fs);
    return synced < 0 ? 1 : 0;
}

static int verb_upgrade(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    const char *program = json_string_value(json_object_get(req, "program"));
    g_autofree char *msg = NULL;
    int r = program && *program == '/' ? fs_request_upgrade(fs, program, &msg) : -EINVAL;
    if (r < 0)
        ctl_fail(client, "%s", msg ? msg : "the program is not named by its absolute path");
    return r < 0 ? 1 : 0;
}

const struct ctl_verb ctl_verbs[] = {
    {"status", verb_status},
    {"info", verb_info},
    {"warmup", verb_warmup, .waits = true},
    {"warmup-status", verb_warmup_status},
    {"warmup-stop", verb_warmup_stop},
    {"sync", verb_sync, .waits = true},
    {"sync-status", verb_sync_status},
    {"evict", verb_evict, .waits = true},
    {"pin", verb_pin, .waits = true},
    {"unpin", verb_unpin},
    {"wait", verb_wait, .waits = true},
    {"publish", verb_publish},
    {"conflicts", verb_conflicts},
    {"checkpoints", verb_checkpoints, .waits = true},
    {"link", verb_link},
    {"rmdir", verb_rmdir},
    {"drain", verb_drain}, /* waits, and gets in: an unmount does not stand behind others */
    {"config", verb_config},
    {"stop", verb_stop},
    {"upgrade", verb_upgrade},
    {NULL, NULL},
};
