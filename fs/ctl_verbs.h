/*
 * The verbs of the control socket (ctl_proto.h): the table for ctl_start(), and what the files that hold them share.
 * Each verb runs in its client's thread with no lock held.
 */
#pragma once
#include "ctl.h"
#include "fs.h"
#include "tree.h"

/* Ends with a NULL name. */
extern const struct ctl_verb ctl_verbs[];

/* ---- ctl_verbs.c ---- */

/* "paths" of a request, slashes at the ends and "." components removed ("" = root): NULL-terminated, or NULL after ctl_fail(). */
char **verb_paths(struct ctl_client *client, const json_t *req);
/* Unsigned member or 0. */
uint64_t verb_number(const json_t *req, const char *name);
/* What an error of a path means to the user. */
const char *verb_err_text(int err);
/* Sends {"event":"error"}. */
int verb_error(struct ctl_client *client, const char *path, int err);
/* A path of a request, slashes at the ends and "." components removed; NULL where it makes no sense. Owned by the caller. */
char *verb_clean_path(const char *path);
/* Waits until everything below path ("": all) is published, with progress lines: the exit code, after ctl_fail() where it is not 0. deadline: monotonic ns, 0 none. */
int verb_wait_below(struct fs *fs, struct ctl_client *client, const char *path, uint64_t deadline_ns);
/* While directories are listed for a request: progress lines, and the end once nobody listens. */
struct verb_listing {
    struct ctl_client *client;
    uint64_t n_listed, next_ns;
};
tree_tick_fn verb_listing_tick; /* ctx: a struct verb_listing, zeroed but for the client */
/* A JSON string of any bytes: what is not UTF-8 is shown as U+FFFD. */
json_t *verb_string(const char *text);

/* ---- ctl_sync.c ---- */

ctl_fn verb_sync, verb_sync_status;
/* For `status`: the syncs that run, when everything was synced last, which directories could not be listed. */
void sync_add_status(struct fs *fs, json_t *o);

/* ---- ctl_ckpt.c, ctl_conflicts.c, ctl_status.c, ctl_info.c, ctl_jobs.c, ctl_links.c, ctl_rmdir.c, ctl_warm.c ---- */

ctl_fn verb_status, verb_info, verb_warmup, verb_warmup_status, verb_warmup_stop, verb_evict, verb_pin, verb_unpin,
    verb_publish, verb_conflicts, verb_checkpoints, verb_link, verb_rmdir;
/* ctl_status.c: brings the gauges of metrics.def up to date; from memory and database, never from the store. */
void fs_refresh_gauges(struct fs *fs);
