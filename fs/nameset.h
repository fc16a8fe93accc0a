/*
 * A set of names that keeps 8 bytes of each, whatever their length: names of a directory of millions, as a listing showed them.
 *
 * It may take a name for one of the set that is not (2^-64 for each pair, by a seed that is another one each time), never the other way round: who removes what is not in it leaves
 * such a name until the next listing.
 *
 * One thread at a time.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nameset;

struct nameset *nameset_new(void);
void nameset_free(struct nameset *s); /* NULL allowed */
void nameset_clear(struct nameset *s);
/* kind: names of different kinds are different names. */
void nameset_add(struct nameset *s, const char *name, size_t len, bool kind);
bool nameset_has(const struct nameset *s, const char *name, size_t len, bool kind);
size_t nameset_size(const struct nameset *s);
