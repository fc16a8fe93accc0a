/*
 * The daemon's side of the control socket (messages: ctl_proto.h).
 *
 * ctl_listen() makes the socket, whose descriptor may be handed from process to process; ctl_start() serves each client in a thread of its own. At most CTL_MAX_CLIENTS are served at a time, and
 * at most CTL_MAX_WAITING verbs that wait for something run, so that who asks how things are, or unmounts, gets in; the others are told to try again. What a verb does is a function of a table
 * the caller gives. A verb runs as long as it likes, emits lines, and returns the exit code; this module
 * writes the last line. ctl_gone() tells a long-running verb that nobody listens any more or that the daemon stops.
 *
 *   static int verb_status(struct fs *fs, struct ctl_client *client, const json_t *req)
 *   {
 *       return ctl_emit(client, json_pack("{s:s,s:i}", "event", "status", "pid", getpid())) < 0 ? 1 : 0;
 *   }
 */
#pragma once
#include "base/err.h"

#include <glib.h>
#include <jansson.h>
#include <stdbool.h>

#define CTL_MAX_CLIENTS 256
#define CTL_MAX_WAITING 224
#define CTL_AGAIN       (-1)

struct ctl;
struct ctl_client;
struct fs;

/* Returns the command's exit code: 0 done, 1 failed, 3 time ran out; or CTL_AGAIN: the daemon stops, and the client, which is told so, may ask the next one. Runs in the client's thread, no lock held. req is borrowed. */
typedef int ctl_fn(struct fs *fs, struct ctl_client *client, const json_t *req);

struct ctl_verb { /* a table of these ends with a NULL name */
    const char *name;
    ctl_fn *fn;
    bool waits; /* counts against CTL_MAX_WAITING */
};

/* Descriptor of the socket of a mount point (canonical and absolute). -EBUSY: another daemon answers there. */
int ctl_listen(const char *mountpoint, int *ret_fd) MUST_CHECK;
/* Removes the socket. Its descriptor must still be open: once nobody answers, the next daemon puts its own socket there. */
void ctl_unlisten(const char *mountpoint);
/* Takes over listen_fd, also on failure. verbs is borrowed until ctl_stop(). */
int ctl_start(struct fs *fs, int listen_fd, const struct ctl_verb *verbs, struct ctl **ret) MUST_CHECK;
/* Stops serving, makes ctl_gone() true, waits until every verb has returned. NULL allowed. Not to be called from a verb. */
void ctl_stop(struct ctl *ctl);

/* The next line that the client sends behind its request, without its newline, at most CTL_MAX_LINE bytes. -ETIMEDOUT: none came for 10 s, -ECONNRESET: the client left,
 * -EMSGSIZE: longer. */
int ctl_read(struct ctl_client *client, GString *ret_line) MUST_CHECK;
/* Sends one line; line is stolen, also on failure. -EPIPE when the client left or does not read for 30 s. */
int ctl_emit(struct ctl_client *client, json_t *line);
/* Message for the last line, when the verb returns another code than 0. */
void ctl_fail(struct ctl_client *client, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The client left, or the daemon stops. */
bool ctl_gone(struct ctl_client *client);
/* The latter: ctl_stop() was called. */
bool ctl_is_stopping(struct ctl_client *client);
