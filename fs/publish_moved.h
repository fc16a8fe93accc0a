/* The place of an op in the order when its name went another way. Under ns. */
#pragma once
#include "publish.h"

struct op;
struct publisher;

/* The op's record tells its place and turn, so that the next start knows them. It is not inserted yet, or the publisher's lock is held. */
void moved_note_place(struct op *o);
/* Did the name come, by a rename of its own, from somewhere that is not in its directory, or from where its content was held? Then it was not there before. What a directory's rename took
 * along is made in the order of its turns (tree_rename.c). A name that has to wait for what is moved away from its key comes after that. old: the op that the name had. The publisher's lock is held. */
bool moved_came_locked(struct publisher *p, const struct op *old, const struct meta_dentry *d, const char *key);
