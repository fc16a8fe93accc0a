/*
 * Listing of the file driver: a sorted walk that gives S3's byte order.
 *
 * Directory entries are sorted with '/' appended to directories; since all keys below a directory share that text, a depth-first walk in
 * this order visits keys in byte order ("a" < "a-b" < "a/x"). Paths are resolved from the root each time, so depth costs no
 * descriptors. No lock: objects appear and vanish whole.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/metric.h"
#include "drv_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

struct walk {
    struct drv_file *f;
    const struct obj_list_req *req;
    size_t prefix_len;
    obj_list_fn *fn;
    void *ctx;
    uint32_t n_rows;
    bool truncated;
};

#define WALK_STOP 1000000 /* max_keys reached; no caller's code is this large */

/* A name, and the bytes behind what all of the directory begin with, as a number: of a million names most are told apart without a look at the names, which lie all over the memory. */
struct name {
    uint64_t head;
    char *text; /* owned */
};

static void name_clear(void *p)
{
    g_free(((struct name *)p)->text);
}

static int name_cmp(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    return strcmp(x->text, y->text);
}

static void add_name(GArray *names, char *text)
{
    struct name n = {.text = text};
    g_array_append_val(names, n);
}

static void sort_names(GArray *names)
{
    struct name *all = (struct name *)(void *)names->data;
    size_t common = names->len > 0 ? strlen(all[0].text) : 0;
    for (guint i = 1; i < names->len; i++)
        for (size_t n = 0; n < common; n++)
            if (all[i].text[n] != all[0].text[n])
                common = n;
    for (guint i = 0; i < names->len; i++) {
        const char *from = all[i].text + common;
        uint64_t be = 0;
        memcpy(&be, from, strnlen(from, sizeof(be)));
        all[i].head = GUINT64_FROM_BE(be);
    }
    g_array_sort(names, name_cmp);
}

/* Names of a directory (path "" or "a/b/"), directories with '/', sorted. */
static int dir_names(struct drv_file *f, const char *path, GArray *names)
{
    CLEANUP_FD int fd = file_at(f, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return file_read_error(fd);
    DIR *dir = fdopendir(fd);
    if (!dir)
        return -errno;
    fd = -1;
    int r;
    for (struct dirent *e; (r = file_dir_next(dir, &e)) > 0;) {
        struct stat st;
        unsigned char type = e->d_type;
        if (!*path && strcmp(e->d_name, FILE_TMP_DIR) == 0)
            continue;
        if (type == DT_UNKNOWN) {
            r = RET_ERRNO(fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW));
            if (r < 0 && r != -ENOENT)
                break;
            type = r < 0 ? DT_UNKNOWN : S_ISDIR(st.st_mode) ? DT_DIR : S_ISREG(st.st_mode) ? DT_REG : DT_LNK;
        }
        if (type == DT_DIR)
            add_name(names, g_strconcat(e->d_name, "/", NULL));
        else if (type == DT_REG)
            add_name(names, g_strdup(e->d_name));
    }
    (void)closedir(dir); /* was only read */
    sort_names(names);
    return r;
}

static int emit(struct walk *w, const char *key, bool is_prefix)
{
    struct obj_entry row = {.name = key + w->prefix_len, .is_prefix = is_prefix};
    struct stat st;
    if (w->req->start_after && strcmp(key, w->req->start_after) <= 0)
        return 0;
    if (!is_prefix) {
        int r = file_stat(w->f, key, &st);
        if (r < 0)
            return file_read_error(r) == -ENOENT ? 0 : r; /* gone since */
        row.size = S_ISDIR(st.st_mode) ? 0 : (uint64_t)st.st_size;
        row.mtime_ns = (int64_t)st.st_mtim.tv_sec * (int64_t)NS_PER_S + st.st_mtim.tv_nsec;
        file_etag(&st, &row.etag);
    }
    if (w->req->max_keys && w->n_rows == w->req->max_keys) {
        w->truncated = true;
        return WALK_STOP;
    }
    w->n_rows++;
    if (w->n_rows % 1000 == 0)
        metric_inc(M_requests_list);
    row.name_len = strlen(row.name);
    return w->fn(w->ctx, &row);
}

/* Whether keys below dir can come after start_after. */
static bool reaches_past(const struct walk *w, const char *dir)
{
    const char *after = w->req->start_after;
    return !after || strcmp(dir, after) > 0 || g_str_has_prefix(after, dir);
}

static int walk_dir(struct walk *w, const char *path)
{
    g_autoptr(GArray) names = g_array_new(FALSE, FALSE, sizeof(struct name));
    g_array_set_clear_func(names, name_clear);
    int r = dir_names(w->f, path, names);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    for (guint i = 0; i < names->len && r == 0; i++) {
        g_autofree char *key = g_strconcat(path, g_array_index(names, struct name, i).text, NULL);
        size_t n = strlen(key);
        if (__atomic_load_n(&w->f->stopping, __ATOMIC_RELAXED))
            return -ECANCELED;
        if (strncmp(key, w->req->prefix, MIN(n, w->prefix_len)) != 0 || n < w->prefix_len)
            continue;
        if (key[n - 1] != '/') {
            r = emit(w, key, false);
        } else if (w->req->delimiter && n > w->prefix_len) {
            r = emit(w, key, true);
        } else if (reaches_past(w, key)) {
            r = file_is_marker(w->f, key);
            if (r > 0)
                r = emit(w, key, false);
            if (r == 0)
                r = walk_dir(w, key);
        }
    }
    return r;
}

int file_list(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx, bool *ret_truncated)
{
    struct walk w = {
        .f = file_of(st), .req = req, .prefix_len = strlen(req->prefix), .fn = fn, .ctx = ctx, .n_rows = 0};
    const char *slash = strrchr(req->prefix, '/');
    g_autofree char *dir = slash ? g_strndup(req->prefix, (gsize)(slash + 1 - req->prefix)) : g_strdup("");
    metric_inc(M_requests_list);
    if (*dir && file_key_check(dir) < 0)
        return 0;
    int r = 0;
    if (*dir && slash[1] == '\0')
        r = file_is_marker(w.f, dir);
    if (r > 0)
        r = emit(&w, dir, false);
    if (r == 0)
        r = walk_dir(&w, dir);
    if (r == WALK_STOP)
        r = 0;
    if (r == 0)
        *ret_truncated = w.truncated;
    return r;
}
