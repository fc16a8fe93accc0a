/* How the store of a cache folder was reached by the last mount, kept in its database: for tools that have only the folder. No credentials. */
#pragma once
#include "meta.h"
#include "objstore.h"

/* Into b, when they are not what is stored. */
void store_options_save(struct meta *m, struct meta_batch *b, const struct objstore_config *c);
/* Fills the strings and flags of *ret, which refer to *ret_owner (free with store_options_free()). -ENOENT: no mount stored any. */
struct store_options;
int store_options_load(struct meta *m, struct objstore_config *ret, struct store_options **ret_owner) MUST_CHECK;
void store_options_free(struct store_options *o);
