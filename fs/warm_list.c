/* Lists of paths in the cache folder, written and read as streams: their length costs disk, not memory. */
#include "fs/warm_list.h"

#include "base/cleanup.h"

#include <assert.h>
#include <fcntl.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEW_PREFIX "new-"

struct warm_list {
    char *dir, *path; /* owned */
    FILE *out;        /* owned; NULL once closed */
    uint64_t n, bytes;
    bool kept;
};

struct warm_cursor {
    FILE *in;   /* owned */
    char *line; /* owned, by malloc */
    size_t room;
};

static char *jobs_dir(const char *cache_dir)
{
    return g_build_filename(cache_dir, "jobs", NULL);
}

static char *kept_path(const char *dir, uint64_t id)
{
    return g_strdup_printf("%s/%" G_GUINT64_FORMAT, dir, id);
}

int warm_list_new(const char *cache_dir, struct warm_list **ret)
{
    g_autofree char *dir = jobs_dir(cache_dir);
    if (g_mkdir(dir, 0700) < 0 && errno != EEXIST)
        return -errno;
    g_autofree char *path = g_build_filename(dir, NEW_PREFIX "XXXXXX", NULL);
    int fd = g_mkstemp_full(path, O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    FILE *out = fdopen(fd, "w");
    if (!out) {
        int r = -errno;
        (void)close(fd);
        (void)unlink(path);
        return r;
    }
    struct warm_list *l = g_new0(struct warm_list, 1);
    *l = (struct warm_list){.dir = g_steal_pointer(&dir), .path = g_steal_pointer(&path), .out = out};
    *ret = l;
    return 0;
}

int warm_list_load(const char *cache_dir, uint64_t id, uint64_t bytes, struct warm_list **ret)
{
    struct stat st;
    g_autofree char *dir = jobs_dir(cache_dir), *path = kept_path(dir, id);
    if (access(path, R_OK) < 0 || stat(path, &st) < 0)
        return -errno;
    if (bytes && (uint64_t)st.st_size != bytes)
        return -EBADMSG;
    struct warm_list *l = g_new0(struct warm_list, 1);
    *l = (struct warm_list){
        .dir = g_steal_pointer(&dir), .path = g_steal_pointer(&path), .bytes = (uint64_t)st.st_size, .kept = true};
    *ret = l;
    return 0;
}

int warm_list_add(struct warm_list *l, const char *path)
{
    assert(l->out);
    size_t len = strlen(path) + 1;
    errno = 0;
    if (fwrite(path, 1, len, l->out) != len)
        return errno ? -errno : -EIO;
    l->n++;
    l->bytes += len;
    return 0;
}

int warm_list_close(struct warm_list *l)
{
    assert(l->out);
    errno = 0;
    int r = fclose(l->out) == 0 ? 0 : errno ? -errno : -EIO;
    l->out = NULL;
    return r;
}

uint64_t warm_list_count(const struct warm_list *l)
{
    return l->n;
}

uint64_t warm_list_bytes(const struct warm_list *l)
{
    return l->bytes;
}

int warm_list_keep(struct warm_list *l, uint64_t id)
{
    assert(!l->out && !l->kept);
    g_autofree char *path = kept_path(l->dir, id);
    CLEANUP_FD int fd = RET_ERRNO(open(l->path, O_RDONLY | O_CLOEXEC));
    int r = fd < 0 ? fd : RET_ERRNO(fdatasync(fd));
    if (r == 0)
        r = RET_ERRNO(rename(l->path, path));
    if (r < 0)
        return r;
    g_free(l->path);
    l->path = g_steal_pointer(&path);
    l->kept = true;
    return 0;
}

void warm_list_free(struct warm_list *l)
{
    if (!l)
        return;
    if (l->out)
        (void)fclose(l->out); /* nobody reads it */
    if (!l->kept)
        (void)unlink(l->path);
    g_free(l->dir);
    g_free(l->path);
    g_free(l);
}

void warm_list_remove(const char *cache_dir, uint64_t id)
{
    g_autofree char *dir = jobs_dir(cache_dir), *path = kept_path(dir, id);
    (void)unlink(path); /* it may be gone */
}

void warm_list_tidy(const char *cache_dir, uint64_t last_id)
{
    g_autofree char *dir = jobs_dir(cache_dir);
    g_autoptr(GDir) d = g_dir_open(dir, 0, NULL);
    for (const char *name; d && (name = g_dir_read_name(d));) {
        g_autofree char *path = g_build_filename(dir, name, NULL);
        if (g_str_has_prefix(name, NEW_PREFIX) || g_ascii_strtoull(name, NULL, 10) > last_id)
            (void)unlink(path); /* tried again at the next start */
    }
}

int warm_cursor_open(const struct warm_list *l, struct warm_cursor **ret)
{
    assert(!l->out);
    FILE *in = fopen(l->path, "re");
    if (!in)
        return -errno;
    struct warm_cursor *c = g_new0(struct warm_cursor, 1);
    c->in = in;
    *ret = c;
    return 0;
}

int warm_cursor_next(struct warm_cursor *c, const char **ret)
{
    errno = 0;
    ssize_t n = getdelim(&c->line, &c->room, '\0', c->in);
    if (n < 0)
        return ferror(c->in) ? (errno ? -errno : -EIO) : 0;
    *ret = c->line;
    return 1;
}

void warm_cursor_free(struct warm_cursor *c)
{
    if (!c)
        return;
    (void)fclose(c->in); /* only read */
    free(c->line);
    g_free(c);
}
