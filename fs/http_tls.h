/*
 * TLS of the daemon's web server: the server's certificate, and whose certificate a client has to show.
 *
 * The files are followed: at a new connection, and at a request that needs a certificate, but not more than once a second, it is looked whether one of them
 * changed, or they did not fit when they were read last, and then all are read again. What does not fit together leaves what was read before at work.
 * Only the web server's thread calls what takes a session, which is a gnutls_session_t as the server's library gives it.
 */
#pragma once
#include "base/err.h"

#include <stdbool.h>

/* What is asked of the server's library: versions 1.2 and 1.3, and no certificate for a session that http_tls_begin() did not give one. */
#define HTTP_TLS_PRIORITIES "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"
typedef void (*http_tls_fn)(void);
extern const http_tls_fn http_tls_no_certificate; /* a gnutls_certificate_retrieve_function2 */

struct http_tls;
struct http_tls_set;

struct http_tls_files { /* PEM; borrowed; all NULL: no TLS */
    const char *cert, *key;
    const char *client_ca; /* NULL: no client is asked for a certificate */
};

/* later: files that do not fit are no failure, but nobody is served before they do. On failure *ret_msg gets a line that names the file and the option. */
int http_tls_open(const struct http_tls_files *files, bool later, struct http_tls **ret, char **ret_msg) MUST_CHECK;
/* After the last session. NULL allowed. */
void http_tls_close(struct http_tls *tls);

/* Before a session's handshake; what it returns belongs to http_tls_end(). NULL: the handshake will fail. */
struct http_tls_set *http_tls_begin(struct http_tls *tls, void *session);
/* No byte goes by the session any more. NULL allowed. */
void http_tls_end(struct http_tls_set *set);

/* Who is at the other end, now: a certificate that has expired since the handshake is refused. */
enum http_tls_peer { HTTP_TLS_ADMITTED, HTTP_TLS_UNNAMED, HTTP_TLS_REFUSED }; /* unnamed: no certificate was shown */
/* Refused: *ret_why says why (owned by the caller). Where no client needs a certificate all are admitted. */
enum http_tls_peer http_tls_check_peer(struct http_tls *tls, void *session, char **ret_why);
/* Why the files, as they are now, are not used; NULL: they are. Owned by the caller; any thread. */
char *http_tls_trouble(struct http_tls *tls);
