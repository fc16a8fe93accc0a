/* See prefetch_order.h. Places on the learned line count from 1. */
#include "prefetch_order.h"

#include <string.h>

#define RECENT       64u   /* a file opened again this soon begins no new pass */
#define FORGOTTEN    1024u /* opens in the directory after which a reader that made none is gone */
#define STANDING_MAX (2 * ORDER_STEPS)
#define PASSED_BY    (2 * ORDER_GAP) /* places behind the reader that it may still come back to */

struct asked {
    uint64_t ino, place, bytes;
};

struct stream {
    uint64_t serial;   /* 0: free */
    uint64_t last;     /* place of the last open */
    uint64_t end;      /* fetched ahead up to this place */
    uint64_t grown;    /* that, when the window was doubled last */
    uint64_t used;     /* clock of the last open */
    uint64_t step;     /* the last one forward */
    unsigned standing; /* ORDER_STEPS: followed */
    unsigned window;
    bool awake;   /* it had to wait: worth the trouble */
    bool asking;  /* order_asked() is to come */
    bool ended;   /* order_beyond() has told */
    bool came;    /* it was expected, from another directory */
    GQueue ahead; /* struct asked, ascending */
};

struct pass {
    GArray *inos;     /* uint64_t, by first open */
    GHashTable *when; /* ino -> place */
};

struct order {
    struct order_counts *counts;
    struct stream lines[N_ORDER_LINES][ORDER_STREAMS];
    uint64_t clock, serial;
    struct pass now, before;
    bool invited;        /* order_invite() */
    GHashTable *waiting; /* ino -> struct asked, borrowed from the streams */
};

/* ---- passes ---- */

static void pass_begin(struct pass *p)
{
    p->inos = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    p->when = g_hash_table_new(NULL, NULL);
}

static void pass_end(struct order *o, struct pass *p)
{
    o->counts->remembered -= p->inos->len;
    g_array_unref(p->inos);
    g_hash_table_unref(p->when);
}

static uint64_t place_of(const struct pass *p, uint64_t ino)
{
    return GPOINTER_TO_SIZE(g_hash_table_lookup(p->when, GSIZE_TO_POINTER(ino)));
}

unsigned order_learned(const struct order *o, uint64_t from, struct order_item *ret_items, unsigned max)
{
    unsigned n = 0;
    for (uint64_t i = from; i < o->before.inos->len && n < max; i++)
        ret_items[n++] = (struct order_item){.ino = g_array_index(o->before.inos, uint64_t, i), .place = i + 1};
    return n;
}

/* ---- what was fetched ahead ---- */

/* Out of the streams: used when its file was opened meanwhile. */
static bool settle(struct order *o, struct asked *a)
{
    bool wasted = a->bytes && g_hash_table_lookup(o->waiting, GSIZE_TO_POINTER(a->ino)) == a;
    if (wasted) {
        g_hash_table_remove(o->waiting, GSIZE_TO_POINTER(a->ino));
        o->counts->wasted_files++;
        o->counts->wasted_bytes += a->bytes;
        o->counts->waiting_files--;
        o->counts->waiting_bytes -= a->bytes;
    }
    g_free(a);
    return wasted;
}

static void stream_clear(struct order *o, struct stream *s)
{
    struct asked *a;
    while ((a = g_queue_pop_head(&s->ahead)))
        (void)settle(o, a);
    memset(s, 0, sizeof *s);
    g_queue_init(&s->ahead);
}

static void note_used(struct order *o, uint64_t ino)
{
    struct asked *a = g_hash_table_lookup(o->waiting, GSIZE_TO_POINTER(ino));
    if (!a)
        return;
    g_hash_table_remove(o->waiting, GSIZE_TO_POINTER(ino));
    o->counts->used_files++;
    o->counts->used_bytes += a->bytes;
    o->counts->waiting_files--;
    o->counts->waiting_bytes -= a->bytes;
}

/* Whether some of what the reader has passed was not opened by anybody. */
static bool settle_passed(struct order *o, struct stream *s)
{
    bool wasted = false;
    for (struct asked *a; (a = g_queue_peek_head(&s->ahead)) && a->place + PASSED_BY < s->last;) {
        (void)g_queue_pop_head(&s->ahead);
        wasted |= settle(o, a);
    }
    return wasted;
}

static unsigned files_ahead(const struct stream *s)
{
    unsigned n = g_queue_get_length((GQueue *)(uintptr_t)&s->ahead);
    for (const GList *l = s->ahead.head; l && ((const struct asked *)l->data)->place <= s->last; l = l->next)
        n--;
    return n;
}

static bool opened_lately(const struct order *o, uint64_t ino)
{
    uint64_t place = place_of(&o->now, ino);
    return place && o->now.inos->len - place < RECENT;
}

/* False: it was opened a moment ago. */
static bool remember(struct order *o, uint64_t ino)
{
    if (opened_lately(o, ino))
        return false;
    if (place_of(&o->now, ino)) {
        pass_end(o, &o->before);
        o->before = o->now;
        for (unsigned i = 0; i < ORDER_STREAMS; i++)
            stream_clear(o, &o->lines[ORDER_LEARNED][i]); /* their places are no more */
        pass_begin(&o->now);
    }
    if (o->now.inos->len < ORDER_FILES_MAX) {
        g_array_append_val(o->now.inos, ino);
        g_hash_table_insert(o->now.when, GSIZE_TO_POINTER(ino), GSIZE_TO_POINTER((gsize)o->now.inos->len));
        o->counts->remembered++;
    }
    return true;
}

/* ---- streams ---- */

static bool is_followed(const struct stream *s)
{
    return s->standing >= ORDER_STEPS;
}

/* The reader that is here now: the one nearest behind, or else just ahead of this place. */
static struct stream *find_stream(struct order *o, enum order_line line, uint64_t place)
{
    struct stream *best = NULL, *around = NULL;
    for (unsigned i = 0; i < ORDER_STREAMS; i++) {
        struct stream *s = &o->lines[line][i];
        if (!s->serial)
            continue;
        if (o->clock - s->used > FORGOTTEN)
            stream_clear(o, s);
        else if (place > s->last && place - s->last <= (is_followed(s) ? ORDER_GAP : 2 * ORDER_NEAR) &&
                 (!best || s->last > best->last))
            best = s;
        else if (place <= s->last && s->last - place <= ORDER_GAP && is_followed(s))
            around = s;
    }
    return best ? best : around;
}

static struct stream *begin_stream(struct order *o, enum order_line line, uint64_t place)
{
    struct stream *oldest = &o->lines[line][0];
    for (unsigned i = 1; i < ORDER_STREAMS; i++)
        if (o->lines[line][i].used < oldest->used)
            oldest = &o->lines[line][i];
    stream_clear(o, oldest);
    oldest->serial = ++o->serial;
    oldest->last = place;
    oldest->used = o->clock;
    oldest->standing = 1;
    oldest->window = ORDER_WINDOW;
    return oldest;
}

/* It came from another directory, where it was followed. */
static void welcome(struct stream *s)
{
    s->came = true;
    s->standing = ORDER_STEPS - 1; /* one more open makes it one that is followed */
}

static void step_forward(struct stream *s, uint64_t step)
{
    bool orderly = step <= ORDER_NEAR || step == s->step;
    s->standing = orderly ? MIN(s->standing + 1, STANDING_MAX) : s->standing - MIN(s->standing, 2);
    s->step = step;
    s->last += step;
}

static bool advance(struct order *o, enum order_line line, uint64_t place, bool waited, struct order_next *ret)
{
    struct stream *s = find_stream(o, line, place);
    if (!s) {
        s = begin_stream(o, line, place);
        if (o->invited && line == ORDER_LISTED)
            welcome(s);
        o->invited &= line != ORDER_LISTED;
        return false;
    }
    s->used = o->clock;
    if (place > s->last)
        step_forward(s, place - s->last);
    if (settle_passed(o, s)) {
        s->window = MAX(s->window / 2, 1);
        s->standing -= MIN(s->standing, 2);
    } else if (waited && s->awake && s->end && place > s->grown) {
        s->window = MIN(s->window * 2, ORDER_WINDOW_MAX);
        s->grown = s->end; /* waits for these say nothing of the new window */
    }
    s->awake |= waited;
    unsigned ahead = files_ahead(s);
    if (!is_followed(s) || !s->awake || s->asking || ahead > s->window / 2)
        return false;
    s->asking = true;
    *ret = (struct order_next){.line = line,
                               .stream = (unsigned)(s - o->lines[line]),
                               .want = s->window - ahead,
                               .serial = s->serial,
                               .from = MAX(s->end, s->last)};
    return true;
}

bool order_note(struct order *o, uint64_t ino, uint64_t id, bool waited, struct order_next *ret_next)
{
    o->clock++;
    note_used(o, ino);
    if (!remember(o, ino))
        return false;
    uint64_t learned = place_of(&o->before, ino);
    if (learned && advance(o, ORDER_LEARNED, learned, waited, ret_next))
        return true;
    return id && advance(o, ORDER_LISTED, id, waited, ret_next);
}

bool order_asked(struct order *o, const struct order_next *next, struct order_item *items, unsigned n, bool full)
{
    struct stream *s = &o->lines[next->line][next->stream];
    bool any = false;
    if (s->serial != next->serial)
        return false;
    for (unsigned i = 0; i < n; i++) {
        /* the reader went on while the files were picked */
        if (g_hash_table_contains(o->waiting, GSIZE_TO_POINTER(items[i].ino)) || opened_lately(o, items[i].ino))
            items[i].bytes = 0;
        struct asked *a = g_new(struct asked, 1);
        *a = (struct asked){items[i].ino, items[i].place, items[i].bytes};
        g_queue_push_tail(&s->ahead, a);
        s->end = MAX(s->end, a->place);
        if (!a->bytes)
            continue;
        any = true;
        g_hash_table_insert(o->waiting, GSIZE_TO_POINTER(a->ino), a);
        o->counts->waiting_files++;
        o->counts->waiting_bytes += a->bytes;
    }
    s->asking = false;
    s->awake &= any || full; /* all that comes is here: not looked again until an open has to wait */
    return true;
}

/* ---- the next directory ---- */

bool order_ends(struct order *o, const struct order_next *next, unsigned n, struct order_beyond *ret)
{
    struct stream *s = &o->lines[next->line][next->stream];
    if (s->serial != next->serial || s->ended || n >= next->want)
        return false;
    s->ended = true;
    ret->sure = s->came;
    ret->window = s->came ? s->window : ORDER_WINDOW;
    ret->want = MIN(next->want - n, ret->window);
    return true;
}

void order_invite(struct order *o)
{
    o->invited = true;
}

static bool is_expected(const struct order *o, uint64_t place)
{
    for (unsigned i = 0; i < ORDER_STREAMS; i++)
        if (o->lines[ORDER_LISTED][i].came && o->lines[ORDER_LISTED][i].last == place)
            return true;
    return false;
}

bool order_expect(struct order *o, struct order_item *items, unsigned n, unsigned window)
{
    if (is_expected(o, items[0].place - 1))
        return false;
    struct stream *s = begin_stream(o, ORDER_LISTED, items[0].place - 1);
    welcome(s);
    s->window = window;
    s->awake = true;
    return order_asked(o,
                       &(struct order_next){
                           .line = ORDER_LISTED, .stream = (unsigned)(s - o->lines[ORDER_LISTED]), .serial = s->serial},
                       items, n, false);
}

/* ---- life ---- */

struct order *order_new(struct order_counts *counts)
{
    struct order *o = g_new0(struct order, 1);
    o->counts = counts;
    for (unsigned line = 0; line < N_ORDER_LINES; line++)
        for (unsigned i = 0; i < ORDER_STREAMS; i++)
            g_queue_init(&o->lines[line][i].ahead);
    pass_begin(&o->now);
    pass_begin(&o->before);
    o->waiting = g_hash_table_new(NULL, NULL);
    return o;
}

void order_give_up(struct order *o)
{
    for (unsigned line = 0; line < N_ORDER_LINES; line++)
        for (unsigned i = 0; i < ORDER_STREAMS; i++)
            stream_clear(o, &o->lines[line][i]);
}

void order_free(struct order *o)
{
    if (!o)
        return;
    order_give_up(o);
    pass_end(o, &o->now);
    pass_end(o, &o->before);
    g_hash_table_unref(o->waiting);
    g_free(o);
}
