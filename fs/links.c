/* See links.h: the set of links, what holds in them, and their stores. What the tree makes of them is links_tree.c. */
#include "links_internal.h"
#include "publish.h"

#include <stdlib.h>

/* ---- the set ---- */

static struct link *find_locked(struct links *ls, const char *key) REQUIRES(ls->mu)
{
    for (guint i = 0; i < ls->all->len; i++) {
        struct link *l = ls->all->pdata[i];
        if (strncmp(key, l->dir, l->len) == 0 && (key[l->len] == '/' || key[l->len] == '\0'))
            return l;
    }
    return NULL;
}

struct link *links_at_locked(struct links *ls, const char *dir)
{
    struct link *l = find_locked(ls, dir);
    return l && dir[l->len] == '\0' ? l : NULL;
}

static struct link *by_ino_locked(struct links *ls, uint64_t ino) REQUIRES(ls->mu)
{
    for (guint i = 0; i < ls->all->len; i++) {
        struct link *l = ls->all->pdata[i];
        if (l->ino == ino)
            return l;
    }
    return NULL;
}

static bool has_links(struct fs *fs)
{
    return fs->links && atomic_load(&fs->links->n) > 0;
}

void link_free(void *arg)
{
    struct link *l = arg;
    if (!l)
        return;
    link_options_clear(&l->o);
    json_decref(l->options);
    g_free(l->dir);
    g_free(l->source);
    g_free(l->identity);
    g_free(l->error);
    g_free(l);
}

/* ---- policies ---- */

static void mount_policy(struct fs *fs, struct link_policy *ret)
{
    *ret = (struct link_policy){
        .read_only = fs->cfg->read_only || !fs->cfg->source, /* without a source there is nowhere to write it to */
        .immutable = fs->cfg->immutable,
        .conflict = fs->cfg->conflict,
        .metadata_ttl_ns = fs->cfg->metadata_ttl_ns,
    };
}

static void link_policy_locked(struct fs *fs, const struct link *l, struct link_policy *ret)
{
    mount_policy(fs, ret);
    ret->in_link = true;
    ret->read_only = fs->cfg->read_only || l->o.read_only || l->going;
    ret->immutable |= l->o.immutable;
    if (l->o.conflict >= 0)
        ret->conflict = (enum conflict_mode)l->o.conflict;
    if (l->o.immutable)
        ret->metadata_ttl_ns = IMMUTABLE_TTL_NS;
    else if (l->o.metadata_ttl_ns != UINT64_MAX)
        ret->metadata_ttl_ns = l->o.metadata_ttl_ns;
}

void links_policy(struct fs *fs, const char *key, struct link_policy *ret)
{
    mount_policy(fs, ret);
    if (!has_links(fs))
        return;
    mutex_lock(&fs->links->mu);
    const struct link *l = find_locked(fs->links, key);
    if (l)
        link_policy_locked(fs, l, ret);
    mutex_unlock(&fs->links->mu);
}

bool links_is_point(struct fs *fs, uint64_t ino)
{
    if (!has_links(fs))
        return false;
    mutex_lock(&fs->links->mu);
    bool is = by_ino_locked(fs->links, ino) != NULL;
    mutex_unlock(&fs->links->mu);
    return is;
}

bool links_is_going(struct fs *fs, uint64_t ino)
{
    if (!has_links(fs))
        return false;
    mutex_lock(&fs->links->mu);
    const struct link *l = by_ino_locked(fs->links, ino);
    bool going = l && l->going;
    mutex_unlock(&fs->links->mu);
    return going;
}

/* The directory above: of a file the one in which it was found by last, or any that it has a name in; of one without a name that of the link where it had its last one. 0: none. */
static uint64_t parent_of(struct fs *fs, uint64_t ino)
{
    INODE_REF in = NULL;
    INODE_REF place = NULL;
    if (inode_get(fs, ino, &in) < 0)
        return 0;
    mutex_lock(&in->mu);
    bool recorded = S_ISDIR(in->rec.mode) || (in->rec.nlink == 0 && in->rec.parent);
    uint64_t parent = recorded ? in->rec.parent : in->place_dir;
    mutex_unlock(&in->mu);
    if (recorded || (parent && inode_get(fs, parent, &place) == 0))
        return parent;
    struct meta_dentry d = {0}; /* never looked up, or that directory is gone */
    parent = meta_link_first(fs->meta, ino, &d) == 0 ? d.parent : 0;
    meta_dentry_clear(&d);
    return parent;
}

uint64_t links_point_of(struct fs *fs, uint64_t ino)
{
    for (unsigned depth = 0; has_links(fs) && ino > META_ROOT_INO && depth < 4096; depth++) {
        if (links_is_point(fs, ino))
            return ino;
        ino = parent_of(fs, ino);
    }
    return META_ROOT_INO;
}

static void policy_of(struct fs *fs, uint64_t ino, struct link_policy *ret)
{
    mount_policy(fs, ret);
    uint64_t point = links_point_of(fs, ino);
    if (point == META_ROOT_INO)
        return;
    mutex_lock(&fs->links->mu);
    const struct link *l = by_ino_locked(fs->links, point);
    if (l)
        link_policy_locked(fs, l, ret);
    mutex_unlock(&fs->links->mu);
}

void links_policy_of(struct fs *fs, struct inode *in, struct link_policy *ret)
{
    policy_of(fs, in->ino, ret);
}

int links_may_change(struct fs *fs, uint64_t ino)
{
    struct link_policy p;
    policy_of(fs, ino, &p);
    if (p.read_only && !fs->cfg->source && !p.in_link)
        log_info("links", "this mount has no bucket of its own: files are made below the directories of its links");
    return p.read_only ? -EROFS : 0;
}

bool links_shows(struct fs *fs, const char *path, bool is_dir)
{
    if (!has_links(fs))
        return true;
    mutex_lock(&fs->links->mu);
    const struct link *l = find_locked(fs->links, path);
    bool shows = !l || path[l->len] == '\0' || link_options_show(&l->o, path + l->len + 1, is_dir);
    mutex_unlock(&fs->links->mu);
    return shows;
}

int links_may_name(struct fs *fs, const char *path, bool is_dir)
{
    if (!has_links(fs))
        return 0;
    mutex_lock(&fs->links->mu);
    const struct link *l = find_locked(fs->links, path);
    bool going = l && l->going;
    mutex_unlock(&fs->links->mu);
    return going ? -EBUSY : links_shows(fs, path, is_dir) ? 0 : -EACCES;
}

size_t links_prefix_len(struct fs *fs, const char *key)
{
    if (!has_links(fs))
        return 0;
    mutex_lock(&fs->links->mu);
    const struct link *l = find_locked(fs->links, key);
    size_t len = l && key[l->len] == '/' ? l->len + 1 : 0;
    mutex_unlock(&fs->links->mu);
    return len;
}

char *links_identity(struct fs *fs, const char *key)
{
    const char *own = fs->cfg->source ? objstore_identity(fs->store) : NULL;
    if (!has_links(fs))
        return g_strdup(own);
    mutex_lock(&fs->links->mu);
    const struct link *l = find_locked(fs->links, key);
    char *identity = g_strdup(l ? l->identity : own);
    mutex_unlock(&fs->links->mu);
    return identity;
}

void links_each_source(struct fs *fs, void (*fn)(void *ctx, const char *dir, const char *source), void *ctx)
{
    if (!has_links(fs))
        return;
    mutex_lock(&fs->links->mu);
    for (guint i = 0; i < fs->links->all->len; i++) {
        const struct link *l = fs->links->all->pdata[i];
        fn(ctx, l->dir, l->source);
    }
    mutex_unlock(&fs->links->mu);
}

int links_check_fixed(struct fs *fs, const char *path)
{
    if (!has_links(fs))
        return 0;
    bool fixed = false;
    size_t len = strlen(path);
    mutex_lock(&fs->links->mu);
    for (guint i = 0; i < fs->links->all->len; i++) {
        const struct link *l = fs->links->all->pdata[i];
        fixed |= strncmp(l->dir, path, len) == 0 && (l->dir[len] == '\0' || l->dir[len] == '/');
    }
    mutex_unlock(&fs->links->mu);
    return fixed ? -EBUSY : 0;
}

bool links_below(struct fs *fs, const char *path)
{
    if (!has_links(fs))
        return false;
    bool below = false;
    size_t len = strlen(path);
    mutex_lock(&fs->links->mu);
    for (guint i = 0; i < fs->links->all->len; i++) {
        const struct link *l = fs->links->all->pdata[i];
        below |= len == 0 || (strncmp(l->dir, path, len) == 0 && l->dir[len] == '/');
    }
    mutex_unlock(&fs->links->mu);
    return below;
}

int64_t links_offline_since_ns(struct fs *fs, const char *key)
{
    struct objstore_at at;
    objstore_at(fs->store, key, &at);
    return at.offline_since_ns;
}

bool links_answers(struct fs *fs, const char *key)
{
    struct objstore_link_health h = {0};
    if (links_offline_since_ns(fs, key) != 0)
        return false;
    size_t len = links_prefix_len(fs, key);
    g_autofree char *dir = len ? g_strndup(key, len - 1) : NULL;
    return !dir || objstore_links_health(fs->store, dir, &h) < 0 || h.err == 0;
}

/* ---- capabilities ---- */

bool links_probed(struct fs *fs, const char *key)
{
    bool probed = atomic_load(&fs->probed);
    if (!has_links(fs))
        return probed;
    mutex_lock(&fs->links->mu);
    const struct link *l = find_locked(fs->links, key);
    probed = l ? l->probed : probed;
    mutex_unlock(&fs->links->mu);
    return probed;
}

static char *caps_name(const char *dir)
{
    return dir ? g_strconcat("link-caps/", dir, NULL) : g_strdup(STORE_CAPS_VALUE);
}

/* caps 0: the probe was refused; it is made again after the next start. */
void links_set_probed(struct fs *fs, const char *key, uint32_t caps)
{
    size_t len = links_prefix_len(fs, key);
    g_autofree char *dir = len ? g_strndup(key, len - 1) : NULL;
    if (dir) {
        mutex_lock(&fs->links->mu);
        struct link *l = links_at_locked(fs->links, dir);
        if (l)
            l->probed = true;
        mutex_unlock(&fs->links->mu);
    } else {
        atomic_store(&fs->probed, true);
    }
    if (caps == 0)
        return;
    g_autofree char *name = caps_name(dir);
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_value_put_u64(b, name, (uint64_t)PROBE_REVISION << 32 | caps);
    if (meta_commit(b, false) < 0)
        log_debug("publish", "capabilities could not be stored");
    meta_batch_free(b);
}

/* What an earlier run found out of the store at dir. */
static bool restore_caps(struct fs *fs, const char *dir)
{
    uint64_t caps = 0;
    g_autofree char *name = caps_name(dir);
    g_autofree char *key = g_strconcat(dir, "/", NULL);
    if (meta_value_get_u64(fs->meta, name, &caps) < 0 || caps >> 32 != PROBE_REVISION)
        return false;
    objstore_set_caps_of(fs->store, key, (uint32_t)caps);
    return true;
}

/* ---- stores ---- */

/* like->known_ctx: the identity of a link that was used before, else NULL. */
static int open_like(const struct objstore_config *like, const char *source, const struct link_options *o,
                     struct objstore **ret, char **ret_msg)
{
    struct objstore_config sc = *like;
    sc.known = sc.known_ctx ? objstore_known_is : NULL;
    sc.read_only |= o->read_only;
    sc.source = source;
    sc.endpoint_url = o->endpoint_url;
    sc.region = o->region;
    sc.profile = o->profile;
    sc.no_sign_request = o->no_sign_request;
    sc.force_path_style = o->force_path_style;
    sc.allow_plain_http = o->allow_plain_http;
    sc.ca_bundle = o->ca_bundle;
    sc.upload_limit_bps = o->upload_limit;
    sc.download_limit_bps = o->download_limit;
    return objstore_open(&sc, ret, ret_msg);
}

static struct objstore_config like_mount(const struct fs *fs)
{
    return (struct objstore_config){.op_timeout_ns = fs->cfg->op_timeout_ns,
                                    .max_connections = fs->cfg->max_uploads + fs->cfg->max_downloads + 8,
                                    .dir_mode = 0777 & ~fs->cfg->umask,
                                    .read_only = fs->cfg->read_only || fs->cfg->immutable,
                                    .escape = fs->cfg->escape == ESCAPE_PERCENT};
}

int link_open_store(struct fs *fs, const struct link *l, struct objstore **ret, char **ret_msg)
{
    struct objstore_config like = like_mount(fs);
    like.known_ctx = l->identity;
    int r = links_check_apart(fs, l->source, ret_msg);
    return r < 0 ? r : open_like(&like, l->source, &l->o, ret, ret_msg);
}

/* The store of a link that is known, NULL where it cannot be opened; *ret_error says why. */
static struct objstore *reopen(const struct objstore_config *like, const struct link *l, char **ret_error)
{
    struct objstore *st = NULL;
    if (l->unreadable) {
        *ret_error = g_strdup(l->error);
        return NULL;
    }
    struct objstore_config sc = *like;
    sc.known_ctx = l->identity;
    int r = open_like(&sc, l->source, &l->o, &st, ret_error);
    if (r == 0 && l->identity && !g_str_equal(objstore_identity(st), l->identity)) {
        *ret_error = g_strdup_printf("%s leads to %s now, the link was made for %s: remove it and add it again",
                                     l->source, objstore_identity(st), l->identity);
        objstore_close(st);
        return NULL;
    }
    if (r < 0 && !*ret_error)
        *ret_error = g_strdup(objstore_err_text(r));
    return r < 0 ? NULL : st;
}

static struct objstore *reopen_of_mount(struct fs *fs, const struct link *l, char **ret_error)
{
    const struct objstore_config like = like_mount(fs);
    if (!l->unreadable && links_check_apart(fs, l->source, ret_error) < 0)
        return NULL;
    return reopen(&like, l, ret_error);
}

/* ---- records ---- */

void links_record_name(const char *dir, GString *ret)
{
    g_string_append_printf(ret, "link/%s", dir);
}

char *link_record(const char *source, const char *identity, json_t *options)
{
    json_t *o = json_pack("{s:s, s:s*, s:O}", "source", source, "identity", identity, "options", options);
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    char *own = g_strdup(text);
    free(text);
    json_decref(o);
    return own;
}

int link_save(struct fs *fs, const char *dir, const char *record)
{
    g_autoptr(GString) name = g_string_new(NULL);
    links_record_name(dir, name);
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_value_put(b, name->str, record, strlen(record));
    int r = meta_commit(b, true);
    meta_batch_free(b);
    return r;
}

/* One whose record says what this program does not know, or is damaged, is a link all the same, without a store: its keys must not go to another bucket. */
static struct link *read_record(const char *dir, const void *value, size_t len)
{
    json_t *o = json_loadb(value, len, 0, NULL), *options = json_object_get(o, "options");
    const char *source = json_string_value(json_object_get(o, "source"));
    g_autofree char *msg = NULL;
    struct link *l = g_new0(struct link, 1);
    l->dir = g_strdup(dir);
    l->len = strlen(dir);
    l->source = g_strdup(source ? source : "?");
    l->identity = g_strdup(json_string_value(json_object_get(o, "identity")));
    l->options = json_is_object(options) ? json_incref(options) : NULL;
    int r = source && l->options ? link_options_parse(options, &l->o, &msg) : -EBADMSG;
    if (r < 0) {
        link_options_clear(&l->o);
        l->o.read_only = true;
        l->unreadable = true;
        l->error = g_strdup_printf("its record cannot be read: %s", msg ? msg : "it is damaged");
    }
    json_decref(o);
    return l;
}

static int load_record(void *ctx, const char *name, const void *value, size_t len)
{
    const char *dir = name + strlen("link/");
    if (!*dir || *dir == '/' || g_str_has_suffix(dir, "/")) {
        log_err("links", "the record of a link names no directory, it is left alone: '%s'", name);
        return 0;
    }
    struct link *l = read_record(dir, value, len);
    if (l->unreadable)
        log_err("links", "a link has no store, nothing below is read or written dir='%s': %s", l->dir, l->error);
    g_ptr_array_add(ctx, l);
    return 0;
}

/* ---- who changes ---- */

bool links_begin_change(struct links *ls)
{
    mutex_lock(&ls->mu);
    while (ls->changing && !ls->stop)
        cond_wait(&ls->changed, &ls->mu);
    bool mine = !ls->stop;
    ls->changing |= mine;
    mutex_unlock(&ls->mu);
    return mine;
}

void links_end_change(struct links *ls)
{
    mutex_lock(&ls->mu);
    ls->changing = false;
    cond_broadcast(&ls->changed);
    mutex_unlock(&ls->mu);
}

void links_go_on_changing(struct links *ls)
{
    mutex_lock(&ls->mu);
    while (ls->changing)
        cond_wait(&ls->changed, &ls->mu);
    ls->changing = true;
    mutex_unlock(&ls->mu);
}

int links_ask_store(struct links *ls, struct objstore *st, char **ret_msg)
{
    mutex_lock(&ls->mu);
    bool stop = ls->stop;
    if (!stop)
        g_ptr_array_add(ls->asked, st);
    mutex_unlock(&ls->mu);
    if (stop)
        return -ECANCELED;
    int r = objstore_check(st, ret_msg);
    mutex_lock(&ls->mu);
    g_ptr_array_remove_fast(ls->asked, st);
    mutex_unlock(&ls->mu);
    return r;
}

/* ---- opening again ---- */

static void tell_error(struct link *l, const char *error)
{
    if (g_strcmp0(l->error, error) != 0)
        log_warn("links", "a link is degraded dir='%s' source='%s': %s", l->dir, l->source, error);
    g_free(l->error);
    l->error = g_strdup(error);
}

/* One that was made while its store could not be opened; the caller is the one that changes. */
static void note_identity(struct fs *fs, struct link *l, const char *identity)
{
    g_autofree char *record = link_record(l->source, identity, l->options);
    mutex_lock(&fs->links->mu);
    l->identity = g_strdup(identity);
    mutex_unlock(&fs->links->mu);
    if (!record || link_save(fs, l->dir, record) < 0)
        log_warn("links", "where a link leads could not be stored dir='%s'", l->dir);
    links_save_copy(fs);
}

void links_reopen(struct fs *fs, struct link *l)
{
    struct links *ls = fs->links;
    struct objstore_link_health h = {0};
    g_autofree char *error = NULL;
    if (objstore_links_health(fs->store, l->dir, &h) < 0 || h.open)
        return;
    struct objstore *st = reopen_of_mount(fs, l, &error);
    if (st && !l->identity)
        note_identity(fs, l, objstore_identity(st));
    if (st && objstore_links_replace(fs->store, l->dir, st) == 0)
        log_notice("links", "a link is there again dir='%s' source='%s'", l->dir, l->source);
    bool probed = st && restore_caps(fs, l->dir);
    mutex_lock(&ls->mu);
    if (st)
        g_clear_pointer(&l->error, g_free);
    else
        tell_error(l, error);
    l->probed = probed;
    mutex_unlock(&ls->mu);
    if (st)
        publish_touch(fs->pub);
}

/* ---- life ---- */

static void open_one(struct fs *fs, struct link *l)
{
    g_autofree char *error = NULL;
    struct objstore *st = reopen_of_mount(fs, l, &error);
    if (!st)
        tell_error(l, error);
    int r = objstore_links_add(fs->store, l->dir, st);
    if (r < 0)
        log_err("links", "two links lie in one another dir='%s'", l->dir);
    l->probed = st && r == 0 && restore_caps(fs, l->dir);
    if (links_tree_find(fs, l->dir, &l->ino) < 0)
        l->ino = 0;
    l->going = links_tree_is_going(fs, l);
}

/* Whose links are there from the start: without it what they are for would be written to another bucket. */
static int read_file(struct fs *fs, char **ret_msg)
{
    g_autoptr(GError) err = NULL;
    if (!fs->cfg->links || session_is_takeover(fs->session)) /* programs wait, and they are there */
        return 0;
    if (g_file_get_contents(fs->cfg->links, &fs->links->file, NULL, &err))
        return 0;
    *ret_msg = g_strdup_printf("the file of links cannot be read: %s", err->message);
    return -EIO;
}

int links_open(struct fs *fs, char **ret_msg)
{
    struct links *ls = g_new0(struct links, 1);
    ls->all = g_ptr_array_new_with_free_func(link_free);
    ls->asked = g_ptr_array_new();
    mutex_init(&ls->mu, LOCK_LINKS);
    cond_init(&ls->changed);
    cond_init(&ls->wake);
    fs->links = ls;
    int r = read_file(fs, ret_msg);
    if (r == 0)
        r = meta_value_each(fs->meta, "link/", load_record, ls->all);
    for (guint i = 0; r == 0 && i < ls->all->len; i++)
        open_one(fs, ls->all->pdata[i]);
    atomic_store(&ls->n, ls->all->len);
    return r;
}

int links_open_stores(struct meta *m, const struct objstore_config *like, struct objstore *st,
                      void (*tell)(void *ctx, const char *dir, const char *error), void *ctx)
{
    g_autoptr(GPtrArray) all = g_ptr_array_new_with_free_func(link_free);
    int r = meta_value_each(m, "link/", load_record, all);
    for (guint i = 0; r == 0 && i < all->len; i++) {
        const struct link *l = all->pdata[i];
        g_autofree char *error = NULL;
        r = objstore_links_add(st, l->dir, reopen(like, l, &error));
        if (r == 0)
            tell(ctx, l->dir, error);
    }
    return r;
}

/* The directory of a link that the database lost, or that was made while it did not know: it is made again. */
static void find_point(struct fs *fs, struct link *l)
{
    uint64_t ino = 0;
    int r = l->ino ? 0 : links_tree_restore(fs, l->dir, &ino);
    if (r < 0)
        log_err("links", "the directory of a link cannot be made dir='%s' r=%s", l->dir, err_name(r));
    mutex_lock(&fs->links->mu);
    l->ino = l->ino ? l->ino : ino;
    mutex_unlock(&fs->links->mu);
}

int links_start(struct fs *fs)
{
    struct links *ls = fs->links;
    bool mine = links_begin_change(ls);
    for (guint i = 0; mine && i < ls->all->len; i++)
        find_point(fs, ls->all->pdata[i]);
    if (mine && ls->all->len > 0) /* a power loss may have brought one back */
        links_save_copy(fs);
    if (mine)
        links_end_change(ls);
    if (ls->file)
        links_add_file(fs, fs->cfg->links, ls->file);
    g_clear_pointer(&ls->file, g_free);
    int r = thread_start(&ls->thread, "links", links_retry_thread, fs);
    ls->running = r == 0;
    return r;
}

void links_serve(struct fs *fs)
{
    struct links *ls = fs->links;
    mutex_lock(&ls->mu);
    ls->served = true;
    cond_broadcast(&ls->changed);
    mutex_unlock(&ls->mu);
}

void links_interrupt(struct fs *fs)
{
    struct links *ls = fs->links;
    mutex_lock(&ls->mu);
    ls->stop = true;
    for (guint i = 0; i < ls->asked->len; i++)
        objstore_shutdown(ls->asked->pdata[i]);
    cond_broadcast(&ls->wake);
    cond_broadcast(&ls->changed);
    mutex_unlock(&ls->mu);
}

void links_stop(struct fs *fs)
{
    struct links *ls = fs->links;
    if (!ls || !ls->running)
        return;
    links_interrupt(fs);
    pthread_join(ls->thread, NULL);
    ls->running = false;
    workq_free(ls->ask_q);
    ls->ask_q = NULL;
}

void links_close(struct fs *fs)
{
    struct links *ls = fs->links;
    if (!ls)
        return;
    links_stop(fs);
    g_ptr_array_unref(ls->all);
    g_ptr_array_unref(ls->asked);
    g_free(ls->file);
    cond_fini(&ls->wake);
    cond_fini(&ls->changed);
    mutex_fini(&ls->mu);
    g_free(ls);
    fs->links = NULL;
}
