/*
 * Counting what is left to publish, and waiting for it.
 *
 * A wait ends with -EIO when nothing of what is left gets on by itself: each op is parked, lost, a delete that the store refuses, or waits for such a one, and each file that is open for writing was
 * left so by a daemon that ended. That is looked at twice, a tick apart: an op may be between two states, a file between its last writer and its seal.
 */
#include "publish_internal.h"
#include "recover.h"
#include "states.h"

#define TICK_NS (250 * NS_PER_MS)

static void count_op(struct publish_counts *c, const struct op *o)
{
    c->ops++;
    if (o->rec.state == OPS_PARKED)
        c->parked++;
    if (o->rec.state == OPS_CONFLICT && !o->settle)
        c->conflicts++;
    if (o->rec.state == OPS_CONFLICT && !pubop_aside(o))
        c->unsettled++;
    if (o->rec.state == OPS_HELD)
        c->held++;
    if (o->rec.kind == OP_SYNC && S_ISREG(o->type) && o->why != PUBLISH_META) {
        c->files++;
        c->bytes += o->bytes;
        c->uploading += o->running;
        c->stored += o->running ? MIN(o->bytes, __atomic_load_n(&o->progress_bytes, __ATOMIC_RELAXED)) : 0;
        if (c->oldest_ns == 0 || o->rec.created_ns < c->oldest_ns)
            c->oldest_ns = o->rec.created_ns;
    }
}

void publish_count(struct publisher *p, const char *path, struct publish_counts *ret)
{
    *ret = (struct publish_counts){0};
    mutex_lock(&p->mu);
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        const struct op *o = g_sequence_get(it);
        if (tree_path_below(o->key, path))
            count_op(ret, o);
    }
    mutex_unlock(&p->mu);
}

bool publish_needs_below(struct publisher *p, const char *path)
{
    bool needs = false;
    mutex_lock(&p->mu);
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !needs && !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        const struct op *o = g_sequence_get(it);
        needs = (o->source && tree_path_below(o->source, path)) || (o->base && tree_path_below(o->base, path));
    }
    mutex_unlock(&p->mu);
    return needs;
}

void publish_touch(struct publisher *p)
{
    mutex_lock(&p->mu);
    mutex_unlock(&p->mu);
}

char *publish_find_refused(struct publisher *p, const char *path, int *ret_err)
{
    char *key = NULL;
    mutex_lock(&p->mu);
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !key && !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        const struct op *o = g_sequence_get(it);
        if (!o->refused || !tree_path_below(o->key, path))
            continue;
        key = g_strdup(o->key);
        *ret_err = o->last_err;
    }
    mutex_unlock(&p->mu);
    return key;
}

static bool needs_decision(const struct op *o)
{
    return o->rec.state == OPS_PARKED || (o->rec.state == OPS_CONFLICT && !o->settle) ||
           (o->refused && o->not_before_ns > clock_mono_ns());
}

/* Follows what o waits for to the op that nothing blocks: true when that one runs or will. Where a close decides, its file's inode is added to open. */
static bool gets_on_locked(struct publisher *p, const struct op *o, GArray *open) REQUIRES(p->mu)
{
    mutex_assert_held(&p->mu);
    const struct op *waiting = NULL;
    for (guint n = g_hash_table_size(p->by_seq); o && n > 0; n--) {
        if (queue_busy_locked(p, o))
            return true;
        if (needs_decision(o))
            return false;
        if (o->content == CONTENT_OPEN) {
            if (waiting && !pubop_copying(o) && !o->hasty && o->rec.state != OPS_CONFLICT &&
                queue_waits_for_copy_locked(p, waiting, o)) /* that is untangled */
                return true;
            g_array_append_val(open, o->ino);
            return false;
        }
        waiting = o;
        o = queue_blocker_locked(p, o);
    }
    return true; /* eligible, now or at its time; or each waits for another, which is untangled */
}

static bool any_gets_on(struct publisher *p, const char *path)
{
    bool found = false;
    g_autoptr(GArray) open = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    mutex_lock(&p->mu);
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !found && !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        const struct op *o = g_sequence_get(it);
        if (tree_path_below(o->key, path))
            found = gets_on_locked(p, o, open);
    }
    mutex_unlock(&p->mu);
    for (unsigned i = 0; !found && i < open->len; i++) {
        INODE_REF in = NULL;
        found = inode_get(p->fs, g_array_index(open, uint64_t, i), &in) == 0 && !content_is_unclosed(in);
    }
    return found;
}

/* Attributes and markers wait a while for what would make them needless: not when somebody waits for them. Nor does, once, what was refused: that may have been mended by now. */
static void hurry(struct publisher *p, const char *path, bool refused)
{
    bool found = false;
    mutex_lock(&p->mu);
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        struct op *o = g_sequence_get(it);
        if (!(refused && o->refused) && !(o->lazy && tree_path_below(o->key, path)))
            continue;
        o->lazy = false;
        o->not_before_ns = 0;
        found = true;
    }
    if (found)
        queue_wake_locked(p);
    mutex_unlock(&p->mu);
}

/* Owned by the caller. */
static char *tell_op(const struct op *o, uint64_t now)
{
    return g_strdup_printf("key='%s' state=%s running=%d content=%u r=%s failures=%u ms_to_next_try=%" G_GUINT64_FORMAT
                           "%s%s%s",
                           o->key, op_state_name(o->rec.state), o->running, o->content, err_name(o->last_err),
                           o->failures, (uint64_t)(o->not_before_ns > now ? (o->not_before_ns - now) / NS_PER_MS : 0),
                           o->untangle ? " untangled" : "", o->hasty ? " hasty" : "", o->settle ? " settled" : "");
}

/* In the log: what somebody waited for in vain, and what keeps it. */
static void log_first_left(struct publisher *p, const char *path)
{
    mutex_lock(&p->mu);
    uint64_t now = clock_mono_ns();
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    for (; !g_sequence_iter_is_end(it); it = g_sequence_iter_next(it)) {
        const struct op *o = g_sequence_get(it);
        if (!tree_path_below(o->key, path))
            continue;
        const struct op *b = o->running ? NULL : queue_blocker_locked(p, o);
        g_autofree char *what = tell_op(o, now), *blocker = b ? tell_op(b, now) : g_strdup("nothing");
        log_notice("publish", "a wait ran out of time, the first that is left: %s %s; blocked by: %s", what,
                   p->rest_until_ns > now ? "resting" : "", blocker);
        break;
    }
    mutex_unlock(&p->mu);
}

int publish_wait(struct publisher *p, const char *path, uint64_t deadline_ns,
                 int (*tick)(void *ctx, const struct publish_counts *left), void *ctx)
{
    bool first = true;
    for (uint64_t stuck_ns = 0;; first = false) {
        struct publish_counts left;
        publish_count(p, path, &left);
        if (left.ops == 0 && !recover_find_unclosed(p->fs, path, NULL))
            return 0;
        if (tick && tick(ctx, &left) != 0)
            return -ECANCELED;
        hurry(p, path, first);
        uint64_t now = clock_mono_ns(), until = now + TICK_NS;
        stuck_ns = any_gets_on(p, path) ? 0 : stuck_ns ? stuck_ns : now;
        if (stuck_ns && now - stuck_ns >= TICK_NS)
            return -EIO;
        if (deadline_ns && now >= deadline_ns) {
            log_first_left(p, path);
            return -ETIMEDOUT;
        }
        mutex_lock(&p->mu);
        bool stopping = p->stopping;
        if (!stopping)
            (void)cond_wait_until(&p->done, &p->mu, deadline_ns ? MIN(until, deadline_ns) : until);
        mutex_unlock(&p->mu);
        if (stopping)
            return -ECANCELED;
        if (left.ops > 1000) /* counting them is not free: not at every completion */
            g_usleep(100000);
    }
}
