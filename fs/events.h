/*
 * Events of the store, taken at /events of the daemon's web server, so that changes made elsewhere are seen in milliseconds, not when the metadata TTL ends.
 *
 * A request is checked (event_auth.h), read (event_parse.h) and answered; its keys wait in a queue, each once however many events came for it, and a few threads look at them
 * (event_apply.h). What waits is in memory: at most EVENTS_MAX names. Of what does not fit only the directories are remembered, and beyond some thousand directories only the time: their
 * listings are not fresh any more, so the next look at them asks the store, and the kernel, which was told to trust names for as long, is told to look. The same becomes of a key about
 * which the store, or we, cannot say anything for ten seconds, and of all when the daemon starts anew: it does not know what came meanwhile.
 */
#pragma once
#include "fs.h"
#include "http.h"

#define EVENTS_MAX      32768u     /* names that wait */
#define EVENTS_BODY_MAX (1u << 20) /* bytes of a request */

/* Starts the threads. secret_file: see event_auth.h; NULL: the web server alone says who may send, and what was listed before is
 * doubted only where events were taken before. On failure *ret_msg gets a line for the user. */
int events_open(struct fs *fs, const char *secret_file, struct events **ret, char **ret_msg) MUST_CHECK;
/* After the web server was stopped, before fs_close(). NULL allowed. */
void events_close(struct events *ev);
/* What the web server does with what is sent to /events. */
struct http_post events_post(struct events *ev);
/* The body of a request, as http_post.take: a status of HTTP. */
unsigned events_take(void *events, const char *body, size_t len);
/* No more than so many names wait (tests). */
void events_limit(struct events *ev, unsigned names_max);
/* Waits until nothing waits (tests). False: not within the time. */
bool events_settle(struct events *ev, uint64_t wait_ns) MUST_CHECK;
