/*
 * An HTTP server inside the test: gives the scripted replies one after the other and keeps what was asked.
 *
 *   struct http_stub *stub = http_stub_new();
 *   http_stub_reply(stub, 200, "ETag: \"e\"\r\n", "body");
 *   ... requests to http_stub_url(stub) ...
 *   ck_assert(strstr(http_stub_request(stub, 0), "Range: bytes=0-3"));
 *   http_stub_free(stub);
 *
 * Beyond the script every request gets 418, or what http_stub_always() says. One thread per connection; all functions from any thread.
 */
#pragma once
#include <glib.h>

struct http_stub;

struct http_stub *http_stub_new(void);
void http_stub_free(struct http_stub *stub);
const char *http_stub_url(const struct http_stub *stub); /* "http://127.0.0.1:PORT" */

/* Queues a reply. headers: "Name: value\r\n..." or "". Content-Length is added unless headers have one; none of the body is sent to a HEAD. */
void http_stub_reply(struct http_stub *stub, int status, const char *headers, const char *body);
/* The same, after so many seconds of silence. */
void http_stub_reply_late(struct http_stub *stub, unsigned seconds, int status, const char *headers, const char *body);
/* The same, but the connection ends after n bytes of the body. */
void http_stub_reply_cut(struct http_stub *stub, int status, const char *headers, const char *body, size_t n);
/* What every request beyond the script gets; fewer bytes of the body than it has: the connection ends after them. */
void http_stub_always(struct http_stub *stub, int status, const char *headers, const char *body, size_t n);
/* Reads the request and closes the connection without a reply. */
void http_stub_drop(struct http_stub *stub);
/* Reads the request and stays silent until the stub is freed. */
void http_stub_hang(struct http_stub *stub);
/* Drops what is left of the script; requests under way keep the replies that they have. */
void http_stub_skip(struct http_stub *stub);

unsigned http_stub_n_requests(struct http_stub *stub);
/* Head of the i-th request ("GET /x HTTP/1.1\r\n..."), NULL if there was none. Valid until the stub is freed. */
const char *http_stub_request(struct http_stub *stub, unsigned i);
