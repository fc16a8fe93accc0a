/*
 * Options of a bucket link: read from a JSON object {"endpoint-url": "https://...", "read-only": "true", ...}, the same as it comes from the
 * command, is kept in the database and is shown. Values are strings as a person types them; flags are "true" or "false". Pure.
 */
#pragma once
#include "base/err.h"
#include "config.h"

#include <jansson.h>

enum link_sync { LINK_SYNC_LAZY, LINK_SYNC_FULL, LINK_SYNC_SCHEDULE };

struct link_options { /* strings are owned, NULL: not given */
    char *endpoint_url, *region, *profile, *ca_bundle;
    bool no_sign_request, force_path_style, allow_plain_http;
    bool read_only, immutable;
    uint64_t metadata_ttl_ns; /* UINT64_MAX: that of the mount */
    int conflict;             /* enum conflict_mode, -1: that of the mount */
    enum link_sync sync;
    uint64_t sync_every_ns; /* LINK_SYNC_SCHEDULE */
    char **include, **exclude;
    uint64_t upload_limit, download_limit; /* bytes a second, 0 none */
};

/* *ret_msg names option, value and what is allowed on -EINVAL. */
int link_options_parse(const json_t *o, struct link_options *ret, char **ret_msg) MUST_CHECK;
void link_options_clear(struct link_options *o);
/* One option of `link add`; false past the last. Static storage. arg NULL: a flag. */
bool link_option_at(unsigned index, const char **ret_name, const char **ret_arg);
/* Would the change of this option need another store to be opened? */
bool link_option_is_of_store(const char *name);
/* Is a key shown? path is that below the link, of a directory without its '/'. A pattern without '/' is for the last component, one that ends in
 * "/" + "**" for a directory and all below; '*' also stands for '/'. Directories need no --include. */
bool link_options_show(const struct link_options *o, const char *path, bool is_dir);
