/*
 * See links.h: links that have no store, or whose store does not answer, are tried again by the thread `links`, after it has gone on with removals that a kill cut off. It opens stores by itself, which waits for no network; those that are
 * open are asked by threads of their own, so that one that does not answer keeps neither the others waiting nor those who add, change or remove links.
 */
#include "base/workq.h"
#include "links_internal.h"

#define RETRY_NS (5 * NS_PER_S)
#define N_ASK    8 /* stores that do not answer, asked again at a time */

struct question {
    struct fs *fs;
    char *dir; /* owned */
};

/* What does not answer keeps this thread for a while, and nothing else: not even the link, which may go meanwhile. */
static void ask_again(void *arg)
{
    struct question *q = arg;
    struct links *ls = q->fs->links;
    g_autofree char *error = NULL;
    if (!atomic_load(&q->fs->stopping))
        (void)objstore_links_check(q->fs->store, q->dir, &error); /* noted there */
    mutex_lock(&ls->mu);
    struct link *l = links_at_locked(ls, q->dir);
    if (l)
        l->tried = false;
    mutex_unlock(&ls->mu);
    g_free(q->dir);
    g_free(q);
}

static void ask_behind(struct fs *fs, const char *dir)
{
    struct links *ls = fs->links;
    int r = ls->ask_q ? 0 : workq_new("link-ask", N_ASK, &ls->ask_q);
    if (r < 0) {
        log_warn("links", "no threads to ask stores again r=%s", err_name(r));
        return;
    }
    mutex_lock(&ls->mu);
    struct link *l = links_at_locked(ls, dir);
    bool ask = l && !l->tried;
    if (ask)
        l->tried = true;
    mutex_unlock(&ls->mu);
    if (!ask)
        return;
    struct question *q = g_new0(struct question, 1);
    *q = (struct question){fs, g_strdup(dir)};
    (void)workq_push(ls->ask_q, false, ask_again, q); /* it is ours, and not stopped */
}

/* The link at dir, and the caller is the one that changes. NULL: somebody else is, or there is none. */
static struct link *begin_change_at_once(struct links *ls, const char *dir)
{
    mutex_lock(&ls->mu);
    struct link *l = ls->changing || ls->stop ? NULL : links_at_locked(ls, dir);
    if (l && l->asking)
        l = NULL;
    ls->changing |= l != NULL;
    mutex_unlock(&ls->mu);
    return l;
}

/* One that has no store, or whose store does not answer. */
static void retry_one(struct fs *fs, const char *dir)
{
    struct objstore_link_health h = {0};
    if (objstore_links_health(fs->store, dir, &h) < 0 || h.err == 0)
        return;
    if (h.open) {
        ask_behind(fs, dir);
        return;
    }
    struct link *l = begin_change_at_once(fs->links, dir);
    if (!l)
        return;
    links_reopen(fs, l);
    links_end_change(fs->links);
}

static void retry_all(struct fs *fs)
{
    struct links *ls = fs->links;
    g_autoptr(GPtrArray) dirs = g_ptr_array_new_with_free_func(g_free);
    mutex_lock(&ls->mu);
    for (guint i = 0; i < ls->all->len; i++)
        g_ptr_array_add(dirs, g_strdup(((const struct link *)ls->all->pdata[i])->dir));
    mutex_unlock(&ls->mu);
    for (guint i = 0; i < dirs->len && !atomic_load(&fs->stopping); i++)
        retry_one(fs, dirs->pdata[i]);
}

/* Those that were being removed when the last worker ended; once the mount is served. */
static void remove_going(struct fs *fs)
{
    struct links *ls = fs->links;
    g_autoptr(GPtrArray) dirs = g_ptr_array_new_with_free_func(g_free);
    mutex_lock(&ls->mu);
    for (guint i = 0; i < ls->all->len; i++) {
        const struct link *l = ls->all->pdata[i];
        if (l->going)
            g_ptr_array_add(dirs, g_strdup(l->dir));
    }
    mutex_unlock(&ls->mu);
    for (guint i = 0; i < dirs->len && !atomic_load(&fs->stopping); i++) {
        g_autofree char *msg = NULL;
        int r = links_remove(fs, dirs->pdata[i], NULL, NULL, &msg);
        if (r < 0 && r != -ECANCELED && r != -ENOENT)
            log_warn("links", "a link that was being removed stays: %s", msg);
    }
}

void *links_retry_thread(void *arg)
{
    struct fs *fs = arg;
    struct links *ls = fs->links;
    remove_going(fs);
    mutex_lock(&ls->mu);
    while (!ls->stop) {
        (void)cond_wait_until(&ls->wake, &ls->mu, clock_mono_ns() + RETRY_NS);
        mutex_unlock(&ls->mu);
        retry_all(fs);
        mutex_lock(&ls->mu);
    }
    mutex_unlock(&ls->mu);
    return NULL;
}
