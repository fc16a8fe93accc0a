/* What was deleted upstream lately: listings that were begun before must not show it. */
#include "publish_internal.h"

#define RECENT_MAX_NS (600 * NS_PER_S)

static void note_recent(struct publisher *p, char *key, const struct recent *note)
{
    g_hash_table_replace(p->recent, key, g_memdup2(note, sizeof(*note)));
}

/* No listing runs that long; a later one sees the store as it is. */
static gboolean is_old(void *key, void *value, void *now)
{
    return *(uint64_t *)now - ((struct recent *)value)->at_ns > RECENT_MAX_NS;
}

void queue_note_deleted_locked(struct publisher *p, const char *key)
{
    mutex_assert_held(&p->mu);
    uint64_t now = clock_mono_ns();
    struct recent note = {.stamp = meta_next_seq(p->fs->meta), .at_ns = now};
    if (now - p->recent_pruned_ns > RECENT_MAX_NS) {
        (void)g_hash_table_foreach_remove(p->recent, is_old, &now);
        p->recent_pruned_ns = now;
    }
    note_recent(p, g_strdup(key), &note);
    for (size_t len = strlen(key); len > 0;) { /* and the prefixes of the directories above */
        for (len--; len > 0 && key[len - 1] != '/'; len--)
            ;
        if (len > 0)
            note_recent(p, g_strndup(key, len), &note);
    }
}
