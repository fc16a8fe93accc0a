#include "event_auth.h"

#include "base/cleanup.h"
#include "base/log.h"

#include <fcntl.h>
#include <glib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX_BYTES 4096u
#define SECRET_MIN     16u /* characters: what is shorter can be tried out */
#define SECRETS_MAX    16u
#define DIGEST_BYTES   32u

struct event_auth {
    char *path;
    /* owned by the thread that checks */
    GPtrArray *digests; /* of DIGEST_BYTES each */
    struct stat stamp;
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

static int refuse(char **ret_msg, const char *path, const char *why)
{
    *ret_msg = g_strdup_printf("events-secret-file '%s': %s", path, why);
    return -EINVAL;
}

static int check_file(const char *path, const struct stat *st, char **ret_msg)
{
    bool ours = st->st_uid == geteuid() || st->st_uid == 0;
    bool group_chosen = st->st_uid == 0 || st->st_gid == 0; /* as Kubernetes mounts secrets: root's, 0440 */
    if (!S_ISREG(st->st_mode))
        return refuse(ret_msg, path, "not a regular file");
    if (!ours || (st->st_mode & (S_IRWXO | S_IWGRP)) || ((st->st_mode & S_IRGRP) && !group_chosen))
        return refuse(ret_msg, path, "others can read or change it: chmod 600, and make it yours or root's");
    return 0;
}

static int add_secret(GPtrArray *digests, const char *path, const char *line, char **ret_msg)
{
    size_t len = strlen(line);
    for (size_t i = 0; i < len; i++)
        if (!g_ascii_isgraph(line[i]))
            return refuse(ret_msg, path, "a secret is one line of printable ASCII without spaces");
    if (len < SECRET_MIN)
        return refuse(ret_msg, path, "a secret has at least 16 characters (`openssl rand -hex 32` makes one)");
    if (digests->len >= SECRETS_MAX)
        return refuse(ret_msg, path, "at most 16 secrets");
    g_ptr_array_add(digests, digest_of(line, len));
    return 0;
}

static int read_secrets(const char *path, struct stat *ret_stamp, GPtrArray *digests, char **ret_msg)
{
    char text[FILE_MAX_BYTES + 1];
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (fd < 0 || fstat(fd, ret_stamp) < 0)
        return refuse(ret_msg, path, err_text(fd < 0 ? fd : -errno));
    int r = check_file(path, ret_stamp, ret_msg);
    if (r < 0)
        return r;
    ssize_t n = read(fd, text, sizeof(text));
    if (n < 0 || n > (ssize_t)FILE_MAX_BYTES || memchr(text, '\0', (size_t)n))
        return refuse(ret_msg, path, n < 0 ? err_text(-errno) : "not a file of secrets, one a line");
    text[n] = '\0';
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (unsigned i = 0; r == 0 && lines[i]; i++)
        if (*g_strchomp(lines[i]))
            r = add_secret(digests, path, lines[i], ret_msg);
    if (r == 0 && digests->len == 0)
        r = refuse(ret_msg, path, "there is no secret in it");
    explicit_bzero(text, sizeof(text));
    return r;
}

int event_auth_open(const char *path, struct event_auth **ret, char **ret_msg)
{
    struct event_auth *auth = g_new0(struct event_auth, 1);
    auth->path = g_strdup(path);
    auth->digests = g_ptr_array_new_with_free_func(g_free);
    int r = read_secrets(path, &auth->stamp, auth->digests, ret_msg);
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
    g_free(auth);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_mode == b->st_mode && a->st_uid == b->st_uid;
}

/* A file that is gone or unfit leaves the secrets as they were: it may be on its way. */
static void follow_file(struct event_auth *auth)
{
    struct stat now;
    if (stat(auth->path, &now) < 0 || same_file(&now, &auth->stamp))
        return;
    g_autofree char *msg = NULL;
    GPtrArray *digests = g_ptr_array_new_with_free_func(g_free);
    int r = read_secrets(auth->path, &now, digests, &msg);
    auth->stamp = now;
    if (r < 0) {
        log_warn("events", "the secrets of before still count: %s", msg);
        g_ptr_array_unref(digests);
        return;
    }
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
