/*
 * The daemon's small web server: /metrics (Prometheus text) and /healthz ("ok"), GET and HEAD only, nothing else.
 *
 * addr_port: "PORT" or ":PORT" listens on 127.0.0.1; "ADDR:PORT" or "[ADDR6]:PORT" on that address. Other machines are served
 * only when a numeric address that is not loopback was written out: names other than localhost, and "*", are refused.
 */
#pragma once
#include "base/err.h"

struct http_server;

/* refresh(ctx) runs before each /metrics, in the server's thread, so that gauges are current; may be NULL. On failure *ret_msg gets a
 * line for the user (owned by the caller). */
int http_start(const char *addr_port, void (*refresh)(void *ctx), void *ctx, struct http_server **ret, char **ret_msg)
    MUST_CHECK;
/* Waits until no request runs. NULL allowed. */
void http_stop(struct http_server *srv);
/* The port in use (for ":0"). */
unsigned http_port(const struct http_server *srv);
