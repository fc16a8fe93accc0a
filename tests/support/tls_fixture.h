/* Certificates made on the spot, and a client of the daemon's web server that shows them. */
#pragma once
#include <glib.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

struct pair {
    gnutls_x509_crt_t cert;
    gnutls_x509_privkey_t key;
};

struct pair_wish {
    const char *name;
    const struct pair *issuer; /* NULL: signs itself */
    gboolean is_ca;
    gint64 from_s, to_s; /* from now on; to_s 0: a day */
    const char *purpose; /* an OID; NULL: any */
};

struct pair pair_make(const struct pair_wish *wish);
void pair_free(struct pair *pair);
/* As PEM files of mode 0600; NULL: not that one. */
void pair_write(const struct pair *pair, const char *cert_path, const char *key_path);

struct client {
    int fd;
    gnutls_session_t session;
    gnutls_certificate_credentials_t cred;
    int handshake; /* what came of it: 0, or an error of the library */
};

/* A connection to that port of this machine, and its handshake. own NULL: no certificate; priorities NULL: the usual ones. The server's is not checked. */
void client_open(struct client *c, unsigned port, const struct pair *own, const char *priorities);
void client_close(struct client *c);
/* Sends it all, and reads an answer with its Content-Length, or what comes until the end. */
char *client_ask(struct client *c, const char *request, size_t len);
/* The common name that the server showed. */
char *client_saw(struct client *c);
/* A TCP connection only. */
int client_connect(unsigned port);

/* From now on certificates are judged as if it were so much later (this process). */
void tls_time_advance(gint64 seconds);
