/*
 * The daemon's small web server: /metrics (Prometheus text) and /healthz ("ok") by GET and HEAD, one path more by POST if somebody takes that, nothing else.
 *
 * addr_port: "PORT" or ":PORT" listens on 127.0.0.1; "ADDR:PORT" or "[ADDR6]:PORT" on that address. Other machines are served
 * only when a numeric address that is not loopback was written out: names other than localhost, and "*", are refused.
 * With a certificate (http_tls.h) it speaks TLS and nothing else; each thing that is given is demanded.
 */
#pragma once
#include "base/err.h"
#include "fs/http_tls.h"

#include <stdbool.h>
#include <stddef.h>

enum { HTTP_OK = 200, HTTP_BAD_REQUEST = 400, HTTP_UNAUTHORIZED = 401, HTTP_FORBIDDEN = 403, HTTP_TOO_LARGE = 413 };

struct http_server;

/* Who takes what is sent by POST to a path. All run in the server's thread. */
struct http_post {
    const char *path;
    size_t body_max; /* bytes; more is refused with 413 */
    /* Before the body is read: 0 lets it in, else the status it is refused with. Of the header Authorization and of the address's token=; NULL: not given. */
    unsigned (*admit)(void *ctx, const char *authorization, const char *token);
    unsigned (*take)(void *ctx, const char *body, size_t len); /* the status of the answer */
    void (*refused)(void *ctx, unsigned status);               /* by admit, or for its length */
    void *ctx;                                                 /* borrowed until http_stop() */
};

struct http_setup { /* borrowed for the call, but for ctx: until http_stop() */
    const char *addr_port;
    /* Runs before each /metrics, in the server's thread, so that gauges are current; may be NULL. */
    void (*refresh)(void *ctx);
    void *ctx;
    struct http_tls_files tls; /* with a client CA every request but /healthz needs a certificate of it */
    bool tls_later;            /* as http_tls_open() has it */
    unsigned idle_s;           /* a connection on which so long nothing comes is closed, also in its handshake; 0: 10 */
};

/* On failure *ret_msg gets a line for the user (owned by the caller). */
int http_start(const struct http_setup *setup, struct http_server **ret, char **ret_msg) MUST_CHECK;
/* From now on; once. */
void http_take_post(struct http_server *srv, const struct http_post *post);
/* Waits until no request runs. NULL allowed. */
void http_stop(struct http_server *srv);
/* What is wrong with it that somebody should mend, NULL: nothing. Owned by the caller; any thread. */
char *http_trouble(struct http_server *srv);
/* The port in use (for ":0"). */
unsigned http_port(const struct http_server *srv);
