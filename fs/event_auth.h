/*
 * Who may send events: whoever knows one of the secrets of a file, one a line, so that senders can be given a new one before the old one is taken away. The file is read again when
 * it changed. It must be its owner's alone (ours or root's), or root's and closed to others but for a group.
 */
#pragma once
#include "base/err.h"

#include <stdbool.h>

struct event_auth;

/* On failure *ret_msg gets a line for the user (owned by the caller). */
int event_auth_open(const char *path, struct event_auth **ret, char **ret_msg) MUST_CHECK;
void event_auth_close(struct event_auth *auth); /* NULL allowed */

/* By an Authorization header ("Bearer SECRET", or "Basic" with any user and the secret as password), or by a token that came in the address; either may be NULL. One thread at a time. */
enum event_admission { EVENT_ADMITTED, EVENT_UNNAMED, EVENT_REFUSED }; /* unnamed: nothing was given */
enum event_admission event_auth_check(struct event_auth *auth, const char *authorization, const char *token);
