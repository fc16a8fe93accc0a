/*
 * The command's side of the control socket (messages: fs/ctl_proto.h).
 *
 *   struct mount_point mp;
 *   if (!mount_find(path, &mp)) return EXIT_FAILED;      // complains itself
 *   int code = ctl_request(&mp, json_pack(...), 30, on_line, &state);
 *
 * Single-threaded. Nothing here touches the mounted tree itself (mount_is_dead() lets a child do it), so a hung or dead daemon never hangs the command.
 */
#pragma once
#include <glib.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct mount_point {
    char *path;     /* owned, canonical */
    char *source;   /* owned, as the mount table shows it */
    char *relative; /* owned, path below the mount point without leading '/', "" = root */
    uid_t uid;      /* who mounted */
};
void mount_point_clear(struct mount_point *mp);

/* Absolute, "." and ".." removed, symlinks followed only where that does not enter a sluice mount. Owned by the caller. */
char *path_canonical(const char *path);
/* The sluice mount a path lies in; false if there is none. */
bool mount_holds(const char *path, struct mount_point *ret_mp);
/* The same; complains and returns false if there is none. */
bool mount_find(const char *path, struct mount_point *ret_mp);
/* Is exactly this canonical path a sluice mount? */
bool mount_exists(const char *canonical);
/* Is there no daemon behind this mount any more? The kernel knows; a child asks it, for at most 5 s. False when in doubt. */
bool mount_is_dead(const char *canonical);
/* Takes such a mount away, which loses nothing. -errno. */
int mount_clear_dead(const char *canonical);
/* All sluice mounts, struct mount_point *, without those of which a bind mount shows a part. */
GPtrArray *mount_list(void);

/* Called for each line but the last; line is borrowed. A line {"event":"again"} of the command's own: the worker was replaced, the next one begins anew, and errors are
 * told once more. */
typedef void ctl_line_fn(void *ctx, const json_t *line);

/* Sends req (stolen), hands the lines to fn (may be NULL), returns the exit code of the last one after complaining of its message.
 * quiet_s: longest silence before the daemon counts as hung. Complains and returns EXIT_FAILED if there is no daemon. When the worker ends before it has answered, killed or for an
 * upgrade, the next one is asked, if the request may be asked twice (the table in ctl_again.c), within its "timeout_s". */
int ctl_request(const struct mount_point *mp, json_t *req, unsigned quiet_s, ctl_line_fn *fn, void *ctx);
/* The same; behind the request go the paths of `list` (NULL: none), which has a NUL after each and is read from its start. */
int ctl_request_list(const struct mount_point *mp, json_t *req, FILE *list, unsigned quiet_s, ctl_line_fn *fn,
                     void *ctx);
/* Sends req for all paths in as many requests as the line limit asks for. req (stolen) lacks "paths". A path that cannot be asked for (in no mount, in another one
 * than those before it, not UTF-8) is named and left out. The worst exit code. */
int ctl_request_paths(char **paths, json_t *req, unsigned quiet_s, ctl_line_fn *fn, void *ctx);
/* Makes text, and a list with the one path that was given as word, part of a request. False, after a complaint, where they are not UTF-8, as JSON has to be. */
bool ctl_put_text(json_t *o, const char *name, const char *text, const char *what);
bool ctl_put_path(json_t *req, const char *path, const char *word);
/* Worst of two exit codes: a failure beats wrong usage, that beats running out of time. */
int exit_worse(int a, int b);
/* Process id of the daemon (0: in a namespace that we do not see), or why no connection to it can be made, -errno. */
pid_t ctl_daemon_pid(const struct mount_point *mp);
/* " (WHY)" of a dead mount whose supervisor gave up, else "". Owned by the caller. */
char *ctl_why_dead(const struct mount_point *mp);
/* Complains that there is no connection. */
void ctl_complain_no_daemon(const struct mount_point *mp, int err);

/* Prints a line of the daemon as JSON / the message of an "error" line on standard error. */
void print_json(const json_t *line);
bool print_if_error(const json_t *line);
