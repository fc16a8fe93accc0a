/*
 * A warm-up of more than the cache holds: the evictor makes room for what comes by dropping what came before, and every file was fetched without an error. It is said when all is
 * counted, and the result tells what is left. Each look is one more walk of what is known, taken only where the numbers say that there may be something to find.
 */
#include "warm_internal.h"

/* "48.0 MiB" */
static char *size_text(uint64_t bytes)
{
    static const char units[] = "KMGTPE";
    double n = (double)bytes / 1024;
    unsigned u = 0;
    for (; n >= 1024 && u + 2 < sizeof units; u++)
        n /= 1024;
    return g_strdup_printf("%.1f %ciB", n, units[u]);
}

void warm_warn_of_room(struct warm *w)
{
    struct cache_usage u;
    struct warm_look look;
    cache_usage(w->fs->cache, &u);
    uint64_t room = u.limit_bytes - MIN(u.kept_bytes, u.limit_bytes);
    mutex_lock(&w->mu);
    bool fits = w->counted_bytes <= room;
    mutex_unlock(&w->mu);
    if (fits || warm_stopped(w))
        return;
    warm_walk_look(w, &look);
    if (look.bytes_unpinned <= room || warm_stopped(w))
        return;
    g_autofree char *all = size_text(look.bytes_unpinned), *left = size_text(room);
    warm_push_warning(w, g_strdup_printf("%s are to be kept, but the cache has room for %s beside what is pinned or "
                                         "not published: what is fetched later pushes out what came before",
                                         all, left));
}

void warm_count_dropped(struct warm *w)
{
    struct warm_look look;
    if (warm_stopped(w) || metric_get(M_evicted_bytes) == w->evicted_bytes)
        return;
    warm_walk_look(w, &look);
    if (warm_stopped(w))
        return;
    mutex_lock(&w->mu);
    struct warm_progress *sum = &w->sum;
    uint64_t n = sum->files_dropped = look.files_absent - MIN(sum->files_failed, look.files_absent);
    if (n > 0)
        sum->bytes_dropped = look.bytes_absent - MIN(sum->bytes_failed, look.bytes_absent);
    mutex_unlock(&w->mu);
    if (n > 0 && w->background)
        warm_push_warning(w, g_strdup_printf("%" G_GUINT64_FORMAT
                                             " files were dropped from the cache again, it has no room for all",
                                             n));
}
