/*
 * A request whose worker ended before it had answered: may the next worker be asked the same, and what of its answer is new?
 *
 *   struct again a;
 *   again_init(&a, req);
 *   do r = ask(req); while (r < 0 && again_next(&a, req) == AGAIN_ASK);
 *   again_clear(&a);
 *
 * What is asked again says so ("again":true), and when it was asked first ("first_asked_ns"). Single-threaded.
 */
#pragma once
#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct again_rule;

struct again {
    const struct again_rule *rule; /* static; never NULL after again_init */
    uint64_t deadline_ns;          /* monotonic, of "timeout_s"; 0: none */
    uint64_t asked_ns;             /* when it was asked last */
    int64_t first_ns;              /* when it was asked first, wall clock */
    unsigned n_asked, n_short;     /* times it was asked before; of those the ones that ended soon */
    pid_t owner;                   /* for the caller: who made the socket that was asked first */
    GHashTable *seen;              /* owned; sum of a line that came -> n_asked then */
};

enum again_verdict {
    AGAIN_ASK,
    AGAIN_NOT, /* it may have been carried out, or was asked too often: again_hint() */
    AGAIN_TIME /* its time is up */
};

void again_init(struct again *a, const json_t *req);
void again_clear(struct again *a);
/* May req be asked once more? Then its "timeout_s" is what is left of it. */
enum again_verdict again_next(struct again *a, json_t *req);
/* Would it be asked again at all, however often that was tried? */
bool again_is_safe(const struct again *a);
/* Is it done as well when the mount is gone? */
bool again_gone_is_done(const struct again *a);
/* Where to look whether it was carried out; "" when that does not matter. Static. */
const char *again_hint(const struct again *a);
/* False: the line tells what an earlier answer to this request told already. */
bool again_is_new(struct again *a, const json_t *line);
