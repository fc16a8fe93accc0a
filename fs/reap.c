/* See reap.h. */
#include "reap.h"

#include "base/crash.h"
#include "meta_orphan.h"
#include "notifier.h"
#include "replay.h"

struct reap {
    struct fs *fs;
    uint64_t ino;
    uint64_t written; /* as of the removal of its last name */
};

/* Without a name, and without users. The caller holds fs->ns and clears rec. */
static bool is_left_over(struct fs *fs, uint64_t ino, struct meta_inode *rec)
{
    mutex_lock(&fs->table_mu);
    bool used = g_hash_table_contains(fs->inodes, &ino);
    mutex_unlock(&fs->table_mu);
    return !used && meta_inode_get(fs->meta, ino, rec) == 0 && rec->nlink == 0;
}

/* A power loss might still bring its name back (replaced.h): who has settled that calls reap_settled(). */
static bool is_needed(struct fs *fs, uint64_t ino)
{
    struct meta_replaced rep = {0};
    int r = meta_orphan_get(fs->meta, ino, &rep);
    bool needed = r == 0 ? rep.by != 0 : r != -ENOENT;
    meta_replaced_clear(&rep);
    return needed;
}

/*
 * Content, record and unfinished marks of a file or directory that is left over go. The content first: a kill in between leaves a record that the next worker
 * reaps. Content whose record is gone would hold its room for ever.
 */
static void reap_run(void *arg)
{
    struct reap *job = arg;
    struct fs *fs = job->fs;
    struct meta_inode rec = {0}, again = {0};
    char open[32];
    g_snprintf(open, sizeof(open), "open/%016" G_GINT64_MODIFIER "x", job->ino);
    struct meta_batch *b = meta_batch_new(fs->meta);
    CRASH_POINT(reap_begun);
    mutex_lock(&fs->ns);
    bool reap = is_left_over(fs, job->ino, &rec) && !is_needed(fs, job->ino);
    mutex_unlock(&fs->ns);
    /* That a file was published may itself not be on the disk: a power loss takes back that, and the removal. */
    bool only_here = reap && rec.vid && (rec.content != CONTENT_CLEAN || cache_is_unchecked(fs->cache, rec.vid));
    if (only_here && meta_sync_from(fs->meta, job->written) < 0)
        reap = false; /* a power loss may bring the name back, with or without content: the next start does it */
    if (reap && rec.vid)
        cache_forget(fs->cache, rec.vid); /* an upload begun for it is aborted behind */
    CRASH_POINT(reap_content);
    mutex_lock(&fs->ns);
    if (reap && is_left_over(fs, job->ino, &again)) {
        meta_inode_del(b, job->ino);
        meta_orphan_del(b, job->ino);
        meta_value_del(b, open);
        if (meta_commit(b, false) < 0)
            log_debug("fs", "the record of a removed file stays for the next start ino=%" G_GUINT64_FORMAT, job->ino);
    }
    mutex_unlock(&fs->ns);
    meta_batch_free(b);
    meta_inode_clear(&rec);
    meta_inode_clear(&again);
    g_free(job);
}

void reap_inode(struct fs *fs, uint64_t ino)
{
    struct reap *job = g_new(struct reap, 1);
    *job = (struct reap){fs, ino, meta_written(fs->meta)};
    if (!fs->reap_q || !workq_push(fs->reap_q, false, reap_run, job))
        g_free(job); /* stopping: the next start does it */
}

void reap_settled(struct fs *fs, uint64_t ino)
{
    mutex_lock(&fs->table_mu); /* else when it leaves memory, or the kernel has said that it does not know it */
    bool used = g_hash_table_contains(fs->inodes, &ino) || g_hash_table_contains(fs->unforgotten, &ino);
    mutex_unlock(&fs->table_mu);
    if (!used)
        reap_inode(fs, ino);
}

/* ---- what the kernel says ---- */

struct question {
    struct fs *fs;
    uint64_t ino;
};

static void ask_run(void *arg)
{
    struct question *q = arg;
    struct fs *fs = q->fs;
    bool may_come = replay_made(fs, q->ino); /* by the request that made it, which the kernel sends again: later */
    int r = may_come || !inode_is_awaited(fs, q->ino) ? 1 : notifier_ask(fs->notify_fd, q->ino, &fs->stopping);
    if (r == 0 && inode_end_await(fs, q->ino))
        reap_inode(fs, q->ino);
    if (r < 0)
        log_debug("fs", "the kernel does not say whether it knows a removed file ino=%" G_GUINT64_FORMAT " r=%s",
                  q->ino, err_name(r));
    g_free(q);
}

void reap_if_forgotten(struct fs *fs, uint64_t ino)
{
    if (fs->notify_fd < 0) /* not yet: reap_awaited() */
        return;
    struct question *q = g_new(struct question, 1);
    *q = (struct question){fs, ino};
    if (!workq_push(fs->ask_q, false, ask_run, q))
        g_free(q); /* stopping: the next start does it */
}

void reap_awaited(struct fs *fs)
{
    g_autoptr(GArray) list = inode_list_awaited(fs);
    for (unsigned i = 0; i < list->len; i++)
        reap_if_forgotten(fs, g_array_index(list, uint64_t, i));
}
