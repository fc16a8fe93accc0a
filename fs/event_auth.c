#include "event_auth.h"

#include "base/log.h"
#include "user_file.h"

#include <glib.h>
#include <string.h>

#define FILE_MAX_BYTES 4096u
#define SECRET_MIN     16u /* characters: what is shorter can be tried out */
#define SECRETS_MAX    16u
#define DIGEST_BYTES   32u

struct event_auth {
    char *path;
    /* owned by the thread that checks */
    GPtrArray *digests; /* of DIGEST_BYTES each */
    struct stat stamp;  /* of the file that was read; zeroes: it was unfit */
    char *trouble;      /* why, as it was said; NULL: it was not */
};

static uint8_t *digest_of(const char *secret, size_t len)
{
    uint8_t *out = g_malloc0(DIGEST_BYTES);
    gsize n = DIGEST_BYTES;
    GChecksum *sum = g_checksum_new(G_CHECKSUM_SHA256);
    g_checksum_update(sum, (const guchar *)secret, (gssize)len);
    g_checksum_get_digest(sum, out, &n);
    g_checksum_free(sum);
    return out;
}

static int add_secret(GPtrArray *digests, const struct user_file *file, const char *line, char **ret_msg)
{
    size_t len = strlen(line);
    for (size_t i = 0; i < len; i++)
        if (!g_ascii_isgraph(line[i]))
            return user_file_refuse(file, "a secret is one line of printable ASCII without spaces", ret_msg);
    if (len < SECRET_MIN)
        return user_file_refuse(file, "a secret has at least 16 characters (`openssl rand -hex 32` makes one)",
                                ret_msg);
    if (digests->len >= SECRETS_MAX)
        return user_file_refuse(file, "at most 16 secrets", ret_msg);
    g_ptr_array_add(digests, digest_of(line, len));
    return 0;
}

/* Each line's bytes are overwritten. */
static int add_secrets(GPtrArray *digests, const struct user_file *file, char *text, char **ret_msg)
{
    int r = 0;
    for (char *line = text, *next = text; r == 0 && next; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (*g_strchomp(line))
            r = add_secret(digests, file, line, ret_msg);
    }
    return r == 0 && digests->len == 0 ? user_file_refuse(file, "there is no secret in it", ret_msg) : r;
}

static int read_secrets(const char *path, GPtrArray *digests, char **ret_msg)
{
    const struct user_file file = {
        .option = "events-secret-file", .path = path, .bytes_max = FILE_MAX_BYTES, .secret = true};
    char *text = NULL;
    size_t len = 0;
    int r = user_file_read(&file, &text, &len, ret_msg);
    if (r == 0)
        r = memchr(text, '\0', len) ? user_file_refuse(&file, "not a file of secrets, one a line", ret_msg)
                                    : add_secrets(digests, &file, text, ret_msg);
    user_file_free(text, len);
    return r;
}

int event_auth_open(const char *path, struct event_auth **ret, char **ret_msg)
{
    struct event_auth *auth = g_new0(struct event_auth, 1);
    auth->path = g_strdup(path);
    auth->digests = g_ptr_array_new_with_free_func(g_free);
    user_file_stamp(path, &auth->stamp);
    int r = read_secrets(path, auth->digests, ret_msg);
    if (r < 0)
        event_auth_close(auth);
    else
        *ret = auth;
    return r;
}

void event_auth_close(struct event_auth *auth)
{
    if (!auth)
        return;
    g_ptr_array_unref(auth->digests);
    g_free(auth->path);
    g_free(auth->trouble);
    g_free(auth);
}

/* A file that is gone or unfit leaves the secrets as they were: it may be on its way. */
static void follow_file(struct event_auth *auth)
{
    struct stat now;
    user_file_stamp(auth->path, &now);
    if (now.st_ino == 0 || user_file_same(&now, &auth->stamp))
        return;
    g_autofree char *msg = NULL;
    GPtrArray *digests = g_ptr_array_new_with_free_func(g_free);
    int r = read_secrets(auth->path, digests, &msg);
    if (r < 0) { /* what kept us from reading it need not be in it: it is read again, and said once */
        if (g_strcmp0(msg, auth->trouble) != 0)
            log_warn("events", "the secrets of before still count: %s", msg);
        g_free(auth->trouble);
        auth->trouble = g_steal_pointer(&msg);
        auth->stamp = (struct stat){0};
        g_ptr_array_unref(digests);
        return;
    }
    auth->stamp = now;
    g_clear_pointer(&auth->trouble, g_free);
    g_ptr_array_unref(auth->digests);
    auth->digests = digests;
    log_notice("events", "secrets were read again from '%s'", auth->path);
}

/* Takes as long whatever is given. */
static bool is_secret(const struct event_auth *auth, const char *given, size_t len)
{
    g_autofree uint8_t *have = digest_of(given, len);
    unsigned found = 0;
    for (unsigned i = 0; i < auth->digests->len; i++) {
        const uint8_t *want = auth->digests->pdata[i];
        unsigned differs = 0;
        for (unsigned k = 0; k < DIGEST_BYTES; k++)
            differs |= have[k] ^ want[k];
        found |= differs == 0;
    }
    return found;
}

static bool header_fits(const struct event_auth *auth, const char *header)
{
    if (g_ascii_strncasecmp(header, "Bearer ", 7) == 0)
        return is_secret(auth, header + 7, strlen(header + 7));
    if (g_ascii_strncasecmp(header, "Basic ", 6) != 0)
        return false;
    gsize len = 0;
    g_autofree guchar *pair = g_base64_decode(header + 6, &len);
    const guchar *colon = memchr(pair, ':', len);
    return colon && is_secret(auth, (const char *)colon + 1, len - (size_t)(colon + 1 - pair));
}

enum event_admission event_auth_check(struct event_auth *auth, const char *authorization, const char *token)
{
    follow_file(auth);
    if (!authorization && !token)
        return EVENT_UNNAMED;
    bool fits = (token && is_secret(auth, token, strlen(token))) || (authorization && header_fits(auth, authorization));
    return fits ? EVENT_ADMITTED : EVENT_REFUSED;
}
