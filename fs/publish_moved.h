/* The place of an op in the order when its name went another way. Under ns. */
#pragma once
#include "publish.h"

struct op;

/* The op's record tells its place and turn, so that the next start knows them. It is not inserted yet, or the publisher's lock is held. */
void moved_note_place(struct op *o);
