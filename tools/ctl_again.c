/*
 * See ctl_again.h.
 *
 * The table says of each verb why it may be asked twice. What decides about files (publish, conflicts) is never repeated: what got into the same state meanwhile was not
 * meant. A request that makes a worker die would take the mount down with the workers that follow, so all but the verbs that only wait are tried a few times at most.
 */
#include "tools/ctl_again.h"

#include "base/clock.h"

#include <limits.h>

#define FEW       3
#define SHORT_NS  (60 * NS_PER_S) /* a worker that lived longer did not die of the request */
#define LINES_MAX 65536           /* of more lines some may come twice */

struct again_rule {
    const char *verb, *action; /* action NULL: any */
    unsigned limit;            /* times in a row that ended soon; 0: never asked again */
    bool gone_is_done;
    const char *hint;
};

static const struct again_rule rules[] = {
    /* they only look */
    {"wait", NULL, UINT_MAX, false, ""},
    {"drain", NULL, UINT_MAX, false, ""},
    {"status", NULL, FEW, false, ""},
    {"config", NULL, FEW, false, ""},
    {"info", NULL, FEW, false, ""},
    {"warmup-status", NULL, FEW, false, ""},
    {"conflicts", "list", FEW, false, ""},
    {"conflicts", "show", FEW, false, ""},
    {"checkpoints", NULL, FEW, false, ""},
    {"sync-status", NULL, FEW, false, ""},
    {"link", "list", FEW, false, ""},
    {"link", "show", FEW, false, ""},
    /* what is here is not fetched again, nor what was just listed listed again; of jobs in the background there may be two, the second with nothing to do */
    {"warmup", NULL, FEW, false, ""},
    {"sync", NULL, FEW, false, ""},
    {"link", "sync", FEW, false, ""},
    {"warmup-stop", NULL, FEW, false, ""},
    /* what is dropped, pinned or not pinned stays so */
    {"evict", NULL, FEW, false, ""},
    {"pin", NULL, FEW, false, ""},
    {"unpin", NULL, FEW, false, ""},
    /* of the same mount: the caller compares who made the socket */
    {"stop", NULL, FEW, true, ""},
    /* what came meanwhile was not meant */
    {"publish", NULL, 0, false, "; `sluice info` tells whether it was carried out"},
    {"conflicts", NULL, 0, false, "; `sluice conflicts` tells whether it was carried out"},
    {"link", NULL, 0, false, "; `sluice link list` tells whether it was carried out"},
    /* what was removed is not there the second time, or is another by then */
    {"rmdir", NULL, 0, false, "; look whether it is still there"},
    /* the next worker may be the other program */
    {"upgrade", NULL, 0, false, "; `sluice status` tells which program serves"},
    {NULL, NULL, 0, false, ""},
};

static const struct again_rule *find_rule(const json_t *req)
{
    const char *verb = json_string_value(json_object_get(req, "verb"));
    const char *action = json_string_value(json_object_get(req, "action"));
    const struct again_rule *r = rules;
    while (r->verb && (g_strcmp0(r->verb, verb) != 0 || (r->action && g_strcmp0(r->action, action) != 0)))
        r++;
    return r;
}

void again_init(struct again *a, const json_t *req)
{
    json_int_t s = json_integer_value(json_object_get(req, "timeout_s"));
    uint64_t now = clock_mono_ns();
    *a = (struct again){.rule = find_rule(req),
                        .asked_ns = now,
                        .first_ns = clock_wall_ns(),
                        .deadline_ns = s > 0 ? now + MIN((uint64_t)s, 1000000000u) * NS_PER_S : 0,
                        .seen = g_hash_table_new(NULL, NULL)};
}

void again_clear(struct again *a)
{
    g_clear_pointer(&a->seen, g_hash_table_unref);
}

enum again_verdict again_next(struct again *a, json_t *req)
{
    uint64_t now = clock_mono_ns();
    if (now - a->asked_ns >= SHORT_NS)
        a->n_short = 0;
    if (a->n_short >= a->rule->limit)
        return AGAIN_NOT;
    if (a->deadline_ns && now >= a->deadline_ns)
        return AGAIN_TIME;
    if (a->deadline_ns) {
        uint64_t left_s = (a->deadline_ns - now + NS_PER_S - 1) / NS_PER_S;
        json_object_set_new(req, "timeout_s", json_integer((json_int_t)left_s));
    }
    json_object_set_new(req, "again", json_true());
    json_object_set_new(req, "first_asked_ns", json_integer(a->first_ns));
    a->n_short++;
    a->n_asked++;
    a->asked_ns = now;
    return AGAIN_ASK;
}

bool again_is_safe(const struct again *a)
{
    return a->rule->limit > 0;
}

bool again_gone_is_done(const struct again *a)
{
    return a->rule->gone_is_done;
}

const char *again_hint(const struct again *a)
{
    return a->rule->hint;
}

/* A sum of what the line is about, whatever it tells of that. */
static uintptr_t subject(const json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    const char *path = json_string_value(json_object_get(line, "path"));
    g_autofree char *text = g_strdup_printf("%s %" JSON_INTEGER_FORMAT " %s", event ? event : "",
                                            json_integer_value(json_object_get(line, "id")), path ? path : "");
    g_autofree char *sum = g_compute_checksum_for_string(G_CHECKSUM_MD5, text, -1);
    return (uintptr_t)g_ascii_strtoull(sum + 16, NULL, 16);
}

bool again_is_new(struct again *a, const json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    static const char *const always[] = {"progress", "error", "sync", "evicted",
                                         NULL}; /* each worker numbers its syncs from 1 */
    if (!again_is_safe(a) || (event && g_strv_contains(always, event)))
        return true;
    gpointer key = (gpointer)subject(line), asked = NULL;
    if (g_hash_table_lookup_extended(a->seen, key, NULL, &asked))
        return GPOINTER_TO_UINT(asked) == a->n_asked; /* one answer may tell several things of one path */
    if (g_hash_table_size(a->seen) < LINES_MAX)
        g_hash_table_insert(a->seen, key, GUINT_TO_POINTER(a->n_asked));
    return true;
}
