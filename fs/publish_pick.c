/*
 * Which op runs next.
 *
 * A look for an op to run passes by a thousand that wait, all of them while the store does not answer. So the next one has to wait after one that found nothing, unless what came
 * since can run, or something went that others waited for. What lies behind a thousand is looked at in turn: each look goes on where the one before it ended, until all was looked at
 * since the last change.
 */
#include "links.h"
#include "publish_late.h"

#define SCAN_LIMIT 1000
/* A look that found nothing to run is rested from, for each op that it looked at: about twenty times what it took. */
#define REST_NS      (20 * NS_PER_S / 1000000)
#define REST_MAX_NS  (250 * NS_PER_MS)
#define LOOKED_ALL   UINT64_MAX /* seq behind which nothing is */
#define SKIP_SHARE   16u        /* ops that want nothing cost that much less */
#define FREE_STEPS   64u        /* from one that waits to the next, that cost no more than the first */
#define CIRCLE_EVERY 256u       /* picks: circles are looked for then, though there is something to run */
#define CIRCLE_COST  (SCAN_LIMIT * SKIP_SHARE) /* of a stretch that is looked through for circles */

static bool pubop_large(const struct op *o)
{
    return o->rec.kind == OP_SYNC && S_ISREG(o->type) && o->bytes > o->p->fs->cfg->part_size &&
           o->content == CONTENT_SEALED;
}

/* A link that does not answer holds up one thread, not those that the others need. */
static bool waits_for_link(struct publisher *p, const struct op *o) REQUIRES(p->mu)
{
    if (!o->link_len)
        return false;
    g_autofree char *dir = g_strndup(o->key, o->link_len);
    return g_hash_table_contains(p->link_runs, dir) && !links_answers(p->fs, dir);
}

/* Will the op, which another waits for, not run for long, or not before that other? */
static bool stands_in_the_way(struct publisher *p, const struct op *src, const struct op *o, uint64_t now)
    REQUIRES(p->mu)
{
    if (src == o || src->content == CONTENT_OPEN || (src->rec.state == OPS_HELD && src->not_before_ns > now))
        return true;
    return src->rec.seq > o->rec.seq && !queue_eligible_locked(p, src);
}

/* Is src, which keeps o, to do without the object that it copies from? */
static bool is_tangle(struct publisher *p, const struct op *src, const struct op *o, uint64_t now) REQUIRES(p->mu)
{
    return src && src->rec.kind != OP_DELETE && !pubop_copying(src) && !src->hasty && src->rec.state != OPS_PARKED &&
           src->rec.state != OPS_CONFLICT && (!queue_busy_locked(p, src) || src->at_gate || src->untangle) &&
           !queue_order_blocker_locked(p, o) && stands_in_the_way(p, src, o, now);
}

/*
 * The op that copies from what o, whose turn it is, would overwrite or cannot stand beside, if it has to do without that object: of a file that a writer has open nobody knows for how long.
 * A copy that is being made is waited for. One that runs and waits at its gate, maybe o itself, is told: it leaves and runs again.
 */
static struct op *find_tangle(struct publisher *p, const struct op *o, uint64_t now, uint64_t *wake) REQUIRES(p->mu)
{
    struct op *src = queue_keeper_locked(p, o);
    if (!is_tangle(p, src, o, now))
        return NULL;
    if (src->at_gate) {
        src->untangle = true;
        cond_broadcast(&p->done);
        return NULL;
    }
    if (queue_busy_locked(p, src))
        return NULL; /* that is being done */
    if (src->failures > 0 && src->not_before_ns > now) {
        *wake = *wake == 0 ? src->not_before_ns : MIN(*wake, src->not_before_ns);
        return NULL;
    }
    src->untangle = true;
    return src;
}

/* What a look found so far. */
struct look {
    uint64_t now, wake;    /* wake: when a timed op that was seen may run, 0: none */
    unsigned n, n_skipped; /* seen: those that wait for others, those that want nothing */
    unsigned cost;         /* of looking for circles */
    bool all;              /* there is nothing behind the first stretch */
    struct op *stage;      /* the first whose parts can be sent before its turn */
};

/* The less of those that are not 0, if one is not. */
static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a == 0 || b == 0 ? MAX(a, b) : MIN(a, b);
}

/* Could it run but for those that it waits for? What wants nothing is the most of a long journal, and told by the op alone. */
static bool is_ready(struct publisher *p, const struct op *o, struct look *l) REQUIRES(p->mu)
{
    return pubop_wants_run(o, l->now, &l->wake) && !queue_busy_locked(p, o) && !waits_for_link(p, o);
}

/* Is it its turn, and does its key not rest? */
static bool may_go(struct publisher *p, const struct op *o, struct look *l) REQUIRES(p->mu)
{
    uint64_t until = late_until_locked(p, o);
    if (until > l->now)
        l->wake = earlier(l->wake, until);
    return until <= l->now && queue_eligible_locked(p, o);
}

/* Heads of directories whose turn it may be though they lie behind a long blocked stretch of the journal. */
static struct op *pick_from_dirs(struct publisher *p, struct look *l) REQUIRES(p->mu)
{
    GHashTableIter it;
    struct dirnode *n;
    g_hash_table_iter_init(&it, p->dirs);
    while (g_hash_table_iter_next(&it, NULL, (void **)&n)) {
        struct op *heads[] = {queue_first(n->here), queue_first(n->below), queue_first(n->dels)};
        for (unsigned i = 0; i < G_N_ELEMENTS(heads); i++)
            if (heads[i] && is_ready(p, heads[i], l) && may_go(p, heads[i], l))
                return heads[i];
    }
    return NULL;
}

/* The first op from *it on that is to run now. NULL: there is none in the stretch that ends at *it then, after a thousand that wait. */
static struct op *pick_from(struct publisher *p, struct look *l, GSequenceIter **it) REQUIRES(p->mu)
{
    unsigned n = 0;
    for (; !g_sequence_iter_is_end(*it) && n < SCAN_LIMIT; *it = g_sequence_iter_next(*it)) {
        struct op *o = g_sequence_get(*it);
        if (!o->at_gate && !is_ready(p, o, l)) {
            l->n_skipped++;
            continue;
        }
        n++; /* only of those that wait for others: what follows costs something */
        l->n++;
        if (!o->at_gate && may_go(p, o, l))
            return o;
        struct op *tangle = find_tangle(p, o, l->now, &l->wake);
        if (tangle)
            return tangle;
        if (!l->stage && !o->at_gate && !o->staged && pubop_large(o))
            l->stage = o;
    }
    return NULL;
}

/* What comes after that seq, 0: at the beginning. */
static GSequenceIter *go_on(struct publisher *p, uint64_t seq) REQUIRES(p->mu)
{
    return seq ? queue_after_locked(p, seq) : g_sequence_get_begin_iter(p->all);
}

/* From where a look that ended there is to be gone on. */
static uint64_t ended_at(GSequenceIter *it)
{
    if (g_sequence_iter_is_end(it))
        return LOOKED_ALL;
    const struct op *last = g_sequence_get(g_sequence_iter_prev(it)); /* it is never the first */
    return last->rec.seq;
}

/* Behind the first stretch, which ended there. */
static struct op *pick_further(struct publisher *p, struct look *l, GSequenceIter *it) REQUIRES(p->mu)
{
    GSequenceIter *last = go_on(p, p->looked_to);
    it = g_sequence_iter_compare(last, it) > 0 ? last : it;
    struct op *o = pick_from(p, l, &it);
    p->looked_to = o ? ((const struct op *)g_sequence_get(it))->rec.seq : ended_at(it);
    return o;
}

/* What it waits for may wait in a circle that it is not in, which is seen by coming to `seen` again, one of that circle sooner or later (Brent). */
static bool waits_for_itself(struct publisher *p, const struct op *o, unsigned *cost) REQUIRES(p->mu)
{
    const struct op *b = queue_blocker_locked(p, o), *seen = NULL;
    for (uint64_t n = 0, next = 1; b && b != o && b != seen; n++) {
        if (n == next) {
            seen = b;
            next *= 2;
        }
        *cost += n < FREE_STEPS ? 0 : SKIP_SHARE;
        b = queue_blocker_locked(p, b);
    }
    return b == o;
}

static bool be_late(struct publisher *p, struct op *o, enum late late, unsigned *cost) REQUIRES(p->mu)
{
    bool can = o->place != o->rec.seq && o->late < late && o->links->len > 0;
    *cost += can ? SKIP_SHARE : 1;
    if (!can || !waits_for_itself(p, o, cost))
        return false;
    o->late = late;
    return true;
}

/* One that stands at an earlier place than its seq does not any more for those that it waits for itself. Others wait for it on: what they wait for may be in a circle that they are not in. */
static bool make_late(struct publisher *p, struct op *o, unsigned *cost) REQUIRES(p->mu)
{
    return be_late(p, o, LATE_OWN, cost);
}

/* Is the circle of o one that looks for something to run undo themselves? They see only what could run. */
static bool is_tangled(struct publisher *p, const struct op *o) REQUIRES(p->mu)
{
    uint64_t now = clock_mono_ns(), wake = 0;
    const struct op *b = o;
    do {
        bool seen = b->running || pubop_wants_run(b, UINT64_MAX, &wake);
        if (seen && is_tangle(p, queue_keeper_locked(p, b), b, now))
            return true;
        b = queue_blocker_locked(p, b);
    } while (b && b != o);
    return false;
}

/* Nor for others, where that did not help. Looks may not have come to the tangle yet, or what undoes it runs, or failed and is tried again. */
static bool make_late_unless_tangled(struct publisher *p, struct op *o, unsigned *cost) REQUIRES(p->mu)
{
    unsigned looked = 0;
    bool could = o->place != o->rec.seq && o->late < LATE_ALL && o->links->len > 0;
    if (could && waits_for_itself(p, o, &looked) && is_tangled(p, o)) {
        *cost += looked + SKIP_SHARE;
        return false;
    }
    return be_late(p, o, LATE_ALL, cost);
}

/* A file appears before something older is deleted. */
static bool let_past_deletes(struct publisher *p, struct op *o, unsigned *cost) REQUIRES(p->mu)
{
    uint64_t wake = 0;
    bool could = o->rec.kind == OP_SYNC && !o->past_deletes && (o->at_gate || pubop_wants_run(o, UINT64_MAX, &wake));
    *cost += could ? SKIP_SHARE : 1;
    const struct op *b = could ? queue_order_blocker_locked(p, o) : NULL;
    bool can = b && b->rec.kind == OP_DELETE;
    o->past_deletes |= can && waits_for_itself(p, o, cost);
    return can && o->past_deletes;
}

/*
 * True if ops waited for each other, as none do whose place is their seq, and now do no more: all of a stretch, as nothing may run before many are done; but one at a time where others lose by
 * it. What a delete waits for stays: an object that may still be named by a marker is the last thing to go.
 */
static bool break_circles(struct publisher *p, struct look *l) REQUIRES(p->mu)
{
    bool (*const ways[])(struct publisher * p, struct op * o, unsigned *cost) = {make_late, let_past_deletes,
                                                                                 make_late_unless_tangled};
    uint64_t to = LOOKED_ALL;
    for (unsigned i = 0; i < G_N_ELEMENTS(ways); i++) {
        bool broken = false, one = ways[i] != make_late;
        unsigned cost = 0;
        GSequenceIter *it = go_on(p, p->circles_to);
        for (; !g_sequence_iter_is_end(it) && cost < CIRCLE_COST && !(one && broken); it = g_sequence_iter_next(it))
            broken |= ways[i](p, g_sequence_get(it), &cost);
        l->cost += cost;
        if (broken)
            return true;
        to = MIN(to, ended_at(it));
    }
    p->circles_to = to;
    return false;
}

/* After a look which found nothing: when the next one is to come, 0: when something changes. */
static uint64_t rest(struct publisher *p, const struct look *l)
{
    uint64_t looked = l->n + (l->n_skipped + l->cost) / SKIP_SHARE + (l->all ? 0 : g_hash_table_size(p->dirs));
    uint64_t until = clock_mono_ns() + MIN(looked * REST_NS, REST_MAX_NS);
    bool more = p->looked_to != LOOKED_ALL || p->circles_to != LOOKED_ALL || p->look_again;
    p->rest_until_ns = earlier(until, l->wake);
    return more ? p->rest_until_ns : p->look_wake_ns;
}

static void begin_round(struct publisher *p)
{
    p->looked_to = p->circles_to = 0;
    p->look_again = false;
    p->look_wake_ns = 0;
}

static struct op *look(struct publisher *p, struct look *l) REQUIRES(p->mu)
{
    GSequenceIter *it = g_sequence_get_begin_iter(p->all);
    struct op *o = pick_from(p, l, &it);
    l->all = g_sequence_iter_is_end(it);
    if (!o && l->all)
        p->looked_to = LOOKED_ALL;
    if (!o && !l->all)
        o = pick_from_dirs(p, l);
    if (!o && !l->all)
        o = pick_further(p, l, it);
    p->look_wake_ns = earlier(p->look_wake_ns, l->wake);
    return o ? o : l->stage;
}

/* What waits for itself is not to wait until nobody has anything to do. */
static void look_for_circles(struct publisher *p) REQUIRES(p->mu)
{
    struct look l = {0};
    if (++p->n_picks % CIRCLE_EVERY != 0)
        return;
    if (p->circles_to == LOOKED_ALL)
        p->circles_to = 0;
    while (l.cost < CIRCLE_COST && break_circles(p, &l))
        ;
    p->look_again =
        true; /* some may run now, and what was looked at here may be in a circle by the time nothing is found */
}

struct op *queue_pick_locked(struct publisher *p, uint64_t *ret_wake_ns)
{
    mutex_assert_held(&p->mu);
    struct look l = {.now = clock_mono_ns()};
    if (l.now < p->rest_until_ns) {
        *ret_wake_ns = p->rest_until_ns;
        return NULL;
    }
    if (p->looked_to == LOOKED_ALL && p->circles_to == LOOKED_ALL)
        begin_round(p);
    else if (p->looked_to == LOOKED_ALL && p->look_again)
        p->looked_to = 0; /* no circle was looked for while parts were sent */
    look_for_circles(p);
    uint64_t looked_to = p->looked_to;
    struct op *o = look(p, &l);
    while (!o && l.cost < CIRCLE_COST && break_circles(p, &l)) { /* others need mu: more of them after a rest */
        p->looked_to = looked_to;
        p->look_again = true; /* some of those before that may run now */
        o = look(p, &l);
    }
    if (o)
        queue_take_locked(p, o);
    else
        *ret_wake_ns = rest(p, &l);
    return o;
}
