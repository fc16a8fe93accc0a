/* See lost_cache.h. */
#include "lost_cache.h"

#include "cache_lost.h"
#include "recover.h"
#include "states.h"
#include "tree.h"

#include <sys/stat.h>

#define NAMES_TOLD 10u
#define BATCH_ROWS 1000u

struct search {
    struct fs *fs;
    GArray *vids;   /* uint64_t, of all that is lost */
    GArray *inos;   /* uint64_t, theirs */
    GArray *stored; /* uint64_t, vids of what is in the store, but the cache was not told before the daemon ended */
    GString *names; /* the first ones, quoted */
    char *disk;     /* owned; of the first one */
    bool vouched;   /* one of them was on its disk for sure */
};

/* Did it have bytes here that are nowhere else, and of which nobody was told yet that they are lost? */
static bool counts(const struct meta_inode *rec, uint64_t vid)
{
    bool unpublished = rec->content != CONTENT_CLEAN && rec->content != CONTENT_QUARANTINED;
    return S_ISREG(rec->mode) && rec->vid == vid && rec->nlink > 0 && unpublished;
}

static void tell(struct search *s, uint64_t ino, const char *disk)
{
    g_autofree char *path = NULL;
    int r = tree_path_of(s->fs, ino, &path);
    struct log_site all = {0}; /* none is left out, however many there are */
    log_line(&all, LOG_LEVEL_ERR, "cache",
             "an unpublished file is lost: its cache disk holds no data file any more path='%s' ino=%" G_GUINT64_FORMAT
             " disk='%s'",
             r == 0 ? path : "?", ino, disk);
    if (s->inos->len > NAMES_TOLD)
        return;
    if (r == 0)
        g_strdelimit(path, "\n\r", '?'); /* the message is one line */
    g_autofree char *unknown = g_strdup_printf("inode %" G_GUINT64_FORMAT, ino);
    g_string_append_printf(s->names, "%s'%s'", s->names->len ? ", " : "", r == 0 ? path : unknown);
}

static int on_gone(void *ctx, uint64_t vid, uint64_t ino, const char *disk)
{
    struct search *s = ctx;
    struct meta_inode rec = {0};
    int r = meta_inode_get(s->fs->meta, ino, &rec);
    if (r == 0 && counts(&rec, vid)) {
        g_array_append_val(s->vids, vid);
        g_array_append_val(s->inos, ino);
        s->vouched |= !recover_lost_with_power(&rec);
        s->disk = s->disk ? s->disk : g_strdup(disk);
        tell(s, ino, disk);
    } else if (r == 0 && rec.content == CONTENT_CLEAN) {
        g_array_append_val(s->stored, vid);
    }
    if (r == 0)
        meta_inode_clear(&rec);
    return r == -ENOENT ? 0 : r;
}

static int give_up_one(struct fs *fs, struct meta_batch *b, uint64_t ino, uint64_t vid)
{
    struct meta_inode rec = {0};
    int r = meta_inode_get(fs->meta, ino, &rec);
    if (r == 0 && content_quarantine(&rec)) {
        meta_inode_put(b, &rec);
        r = recover_journal_names(fs, b, ino, EUCLEAN); /* parked at once: counted though it waits for others */
        metric_inc(M_quarantined_files);
        cache_note_gone(fs->cache, vid);
    }
    meta_inode_clear(&rec);
    return r;
}

static int give_up(const struct search *s)
{
    int r = 0;
    struct meta_batch *b = meta_batch_new(s->fs->meta);
    for (guint i = 0; r == 0 && i < s->inos->len; i++) {
        r = give_up_one(s->fs, b, g_array_index(s->inos, uint64_t, i), g_array_index(s->vids, uint64_t, i));
        if (r == 0 && i % BATCH_ROWS == BATCH_ROWS - 1)
            r = meta_commit(b, false);
    }
    if (r == 0)
        r = meta_commit(b, true);
    meta_batch_free(b);
    if (r == 0)
        log_warn("cache", "lost files were given up (--accept-loss) and are quarantined files=%u", s->inos->len);
    return r;
}

static int refuse(const struct search *s, char **ret_msg)
{
    unsigned n = s->inos->len, more = n > NAMES_TOLD ? n - NAMES_TOLD : 0;
    g_autofree char *rest = more ? g_strdup_printf(" and %u more, which the log names", more) : g_strdup("");
    *ret_msg =
        g_strdup_printf("cache disk '%s' holds no data file, and %u unpublished file%s %s on it: %s%s; bring that "
                        "disk back, or mount with --accept-loss to go on without them",
                        s->disk, n, n == 1 ? "" : "s", n == 1 ? "was" : "were", s->names->str, rest);
    return -ENODATA;
}

int lost_cache_settle(struct fs *fs, char **ret_msg)
{
    g_autoptr(GArray) vids = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_autoptr(GArray) inos = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_autoptr(GArray) stored = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    g_autoptr(GString) names = g_string_new(NULL);
    struct search s = {.fs = fs, .vids = vids, .inos = inos, .stored = stored, .names = names};
    int r = cache_emptied_each(fs->cache, on_gone, &s);
    if (r == 0 && s.inos->len > 0) {
        if (fs->cfg->accept_loss)
            r = give_up(&s);
        else if (s.vouched)
            r = refuse(&s, ret_msg);
    }
    for (guint i = 0; r == 0 && i < stored->len; i++)
        cache_forget_empty(fs->cache, g_array_index(stored, uint64_t, i)); /* fetched again */
    g_free(s.disk);
    return r;
}
