/*
 * What pins, their rules and --on-create want to have here, see pin_fetch().
 *
 * Rules are looked at with every file that is closed or published, and each look asks for all that is pinned and may be absent. While the store is slow that is asked for again and
 * again: it waits as a set of paths, not as warm-ups with their threads.
 */
#include "jobs.h"
#include "pin.h"
#include "warm.h"

#define FETCHES_MAX 4u
#define WAITING_MAX 65536u

struct batch {
    struct fs *fs;
    GPtrArray *paths; /* owned; NULL-terminated */
};

static void batch_free(struct batch *b)
{
    g_ptr_array_unref(b->paths);
    g_free(b);
}

/* Its paths may be fetched by others. */
static void leave(struct batch *b)
{
    struct jobs *j = b->fs->jobs;
    mutex_lock(&j->mu);
    for (unsigned i = 0; b->paths->pdata[i]; i++)
        (void)g_hash_table_remove(j->fetching, b->paths->pdata[i]); /* it is there */
    j->n_fetches--;
    mutex_unlock(&j->mu);
}

static void ended(void *arg)
{
    struct batch *b = arg;
    struct fs *fs = b->fs;
    struct jobs *j = fs->jobs;
    leave(b);
    batch_free(b);
    mutex_lock(&j->mu);
    g_autoptr(GHashTable) waiting = j->to_fetch;
    j->to_fetch = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    mutex_unlock(&j->mu);
    g_autofree gpointer *paths = g_hash_table_get_keys_as_array(waiting, NULL);
    pin_fetch(fs, (const char *const *)paths);
}

/* Those of the paths that may be fetched now; the others wait. */
static struct batch *batch_new(struct fs *fs, const char *const *paths)
{
    struct jobs *j = fs->jobs;
    struct batch *b = g_new0(struct batch, 1);
    unsigned n_lost = 0;
    b->fs = fs;
    b->paths = g_ptr_array_new_with_free_func(g_free);
    mutex_lock(&j->mu);
    for (unsigned i = 0; paths[i]; i++) {
        bool now = j->n_fetches < FETCHES_MAX && !g_hash_table_contains(j->fetching, paths[i]);
        if (now) {
            g_hash_table_add(j->fetching, g_strdup(paths[i]));
            g_ptr_array_add(b->paths, g_strdup(paths[i]));
        } else if (g_hash_table_size(j->to_fetch) < WAITING_MAX) {
            (void)g_hash_table_add(j->to_fetch, g_strdup(paths[i])); /* or it waits already */
        } else {
            n_lost++;
        }
    }
    j->n_fetches += b->paths->len > 0;
    mutex_unlock(&j->mu);
    g_ptr_array_add(b->paths, NULL);
    if (n_lost > 0)
        log_notice("pin", "too much is to be fetched, some is left out paths=%u", n_lost);
    return b;
}

void pin_fetch(struct fs *fs, const char *const *paths)
{
    struct warm *w = NULL;
    struct batch *b = batch_new(fs, paths);
    struct warm_req req = {.paths = (const char *const *)b->paths->pdata,
                           .mode = WARM_FETCH,
                           .parallel = 4,
                           .background = true,
                           .ended = ended,
                           .ended_ctx = b};
    if (!req.paths[0]) {
        batch_free(b);
    } else if (warm_start(fs, &req, &w) < 0) { /* the daemon stops; the next look at the rules fetches */
        leave(b);
        batch_free(b);
    }
    warm_unref(w);
}
