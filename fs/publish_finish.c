/* How a try to carry out an op ended: recorded, tried again later, parked, or a conflict. */
#include "base/crash.h"
#include "publish_internal.h"

#define BACKOFF_MIN_NS (250 * NS_PER_MS)
#define BACKOFF_MAX_NS (60 * NS_PER_S)
#define BAD_BYTES_MAX  5
#define REFUSALS       3 /* until others do not wait for the delete any more */

static bool hopeless(const struct op *o, int r)
{
    return r == -EFBIG || r == -ENAMETOOLONG || r == -EINVAL || r == -EOPNOTSUPP || r == -EUCLEAN || r == -ENODATA ||
           r == -ENOTDIR || r == -EISDIR || r == -EXDEV || (r == -ENOMEDIUM && o->rec.kind == OP_SYNC) ||
           (r == -EBADMSG && o->failures >= BAD_BYTES_MAX);
}

/* A delete that the store does not let happen, or that would take bytes from who has the file open and for which there is no room here: nobody knows for how long. What else is busy
 * or full, of the store or of the database, passes. */
static bool is_refusal(const struct op *o, int r)
{
    bool kept_out = o->kept_out && (r == -EBUSY || r == -ENOSPC);
    return o->rec.kind == OP_DELETE && (r == -EACCES || kept_out);
}

static void back_off_locked(struct op *o, int r) /* under the publisher's mu */
{
    uint64_t wait = BACKOFF_MIN_NS << MIN(o->failures, 8u);
    wait = MIN(wait, BACKOFF_MAX_NS);
    wait = wait / 2 + (uint64_t)g_random_int_range(0, 1000) * (wait / 2000);
    o->not_before_ns = clock_mono_ns() + wait;
    o->failures++;
    o->last_err = r;
}

static void note_failure(struct op *o, int r)
{
    bool unwanted = pubop_is_unwanted(o, r);
    if (r == -ESTALE) {
        CRASH_POINT(conflict_found);
        log_warn("publish",
                 "conflict: the object was changed elsewhere, the local copy is kept key='%s'; see `sluice conflicts`",
                 o->key);
        metric_inc(M_conflicts_total);
        pubop_park(o, OPS_CONFLICT, r);
        CRASH_POINT(conflict_parked);
        mutex_lock(&o->p->mu);
        o->settle = pubop_conflict(o) == CONFLICT_KEEP;
        mutex_unlock(&o->p->mu);
    } else if (hopeless(o, r) || unwanted) {
        log_err("publish", "cannot be published%s, needs `sluice publish --retry` or --skip key='%s' r=%s",
                unwanted ? ": the store refuses it, but takes others" : "", o->key, err_name(r));
        pubop_park(o, OPS_PARKED, r);
    } else {
        log_warn("publish", "not published yet, will be tried again key='%s' r=%s", o->key, err_name(r));
        metric_inc(M_publish_failures);
    }
}

void pubop_finish(struct op *o, int r)
{
    struct publisher *p = o->p;
    bool quiet = r == 0 || r == -EAGAIN || r == -EINPROGRESS || r == -ECANCELED;
    mutex_lock(&p->mu);
    bool dropped = o->dropped;
    mutex_unlock(&p->mu);
    if (!quiet && !dropped)
        note_failure(o, r);
    mutex_lock(&p->mu);
    queue_untake_locked(p, o);
    o->lazy = false;
    if (o->dropped) {
        pubop_free(o);
    } else if (r == -EINPROGRESS) {
        o->staged = true;
    } else if (r == -EAGAIN) {
        o->not_before_ns = clock_mono_ns() + 20 * NS_PER_MS;
    } else if (r < 0 && r != -ECANCELED) {
        back_off_locked(o, r);
        queue_set_refused_locked(p, o, is_refusal(o, r) && o->failures >= REFUSALS);
    }
    mutex_unlock(&p->mu);
}
