/*
 * Notes of visible steps: what may stand in the store though no record says so.
 *
 * Between the moment at which an object becomes visible and the commit that records it the daemon may be killed, the power or the reply lost. So before the step a
 * note is committed and synced under the key: by what token (and size) the object would be known as ours. The commit that records the object removes the note. Whoever finds a
 * note at a key before he publishes there, or deletes it, asks the store once: an object that fits is ours to replace or delete, any other is somebody else's.
 * Value "note/KEY": kind, token or its beginning, token recorded before (only later ones are meant) or size; one a line. Of an upload a fourth line has the last generation that is meant,
 * hex, a fifth which openings of the database may have given the token ("-": one of a version that did not name them): other nodes may have a copy of the folder, and with it the same numbers.
 * Of a copy of an object over itself a fourth line has the inode:
 * it is the same content with other metadata, and another etag; of another copy that is 0. A fifth has the attributes that the copy is given, if they are not the source's: fields, mode, uid, gid and
 * mtime. One that somebody else made, of a version with the same token, has other ones.
 */
#include "base/crash.h"
#include "base/log.h"
#include "cache_scan.h"
#include "publish_late.h"

#include <stdlib.h>

#define NO_OPENING   "-"
#define OPENINGS_MAX 256u /* bytes; more tries than that are not under way */

/* Lines of a note; those of before a version that wrote more have fewer. */
enum { KIND, TOKEN, SIZE, INO, ATTRIBUTES, N_LINES, RECORDED = SIZE, LAST_GEN = INO, OPENINGS = ATTRIBUTES };

static char *note_name(const char *key)
{
    return g_strconcat("note/", key, NULL);
}

static int put_locked(struct fs *fs, struct op *o, const char *text, const struct late_request *req) REQUIRES(fs->ns)
{
    mutex_lock(&o->p->mu);
    bool dropped = o->dropped; /* changes only under ns */
    mutex_unlock(&o->p->mu);
    if (dropped)
        return -EAGAIN;
    g_autofree char *name = note_name(o->key);
    struct meta_batch *b = meta_batch_new(fs->meta);
    meta_value_put(b, name, text, strlen(text));
    int r = late_put(b, o, req);
    if (r == 0)
        r = meta_commit(b, false);
    meta_batch_free(b);
    return r;
}

/* Whoever renames or removes the name either drops the op before, and then nothing becomes visible, or sees the note. */
static int note_put(struct op *o, const char *text, const struct late_request *req)
{
    struct fs *fs = o->p->fs;
    mutex_lock(&fs->ns);
    int r = put_locked(fs, o, text, req);
    uint64_t written = meta_written(fs->meta);
    mutex_unlock(&fs->ns);
    if (r == 0)
        r = meta_sync_from(fs->meta, written);
    CRASH_POINT(upload_noted);
    return r;
}

void token_write(struct fs *fs, uint64_t id, uint64_t gen, char *ret)
{
    g_snprintf(ret, TOKEN_MAX + 1, "%s.%" G_GINT64_MODIFIER "x.%" G_GINT64_MODIFIER "x.%s", meta_uuid(fs->meta), id,
               gen, meta_opening(fs->meta));
}

/* The opening that a token names, NO_OPENING: none. */
static const char *opening_of(const char *token)
{
    const char *p = token;
    for (unsigned n = 0; p && n < 3; n++) {
        p = strchr(p, '.');
        p = p ? p + 1 : NULL;
    }
    return p && *p ? p : NO_OPENING;
}

size_t token_version_len(const char *token)
{
    const char *opening = opening_of(token);
    return g_str_equal(opening, NO_OPENING) ? strlen(token) : (size_t)(opening - token) - 1;
}

bool token_is_version(struct fs *fs, const char *token, uint64_t id, uint64_t gen)
{
    char now[TOKEN_MAX + 1];
    token_write(fs, id, gen, now);
    size_t len = token_version_len(now);
    return strncmp(token, now, len) == 0 && (token[len] == '\0' || token[len] == '.');
}

bool token_is_later(const char *token, const char *prefix, const char *recorded)
{
    size_t len = strlen(prefix);
    if (!g_str_has_prefix(token, prefix))
        return false;
    return !g_str_has_prefix(recorded, prefix) || strtoull(token + len, NULL, 16) > strtoull(recorded + len, NULL, 16);
}

static char *note_get(struct fs *fs, const char *key)
{
    GBytes *value = NULL;
    g_autofree char *name = note_name(key);
    if (meta_value_get(fs->meta, name, &value) < 0)
        return NULL;
    gsize len;
    const char *data = g_bytes_get_data(value, &len);
    char *text = g_strndup(data, len);
    g_bytes_unref(value);
    return text;
}

static bool names_opening(const char *line, const char *opening)
{
    g_auto(GStrv) all = g_strsplit(line, " ", -1);
    return g_strv_contains((const char *const *)all, opening);
}

static void add_opening(GString *line, const char *opening)
{
    if (names_opening(line->str, opening) || line->len > OPENINGS_MAX)
        return;
    g_string_append_printf(line, "%s%s", line->len > 0 ? " " : "", opening);
}

/* This one; that in which parts of the upload were sent already; and those of earlier tries, which the store may still carry out. */
static int list_openings(struct op *o, const struct upload_note *upload, const char *start, GString *ret)
{
    struct fs *fs = o->p->fs;
    char begun[TOKEN_MAX + 1];
    int r = cache_scan_upload_token(fs->meta, upload->id, begun);
    if (r < 0)
        return r;
    add_opening(ret, meta_opening(fs->meta));
    if (*begun)
        add_opening(ret, opening_of(begun));
    g_autofree char *before = note_get(fs, o->key);
    if (!before || !g_str_has_prefix(before, start))
        return 0;
    g_auto(GStrv) lines = g_strsplit(before, "\n", N_LINES);
    g_auto(GStrv) openings = g_strsplit(g_strv_length(lines) > OPENINGS ? lines[OPENINGS] : NO_OPENING, " ", -1);
    for (unsigned i = 0; openings[i]; i++)
        add_opening(ret, openings[i]);
    return 0;
}

int note_upload(struct op *o, const struct upload_note *upload, const struct late_request *req)
{
    g_autofree char *start =
        g_strdup_printf("upload\n%s.%" G_GINT64_MODIFIER "x.\n", meta_uuid(o->p->fs->meta), upload->id);
    g_autoptr(GString) openings = g_string_new(NULL);
    int r = list_openings(o, upload, start, openings);
    g_autofree char *text =
        g_strdup_printf("%s%s\n%" G_GINT64_MODIFIER "x\n%s", start, upload->old_token, upload->gen, openings->str);
    return r < 0 ? r : note_put(o, text, req);
}

int note_copy(struct op *o, const struct copy_note *copy, const struct late_request *req)
{
    g_autoptr(GString) text = g_string_new(NULL);
    const struct posix_attr *p = copy->posix;
    g_string_printf(text, "copy\n%s\n%" G_GUINT64_FORMAT "\n%" G_GUINT64_FORMAT, copy->token, copy->size,
                    copy->same_ino);
    if (p && (p->fields & POSIX_MODE))
        g_string_append_printf(text, "\n%x %o %u %u %" G_GINT64_FORMAT, p->fields, p->mode, p->uid, p->gid,
                               p->mtime_ns);
    return note_put(o, text->str, req);
}

struct copy_upload {
    struct fs *fs;
    struct meta_upload rec; /* vid 0: there is none */
};

static int upload_begun(void *ctx, const char *upload_id)
{
    struct copy_upload *u = ctx;
    u->rec.vid = meta_next_ino(
        u->fs->meta); /* no file of the cache has it, so the next start finds an upload that nobody needs */
    u->rec.upload_id = g_strdup(upload_id);
    struct meta_batch *b = meta_batch_new(u->fs->meta);
    meta_upload_put(b, &u->rec);
    int r = meta_commit(b, true);
    meta_batch_free(b);
    return r;
}

/* Its record goes, for good: a start that aborts it while the store still completes it could lose the object. */
static void upload_completing(void *ctx)
{
    struct copy_upload *u = ctx;
    struct meta_batch *b = meta_batch_new(u->fs->meta);
    meta_upload_del(b, u->rec.vid);
    int r = meta_commit(b, true);
    meta_batch_free(b);
    u->rec.vid = 0;
    if (r < 0)
        log_info("publish", "the record of a copy's upload stays key='%s' r=%s", u->rec.key, err_name(r));
}

/* failed: the store was told to end it, but perhaps did not hear that. */
static void upload_ended(struct copy_upload *u, bool failed)
{
    int r = failed ? objstore_mpu_abort(u->fs->store, u->rec.key, u->rec.upload_id) : 0;
    if (r == 0 || r == -ENOENT) {
        struct meta_batch *b = meta_batch_new(u->fs->meta);
        meta_upload_del(b, u->rec.vid);
        r = meta_commit(b, false);
        meta_batch_free(b);
    }
    if (r < 0)
        log_info("publish", "the upload of a copy is left for the next start key='%s' r=%s", u->rec.key, err_name(r));
}

int note_and_copy(struct op *o, struct obj_copy *copy, struct etag *ret_etag)
{
    struct copy_upload u = {.fs = o->p->fs, .rec.key = g_strdup(copy->dst)};
    copy->begun = upload_begun;
    copy->completing = upload_completing;
    copy->ctx = &u;
    int r = objstore_copy_with(u.fs->store, copy, ret_etag);
    if (u.rec.vid)
        upload_ended(&u, r < 0);
    meta_upload_clear(&u.rec);
    return r;
}

void note_drop_value(struct fs *fs, struct meta_batch *b, const char *name)
{
    GBytes *value = NULL;
    if (meta_value_get(fs->meta, name, &value) < 0)
        return;
    g_bytes_unref(value);
    meta_value_del(b, name);
}

void note_clear(struct fs *fs, struct meta_batch *b, const char *key)
{
    g_autofree char *name = note_name(key);
    note_drop_value(fs, b, name);
}

bool publish_has_note(struct fs *fs, const char *key)
{
    g_autofree char *text = note_get(fs, key);
    return text != NULL;
}

bool note_carries(const struct posix_attr *have, const struct posix_attr *want, bool with_mtime)
{
    if (!(have->fields & POSIX_MODE))
        return true;
    if (with_mtime && !((have->fields & POSIX_MTIME) && have->mtime_ns == want->mtime_ns))
        return false;
    return ((have->mode ^ want->mode) & 07777) == 0 && have->uid == want->uid && have->gid == want->gid;
}

static bool attributes_fit(const char *line, const struct posix_attr *have)
{
    enum { FIELDS, MODE, UID, GID, MTIME, N_ATTRIBUTES };
    g_auto(GStrv) v = g_strsplit(line, " ", N_ATTRIBUTES);
    if (g_strv_length(v) != N_ATTRIBUTES)
        return false;
    const struct posix_attr want = {.fields = (uint32_t)strtoul(v[FIELDS], NULL, 16),
                                    .mode = (uint32_t)strtoul(v[MODE], NULL, 8),
                                    .uid = (uint32_t)strtoul(v[UID], NULL, 10),
                                    .gid = (uint32_t)strtoul(v[GID], NULL, 10),
                                    .mtime_ns = g_ascii_strtoll(v[MTIME], NULL, 10)};
    return note_carries(have, &want, want.fields & POSIX_MTIME);
}

/* Which begins as it should. */
static bool upload_fits(char *const *lines, const char *token)
{
    uint64_t gen = strtoull(token + strlen(lines[TOKEN]), NULL, 16);
    return gen <= strtoull(lines[LAST_GEN], NULL, 16) && names_opening(lines[OPENINGS], opening_of(token));
}

static bool note_fits(const char *text, const struct obj_info *info)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", N_LINES);
    unsigned n = g_strv_length(lines);
    if (n <= SIZE)
        return false;
    if (g_str_equal(lines[KIND], "upload"))
        return token_is_later(info->token, lines[TOKEN], lines[RECORDED]) &&
               (n <= OPENINGS || upload_fits(lines, info->token));
    return strcmp(info->token, lines[TOKEN]) == 0 && info->size == strtoull(lines[SIZE], NULL, 10) &&
           (n <= ATTRIBUTES || attributes_fit(lines[ATTRIBUTES], &info->posix));
}

bool note_is_marker(const char *key)
{
    return g_str_has_suffix(key, "/");
}

bool note_is_own(struct fs *fs, const char *key, const struct obj_info *info)
{
    const char *opening = opening_of(info->token);
    g_autofree char *text = note_get(fs, key);
    return g_str_equal(opening, meta_opening(fs->meta)) || g_str_equal(opening, NO_OPENING) ||
           (text && note_fits(text, info));
}

int note_find(struct fs *fs, const char *key, struct obj_info *ret)
{
    g_autofree char *text = note_get(fs, key);
    bool marker = note_is_marker(key);
    if (!text && !marker)
        return -ENOENT;
    struct obj_info info = {0};
    int r = objstore_head(fs->store, key, &info);
    if (r == 0 && !(marker ? info.size == 0 : note_fits(text, &info)))
        r = -ENOENT;
    if (r == 0)
        *ret = info;
    else
        obj_info_clear(&info);
    return r;
}

struct find_token {
    const struct outcome *content;
    const char *token;
    bool found;
};

static int on_token(void *ctx, const struct meta_dentry *d)
{
    struct find_token *f = ctx;
    f->found |= d->pub_vid == f->content->vid && d->pub_gen == f->content->gen && strcmp(d->token, f->token) == 0;
    return 0;
}

int note_content(struct fs *fs, const char *key, uint64_t ino, const struct outcome *content, struct etag *ret_etag)
{
    struct obj_info info = {0};
    int r = note_find(fs, key, &info);
    if (r < 0)
        return r;
    g_autofree char *text = note_get(fs, key);
    bool copied = text && g_str_has_prefix(text, "copy\n"); /* onto itself, with other attributes */
    bool ours = content->vid && token_is_version(fs, info.token, content->vid, content->gen);
    struct find_token f = {content, info.token, copied || ours};
    if (!f.found) { /* a resumed upload has an older one */
        mutex_lock(&fs->ns);
        r = meta_link_each(fs->meta, ino, on_token, &f);
        mutex_unlock(&fs->ns);
    }
    if (r == 0 && (!f.found || info.size != content->size))
        r = -ENOENT;
    *ret_etag = info.etag;
    obj_info_clear(&info);
    return r;
}

/* Is what is noted a version of this content, or its very object with other metadata? */
static bool note_is_of(struct fs *fs, const char *text, uint64_t vid, uint64_t ino)
{
    g_autofree char *start = g_strdup_printf("upload\n%s.%" G_GINT64_MODIFIER "x.\n", meta_uuid(fs->meta), vid);
    if (g_str_has_prefix(text, start))
        return true;
    g_auto(GStrv) lines = g_strsplit(text, "\n", N_LINES);
    return g_strv_length(lines) > INO && g_str_equal(lines[KIND], "copy") && strtoull(lines[INO], NULL, 10) == ino;
}

int note_newer(struct fs *fs, uint64_t vid, uint64_t ino, const char *key, struct etag *ret_etag)
{
    struct obj_info info = {0};
    g_autofree char *text = note_get(fs, key);
    if (!text || !note_is_of(fs, text, vid, ino))
        return -ENOENT;
    int r = note_find(fs, key, &info);
    if (r == 0)
        *ret_etag = info.etag;
    obj_info_clear(&info);
    return r;
}
