/*
 * State machine checker: allowed moves in one table per machine, checked at run time.
 *
 *   static const struct sm_row rows[] = { [A] = {"a", SM_TO(B) | SM_TO(C)}, [B] = {"b", 0}, ... };
 *   static const struct sm machine = {"file", rows, G_N_ELEMENTS(rows)};
 *   sm_move(&machine, &obj->state, B);
 *
 * What a move that the table does not allow leads to: sm_move() ends the process, for states that only memory knows; sm_try() refuses it, for states
 * that are stored, where the next process would meet the same move again.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define SM_TO(s) (1u << (s))

struct sm_row {
    const char *name;
    uint32_t to; /* bits of the states that may follow */
};
struct sm {
    const char *name;
    const struct sm_row *rows;
    unsigned n_rows;
};

/* Moves *state to `to`; aborts with both names when the table does not allow it. */
void sm_move(const struct sm *m, int *state, int to);
/* Moves *state to `to`; where the table does not allow it -EPROTO, *state as it was, logged and counted. Once sm_strict() was called, and in builds with
 * test points, it aborts like sm_move(). */
int sm_try(const struct sm *m, int *state, int to) __attribute__((warn_unused_result));
void sm_strict(bool strict);
bool sm_may_move(const struct sm *m, int from, int to);
/* The state's name, "?" when out of range. */
const char *sm_name(const struct sm *m, int state);
