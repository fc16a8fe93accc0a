/* See states.h. The words of the design that are no state of their own here are explained in README.md, "States of a version". */
#include "states.h"

#include "base/log.h"
#include "base/metric.h"
#include "base/sm.h"

static const struct sm_row content_rows[] = {
    [CONTENT_CLEAN] = {"clean", SM_TO(CONTENT_OPEN)},
    [CONTENT_OPEN] = {"open",
                      SM_TO(CONTENT_OPEN) | SM_TO(CONTENT_CLOSING) | SM_TO(CONTENT_CLEAN) | SM_TO(CONTENT_QUARANTINED)},
    [CONTENT_CLOSING] = {"closing", SM_TO(CONTENT_OPEN) | SM_TO(CONTENT_CLOSING) | SM_TO(CONTENT_SEALED) |
                                        SM_TO(CONTENT_CLEAN) | SM_TO(CONTENT_QUARANTINED)},
    [CONTENT_SEALED] = {"sealed", SM_TO(CONTENT_OPEN) | SM_TO(CONTENT_CLEAN) | SM_TO(CONTENT_QUARANTINED)},
    [CONTENT_QUARANTINED] = {"quarantined", SM_TO(CONTENT_OPEN) | SM_TO(CONTENT_QUARANTINED)},
};
static const struct sm content_sm = {"content", content_rows, G_N_ELEMENTS(content_rows)};

/* A record is made QUEUED or HELD, that of a conflict's loser in CONFLICT, that of a file brought back with doubts PARKED. */
static const struct sm_row op_rows[] = {
    [OPS_QUEUED] = {"queued", SM_TO(OPS_QUEUED) | SM_TO(OPS_HELD) | SM_TO(OPS_PARKED) | SM_TO(OPS_CONFLICT)},
    [OPS_HELD] = {"held", SM_TO(OPS_QUEUED) | SM_TO(OPS_HELD) | SM_TO(OPS_PARKED) | SM_TO(OPS_CONFLICT)},
    [OPS_PARKED] = {"parked", SM_TO(OPS_QUEUED) | SM_TO(OPS_PARKED) | SM_TO(OPS_CONFLICT)},
    [OPS_CONFLICT] = {"conflict", SM_TO(OPS_QUEUED) | SM_TO(OPS_PARKED) | SM_TO(OPS_CONFLICT)},
};
static const struct sm op_sm = {"journal record", op_rows, G_N_ELEMENTS(op_rows)};

const char *content_state_name(uint32_t state)
{
    return sm_name(&content_sm, (int)state);
}

const char *op_state_name(uint32_t state)
{
    return sm_name(&op_sm, (int)state);
}

static int move(const struct sm *m, uint32_t *stored, int to)
{
    int state = (int)*stored;
    int r = sm_try(m, &state, to);
    *stored = (uint32_t)state;
    return r;
}

int content_move(struct meta_inode *rec, enum content_state to)
{
    return move(&content_sm, &rec->content, (int)to);
}

int op_move(struct meta_op *op, enum op_state to)
{
    return move(&op_sm, &op->state, (int)to);
}

bool content_quarantine(struct meta_inode *rec)
{
    return rec->content != CONTENT_CLEAN && content_move(rec, CONTENT_QUARANTINED) == 0;
}

int states_publish_gate(uint32_t content, bool snapshot)
{
    if (content == CONTENT_QUARANTINED)
        return -EUCLEAN;
    return content == CONTENT_SEALED || snapshot ? 0 : -EAGAIN;
}

bool states_drop_gate(const struct meta_inode *rec)
{
    if (rec->content == CONTENT_CLEAN)
        return true;
    log_err("states",
            "bug: the only copy of a version was to be dropped, it is kept ino=%" G_GUINT64_FORMAT
            " vid=%" G_GUINT64_FORMAT " state=%s",
            rec->ino, rec->vid, content_state_name(rec->content));
    metric_inc(M_refused_moves);
    return false;
}
