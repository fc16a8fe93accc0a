/* How the store of a cache folder was reached by the last mount (DIR/store): for tools that have only the folder, and perhaps no database. No credentials. */
#pragma once
#include "objstore.h"

/* Written when it is not what stands there. */
int store_options_save(const char *cache_dir, const struct objstore_config *c) MUST_CHECK;
/* Fills the strings and flags of *ret, which refer to *ret_owner (free with store_options_free()). -ENOENT: no mount stored any. */
struct store_options;
int store_options_load(const char *cache_dir, struct objstore_config *ret, struct store_options **ret_owner) MUST_CHECK;
void store_options_free(struct store_options *o);

/* What a folder is bound to, and its database: the store's identity, and with --escape that its names are made so (the same name means another object without). Owned by the caller. */
char *store_binding(const char *identity, bool escape);
/* Back. */
char *store_binding_identity(const char *binding, bool *ret_escape);
