/*
 * Lists one prefix by several chains of pages. A page names the one behind it, so that a single chain gets one page in each round trip, however many names there are; a store far away
 * gives a million names in one directory in minutes only.
 *
 * The names are cut into ranges, each listed by a chain of its own from its first name on. It begins as one range, which the caller's thread lists. Once that has brought a few pages,
 * other threads come and each takes the second half of the range of which most is left (wide_split.h); a thread whose range is done does it again, until nothing is worth it.
 *
 * Invariant: ranges lie side by side and cover all names. One covers those behind its `after` up to its `until`; a cut lies behind the last name that has come of the range and becomes
 * `until` of the one and `after` of the other in one step under the lock. So each name is brought by one chain, by which one is decided when it comes.
 *
 * Rows are given to the caller page by page, by one thread at a time, within a range in order. The lock covers the ranges and is not held over calls of the store or of the caller.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/patience.h"
#include "objstore.h"
#include "wide_split.h"

#include <glib.h>
#include <stdatomic.h>
#include <string.h>

#define PAGE_ROWS 1000u /* what stores give at once */
#define FIRST_ROWS                                                                                                     \
    (10 *                                                                                                              \
     PAGE_ROWS) /* from one chain, before there are more: what is guessed costs a dozen requests, as much as these */
#define HELPERS     7u            /* threads of one listing beside the caller's, at most */
#define HELPERS_MAX (2 * HELPERS) /* of all listings */
#define IN_VAIN_MAX 200u          /* ranges without a name: the guesses are no good */
#define PAST_END    1             /* a name that is another range's */

static atomic_uint n_helpers;

struct range {
    /* immutable */
    char *after; /* owned; NULL: from the first name on */
    /* guarded by mu of struct wide */
    char *until;        /* owned; the last name that is of it, NULL: there is no end */
    GArray *rows;       /* struct row: not given yet */
    char *first, *last; /* owned; names of the latest page, NULL: none came */
    bool all_came;      /* nothing is left of it */
};

struct wide {
    /* immutable once there are helpers */
    struct objstore *st;
    const struct obj_wide_list *req;
    unsigned chains; /* at most */
    pthread_t helpers[HELPERS];
    unsigned n_threads;
    /* the caller's thread's */
    unsigned n_first; /* rows before there are */
    struct patience own;
    bool has_own; /* else it has another one, or needs none */

    struct mutex mu; /* WIDE_LIST */
    struct cond changed;
    /* guarded by mu */
    GPtrArray *ranges; /* struct range, owned: those that are listed now */
    struct wide_alphabet alphabet;
    bool giving;    /* a thread is in the caller's functions */
    bool split_off; /* what does not begin as one page does was */
    unsigned in_vain;
    int err;
    int give_up; /* atomic: helpers' requests end soon */
};

struct chain {
    struct wide *w;
    struct range *range;
};

struct row {
    struct obj_entry entry;
    char *name; /* owned: the entry's */
};

static void row_clear(void *row)
{
    g_free(((struct row *)row)->name);
}

static GArray *rows_new(void)
{
    GArray *rows = g_array_new(FALSE, FALSE, sizeof(struct row));
    g_array_set_clear_func(rows, row_clear);
    return rows;
}

static const struct obj_entry *row_at(const GArray *rows, guint i)
{
    return &g_array_index(rows, struct row, i).entry;
}

static void range_free(void *range)
{
    struct range *r = range;
    g_array_unref(r->rows);
    g_free(r->after);
    g_free(r->until);
    g_free(r->first);
    g_free(r->last);
    g_free(r);
}

static struct range *range_new_locked(struct wide *w, char *after, char *until)
{
    struct range *r = g_new0(struct range, 1);
    r->after = after;
    r->until = until;
    r->rows = rows_new();
    g_ptr_array_add(w->ranges, r);
    return r;
}

static void fail_locked(struct wide *w, int err) REQUIRES(w->mu)
{
    if (!w->err)
        w->err = err;
    __atomic_store_n(&w->give_up, 1, __ATOMIC_RELAXED); /* a flag */
    cond_broadcast(&w->changed);
}

/* ---- giving ---- */

static void note_page_locked(struct wide *w, struct range *r, const struct obj_entry *first,
                             const struct obj_entry *last) REQUIRES(w->mu)
{
    char *from = g_strndup(first->name, first->name_len); /* perhaps r->last */
    g_free(r->first);
    g_free(r->last);
    r->first = from;
    r->last = g_strndup(last->name, last->name_len);
    wide_alphabet_note(&w->alphabet, r->first, strlen(r->first));
    wide_alphabet_note(&w->alphabet, r->last, strlen(r->last));
    cond_broadcast(&w->changed); /* it may be cut now */
}

/* The rows that came, taken out of the range; NULL: none, or nothing is wanted any more. The caller's functions are this thread's then. */
static GArray *begin_giving(struct wide *w, struct range *r)
{
    GArray *rows = NULL;
    mutex_lock(&w->mu);
    if (r->rows->len > 0) {
        note_page_locked(w, r, row_at(r->rows, 0), row_at(r->rows, r->rows->len - 1));
        while (w->giving && !w->err)
            cond_wait(&w->changed, &w->mu);
        if (!w->err) {
            rows = r->rows;
            r->rows = rows_new();
            w->giving = true;
        }
    }
    mutex_unlock(&w->mu);
    return rows;
}

static void end_giving(struct wide *w, int err)
{
    mutex_lock(&w->mu);
    w->giving = false;
    if (err)
        fail_locked(w, err);
    cond_broadcast(&w->changed);
    mutex_unlock(&w->mu);
}

static int error_of(struct wide *w)
{
    mutex_lock(&w->mu);
    int err = w->err;
    mutex_unlock(&w->mu);
    return err;
}

static int give(struct wide *w, struct range *r)
{
    g_autoptr(GArray) rows = begin_giving(w, r);
    int err = 0;
    if (!rows)
        return error_of(w);
    for (guint i = 0; err == 0 && i < rows->len; i++)
        err = w->req->row(w->req->ctx, row_at(rows, i));
    if (err == 0)
        err = w->req->page(w->req->ctx);
    end_giving(w, err);
    return err;
}

/* ---- one range ---- */

static int compare(const struct obj_entry *e, const char *name)
{
    size_t len = strlen(name);
    int c = memcmp(e->name, name, MIN(e->name_len, len));
    return c ? c : e->name_len < len ? -1 : e->name_len > len;
}

static void keep_row(struct range *r, const struct obj_entry *e)
{
    struct row row = {*e, g_malloc(e->name_len + 1)};
    memcpy(row.name, e->name, e->name_len);
    row.name[e->name_len] = '\0';
    row.entry.name = row.name;
    g_array_append_val(r->rows, row);
}

static int on_row(void *ctx, const struct obj_entry *e)
{
    const struct chain *c = ctx;
    struct wide *w = c->w;
    struct range *r = c->range;
    mutex_lock(&w->mu);
    int err = w->err ? w->err : r->until && compare(e, r->until) > 0 ? PAST_END : 0;
    if (err == 0)
        keep_row(r, e);
    bool full = r->rows->len >= PAGE_ROWS;
    mutex_unlock(&w->mu);
    return err == 0 && full ? give(w, r) : err;
}

static int list_range(struct wide *w, struct range *r, obj_list_fn *fn)
{
    struct chain c = {w, r};
    g_autofree char *after = r->after ? g_strconcat(w->req->prefix, r->after, NULL) : NULL;
    const struct obj_list_req req = {.prefix = w->req->prefix, .delimiter = true, .start_after = after};
    int err = objstore_list(w->st, &req, fn, &c, NULL);
    mutex_lock(&w->mu);
    r->all_came = true; /* what came may have to wait long for its turn */
    mutex_unlock(&w->mu);
    if (err == 0 || err == PAST_END)
        err = give(w, r);
    mutex_lock(&w->mu);
    if (err)
        fail_locked(w, err);
    w->in_vain += !r->first;
    g_ptr_array_remove_fast(w->ranges, r); /* frees it */
    cond_broadcast(&w->changed);
    mutex_unlock(&w->mu);
    return err;
}

/* ---- several ---- */

static const char *last_of(const struct range *r)
{
    guint n = r->rows->len;
    return n > 0 ? row_at(r->rows, n - 1)->name : r->last;
}

static struct range *cut_at_locked(struct wide *w, struct range *r, const char *at) REQUIRES(w->mu)
{
    struct range *behind = range_new_locked(w, g_strdup(at), r->until);
    r->until = g_strdup(at);
    return behind;
}

static struct wide_range names_of(const struct range *r)
{
    return (struct wide_range){r->first, last_of(r), r->until};
}

static bool may_be_cut(const struct range *r)
{
    return r->first && !r->all_came;
}

/* The second half of the range of which most is left; NULL: none is worth a chain of its own. */
static struct range *cut_widest_locked(struct wide *w) REQUIRES(w->mu)
{
    struct range *widest = NULL;
    g_autofree char *at = NULL;
    double most = 0;
    for (guint i = 0; i < w->ranges->len && w->in_vain < IN_VAIN_MAX; i++) {
        struct range *r = w->ranges->pdata[i];
        const struct wide_range names = names_of(r);
        double pages = 0;
        g_autofree char *text = may_be_cut(r) ? wide_split(&w->alphabet, &names, &pages) : NULL;
        if (!text || pages <= most)
            continue;
        most = pages;
        widest = r;
        g_free(at);
        at = g_steal_pointer(&text);
    }
    return widest ? cut_at_locked(w, widest, at) : NULL;
}

/* What does not begin as one page does, once. */
static struct range *split_off_locked(struct wide *w) REQUIRES(w->mu)
{
    for (guint i = 0; i < w->ranges->len && !w->split_off; i++) {
        struct range *r = w->ranges->pdata[i];
        const struct wide_range names = names_of(r);
        g_autofree char *at = may_be_cut(r) ? wide_split_off(&names) : NULL;
        w->split_off = at != NULL;
        if (at)
            return cut_at_locked(w, r, at);
    }
    return NULL;
}

static struct range *cut_locked(struct wide *w) REQUIRES(w->mu)
{
    struct range *r = split_off_locked(w);
    return r ? r : cut_widest_locked(w);
}

/* Lists what others left, until nothing is left of them. */
static void help(struct wide *w)
{
    mutex_lock(&w->mu);
    for (;;) {
        struct range *r = NULL;
        while (!w->err && w->ranges->len > 0 && !(r = cut_locked(w)))
            cond_wait(&w->changed, &w->mu);
        if (!r)
            break;
        mutex_unlock(&w->mu);
        (void)list_range(w, r, on_row); /* in w->err */
        mutex_lock(&w->mu);
    }
    mutex_unlock(&w->mu);
}

static void *helper_main(void *arg)
{
    struct wide *w = arg;
    struct patience p;
    patience_begin(&p, 0, clock_mono_ns(), 0);
    p.stop = &w->give_up;
    help(w);
    patience_end();
    return NULL;
}

/* The caller's request ends as well when one of the others failed. */
static void end_with_others(struct wide *w)
{
    struct patience *its = patience_set(NULL);
    w->has_own = !its;
    if (its)
        (void)patience_set(its);
    else
        patience_begin(&w->own, 0, clock_mono_ns(), 0);
    w->own.stop = &w->give_up;
}

static void start_helpers(struct wide *w)
{
    for (; w->n_threads < MIN(HELPERS, w->chains - 1); w->n_threads++) {
        if (atomic_fetch_add(&n_helpers, 1) >= HELPERS_MAX ||
            thread_start(&w->helpers[w->n_threads], "list", helper_main, w) < 0) {
            atomic_fetch_sub(&n_helpers, 1);
            break;
        }
    }
    if (w->n_threads > 0)
        end_with_others(w);
    log_debug("list", "by several chains prefix='%s' threads=%u", w->req->prefix, w->n_threads + 1);
}

static void join_helpers(struct wide *w)
{
    for (unsigned i = 0; i < w->n_threads; i++)
        (void)pthread_join(w->helpers[i], NULL); /* joinable and ours */
    atomic_fetch_sub(&n_helpers, w->n_threads);
}

/* The first and the last name of the page after which there are others. */
static void note_first(struct wide *w, struct range *r, const struct obj_entry *e)
{
    mutex_lock(&w->mu);
    g_autofree char *first = r->first ? g_strdup(r->first) : g_strndup(e->name, e->name_len);
    note_page_locked(w, r, &(struct obj_entry){.name = first, .name_len = strlen(first)}, e);
    mutex_unlock(&w->mu);
}

/* The first rows are given as they come; most listings have no others. */
static int on_first_row(void *ctx, const struct obj_entry *e)
{
    const struct chain *c = ctx;
    struct wide *w = c->w;
    if (w->n_threads > 0)
        return on_row(ctx, e);
    int err = w->req->row(w->req->ctx, e);
    if (err || w->n_first > FIRST_ROWS || w->chains <= 1)
        return err;
    w->n_first++;
    if (w->n_first == FIRST_ROWS - PAGE_ROWS + 1 || w->n_first == FIRST_ROWS)
        note_first(w, c->range, e);
    if (w->n_first < FIRST_ROWS)
        return 0;
    err = w->req->page(w->req->ctx);
    if (err == 0)
        start_helpers(w);
    w->n_first++; /* without them it goes on as it began: others have enough */
    return err;
}

int objstore_list_wide(struct objstore *st, const struct obj_wide_list *req)
{
    struct wide w = {.st = st,
                     .req = req,
                     .chains = objstore_limits_of(st, req->prefix).list_chains,
                     .ranges = g_ptr_array_new_with_free_func(range_free)};
    mutex_init(&w.mu, LOCK_WIDE_LIST);
    cond_init(&w.changed);
    int err = list_range(&w, range_new_locked(&w, NULL, NULL), on_first_row);
    if (err == 0 && w.n_threads > 0)
        help(&w);
    join_helpers(&w);
    if (w.has_own)
        patience_end();
    err = w.err; /* there is no other thread */
    g_assert(err != 0 || w.ranges->len == 0);
    g_ptr_array_unref(w.ranges);
    cond_fini(&w.changed);
    mutex_fini(&w.mu);
    return err;
}
