#include "tests/support/tls_fixture.h"

#include <arpa/inet.h>
#include <check.h>
#include <glib/gstdio.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DAY_S 86400
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        int ok_ = (call);                                                                                              \
        ck_assert_msg(ok_ >= 0, #call ": %s", gnutls_strerror(ok_));                                                   \
    } while (0)

static _Atomic int64_t later_s;

static time_t later(time_t *ret)
{
    time_t now = time(NULL) + (time_t)atomic_load(&later_s);
    if (ret)
        *ret = now;
    return now;
}

void tls_time_advance(gint64 seconds)
{
    gnutls_global_set_time_function(later);
    atomic_fetch_add(&later_s, seconds);
}

struct pair pair_make(const struct pair_wish *w)
{
    static unsigned char serial[4];
    struct pair p;
    time_t now = time(NULL);
    OK(gnutls_x509_privkey_init(&p.key));
    OK(gnutls_x509_privkey_generate(p.key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
    OK(gnutls_x509_crt_init(&p.cert));
    OK(gnutls_x509_crt_set_version(p.cert, 3));
    serial[3]++;
    OK(gnutls_x509_crt_set_serial(p.cert, serial, sizeof(serial)));
    OK(gnutls_x509_crt_set_dn_by_oid(p.cert, GNUTLS_OID_X520_COMMON_NAME, 0, w->name, (unsigned)strlen(w->name)));
    OK(gnutls_x509_crt_set_key(p.cert, p.key));
    OK(gnutls_x509_crt_set_activation_time(p.cert, now + w->from_s));
    OK(gnutls_x509_crt_set_expiration_time(p.cert, now + (w->to_s ? w->to_s : DAY_S)));
    OK(gnutls_x509_crt_set_basic_constraints(p.cert, w->is_ca != 0, -1));
    if (w->purpose)
        OK(gnutls_x509_crt_set_key_purpose_oid(p.cert, w->purpose, 0));
    const struct pair *by = w->issuer ? w->issuer : &p;
    OK(gnutls_x509_crt_sign2(p.cert, by->cert, by->key, GNUTLS_DIG_SHA256, 0));
    return p;
}

void pair_free(struct pair *p)
{
    gnutls_x509_crt_deinit(p->cert);
    gnutls_x509_privkey_deinit(p->key);
}

static void write_datum(const char *path, gnutls_datum_t *pem)
{
    ck_assert(g_file_set_contents(path, (const char *)pem->data, (gssize)pem->size, NULL));
    ck_assert_int_eq(g_chmod(path, 0600), 0);
    gnutls_free(pem->data);
}

void pair_write(const struct pair *p, const char *cert_path, const char *key_path)
{
    gnutls_datum_t pem;
    if (cert_path) {
        OK(gnutls_x509_crt_export2(p->cert, GNUTLS_X509_FMT_PEM, &pem));
        write_datum(cert_path, &pem);
    }
    if (key_path) {
        OK(gnutls_x509_privkey_export2(p->key, GNUTLS_X509_FMT_PEM, &pem));
        write_datum(key_path, &pem);
    }
}

int client_connect(unsigned port)
{
    struct sockaddr_in addr = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    return fd;
}

void client_open(struct client *c, unsigned port, const struct pair *own, const char *priorities)
{
    *c = (struct client){.fd = client_connect(port)};
    OK(gnutls_init(&c->session, GNUTLS_CLIENT | GNUTLS_FORCE_CLIENT_CERT));
    OK(gnutls_certificate_allocate_credentials(&c->cred));
    if (own) {
        gnutls_x509_crt_t chain[1] = {own->cert};
        OK(gnutls_certificate_set_x509_key(c->cred, chain, 1, own->key));
    }
    OK(gnutls_credentials_set(c->session, GNUTLS_CRD_CERTIFICATE, c->cred));
    OK(gnutls_priority_set_direct(c->session, priorities ? priorities : "NORMAL", NULL));
    gnutls_transport_set_int(c->session, c->fd);
    do
        c->handshake = gnutls_handshake(c->session);
    while (c->handshake == GNUTLS_E_AGAIN || c->handshake == GNUTLS_E_INTERRUPTED);
}

void client_close(struct client *c)
{
    gnutls_deinit(c->session);
    gnutls_certificate_free_credentials(c->cred);
    close(c->fd);
}

/* Head and body are there. */
static bool is_whole(const GString *s)
{
    const char *end = strstr(s->str, "\r\n\r\n"), *length = strstr(s->str, "Content-Length: ");
    return end && length && s->len >= (size_t)(end + 4 - s->str) + (size_t)atol(length + strlen("Content-Length: "));
}

char *client_ask(struct client *c, const char *request, size_t len)
{
    GString *s = g_string_new(NULL);
    char buf[4096];
    ck_assert_int_eq(c->handshake, 0);
    for (size_t sent = 0; sent < len;) {
        ssize_t n = gnutls_record_send(c->session, request + sent, len - sent);
        if (n < 0 && n != GNUTLS_E_AGAIN && n != GNUTLS_E_INTERRUPTED)
            break; /* the answer says why */
        sent += n > 0 ? (size_t)n : 0;
    }
    while (!is_whole(s)) {
        ssize_t n = gnutls_record_recv(c->session, buf, sizeof buf);
        if (n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED)
            continue;
        if (n <= 0)
            break;
        g_string_append_len(s, buf, n);
    }
    return g_string_free(s, FALSE);
}

char *client_saw(struct client *c)
{
    unsigned n = 0;
    char name[64];
    size_t size = sizeof(name);
    gnutls_x509_crt_t cert;
    const gnutls_datum_t *raw = gnutls_certificate_get_peers(c->session, &n);
    ck_assert_ptr_nonnull(raw);
    OK(gnutls_x509_crt_init(&cert));
    OK(gnutls_x509_crt_import(cert, raw, GNUTLS_X509_FMT_DER));
    OK(gnutls_x509_crt_get_dn_by_oid(cert, GNUTLS_OID_X520_COMMON_NAME, 0, 0, name, &size));
    gnutls_x509_crt_deinit(cert);
    return g_strndup(name, size);
}
