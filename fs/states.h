/*
 * The states of a version on its way to the store. A version's state is in two records: the content of its inode (meta.h, enum content_state) and the
 * journal record of each of its names (enum op_state). The tables of what may follow what are in states.c, and only these functions change either
 * of a record that exists.
 */
#pragma once
#include "base/sync.h"
#include "meta.h"

/* -EPROTO: the table does not allow it, nothing was changed; logged and counted (base/sm.h). */
int content_move(struct meta_inode *rec, enum content_state to) MUST_CHECK;
int op_move(struct meta_op *op, enum op_state to) MUST_CHECK;
/* "clean", "open", ...; "queued", "held", ... */
const char *content_state_name(uint32_t state);
const char *op_state_name(uint32_t state);
/* Brings content that is not the store's to QUARANTINED. False: it is CLEAN, the store has it. */
bool content_quarantine(struct meta_inode *rec);

/* The two gates. What is asked right before an upload becomes visible: 0, -EAGAIN (a writer came), -EUCLEAN (quarantined). */
int states_publish_gate(uint32_t content, bool snapshot) MUST_CHECK;
/* ... and before the only local copy is dropped, or may be from now on. False, logged and counted: it is not published and verified. */
bool states_drop_gate(const struct meta_inode *rec);
