#include "events.h"

#include "event_apply.h"
#include "event_auth.h"
#include "event_parse.h"
#include "event_place.h"
#include "links.h"

#define THREADS     4u
#define AGAIN_NS    (200 * NS_PER_MS)
#define TRIES_MAX   50u
#define DOUBTED_MAX 4096u /* directories */
#define TAKEN_VALUE "events-taken"

/* A key that waits, or is looked at. */
struct waiting {
    char *key; /* owned; path in the mount */
    struct etag etag;
    bool created;
    bool running, again; /* again: an event came while it was looked at */
    unsigned tries;
    uint64_t due_ns;
};

struct events {
    /* immutable after open */
    struct fs *fs;
    struct event_auth *auth; /* its user is the web server's thread; NULL: a secret is not asked for */
    pthread_t threads[THREADS];
    unsigned n_threads;

    bool taken; /* owned by the web server's thread: an event was, by this cache folder */

    struct mutex mu; /* EVENTS */
    /* guarded by mu */
    struct cond work, idle;
    bool stop;
    GHashTable *by_key;  /* key -> struct waiting, owned */
    GQueue ready, later; /* struct waiting; later: by due_ns */
    GHashTable *doubted; /* keys, owned: of directories whose listings are not to be believed */
    GHashTable *put_off; /* the same, that are being listed */
    uint64_t put_off_ns; /* until then */
    unsigned n_running, names_max;
};

static void waiting_free(void *arg)
{
    struct waiting *w = arg;
    g_free(w->key);
    g_free(w);
}

/* ---- what is done with an event ---- */

/* Everything known is older than what we know of, and what the kernel was told, if it was told anything. */
static void doubt_all(struct fs *fs, bool told)
{
    atomic_store(&fs->doubt_ns, clock_wall_ns());
    if (told)
        notify_all(fs);
}

static unsigned n_doubted_locked(struct events *ev) REQUIRES(ev->mu)
{
    return g_hash_table_size(ev->doubted) + g_hash_table_size(ev->put_off);
}

static void doubt_locked(struct events *ev, const char *key) REQUIRES(ev->mu)
{
    const char *slash = strrchr(key, '/');
    char *dir = g_strndup(key, slash ? (size_t)(slash + 1 - key) : 0);
    metric_inc(M_events_dropped);
    if (n_doubted_locked(ev) < DOUBTED_MAX) {
        g_hash_table_add(ev->doubted, dir);
        cond_signal(&ev->work);
        return;
    }
    g_free(dir);
    doubt_all(ev->fs, true);
}

static void tell_idle_locked(struct events *ev) REQUIRES(ev->mu)
{
    if (g_hash_table_size(ev->by_key) + n_doubted_locked(ev) + ev->n_running == 0)
        cond_broadcast(&ev->idle);
}

/* ---- queue ---- */

static void push_locked(struct events *ev, const char *key, const struct etag *etag, bool created) REQUIRES(ev->mu)
{
    struct waiting *w = g_hash_table_lookup(ev->by_key, key);
    if (w) { /* which of both was first does not matter: the store is asked */
        if (!etag_equal(&w->etag, etag) || w->created != created)
            w->etag = (struct etag){0};
        w->created |= created;
        metric_add(M_events_ignored, !w->running || w->again); /* else it counts by what the next look finds */
        w->again |= w->running;
        return;
    }
    if (g_hash_table_size(ev->by_key) >= ev->names_max) {
        doubt_locked(ev, key);
        return;
    }
    w = g_new0(struct waiting, 1);
    w->key = g_strdup(key);
    w->etag = *etag;
    w->created = created;
    g_hash_table_insert(ev->by_key, w->key, w);
    g_queue_push_tail(&ev->ready, w);
    cond_signal(&ev->work);
}

/* The next key to look at, marked as such; NULL: none, *ret_wake_ns says when there may be one (0: when one comes). */
static struct waiting *take_locked(struct events *ev, uint64_t *ret_wake_ns) REQUIRES(ev->mu)
{
    struct waiting *w = g_queue_peek_head(&ev->later);
    uint64_t now = clock_mono_ns();
    if (w && w->due_ns <= now)
        w = g_queue_pop_head(&ev->later);
    else {
        *ret_wake_ns = w ? w->due_ns : 0;
        w = g_queue_pop_head(&ev->ready);
    }
    if (w) {
        w->running = true;
        ev->n_running++;
    }
    return w;
}

static void finish_locked(struct events *ev, struct waiting *w, int r) REQUIRES(ev->mu)
{
    bool again = r < 0 || r == EVENT_BUSY;
    w->running = false;
    ev->n_running--;
    metric_add(M_events_applied, r == EVENT_APPLIED);
    metric_add(M_events_ignored, r != EVENT_APPLIED && (!again || w->again)); /* one look for both */
    if (w->again) {
        w->again = false;
        w->tries = 0;
        g_queue_push_tail(&ev->ready, w);
        cond_signal(&ev->work);
    } else if (again && ++w->tries < TRIES_MAX && links_offline_since_ns(ev->fs, w->key) == 0) {
        w->due_ns = clock_mono_ns() + AGAIN_NS;
        g_queue_push_tail(&ev->later, w);
        cond_signal(&ev->work);
    } else {
        if (again)
            doubt_locked(ev, w->key);
        g_hash_table_remove(ev->by_key, w->key);
    }
    tell_idle_locked(ev);
}

static void look(struct events *ev, struct waiting *w) REQUIRES(ev->mu)
{
    struct etag etag = w->etag;
    bool created = w->created;
    mutex_unlock(&ev->mu);
    int r = event_look(ev->fs, w->key, &etag, created);
    log_debug("events", "looked at key='%s' created=%d r=%d", w->key, created, r);
    mutex_lock(&ev->mu);
    finish_locked(ev, w, r);
}

/* One directory; what is being listed is put off, all of that until the same time. False: none is to be done now. */
static bool doubt_next(struct events *ev) REQUIRES(ev->mu)
{
    GHashTableIter it;
    char *dir = NULL;
    if (g_hash_table_size(ev->doubted) == 0 && clock_mono_ns() >= ev->put_off_ns) {
        GHashTable *none = ev->doubted;
        ev->doubted = ev->put_off;
        ev->put_off = none;
    }
    g_hash_table_iter_init(&it, ev->doubted);
    if (!g_hash_table_iter_next(&it, (void **)&dir, NULL))
        return false;
    g_hash_table_iter_steal(&it);
    ev->n_running++;
    mutex_unlock(&ev->mu);
    bool done = event_doubt_dir(ev->fs, dir);
    mutex_lock(&ev->mu);
    ev->n_running--;
    if (!done && g_hash_table_size(ev->put_off) == 0)
        ev->put_off_ns = clock_mono_ns() + AGAIN_NS;
    if (done)
        g_free(dir);
    else
        g_hash_table_add(ev->put_off, dir);
    tell_idle_locked(ev);
    return true;
}

static void *events_thread(void *arg)
{
    struct events *ev = arg;
    mutex_lock(&ev->mu);
    while (!ev->stop) {
        uint64_t wake = 0;
        struct waiting *w = take_locked(ev, &wake);
        if (w)
            look(ev, w);
        if (w || doubt_next(ev) || ev->stop)
            continue;
        if (g_hash_table_size(ev->put_off) > 0)
            wake = wake ? MIN(wake, ev->put_off_ns) : ev->put_off_ns;
        if (wake)
            (void)cond_wait_until(&ev->work, &ev->mu, wake);
        else
            cond_wait(&ev->work, &ev->mu);
    }
    mutex_unlock(&ev->mu);
    return NULL;
}

/* ---- requests ---- */

struct taking {
    struct events *ev;
    const struct event_record *rec;
};

static void take_path(void *taking, const char *path) NO_TSA /* under mu */
{
    struct taking *t = taking;
    if (t->rec->vague)
        doubt_locked(t->ev, path);
    else
        push_locked(t->ev, path, &t->rec->etag, t->rec->created);
}

static void take_record(struct events *ev, const struct event_places *places, const struct event_record *rec)
    REQUIRES(ev->mu)
{
    struct taking t = {ev, rec};
    bool ours = false;
    metric_inc(M_events_received);
    for (unsigned i = 0; i < G_N_ELEMENTS(rec->keys) && rec->keys[i]; i++)
        ours |= event_places_each(places, rec->bucket, rec->keys[i], rec->vague, take_path, &t);
    metric_add(M_events_outside, !ours);
}

/* From now on each start has to think of events that it missed. */
static void note_taken(struct events *ev)
{
    if (ev->taken)
        return;
    struct meta_batch *b = meta_batch_new(ev->fs->meta);
    meta_value_put_u64(b, TAKEN_VALUE, 1);
    int r = meta_commit(b, false);
    meta_batch_free(b);
    ev->taken = r == 0;
    if (r < 0)
        log_debug("events", "that events come could not be stored r=%s", err_name(r));
}

unsigned events_take(void *events, const char *body, size_t len)
{
    struct events *ev = events;
    struct event_list list;
    if (event_parse(body, len, &list) < 0) {
        metric_inc(M_events_refused);
        return HTTP_BAD_REQUEST;
    }
    if (list.subscribe_url)
        log_notice("events", "SNS asks to confirm the subscription: open this address once: %s", list.subscribe_url);
    metric_add(M_events_received, list.n_others);
    metric_add(M_events_ignored, list.n_others);
    if (list.records->len > 0)
        note_taken(ev);
    struct event_places *places = event_places_new(ev->fs);
    mutex_lock(&ev->mu);
    for (unsigned i = 0; i < list.records->len; i++)
        take_record(ev, places, list.records->pdata[i]);
    mutex_unlock(&ev->mu);
    event_places_free(places);
    event_list_clear(&list);
    return HTTP_OK;
}

static unsigned admit(void *events, const char *authorization, const char *token)
{
    struct events *ev = events;
    if (!ev->auth)
        return 0;
    switch (event_auth_check(ev->auth, authorization, token)) {
    case EVENT_ADMITTED:
        return 0;
    case EVENT_UNNAMED:
        return HTTP_UNAUTHORIZED;
    case EVENT_REFUSED:
        break;
    }
    return HTTP_FORBIDDEN;
}

static void refused(void *events, unsigned status)
{
    metric_inc(M_events_refused);
    log_warn("events", "a request was refused status=%u", status);
}

struct http_post events_post(struct events *ev)
{
    return (struct http_post){.path = "/events",
                              .body_max = EVENTS_BODY_MAX,
                              .admit = admit,
                              .refused = refused,
                              .take = events_take,
                              .ctx = ev};
}

void events_limit(struct events *ev, unsigned names_max)
{
    mutex_lock(&ev->mu);
    ev->names_max = names_max;
    mutex_unlock(&ev->mu);
}

bool events_settle(struct events *ev, uint64_t wait_ns)
{
    uint64_t until = clock_mono_ns() + wait_ns;
    mutex_lock(&ev->mu);
    bool in_time = true;
    while (in_time && g_hash_table_size(ev->by_key) + n_doubted_locked(ev) + ev->n_running > 0)
        in_time = cond_wait_until(&ev->idle, &ev->mu, until);
    mutex_unlock(&ev->mu);
    return in_time;
}

/* ---- life ---- */

static int start_threads(struct events *ev)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < THREADS; i++) {
        g_autofree char *name = g_strdup_printf("events-%u", i);
        r = thread_start(&ev->threads[i], name, events_thread, ev);
        ev->n_threads += r == 0;
    }
    return r;
}

int events_open(struct fs *fs, const char *secret_file, struct events **ret, char **ret_msg)
{
    struct events *ev = g_new0(struct events, 1);
    uint64_t taken = 0;
    ev->fs = fs;
    ev->names_max = EVENTS_MAX;
    mutex_init(&ev->mu, LOCK_EVENTS);
    cond_init(&ev->work);
    cond_init(&ev->idle);
    ev->by_key = g_hash_table_new_full(g_str_hash, g_str_equal, NULL, waiting_free);
    ev->doubted = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    ev->put_off = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    int r = secret_file ? event_auth_open(secret_file, &ev->auth, ret_msg) : 0;
    if (r == 0)
        r = start_threads(ev);
    if (r < 0) {
        events_close(ev);
        return r;
    }
    ev->taken = meta_value_get_u64(fs->meta, TAKEN_VALUE, &taken) == 0;
    if (secret_file || ev->taken) /* what came while nobody listened */
        doubt_all(fs, session_is_takeover(fs->session));
    *ret = ev;
    return 0;
}

void events_close(struct events *ev)
{
    if (!ev)
        return;
    mutex_lock(&ev->mu);
    ev->stop = true;
    cond_broadcast(&ev->work);
    mutex_unlock(&ev->mu);
    for (unsigned i = 0; i < ev->n_threads; i++)
        pthread_join(ev->threads[i], NULL);
    g_hash_table_unref(ev->by_key);
    g_hash_table_unref(ev->doubted);
    g_hash_table_unref(ev->put_off);
    g_queue_clear(&ev->ready);
    g_queue_clear(&ev->later);
    event_auth_close(ev->auth);
    cond_fini(&ev->work);
    cond_fini(&ev->idle);
    mutex_fini(&ev->mu);
    g_free(ev);
}
