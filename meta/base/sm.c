/* State machine checker: see sm.h. */
#include "base/sm.h"

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

void sm_move(const struct sm *m, int *state, int to)
{
    if (!sm_may_move(m, *state, to)) {
        fprintf(stderr, "bug: state machine %s: %s -> %s is not allowed\n", m->name, sm_name(m, *state),
                sm_name(m, to));
        abort();
    }
    *state = to;
}
