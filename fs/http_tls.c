/* The only user of GnuTLS. What was read from the files at one time is a set, which lives as long as a session needs it. */
#include "http_tls.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/sync.h"
#include "user_file.h"

#include <glib.h>
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <string.h>

#define FILE_MAX_BYTES (1u << 20)
#define CHAIN_MAX      16u /* certificates that a client shows */
#define LOOK_NS        NS_PER_S

enum which { CERT, KEY, CLIENT_CA, N_FILES };

struct http_tls_set {
    unsigned refs; /* the web server's thread */
    gnutls_certificate_credentials_t cred;
};

struct http_tls {
    /* immutable after open */
    struct user_file files[N_FILES]; /* their paths are owned; NULL: none */

    /* owned by the web server's thread */
    struct http_tls_set *now;    /* NULL: the files never fitted */
    struct stat stamps[N_FILES]; /* of those that were read; zeroes: they did not fit */
    uint64_t looked_ns;

    struct mutex mu; /* HTTP_TLS */
    /* guarded by mu */
    char *trouble; /* owned; NULL: none */
};

/* ---- one set ---- */

static void set_unref(struct http_tls_set *set)
{
    if (!set || --set->refs > 0)
        return;
    gnutls_certificate_free_credentials(set->cred);
    g_free(set);
}

static int unfit(const struct user_file *file, int code, const char *wanted, char **ret_msg)
{
    g_autofree char *what = g_strdup(gnutls_strerror(code));
    if (g_str_has_suffix(what, "."))
        what[strlen(what) - 1] = '\0';
    g_autofree char *why = g_strdup_printf("%s; give %s", what, wanted);
    return user_file_refuse(file, why, ret_msg);
}

static int import_chain(const struct user_file *file, const gnutls_datum_t *pem, gnutls_x509_crt_t **ret_chain,
                        unsigned *ret_n, char **ret_msg)
{
    int code = gnutls_x509_crt_list_import2(ret_chain, ret_n, pem, GNUTLS_X509_FMT_PEM, GNUTLS_X509_CRT_LIST_SORT);
    if (code < 0)
        return unfit(file, code, file->wanted, ret_msg);
    if (gnutls_x509_crt_get_expiration_time((*ret_chain)[0]) < clock_wall_ns() / (int64_t)NS_PER_S)
        log_warn("http", "the certificate in '%s' has expired: clients will not accept it", file->path);
    return 0;
}

static void free_chain(gnutls_x509_crt_t *chain, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        gnutls_x509_crt_deinit(chain[i]);
    gnutls_free(chain);
}

static int use_pair(const struct http_tls *tls, gnutls_certificate_credentials_t cred, const gnutls_datum_t *pem,
                    char **ret_msg)
{
    gnutls_x509_crt_t *chain = NULL;
    gnutls_x509_privkey_t key;
    unsigned n = 0;
    int r = import_chain(&tls->files[CERT], &pem[CERT], &chain, &n, ret_msg);
    if (r < 0)
        return r;
    int code = gnutls_x509_privkey_init(&key);
    if (code == 0) {
        code = gnutls_x509_privkey_import2(key, &pem[KEY], GNUTLS_X509_FMT_PEM, NULL, 0);
        if (code < 0)
            r = unfit(&tls->files[KEY], code, tls->files[KEY].wanted, ret_msg);
        else
            code = gnutls_certificate_set_x509_key(cred, chain, (int)n, key);
        gnutls_x509_privkey_deinit(key);
    }
    free_chain(chain, n);
    if (code >= 0 || r < 0)
        return r;
    g_autofree char *next = g_strdup_printf("the key of the certificate in '%s'", tls->files[CERT].path);
    return unfit(&tls->files[KEY], code, next, ret_msg);
}

static int use_client_ca(const struct user_file *file, gnutls_certificate_credentials_t cred, const gnutls_datum_t *pem,
                         char **ret_msg)
{
    int n = gnutls_certificate_set_x509_trust_mem(cred, pem, GNUTLS_X509_FMT_PEM);
    return n > 0 ? 0 : unfit(file, n < 0 ? n : GNUTLS_E_NO_CERTIFICATE_FOUND, file->wanted, ret_msg);
}

static int read_files(const struct http_tls *tls, gnutls_datum_t pem[N_FILES], char **ret_msg)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < N_FILES; i++) {
        char *text = NULL;
        size_t len = 0;
        if (!tls->files[i].path)
            continue;
        r = user_file_read(&tls->files[i], &text, &len, ret_msg);
        pem[i] = (gnutls_datum_t){(unsigned char *)text, (unsigned)len};
    }
    return r;
}

static int set_new(const struct http_tls *tls, struct http_tls_set **ret, char **ret_msg)
{
    gnutls_datum_t pem[N_FILES] = {{NULL, 0}};
    struct http_tls_set *set = g_new0(struct http_tls_set, 1);
    set->refs = 1;
    if (gnutls_certificate_allocate_credentials(&set->cred) < 0)
        g_error("no memory for certificates");
    int r = read_files(tls, pem, ret_msg);
    if (r == 0)
        r = use_pair(tls, set->cred, pem, ret_msg);
    if (r == 0 && tls->files[CLIENT_CA].path)
        r = use_client_ca(&tls->files[CLIENT_CA], set->cred, &pem[CLIENT_CA], ret_msg);
    for (unsigned i = 0; i < N_FILES; i++)
        user_file_free((char *)pem[i].data, pem[i].size);
    if (r < 0)
        set_unref(set);
    else
        *ret = set;
    return r;
}

/* ---- the files change ---- */

static void note_trouble(struct http_tls *tls, const char *trouble)
{
    mutex_lock(&tls->mu);
    g_free(tls->trouble);
    tls->trouble = g_strdup(trouble);
    mutex_unlock(&tls->mu);
}

char *http_tls_trouble(struct http_tls *tls)
{
    mutex_lock(&tls->mu);
    char *trouble = g_strdup(tls->trouble);
    mutex_unlock(&tls->mu);
    return trouble;
}

static void take_stamps(const struct http_tls *tls, struct stat stamps[N_FILES])
{
    for (unsigned i = 0; i < N_FILES; i++)
        if (tls->files[i].path)
            user_file_stamp(tls->files[i].path, &stamps[i]);
}

static bool have_changed(const struct http_tls *tls, const struct stat stamps[N_FILES])
{
    bool changed = false;
    for (unsigned i = 0; i < N_FILES; i++)
        changed |= !user_file_same(&stamps[i], &tls->stamps[i]);
    return changed;
}

static void say_unfit(struct http_tls *tls, const char *msg)
{
    const char *then = tls->now ? "what was read before is still used" : "nobody is served";
    g_autofree char *trouble = g_strdup_printf("%s: %s", then, msg);
    g_autofree char *before = http_tls_trouble(tls);
    if (g_strcmp0(trouble, before) != 0) /* it is found anew at each look */
        log_warn("http", "%s", trouble);
    note_trouble(tls, trouble);
    memset(tls->stamps, 0, sizeof(tls->stamps)); /* what kept us from reading them need not have been in them */
}

static void follow_files(struct http_tls *tls)
{
    struct stat stamps[N_FILES] = {{0}};
    struct http_tls_set *set = NULL;
    g_autofree char *msg = NULL;
    uint64_t now = clock_mono_ns();
    if (now - tls->looked_ns < LOOK_NS)
        return;
    tls->looked_ns = now;
    take_stamps(tls, stamps);
    if (!have_changed(tls, stamps))
        return;
    if (set_new(tls, &set, &msg) < 0) {
        say_unfit(tls, msg);
        return;
    }
    memcpy(tls->stamps, stamps, sizeof(stamps));
    set_unref(tls->now);
    tls->now = set;
    note_trouble(tls, NULL);
    log_notice("http", "certificates were read again from '%s'", tls->files[CERT].path);
}

/* ---- sessions: what they take of a set they use while bytes go, not when they are freed ---- */

static int no_certificate(gnutls_session_t session, const gnutls_datum_t *names, int n_names,
                          const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **ret_cert,
                          unsigned *ret_n, gnutls_privkey_t *ret_key)
{
    return -1;
}

const http_tls_fn http_tls_no_certificate = (http_tls_fn)no_certificate;

struct http_tls_set *http_tls_begin(struct http_tls *tls, void *session)
{
    follow_files(tls);
    if (!tls->now || !session || gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, tls->now->cred) < 0)
        return NULL;
    if (tls->files[CLIENT_CA].path) /* who may go without one is known by the request only */
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUEST);
    tls->now->refs++;
    return tls->now;
}

void http_tls_end(struct http_tls_set *set)
{
    set_unref(set);
}

static enum http_tls_peer refused(char *why, char **ret_why)
{
    *ret_why = why;
    return HTTP_TLS_REFUSED;
}

static char *status_text(unsigned status)
{
    gnutls_datum_t text = {NULL, 0};
    if (gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &text, 0) < 0)
        return g_strdup("it is not valid");
    char *copy = g_strchomp(g_strndup((const char *)text.data, text.size));
    gnutls_free(text.data);
    return copy;
}

static enum http_tls_peer check_chain(const struct http_tls *tls, gnutls_x509_crt_t *chain, unsigned n, char **ret_why)
{
    gnutls_typed_vdata_st purpose = {GNUTLS_DT_KEY_PURPOSE_OID, (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT,
                                     0};
    gnutls_x509_trust_list_t trust;
    unsigned status = 0;
    gnutls_certificate_get_trust_list(tls->now->cred, &trust);
    int code = gnutls_x509_trust_list_verify_crt2(trust, chain, n, &purpose, 1, 0, &status, NULL);
    if (code < 0)
        return refused(g_strdup(gnutls_strerror(code)), ret_why);
    return status == 0 ? HTTP_TLS_ADMITTED : refused(status_text(status), ret_why);
}

/* *ret_n: how many of them are there, also on failure. */
static int import_shown(const gnutls_datum_t *raw, unsigned n, gnutls_x509_crt_t *chain, unsigned *ret_n)
{
    for (*ret_n = 0; *ret_n < n;) {
        int code = gnutls_x509_crt_init(&chain[*ret_n]);
        if (code < 0)
            return code;
        code = gnutls_x509_crt_import(chain[*ret_n], &raw[*ret_n], GNUTLS_X509_FMT_DER);
        ++*ret_n;
        if (code < 0)
            return code;
    }
    return 0;
}

enum http_tls_peer http_tls_check_peer(struct http_tls *tls, void *session, char **ret_why)
{
    gnutls_x509_crt_t chain[CHAIN_MAX];
    unsigned n_raw = 0, n;
    if (!tls->files[CLIENT_CA].path)
        return HTTP_TLS_ADMITTED;
    follow_files(tls);
    const gnutls_datum_t *raw = session ? gnutls_certificate_get_peers(session, &n_raw) : NULL;
    if (!raw || n_raw == 0 || !tls->now)
        return HTTP_TLS_UNNAMED;
    if (n_raw > CHAIN_MAX)
        return refused(g_strdup("too many others came with it"), ret_why);
    int code = import_shown(raw, n_raw, chain, &n);
    enum http_tls_peer peer =
        code < 0 ? refused(g_strdup(gnutls_strerror(code)), ret_why) : check_chain(tls, chain, n, ret_why);
    for (unsigned i = 0; i < n; i++)
        gnutls_x509_crt_deinit(chain[i]);
    return peer;
}

/* ---- life ---- */

int http_tls_open(const struct http_tls_files *files, bool later, struct http_tls **ret, char **ret_msg)
{
    struct http_tls *tls = g_new0(struct http_tls, 1);
    tls->files[CERT] = (struct user_file){.option = "http-cert",
                                          .path = g_strdup(files->cert),
                                          .bytes_max = FILE_MAX_BYTES,
                                          .wanted = "a PEM file: the server's certificate, then those up to its CA"};
    tls->files[KEY] =
        (struct user_file){.option = "http-key",
                           .path = g_strdup(files->key),
                           .bytes_max = FILE_MAX_BYTES,
                           .secret = true,
                           .wanted = "a PEM file: a private key without a password (`openssl pkey -in OLD -out NEW`)"};
    tls->files[CLIENT_CA] =
        (struct user_file){.option = "http-client-ca",
                           .path = g_strdup(files->client_ca),
                           .bytes_max = FILE_MAX_BYTES,
                           .judges = true,
                           .wanted = "a PEM file: the certificates of the CAs that sign those of clients"};
    mutex_init(&tls->mu, LOCK_HTTP_TLS);
    tls->looked_ns = clock_mono_ns();
    take_stamps(tls, tls->stamps);
    g_autofree char *msg = NULL;
    int r = set_new(tls, &tls->now, &msg);
    if (r < 0 && !later) {
        *ret_msg = g_steal_pointer(&msg);
        http_tls_close(tls);
        return r;
    }
    if (r < 0)
        say_unfit(tls, msg);
    *ret = tls;
    return 0;
}

void http_tls_close(struct http_tls *tls)
{
    if (!tls)
        return;
    set_unref(tls->now);
    for (unsigned i = 0; i < N_FILES; i++)
        g_free((char *)(uintptr_t)tls->files[i].path);
    g_free(tls->trouble);
    mutex_fini(&tls->mu);
    g_free(tls);
}
