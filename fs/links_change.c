/* Adding, changing and removing bucket links, and what is told of them; see links.h. */
#include "conflict.h"
#include "links_internal.h"
#include "publish.h"

#include <stdlib.h>

/* ---- who else may be in the way ---- */

/* "a//b/" -> "a/b"; NULL: no directory below the mount. Owned. */
static char *clean_dir(const char *dir)
{
    g_auto(GStrv) parts = g_strsplit(dir, "/", -1);
    g_autoptr(GString) out = g_string_new(NULL);
    for (char **p = parts; *p; p++) {
        if (strcmp(*p, "..") == 0 || strlen(*p) > FS_NAME_MAX)
            return NULL;
        if (**p && strcmp(*p, ".") != 0)
            g_string_append_printf(out, "%s%s", out->len ? "/" : "", *p);
    }
    return out->len ? g_strdup(out->str) : NULL;
}

static int fail(char **ret_msg, int r, char *msg)
{
    g_free(*ret_msg);
    *ret_msg = msg;
    return r;
}

static bool lies_in(const char *path, const char *dir)
{
    size_t len = strlen(dir);
    return strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

static int check_dir(struct fs *fs, const char *dir, char **ret_msg)
{
    int r = 0;
    mutex_lock(&fs->links->mu);
    for (guint i = 0; r == 0 && i < fs->links->all->len; i++) {
        const struct link *l = fs->links->all->pdata[i];
        if (g_str_equal(dir, l->dir))
            r = fail(ret_msg, -EEXIST, g_strdup_printf("'%s' is the directory of a link to %s", dir, l->source));
        else if (lies_in(dir, l->dir) || lies_in(l->dir, dir))
            r = fail(
                ret_msg, -EEXIST,
                g_strdup_printf("links do not lie in one another: there is one at '%s', to %s", l->dir, l->source));
    }
    mutex_unlock(&fs->links->mu);
    return r;
}

/* Does one identity hold all that the other does? */
static bool covers(const char *a, const char *b)
{
    g_autofree char *outer = g_strdup(a);
    size_t len = strlen(outer);
    while (len > 0 && outer[len - 1] == '/')
        outer[--len] = '\0';
    return lies_in(b, outer);
}

/* The same objects under two names: allowed, but each knows nothing of what the other does. NULL: none. Owned. */
static char *overlap_warning(struct fs *fs, const char *identity)
{
    const char *at = NULL, *other = fs->cfg->source ? objstore_identity(fs->store) : NULL;
    if (other && (covers(other, identity) || covers(identity, other)))
        at = "the mount itself";
    g_autofree char *dir = NULL;
    mutex_lock(&fs->links->mu);
    for (guint i = 0; !at && i < fs->links->all->len; i++) {
        const struct link *l = fs->links->all->pdata[i];
        if (l->identity && (covers(l->identity, identity) || covers(identity, l->identity)))
            at = dir = g_strdup_printf("the link at '%s'", l->dir);
    }
    mutex_unlock(&fs->links->mu);
    return at ? g_strdup_printf(
                    "%s shows objects of %s too: what is changed here is seen there only when that is listed "
                    "again, and the other way round",
                    at, identity)
              : NULL;
}

/* Who asks while the mount starts: what a change waits for, and that may be long, must not hold that up. False: the daemon stops. */
static bool await_served(struct links *ls)
{
    mutex_lock(&ls->mu);
    while (!ls->served && !ls->stop)
        cond_wait(&ls->changed, &ls->mu);
    bool goes_on = !ls->stop;
    mutex_unlock(&ls->mu);
    return goes_on;
}

static int fail_stopping(char **ret_msg)
{
    return fail(ret_msg, -ECANCELED, g_strdup("the daemon stops"));
}

/* ---- add ---- */

static struct link *link_new(const char *dir, const char *source, const json_t *options, char **ret_msg, int *ret_err)
{
    struct link *l = g_new0(struct link, 1);
    *ret_err = link_options_parse(options, &l->o, ret_msg);
    if (*ret_err == 0 && l->o.immutable && l->o.sync == LINK_SYNC_SCHEDULE) {
        *ret_err = fail(ret_msg, -EINVAL,
                        g_strdup("immutable and sync conflict: nothing is looked at again; sync=full lists all once"));
        link_options_clear(&l->o);
    }
    if (*ret_err < 0) {
        g_free(l);
        return NULL;
    }
    l->dir = g_strdup(dir);
    l->len = strlen(dir);
    l->source = g_strdup(source);
    l->options = json_deep_copy(options);
    return l;
}

static int check_parts(struct fs *fs, const struct link *l, const struct objstore *st, char **ret_msg)
{
    const struct objstore_limits *limits = objstore_limits(st);
    if (limits->part_min_bytes <= MAX(fs->cfg->part_size, objstore_limits(fs->store)->part_min_bytes))
        return 0;
    return fail(ret_msg, -EINVAL,
                g_strdup_printf("%s takes no parts below %" G_GUINT64_FORMAT " bytes: mount with a larger --part-size",
                                l->source, limits->part_min_bytes));
}

/*
 * ask: opened, and asked once: what does not answer now was most likely typed wrong. Else, at a start, nobody waits for it; where it cannot be opened *ret is NULL, l->error says
 * why, and it is tried again.
 */
static int open_new(struct fs *fs, struct link *l, bool ask, struct objstore **ret, char **ret_msg)
{
    struct objstore *st = NULL;
    g_autofree char *msg = NULL;
    int r = link_open_store(fs, l, &st, &msg);
    if (r == 0)
        r = check_parts(fs, l, st, &msg);
    if (r == 0 && ask)
        r = links_ask_store(fs->links, st, &msg);
    if (r == 0) {
        g_free(l->identity);
        l->identity = g_strdup(objstore_identity(st));
        *ret = st;
        return 0;
    }
    objstore_close(st);
    if (ask || r == -EINVAL)
        return fail(ret_msg, r, g_steal_pointer(&msg));
    l->error = msg ? g_steal_pointer(&msg) : g_strdup(objstore_err_text(r));
    log_warn("links", "a link is degraded dir='%s' source='%s': %s", l->dir, l->source, l->error);
    return 0;
}

static const char *why_not(int r)
{
    switch (r) {
    case -ENOTEMPTY:
        return "it is not empty, and what is in it would be hidden: choose another directory";
    case -EBUSY:
        return "what was in it is not in the store yet: try again after `sluice wait`, and when no conflict "
               "of it is left";
    case -ENOTDIR:
        return "there is a file";
    default:
        return err_text(r);
    }
}

static bool is_silence(int r)
{
    return r == -ETIMEDOUT || r == -EIO || r == -EACCES || r == -ENODEV || r == -EKEYEXPIRED;
}

/* At a start the store that the directory is in is not waited for, as far as that is known: then what is known here has to do. */
static int prepare(struct fs *fs, const struct link *l, bool ask, struct inode **ret)
{
    int r = ask || links_answers(fs, l->dir) ? links_tree_prepare(fs, l->dir, true, ret) : -ETIMEDOUT;
    if (ask || !is_silence(r))
        return r;
    r = links_tree_prepare(fs, l->dir, false, ret);
    if (r == 0)
        log_warn("links", "the mount's own store does not answer: what it holds there, if anything, is hidden dir='%s'",
                 l->dir);
    return r;
}

/* The store is the route's from here on. */
static int put_in_place(struct fs *fs, struct link *l, struct objstore *st, bool ask, char **ret_msg)
{
    g_autofree char *record = link_record(l->source, l->identity, l->options);
    if (!record) {
        objstore_close(st);
        return fail(ret_msg, -EINVAL, g_strdup("source and options have to be UTF-8"));
    }
    INODE_REF in = NULL;
    int r = prepare(fs, l, ask, &in);
    if (r < 0) {
        objstore_close(st);
        return fail(ret_msg, r, g_strdup_printf("'%s': %s", l->dir, why_not(r)));
    }
    r = objstore_links_add(fs->store, l->dir, st);
    if (r < 0)
        return fail(ret_msg, r, g_strdup_printf("'%s': there is a link", l->dir));
    r = links_tree_commit(fs, l->dir, record, in, false);
    if (r < 0) {
        (void)objstore_links_remove(fs->store, l->dir); /* it is there */
        return fail(ret_msg, r, g_strdup_printf("'%s': %s", l->dir, why_not(r)));
    }
    l->ino = in->ino;
    mutex_lock(&fs->links->mu);
    g_ptr_array_add(fs->links->all, l);
    atomic_fetch_add(&fs->links->n, 1);
    mutex_unlock(&fs->links->mu);
    links_save_copy(fs);
    return 0;
}

/* l is the set's when that succeeds. */
static int add(struct fs *fs, struct link *l, struct objstore *st, bool ask, char **ret_msg)
{
    int r = check_dir(fs, l->dir, ret_msg);
    if (r < 0) {
        objstore_close(st);
        return r;
    }
    g_autofree char *warning = l->identity ? overlap_warning(fs, l->identity) : NULL;
    r = put_in_place(fs, l, st, ask, ret_msg);
    if (r < 0)
        return r;
    log_notice("links", "link added dir='%s' source='%s'", l->dir, l->source);
    if (warning)
        log_warn("links", "%s", warning);
    g_free(*ret_msg);
    *ret_msg = g_steal_pointer(&warning);
    links_tell_sync(fs, l, LINKS_SYNC_CHANGED);
    return 0;
}

/* Its store is asked first: what does not answer holds up no other change. */
static int ask_and_add(struct fs *fs, const char *source, const char *dir, const json_t *options, bool ask,
                       char **ret_msg)
{
    int r = check_dir(fs, dir, ret_msg);
    if (r < 0)
        return r;
    struct objstore *st = NULL;
    struct link *l = link_new(dir, source, options, ret_msg, &r);
    if (!l)
        return r;
    r = open_new(fs, l, ask, &st, ret_msg);
    if (r == 0 && !links_begin_change(fs->links)) {
        objstore_close(st);
        r = fail_stopping(ret_msg);
    } else if (r == 0) {
        r = add(fs, l, st, ask, ret_msg);
        links_end_change(fs->links);
    }
    if (r < 0)
        link_free(l);
    return r;
}

static int add_link(struct fs *fs, const char *source, const char *dir, const json_t *options, bool ask, char **ret_msg)
{
    g_autofree char *clean = clean_dir(dir);
    if (!clean)
        return fail(ret_msg, -EINVAL, g_strdup("a link needs a directory below the mount"));
    if (fs->cfg->immutable)
        return fail(ret_msg, -EROFS, g_strdup("the mount is --immutable: nothing is added to it"));
    int r = ask_and_add(fs, source, clean, options, ask, ret_msg);
    if (r < 0 && !*ret_msg)
        *ret_msg = g_strdup_printf("'%s' cannot be linked to %s: %s", clean, source, objstore_err_text(r));
    return r;
}

int links_add(struct fs *fs, const char *source, const char *dir, const json_t *options, char **ret_msg)
{
    return await_served(fs->links) ? add_link(fs, source, dir, options, true, ret_msg) : fail_stopping(ret_msg);
}

/* ---- set ---- */

static json_t *merged(const json_t *old, const json_t *news, bool *ret_store)
{
    json_t *o = json_deep_copy(old), *v;
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)news, name, v)
    {
        const json_t *had = json_object_get(old, name);
        *ret_store |= link_option_is_of_store(name) && !json_equal(had, json_is_null(v) ? NULL : v);
        if (json_is_null(v))
            (void)json_object_del(o, name); /* may not be there */
        else
            json_object_set(o, name, v);
    }
    return o;
}

static void set_asking(struct fs *fs, struct link *l, bool asking)
{
    mutex_lock(&fs->links->mu);
    l->asking = asking;
    mutex_unlock(&fs->links->mu);
}

/* The other store, when the options say so, must be of the same objects. Others may change other links while it is asked. */
static int reopen_same(struct fs *fs, struct link *old, struct link *l, bool ask, struct objstore **ret, char **ret_msg)
{
    l->identity = g_strdup(old->identity);
    set_asking(fs, old, true);
    links_end_change(fs->links);
    int r = open_new(fs, l, ask, ret, ret_msg);
    links_go_on_changing(fs->links);
    set_asking(fs, old, false);
    if (r == 0 && *ret && old->identity && !g_str_equal(old->identity, l->identity)) {
        objstore_close(*ret);
        *ret = NULL;
        r = fail(ret_msg, -EINVAL,
                 g_strdup_printf("that would lead to %s instead of %s: remove the link and add it again", l->identity,
                                 old->identity));
    }
    return r;
}

static void swap_text(char **a, char **b)
{
    char *text = *a;
    *a = *b;
    *b = text;
}

static void take_over(struct links *ls, struct link *l, struct link *news, bool reopened)
{
    mutex_lock(&ls->mu);
    struct link_options o = l->o;
    json_t *options = l->options;
    l->o = news->o;
    l->options = news->options;
    news->o = o;
    news->options = options;
    l->unreadable = false;
    if (reopened)
        swap_text(&l->error, &news->error);
    if (!l->identity)
        swap_text(&l->identity, &news->identity);
    mutex_unlock(&ls->mu);
}

/* The route to a store that was opened anew, NULL: it could not be. */
static int replace(struct fs *fs, const struct link *l, struct objstore *st)
{
    g_autofree char *below = g_strconcat(l->dir, "/", NULL);
    struct objstore_link_health h = {0};
    if (st && objstore_links_health(fs->store, l->dir, &h) == 0 && h.open) /* nothing is known where there was none */
        objstore_set_caps(st, objstore_caps_of(fs->store, below));
    return objstore_links_replace(fs->store, l->dir, st);
}

static int set(struct fs *fs, struct link *l, const json_t *options, bool ask, char **ret_msg)
{
    bool of_store = l->unreadable;
    int r = 0;
    if (!l->options)
        return fail(ret_msg, -EBADMSG,
                    g_strdup_printf("'%s': the record of the link is damaged: remove it and add it again", l->dir));
    json_t *all = merged(l->options, options, &of_store);
    struct link *news = link_new(l->dir, l->source, all, ret_msg, &r);
    struct objstore *st = NULL;
    json_decref(all);
    if (!news)
        return r;
    of_store |= l->o.read_only && !news->o.read_only; /* a directory was opened as one that need not take anything */
    if (of_store)
        r = reopen_same(fs, l, news, ask, &st, ret_msg);
    const char *identity = l->identity ? l->identity : news->identity;
    g_autofree char *record = r == 0 ? link_record(l->source, identity, news->options) : NULL;
    if (r == 0)
        r = record ? link_save(fs, l->dir, record) : -EINVAL;
    if (r == 0 && of_store)
        r = replace(fs, l, g_steal_pointer(&st));
    objstore_close(st);
    if (r == 0) {
        take_over(fs->links, l, news, of_store);
        links_save_copy(fs);
    }
    link_free(news);
    return r;
}

static bool is_link(struct fs *fs, const char *dir)
{
    mutex_lock(&fs->links->mu);
    bool is = links_at_locked(fs->links, dir) != NULL;
    mutex_unlock(&fs->links->mu);
    return is;
}

/* The caller is the one that changes, once no store is asked for the link at dir any more, NULL: there is none. False: the daemon stops. */
static bool begin_change_of(struct fs *fs, const char *dir, struct link **ret)
{
    struct links *ls = fs->links;
    struct link *l = NULL;
    g_autofree char *clean = clean_dir(dir);
    mutex_lock(&ls->mu);
    while (!ls->stop) {
        l = clean ? links_at_locked(ls, clean) : NULL;
        if (!ls->changing && !(l && l->asking))
            break;
        cond_wait(&ls->changed, &ls->mu);
    }
    bool mine = !ls->stop;
    ls->changing |= mine;
    mutex_unlock(&ls->mu);
    *ret = l;
    return mine;
}

static uint64_t metadata_ttl_of(struct fs *fs, const struct link *l)
{
    struct link_policy policy;
    links_policy(fs, l->dir, &policy);
    return policy.metadata_ttl_ns;
}

static void set_going(struct fs *fs, struct link *l, bool going)
{
    mutex_lock(&fs->links->mu);
    l->going = going;
    mutex_unlock(&fs->links->mu);
}

/* It is not removed after all. */
static void stay(struct fs *fs, struct link *l)
{
    if (links_tree_set_going(fs, l, false) < 0)
        log_warn("links", "a link that stays will be removed at the next start dir='%s'", l->dir);
    set_going(fs, l, false);
    links_save_copy(fs);
    if (l->o.sync == LINK_SYNC_SCHEDULE)
        links_tell_sync(fs, l, LINKS_SYNC_CHANGED);
}

static int set_link(struct fs *fs, const char *dir, const json_t *options, bool ask, char **ret_msg)
{
    struct link *l = NULL;
    if (!begin_change_of(fs, dir, &l))
        return fail_stopping(ret_msg);
    if (l && l->going && !ask) { /* the file is later than whoever removed it */
        log_notice("links", "the file lists a link that was being removed: it stays dir='%s'", l->dir);
        stay(fs, l);
    }
    uint64_t ttl_ns = l ? metadata_ttl_of(fs, l) : 0;
    int r = l ? set(fs, l, options, ask, ret_msg) : fail(ret_msg, -ENOENT, g_strdup_printf("'%s' is no link", dir));
    if (r == 0) /* other keys may be shown now, and how long they count is another time */
        r = links_tree_expire(fs, l->ino);
    if (r == 0 && metadata_ttl_of(fs, l) < ttl_ns)
        notify_below(fs, l->ino);
    if (r == 0)
        links_tell_sync(fs, l, LINKS_SYNC_CHANGED);
    links_end_change(fs->links);
    if (r < 0 && !*ret_msg)
        *ret_msg = g_strdup_printf("'%s': %s", dir, objstore_err_text(r));
    return r;
}

int links_set(struct fs *fs, const char *dir, const json_t *options, char **ret_msg)
{
    return await_served(fs->links) ? set_link(fs, dir, options, true, ret_msg) : fail_stopping(ret_msg);
}

/* ---- remove ---- */

static int check_clean(struct fs *fs, const struct link *l, char **ret_msg)
{
    struct publish_counts n = {0};
    g_autofree char *path = NULL;
    publish_count(fs->pub, l->dir, &n);
    if (n.ops > 0)
        return fail(ret_msg, -EBUSY,
                    g_strdup_printf("'%s': %" G_GUINT64_FORMAT
                                    " changes are not in the store yet (`sluice link rm --drain` waits for them; "
                                    "`sluice conflicts` and `sluice status` tell what waits for a decision)",
                                    l->dir, n.ops));
    uint64_t losers = conflict_count(fs->meta, l->dir); /* one that was skipped has no work left, but is only here */
    if (losers > 0)
        return fail(ret_msg, -EBUSY,
                    g_strdup_printf("'%s': %" G_GUINT64_FORMAT
                                    " conflicts below are not decided (`sluice conflicts` names them; keep-mine, "
                                    "keep-theirs or save-as first)",
                                    l->dir, losers));
    int r = links_tree_clean(fs, l->ino, &path);
    if (r == -EBUSY)
        return fail(ret_msg, r, g_strdup_printf("'%s' is open for writing, or not in the store yet", path));
    return r;
}

static int remove_clean(struct fs *fs, struct link *l, char **ret_msg)
{
    int r = check_clean(fs, l, ret_msg);
    if (r < 0)
        return r;
    r = links_tree_set_going(fs, l, true);
    if (r < 0)
        return r;
    links_save_copy(fs);
    links_tell_sync(fs, l, LINKS_SYNC_GOES);
    r = links_tree_remove(fs, l->dir, l->ino);
    if (r < 0)
        return r;
    r = objstore_links_remove(fs->store, l->dir);
    log_notice("links", "link removed dir='%s' source='%s'", l->dir, l->source);
    mutex_lock(&fs->links->mu);
    guint at = 0;
    if (g_ptr_array_find(fs->links->all, l, &at))
        (void)g_ptr_array_steal_index(fs->links->all, at);
    atomic_fetch_sub(&fs->links->n, 1);
    mutex_unlock(&fs->links->mu);
    link_free(l);
    return MIN(r, 0);
}

int links_remove(struct fs *fs, const char *dir, links_wait_fn *wait, void *ctx, char **ret_msg)
{
    int r = 0;
    g_autofree char *clean = clean_dir(dir);
    if (clean && wait && is_link(fs, clean))
        r = wait(ctx, clean);
    if (r != 0)
        return r;
    struct link *l = NULL;
    if (!await_served(fs->links) || !begin_change_of(fs, dir, &l))
        return fail_stopping(ret_msg);
    if (l) {
        set_going(fs, l, true);
        r = remove_clean(fs, l, ret_msg);
        if (r < 0 && r != -ECANCELED) /* that is: not now */
            stay(fs, l);
    } else {
        r = fail(ret_msg, -ENOENT, g_strdup_printf("'%s' is no link", dir));
    }
    links_end_change(fs->links);
    if (r < 0 && !*ret_msg)
        *ret_msg = g_strdup_printf("'%s': %s", dir, err_text(r));
    return r;
}

/* ---- telling ---- */

static void add_text(json_t *o, const char *name, const char *text)
{
    g_autofree char *valid = g_utf8_make_valid(text ? text : "", -1);
    json_object_set_new(o, name, json_string(valid));
}

static json_t *describe_locked(struct fs *fs, const struct link *l, bool show)
{
    json_t *o = json_object();
    struct objstore_link_health h = {0};
    int r = objstore_links_health(fs->store, l->dir, &h);
    add_text(o, "path", l->dir);
    add_text(o, "source", l->source);
    bool degraded = r < 0 || h.err != 0;
    json_object_set_new(o, "state", json_string(l->going ? "being removed" : degraded ? "degraded" : "ok"));
    if (degraded)
        add_text(o, "error", l->error ? l->error : objstore_err_text(h.err));
    if (degraded && h.since_ns)
        json_object_set_new(o, "degraded_since", json_integer(h.since_ns / (int64_t)NS_PER_S));
    if (l->o.read_only)
        json_object_set_new(o, "read_only", json_true());
    if (show) {
        add_text(o, "endpoint", l->identity);
        json_object_set(o, "options", l->options);
    }
    return o;
}

json_t *links_describe(struct fs *fs, const char *dir, bool show)
{
    json_t *list = json_array();
    g_autofree char *clean = dir ? clean_dir(dir) : NULL;
    mutex_lock(&fs->links->mu);
    for (guint i = 0; i < fs->links->all->len; i++) {
        const struct link *l = fs->links->all->pdata[i];
        if (!dir || g_strcmp0(l->dir, clean) == 0)
            json_array_append_new(list, describe_locked(fs, l, show));
    }
    mutex_unlock(&fs->links->mu);
    size_t i;
    json_t *o;
    json_array_foreach(list, i, o)
    {
        struct publish_counts n = {0};
        publish_count(fs->pub, json_string_value(json_object_get(o, "path")), &n);
        json_object_set_new(o, "dirty_files", json_integer((json_int_t)n.files));
    }
    return list;
}

/* ---- sync ---- */

void links_tell_sync(struct fs *fs, const struct link *l, enum links_sync_when when)
{
    mutex_lock(&fs->links->mu);
    links_sync_fn *fn = fs->links->on_sync;
    mutex_unlock(&fs->links->mu);
    enum link_sync sync = l->o.sync;
    if (sync == LINK_SYNC_SCHEDULE && (fs->cfg->immutable || l->o.immutable))
        sync = LINK_SYNC_FULL; /* nothing is looked at again */
    if (fn)
        fn(fs, l->dir, sync, l->o.sync_every_ns, when);
}

void links_on_sync(struct fs *fs, links_sync_fn *fn)
{
    struct links *ls = fs->links;
    if (!links_begin_change(ls))
        return;
    mutex_lock(&ls->mu);
    ls->on_sync = fn;
    mutex_unlock(&ls->mu);
    for (guint i = 0; i < ls->all->len; i++) {
        const struct link *l = ls->all->pdata[i];
        if (!l->going)
            links_tell_sync(fs, l, LINKS_SYNC_AT_START);
    }
    links_end_change(ls);
}

/* ---- a file of links ---- */

static json_t *options_of_words(char **words)
{
    json_t *o = json_object();
    for (char **p = words; *p; p++) {
        const char *eq = strchr(*p, '=');
        g_autofree char *name = eq ? g_strndup(*p, (gsize)(eq - *p)) : g_strdup(*p);
        json_object_set_new(o, name, json_string(eq ? eq + 1 : "true"));
    }
    return o;
}

/* What the file says of a link that is there, whose source is returned: null for options that it does not name. NULL: there is none. Owned by the caller. */
static char *forget_others(struct fs *fs, const char *dir, json_t *options)
{
    const char *name;
    json_t *v;
    g_autofree char *clean = clean_dir(dir);
    mutex_lock(&fs->links->mu);
    const struct link *l = clean ? links_at_locked(fs->links, clean) : NULL;
    char *source = l ? g_strdup(l->source) : NULL;
    json_object_foreach(l ? l->options : NULL, name, v)
    {
        if (!json_object_get(options, name))
            json_object_set_new(options, name, json_null());
    }
    mutex_unlock(&fs->links->mu);
    return source;
}

static int add_words(struct fs *fs, char **words, char **ret_msg)
{
    if (!words[0] || !words[1])
        return fail(ret_msg, -EINVAL, g_strdup("SOURCE DIR [OPTION=VALUE]... is what a line holds"));
    json_t *options = options_of_words(words + 2);
    g_autofree char *source = forget_others(fs, words[1], options);
    int r;
    if (!source) {
        r = add_link(fs, words[0], words[1], options, false, ret_msg);
        if (r == 0 && *ret_msg) /* a warning, which is in the log */
            g_clear_pointer(ret_msg, g_free);
    } else if (!g_str_equal(source, words[0])) {
        r = fail(ret_msg, -EEXIST, g_strdup_printf("'%s' is linked to %s: `sluice link rm` first", words[1], source));
    } else {
        r = set_link(fs, words[1], options, false, ret_msg);
    }
    json_decref(options);
    return r;
}

void links_add_file(struct fs *fs, const char *path, const char *text)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (unsigned i = 0; lines[i]; i++) {
        g_auto(GStrv) words = NULL;
        g_autoptr(GError) bad = NULL;
        g_autofree char *msg = NULL;
        int r = 0;
        if (g_shell_parse_argv(lines[i], NULL, &words, &bad))
            r = add_words(fs, words, &msg);
        else if (!g_error_matches(bad, G_SHELL_ERROR, G_SHELL_ERROR_EMPTY_STRING))
            r = fail(&msg, -EINVAL, g_strdup(bad->message));
        if (r < 0)
            log_err("links", "line %u of %s: %s", i + 1, path, msg);
    }
}
