/*
 * The credential chain's head: chooses a source at open and keeps its keys fresh.
 *
 *   why renew              callers meanwhile              when it fails
 *   none yet, expired      wait                           refused: its error; not to be had now: wait for the next try
 *   invalidated            wait 10 s at most              old keys while unexpired
 *   due, files changed     get the old keys               old keys while unexpired
 *
 * Files, programs and services may be silent for ever, so no caller goes to them: a round (a look at the shared files, then a renewal if one is due) is made by a thread that is
 * started for it, one at a time (`busy`). It holds a reference: s3_cred_close() leaves one behind that is stuck, and what it works on is freed when it comes back.
 *
 * The keys live in pages of their own that core dumps leave out. `mu` covers them and the state of rounds; it is dropped while a source
 * works and while files are looked at. The source functions are in the other s3_cred files.
 */
#include "s3_cred.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/patience.h"
#include "base/sync.h"
#include "http.h"
#include "objstore.h"
#include "s3_cred_int.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REFRESH_AHEAD_NS    (300 * (int64_t)NS_PER_S)
#define RETRY_MAX_SHIFT     6 /* 1 s << 6, cut to 60 s */
#define RETRY_MAX_NS        (60 * NS_PER_S)
#define STAT_EVERY_NS       NS_PER_S
#define INVALIDATE_QUIET_NS (5 * NS_PER_S)
#define WAITED_PAUSE_NS     (5 * NS_PER_S)   /* while callers have no keys and may get some */
#define REFUSED_WAIT_NS     (10 * NS_PER_S)  /* for others than those that the store refused */
#define LOOK_WAIT_NS        (50 * NS_PER_MS) /* for what a look may find: it takes less unless a file system hangs */
#define SLOW_NS             (30 * NS_PER_S)
#define CLOSE_WAIT_NS       (3 * NS_PER_S) /* a request to a service ends within one */
#define DEFAULT_REGION      "us-east-1"

struct secrets { /* in pages of its own */
    char access_key[256];
    char secret_key[256];
    char token[CRED_TOKEN_MAX_BYTES]; /* "" if none */
};

struct s3_cred {
    /* immutable after _open */
    struct cred_env env;
    struct cred_choice choice;
    bool chosen;  /* it is made: false within _open only */
    bool resumed; /* by the process before this one, which had keys */
    char *origin;
    struct http_pool *http;
    /* atomic */
    atomic_bool stop;

    struct mutex mu;
    struct cond cv; /* a round ended, or stop */
    /* guarded by mu */
    unsigned n_refs; /* the owner's, and that of a round */
    struct secrets *secrets;
    bool have;              /* secrets holds keys (or none are needed) */
    bool invalid;           /* the store refused them */
    bool changed;           /* a file did */
    bool busy;              /* a round is under way, */
    uint64_t busy_since_ns; /* mono */
    bool slow_told;         /* of it */
    uint64_t n_rounds;      /* that ended */
    int64_t expires_ns;     /* wall, 0 never */
    int64_t refresh_at_ns;  /* wall, 0 never */
    uint64_t next_try_ns;   /* mono: not before */
    uint64_t next_stat_ns;  /* mono */
    uint64_t last_ok_ns;    /* mono */
    uint64_t failed_ns;     /* mono */
    unsigned n_failed;      /* in a row */
    int last_error;
    char *last_why;              /* owned */
    struct cred_stamp stamps[2]; /* credentials file, config file as last read for the keys, or in vain */
};

static bool stopping(const struct s3_cred *c)
{
    return atomic_load_explicit(&c->stop, memory_order_relaxed);
}

/* Whether keys could not be had only just then: nobody and nothing refused them. */
static bool is_passing(int error)
{
    return error == -EIO || error == -ETIMEDOUT || error == -EBADMSG || error == -EAGAIN || error == -ENOMEM;
}

/* ---- one refresh ---- */

static int source_fetch(struct s3_cred *c, struct s3_keys *ret_keys, GString *why)
{
    const struct cred_run run = {.env = &c->env,
                                 .region = c->choice.region,
                                 .sts_endpoint = c->choice.sts_endpoint,
                                 .http = c->http,
                                 .stop = &c->stop,
                                 .why = why};
    const struct cred_role web = {.arn = c->env.role_arn, .token_file = c->env.web_token_file};
    switch (c->choice.source) {
    case CRED_SOURCE_ENV:
        return cred_env_fetch(&run, ret_keys);
    case CRED_SOURCE_WEB:
        return cred_sts_web_identity(&run, &web, ret_keys);
    case CRED_SOURCE_PROFILE:
        return cred_profile_fetch(&run, ret_keys);
    case CRED_SOURCE_CONTAINER:
        return cred_container_fetch(&run, ret_keys);
    case CRED_SOURCE_IMDS:
        return cred_imds_fetch(&run, ret_keys);
    case CRED_SOURCE_ANONYMOUS:
        break;
    }
    memset(ret_keys, 0, sizeof(*ret_keys));
    ret_keys->anonymous = true;
    return 0;
}

static void publish_locked(struct s3_cred *c, const struct s3_keys *keys, const struct cred_stamp stamps[2])
    REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    struct secrets *s = c->secrets;
    explicit_bzero(s, sizeof(*s));
    g_strlcpy(s->access_key, keys->access_key, sizeof(s->access_key));
    g_strlcpy(s->secret_key, keys->secret_key, sizeof(s->secret_key));
    if (keys->session_token != NULL)
        g_strlcpy(s->token, keys->session_token, sizeof(s->token));
    c->have = true;
    c->invalid = false;
    c->changed = false;
    c->expires_ns = keys->expires_ns;
    c->refresh_at_ns = 0;
    if (keys->expires_ns != 0) {
        int64_t now = clock_wall_ns();
        int64_t left = keys->expires_ns - now;
        c->refresh_at_ns = now + MAX(left - REFRESH_AHEAD_NS, left / 2);
    }
    memcpy(c->stamps, stamps, sizeof(c->stamps));
    c->n_failed = 0;
    c->last_error = 0;
    g_clear_pointer(&c->last_why, g_free);
    c->last_ok_ns = clock_mono_ns();
    c->next_try_ns = c->last_ok_ns + NS_PER_S; /* keys that live for seconds only: not for each request */
    metric_set(M_credentials_expire_at, keys->expires_ns / (int64_t)NS_PER_S);
}

/* Whether the reason is another than that of the refresh before. stamps NULL: the files were not read. */
static bool failed_locked(struct s3_cred *c, int error, GString *why, const struct cred_stamp stamps[2]) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    if (!c->have && stamps != NULL) { /* keys may come before the pause is over when these are changed */
        memcpy(c->stamps, stamps, sizeof(c->stamps));
        c->changed = false;
    }
    uint64_t pause_ns = NS_PER_S << MIN(c->n_failed, RETRY_MAX_SHIFT);
    c->failed_ns = clock_mono_ns();
    c->next_try_ns = c->failed_ns + MIN(pause_ns, RETRY_MAX_NS);
    c->n_failed++;
    c->last_error = error;
    g_strchomp(why->str);
    bool news = g_strcmp0(c->last_why, why->str) != 0;
    g_free(c->last_why);
    c->last_why = g_strdup(why->str);
    return news;
}

/* Of the shared files, where keys come from there: else nothing is to wait for a home directory. */
static void take_stamps(const struct s3_cred *c, struct cred_stamp ret_stamps[2])
{
    memset(ret_stamps, 0, 2 * sizeof(*ret_stamps));
    if (c->choice.source != CRED_SOURCE_PROFILE)
        return;
    cred_stamp_take(c->env.credentials_file, &ret_stamps[0]);
    cred_stamp_take(c->env.config_file, &ret_stamps[1]);
}

static int fetch(struct s3_cred *c, struct s3_keys *ret_keys, GString *why)
{
    int r = stopping(c) ? -ECANCELED : source_fetch(c, ret_keys, why);
    if (r == 0 && ret_keys->session_token != NULL && strlen(ret_keys->session_token) >= CRED_TOKEN_MAX_BYTES) {
        g_string_append(why, "the session token is longer than 16 KiB. ");
        return -EACCES;
    }
    if (r == 0 && ret_keys->expires_ns != 0 && ret_keys->expires_ns <= clock_wall_ns()) {
        g_string_append(why, "the source gave keys that have expired already. ");
        return -EKEYEXPIRED;
    }
    return r;
}

/* What a source's error means here. */
static int meaning_locked(const struct s3_cred *c, int r) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    if (r == 0 && stopping(c)) /* nobody wants them any more */
        return -ECANCELED;
    if (r == -ENXIO) /* at the open it is not there, else it was, and will be */
        return c->chosen ? -EIO : -EACCES;
    if (r == -ECHILD) /* what gave keys before will do so again */
        return c->have || c->resumed ? -EIO : -EACCES;
    return r;
}

/* Asks the source: in a round, and once by s3_cred_open(). */
static int refresh(struct s3_cred *c) EXCLUDES(c->mu)
{
    mutex_assert_none_held();
    struct s3_keys keys = {0};
    struct cred_stamp stamps[2];
    g_autoptr(GString) why = g_string_new(NULL);
    take_stamps(c, stamps); /* from before the reading: a change in between is seen as one afterwards */
    int r = fetch(c, &keys, why);
    bool absent = r == -ENXIO && !c->chosen;
    bool news = false;
    mutex_lock(&c->mu);
    r = meaning_locked(c, r);
    if (r == 0)
        publish_locked(c, &keys, stamps);
    else
        news = failed_locked(c, r, why, stamps);
    mutex_unlock(&c->mu);
    s3_keys_clear(&keys);
    metric_inc(M_credential_refreshes);
    if (r < 0 && news && !absent && r != -ECANCELED)
        log_warn("cred", "credentials cannot be renewed origin='%s' r=%s why='%s'", c->origin, err_name(r), why->str);
    else if (r < 0)
        log_debug("cred", "refresh failed origin='%s' r=%s why='%s'", c->origin, err_name(r), why->str);
    else
        log_debug("cred", "refreshed origin='%s'", c->origin);
    return r;
}

/* ---- when what is due ---- */

static bool usable_locked(const struct s3_cred *c) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    return c->have && (c->expires_ns == 0 || clock_wall_ns() < c->expires_ns);
}

/* The end of the pause (mono). */
static uint64_t next_try_locked(const struct s3_cred *c) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    if (usable_locked(c))
        return c->next_try_ns;
    if (c->last_error == 0)
        return 0;
    return is_passing(c->last_error) ? MIN(c->next_try_ns, c->failed_ns + WAITED_PAUSE_NS) : c->next_try_ns;
}

static bool renewal_due_locked(const struct s3_cred *c) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    bool wanted =
        !usable_locked(c) || c->invalid || c->changed || (c->refresh_at_ns != 0 && clock_wall_ns() >= c->refresh_at_ns);
    return wanted && clock_mono_ns() >= next_try_locked(c);
}

/* Whether the shared files are still those last read is looked at once a second, while somebody wants keys. */
static bool look_due_locked(const struct s3_cred *c) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    return c->choice.source == CRED_SOURCE_PROFILE && (c->have || c->last_error != 0) &&
           clock_mono_ns() >= c->next_stat_ns;
}

/* ---- a round ---- */

static void destroy(struct s3_cred *c)
{
    http_pool_free(c->http);
    if (c->secrets != NULL) {
        explicit_bzero(c->secrets, sizeof(*c->secrets));
        (void)munmap(c->secrets, sizeof(*c->secrets));
    }
    cred_env_clear(&c->env);
    g_free(c->origin);
    cred_choice_clear(&c->choice);
    g_free(c->last_why);
    cond_fini(&c->cv);
    mutex_fini(&c->mu);
    g_free(c);
}

static void look_at_files(struct s3_cred *c) EXCLUDES(c->mu)
{
    struct cred_stamp now[2];
    take_stamps(c, now);
    mutex_lock(&c->mu);
    if (!cred_stamp_equal(&now[0], &c->stamps[0]) || !cred_stamp_equal(&now[1], &c->stamps[1])) {
        c->changed = true;
        if (!c->have)
            c->next_try_ns = 0;
    }
    mutex_unlock(&c->mu);
}

/* Called by whom `busy` and a reference were taken for. */
static void run_round(struct s3_cred *c) EXCLUDES(c->mu)
{
    mutex_lock(&c->mu);
    bool look = look_due_locked(c);
    if (look)
        c->next_stat_ns = clock_mono_ns() + STAT_EVERY_NS;
    mutex_unlock(&c->mu);
    if (look)
        look_at_files(c);
    mutex_lock(&c->mu);
    bool renew = renewal_due_locked(c);
    mutex_unlock(&c->mu);
    if (renew)
        (void)refresh(c); /* the outcome is in c */
    mutex_lock(&c->mu);
    c->busy = false;
    c->n_rounds++;
    cond_broadcast(&c->cv);
    bool last = --c->n_refs == 0;
    mutex_unlock(&c->mu);
    if (last)
        destroy(c);
}

static void *round_main(void *arg)
{
    (void)pthread_detach(pthread_self()); /* s3_cred_close() waits for `busy`, and not for long */
    run_round(arg);
    return NULL;
}

/* Begins a round if one is due. True: files are looked at in it. */
static bool begin_round_locked(struct s3_cred *c) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    bool look = look_due_locked(c), renew = renewal_due_locked(c);
    bool in_memory = c->choice.source == CRED_SOURCE_ANONYMOUS || c->choice.source == CRED_SOURCE_ENV;
    if (c->busy || stopping(c) || (!look && !renew))
        return false;
    c->busy = true;
    c->busy_since_ns = clock_mono_ns();
    c->slow_told = false;
    c->n_refs++;
    mutex_unlock(&c->mu);
    pthread_t thread;
    int r = in_memory ? 0 : thread_start(&thread, "cred", round_main, c);
    if (in_memory)
        run_round(c);
    mutex_lock(&c->mu);
    if (r < 0) {
        g_autoptr(GString) why = g_string_new("no thread can be started. ");
        if (renew)
            (void)failed_locked(c, -EAGAIN, why, NULL); /* others will say so too */
        c->next_stat_ns = clock_mono_ns() + STAT_EVERY_NS;
        c->busy = false;
        c->n_rounds++;
        cond_broadcast(&c->cv); /* who came meanwhile waits for this round */
        c->n_refs--;
    }
    return look && r == 0;
}

/* ---- serving keys ---- */

static void copy_locked(struct s3_cred *c, struct s3_keys *ret) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    memset(ret, 0, sizeof(*ret));
    memcpy(ret->access_key, c->secrets->access_key, sizeof(ret->access_key));
    memcpy(ret->secret_key, c->secrets->secret_key, sizeof(ret->secret_key));
    ret->session_token = c->secrets->token[0] != '\0' ? g_strdup(c->secrets->token) : NULL;
    ret->expires_ns = c->expires_ns;
    ret->anonymous = c->choice.source == CRED_SOURCE_ANONYMOUS;
}

struct wish { /* of one who wants keys */
    uint64_t deadline_ns;
    uint64_t seen;        /* n_rounds when it came */
    uint64_t look_end_ns; /* until when it waits for what its look finds */
};

/* 0: the keys serve. 1: to be asked again when a round ended, at *ret_until_ns at the latest. Else -errno. */
static int decide_locked(struct s3_cred *c, const struct wish *w, uint64_t *ret_until_ns) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    if (stopping(c))
        return -ECANCELED;
    if (usable_locked(c)) {
        bool waits = c->busy && (c->invalid || c->n_rounds == w->seen);
        *ret_until_ns = c->invalid ? c->busy_since_ns + REFUSED_WAIT_NS : w->look_end_ns;
        return waits && clock_mono_ns() < MIN(*ret_until_ns, w->deadline_ns) ? 1 : 0;
    }
    bool refused = c->last_error != 0 && !is_passing(c->last_error);
    if (refused && !c->busy)
        return c->have || c->resumed ? -EKEYEXPIRED : c->last_error;
    *ret_until_ns = c->busy ? UINT64_MAX : next_try_locked(c);
    return clock_mono_ns() < w->deadline_ns ? 1 : -ETIMEDOUT;
}

/* Whether it is to be told, once, that the round does not end. */
static bool is_slow_locked(struct s3_cred *c) REQUIRES(c->mu)
{
    mutex_assert_held(&c->mu);
    bool tell = c->busy && !c->slow_told && clock_mono_ns() >= c->busy_since_ns + SLOW_NS;
    c->slow_told = c->slow_told || tell;
    return tell;
}

int s3_cred_get(struct s3_cred *c, uint64_t deadline_ns, struct s3_keys *ret)
{
    int r;
    mutex_lock(&c->mu);
    struct wish w = {.deadline_ns = deadline_ns, .seen = c->n_rounds};
    for (;;) {
        bool tried = c->n_rounds != w.seen && c->last_error != 0 && !is_passing(c->last_error); /* one is enough */
        if (!tried && begin_round_locked(c))
            w.look_end_ns = clock_mono_ns() + LOOK_WAIT_NS;
        uint64_t until_ns = 0;
        r = decide_locked(c, &w, &until_ns);
        if (r <= 0)
            break;
        (void)patience_wait(&c->cv, &c->mu, MIN(until_ns, deadline_ns)); /* what it says may be of until_ns */
        r = patience_over();
        if (r < 0)
            break;
    }
    if (r == 0)
        copy_locked(c, ret);
    bool slow = is_slow_locked(c);
    mutex_unlock(&c->mu);
    if (slow)
        log_warn("cred", "what gives the credentials does not answer origin='%s'", c->origin);
    return r;
}

void s3_cred_invalidate(struct s3_cred *c)
{
    mutex_lock(&c->mu);
    if (c->choice.source != CRED_SOURCE_ANONYMOUS && c->have && clock_mono_ns() >= c->last_ok_ns + INVALIDATE_QUIET_NS)
        c->invalid = true;
    mutex_unlock(&c->mu);
}

void s3_cred_shutdown(struct s3_cred *c)
{
    atomic_store_explicit(&c->stop, true, memory_order_relaxed);
    if (c->http != NULL)
        http_pool_shutdown(c->http);
    mutex_lock(&c->mu);
    cond_broadcast(&c->cv);
    mutex_unlock(&c->mu);
}

char *s3_cred_error(struct s3_cred *c)
{
    mutex_lock(&c->mu);
    char *why = g_strdup(c->last_why);
    mutex_unlock(&c->mu);
    return why;
}

char *s3_cred_choice(const struct s3_cred *c)
{
    return cred_choice_format(&c->choice);
}

const char *s3_cred_region(const struct s3_cred *c)
{
    return c->choice.region;
}

const char *s3_cred_endpoint(const struct s3_cred *c)
{
    return c->choice.endpoint;
}

const char *s3_cred_ca_bundle(const struct s3_cred *c)
{
    return c->choice.ca_bundle;
}

/* ---- opening ---- */

static void choose(struct s3_cred *c, enum cred_source source)
{
    bool profile = source == CRED_SOURCE_PROFILE;
    c->choice.source = source;
    g_free(c->origin);
    c->origin = g_strconcat(cred_source_name(source), profile ? " " : "", profile ? c->env.profile : "", NULL);
}

/* Region, endpoint and CA file where options and environment leave them open. f may be NULL (files unreadable). */
static void fill_places(struct s3_cred *c, const struct cred_files *f)
{
    const struct cred_env *e = &c->env;
    bool use = f != NULL && !e->ignore_endpoints;
    const char *region = e->region;
    if (region == NULL && f != NULL)
        region = cred_files_get(f, e->profile, "region");
    c->choice.region = g_strdup(region != NULL ? region : DEFAULT_REGION);
    c->choice.endpoint = g_strdup(e->endpoint == NULL && use ? cred_files_endpoint(f, e->profile, "s3") : e->endpoint);
    c->choice.sts_endpoint =
        g_strdup(e->sts_endpoint == NULL && use ? cred_files_endpoint(f, e->profile, "sts") : e->sts_endpoint);
    const char *ca = e->ca_bundle;
    if (ca == NULL && f != NULL)
        ca = cred_files_get(f, e->profile, "ca_bundle");
    c->choice.ca_bundle = g_strdup(ca);
}

/* 0 chosen, -ENXIO the profile has nothing, -EACCES it is wrong. */
static int choose_profile(struct s3_cred *c, const struct cred_files *f, GString *why)
{
    enum cred_profile_kind kind;
    int r = cred_profile_kind(f, c->env.profile, &kind, why);
    if (r == -ENOENT)
        return c->env.profile_named ? -EACCES : -ENXIO;
    if (r < 0)
        return r;
    if (kind == CRED_PROFILE_NONE) {
        g_string_append_printf(why, "profile '%s' has no credentials. ", c->env.profile);
        return -ENXIO;
    }
    choose(c, CRED_SOURCE_PROFILE);
    return 0;
}

/* The sources that need no file. -ENXIO: go on to the files. */
static int choose_env(struct s3_cred *c, GString *why)
{
    if (c->env.profile_given)
        return -ENXIO;
    struct cred_run run = {.env = &c->env, .why = why};
    struct s3_keys keys = {0};
    int r = cred_env_fetch(&run, &keys);
    s3_keys_clear(&keys);
    if (r == 0)
        choose(c, CRED_SOURCE_ENV);
    if (r != -ENXIO)
        return r;
    if (c->env.role_arn != NULL && c->env.web_token_file != NULL) {
        choose(c, CRED_SOURCE_WEB);
        return 0;
    }
    g_string_append(why, "AWS_ROLE_ARN with AWS_WEB_IDENTITY_TOKEN_FILE is not set. ");
    return -ENXIO;
}

/* What the host offers. Asks the instance metadata: keys that come are kept. */
static int choose_host(struct s3_cred *c, GString *why)
{
    if (c->env.container_relative != NULL || c->env.container_full != NULL) {
        choose(c, CRED_SOURCE_CONTAINER);
        return 0;
    }
    g_string_append(why, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and _FULL_URI are not set. ");
    choose(c, CRED_SOURCE_IMDS);
    if (c->env.imds_disabled) {
        g_string_append(why, "AWS_EC2_METADATA_DISABLED is set. ");
        return -ENXIO;
    }
    int r = refresh(c);
    if (r == 0 || r == -EIO) /* there, only not now */
        return 0;
    g_string_append(why, c->last_why);
    return -EACCES;
}

/* Whether options and environment leave open where requests go: files that cannot be read might say it. */
static bool files_decide(const struct cred_env *e)
{
    bool web = e->role_arn != NULL && e->web_token_file != NULL;
    bool endpoint = e->endpoint == NULL || (web && e->sts_endpoint == NULL);
    return e->region == NULL || (endpoint && !e->ignore_endpoints);
}

static int open_pool(struct s3_cred *c)
{
    const struct http_pool_config hc = {.ca_bundle = c->choice.ca_bundle, .max_connections = 4};
    return http_pool_new(&hc, &c->http);
}

static int choose_source(struct s3_cred *c, const struct objstore_config *cfg, GString *why)
{
    struct cred_files *f = NULL;
    g_autoptr(GString) files_why = g_string_new(NULL);
    int files_r = cred_files_load(&c->env, &f, files_why);
    if (files_r < 0 && files_decide(&c->env)) {
        g_string_append_printf(why, "%sIt may name endpoint and region: mend it, or give both. ", files_why->str);
        return -EACCES;
    }
    fill_places(c, f);
    int r = open_pool(c);
    if (r == 0 && cfg->no_sign_request)
        choose(c, CRED_SOURCE_ANONYMOUS);
    else if (r == 0)
        r = choose_env(c, why);
    if (r == -ENXIO) {
        g_string_append(why, files_why->str);
        r = files_r < 0 ? -EACCES : choose_profile(c, f, why);
    }
    cred_files_free(f);
    return r == -ENXIO ? choose_host(c, why) : r;
}

/* As the process before this one did: it had keys, and the mount is in use. What stands in their way now is looked at when they are needed. */
static int resume_source(struct s3_cred *c)
{
    c->resumed = true;
    choose(c, c->choice.source);
    return open_pool(c);
}

static int secrets_new(struct secrets **ret)
{
    *ret = cred_secret_pages(sizeof(struct secrets));
    return *ret == NULL ? -ENOMEM : 0;
}

int s3_cred_open(const struct objstore_config *cfg, struct s3_cred **ret, char **ret_msg)
{
    struct s3_cred *c = g_new0(struct s3_cred, 1);
    c->n_refs = 1;
    mutex_init(&c->mu, LOCK_S3_CRED);
    cond_init(&c->cv);
    cred_env_fill(&c->env, cfg);
    g_autoptr(GString) why = g_string_new(NULL);
    int r = secrets_new(&c->secrets);
    bool known = cfg->resume != NULL && cred_choice_parse(cfg->resume, &c->choice) == 0;
    if (r == 0)
        r = known ? resume_source(c) : choose_source(c, cfg, why);
    if (r < 0) {
        if (why->len == 0)
            g_string_append_printf(why, "%s. ", err_text(r));
        *ret_msg = g_strdup_printf(
            "no usable credentials: %sSet AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile with "
            "--profile, or give --no-sign-request for a public bucket",
            why->str);
        s3_cred_close(c);
        return r == -ENXIO ? -EACCES : r;
    }
    c->chosen = true;
    log_debug("cred", "source chosen origin='%s' region='%s'", c->origin, c->choice.region);
    *ret = c;
    return 0;
}

void s3_cred_close(struct s3_cred *c)
{
    if (c == NULL)
        return;
    s3_cred_shutdown(c);
    uint64_t end_ns = clock_mono_ns() + CLOSE_WAIT_NS;
    mutex_lock(&c->mu);
    while (c->busy && cond_wait_until(&c->cv, &c->mu, end_ns))
        ;
    if (c->secrets != NULL)
        explicit_bzero(c->secrets, sizeof(*c->secrets)); /* at once, whatever a round is stuck in */
    bool last = --c->n_refs == 0;
    mutex_unlock(&c->mu);
    if (last)
        destroy(c);
}
