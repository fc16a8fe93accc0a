/* State machine checker: see sm.h. */
#include "base/sm.h"

#include "base/log.h"
#include "base/metric.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

const char *sm_name(const struct sm *m, int state)
{
    return state >= 0 && (unsigned)state < m->n_rows && m->rows[state].name ? m->rows[state].name : "?";
}

bool sm_may_move(const struct sm *m, int from, int to)
{
    return from >= 0 && (unsigned)from < m->n_rows && to >= 0 && (unsigned)to < m->n_rows &&
           (m->rows[from].to & SM_TO(to));
}

#ifdef SLUICE_TEST_POINTS
static atomic_bool aborts = true;
#else
static atomic_bool aborts;
#endif

void sm_strict(bool strict)
{
    atomic_store(&aborts, strict);
}

void sm_move(const struct sm *m, int *state, int to)
{
    if (!sm_may_move(m, *state, to)) {
        fprintf(stderr, "bug: state machine %s: %s -> %s is not allowed\n", m->name, sm_name(m, *state),
                sm_name(m, to));
        abort();
    }
    *state = to;
}

int sm_try(const struct sm *m, int *state, int to)
{
    if (!sm_may_move(m, *state, to) && !atomic_load(&aborts)) {
        log_err("states", "bug: a move of '%s' that its table does not allow is refused from=%s to=%s", m->name,
                sm_name(m, *state), sm_name(m, to));
        metric_inc(M_refused_moves);
        return -EPROTO;
    }
    sm_move(m, state, to);
    return 0;
}
