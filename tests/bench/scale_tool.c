/*
 * scale_tool.c - what the measurements of millions of names need and no interpreter does fast enough. Prints one JSON object.
 *
 *   scale_tool make DIR DIRS FILES            objects of one byte as files: DIR/dNNNNNN/fNNNNNN.bin
 *   scale_tool put SOURCE DIRS FILES THREADS  the same as objects of any store
 *   scale_tool list SOURCE THREADS            every object of a store, directories in parallel, by the project's own client: what a sync could reach at most
 *   scale_tool fill CACHE SOURCE DIRS FILES   the same names straight into the database of a cache folder that no mount uses, as if they had been listed now
 *   scale_tool walk DIR                       find: readdir of everything, then stat of everything, then both again; seconds of each
 *   scale_tool first DIR                      seconds until the first name of a directory, and until the last
 */
#include "base/clock.h"
#include "base/log.h"
#include "meta.h"
#include "objstore.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static _Noreturn void die(const char *what, int err)
{
    fprintf(stderr, "scale_tool: %s: %s\n", what, strerror(err < 0 ? -err : err));
    exit(1);
}

static double since(uint64_t began_ns)
{
    return (double)(clock_mono_ns() - began_ns) / (double)NS_PER_S;
}

static uint64_t number(const char *text)
{
    guint64 n = 0;
    if (!g_ascii_string_to_unsigned(text, 10, 0, 1000000000, &n, NULL))
        die(text, EINVAL);
    return n;
}

/* ---- make ---- */

static int make(const char *dir, uint64_t dirs, uint64_t files)
{
    for (uint64_t d = 0; d < dirs; d++) {
        g_autofree char *sub = g_strdup_printf("%s/d%06" PRIu64, dir, d);
        if (g_mkdir_with_parents(sub, 0755) < 0)
            die(sub, errno);
        int at = open(sub, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (uint64_t f = 0; f < files; f++) {
            char name[32];
            g_snprintf(name, sizeof(name), "f%06" PRIu64 ".bin", f);
            int fd = openat(at, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
            if (fd < 0 || ftruncate(fd, 1) < 0)
                die(name, errno);
            close(fd);
        }
        close(at);
    }
    printf("{\"files\": %" PRIu64 "}\n", dirs * files);
    return 0;
}

/* ---- list ---- */

struct lister {
    struct objstore *store;
    GAsyncQueue *todo;    /* prefixes */
    _Atomic int64_t left; /* prefixes queued or being listed */
    _Atomic uint64_t objects;
};

struct listing_dir {
    struct lister *l;
    const char *prefix;
    uint64_t n;
};

static int on_row(void *ctx, const struct obj_entry *e)
{
    struct listing_dir *d = ctx;
    d->n += !e->is_prefix;
    if (!e->is_prefix)
        return 0;
    atomic_fetch_add(&d->l->left, 1);
    g_async_queue_push(d->l->todo, g_strdup_printf("%s%.*s", d->prefix, (int)e->name_len, e->name));
    return 0;
}

static void *list_main(void *arg)
{
    struct lister *l = arg;
    while (atomic_load(&l->left) > 0) {
        g_autofree char *prefix = g_async_queue_timeout_pop(l->todo, 10000);
        if (!prefix)
            continue;
        struct listing_dir d = {l, prefix, 0};
        struct obj_list_req req = {.prefix = prefix, .delimiter = true};
        int r = objstore_list(l->store, &req, on_row, &d, NULL);
        if (r < 0)
            die(prefix, r);
        atomic_fetch_add(&l->objects, d.n);
        atomic_fetch_sub(&l->left, 1);
    }
    return NULL;
}

static struct objstore *open_store(const char *source)
{
    const char *url = getenv("S3_ENDPOINT");
    struct objstore_config cfg = {.source = source,
                                  .endpoint_url = g_str_has_prefix(source, "s3://") ? url : NULL,
                                  .op_timeout_ns = 60 * NS_PER_S,
                                  .max_connections = 64};
    struct objstore *store = NULL;
    char *msg = NULL;
    int r = objstore_open(&cfg, &store, &msg);
    if (r < 0)
        die(msg ? msg : source, r);
    return store;
}

static int list(const char *source, unsigned threads)
{
    struct lister l = {.store = open_store(source), .todo = g_async_queue_new()};
    atomic_store(&l.left, 1);
    uint64_t began = clock_mono_ns();
    g_async_queue_push(l.todo, g_strdup(""));
    g_autofree pthread_t *t = g_new0(pthread_t, threads);
    for (unsigned i = 0; i < threads; i++)
        pthread_create(&t[i], NULL, list_main, &l);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(t[i], NULL);
    printf("{\"seconds\": %.3f, \"names\": %" PRIu64 "}\n", since(began), atomic_load(&l.objects));
    objstore_close(l.store);
    return 0;
}

/* ---- put ---- */

struct putter {
    struct objstore *store;
    _Atomic uint64_t next;
    uint64_t dirs, files;
};

static void *put_main(void *arg)
{
    struct putter *p = arg;
    const struct obj_cond any = {.kind = OBJ_COND_NONE};
    const struct obj_meta none = {0};
    for (uint64_t i; (i = atomic_fetch_add(&p->next, 1)) < p->dirs * p->files;) {
        char key[64];
        g_snprintf(key, sizeof(key), "d%06" PRIu64 "/f%06" PRIu64 ".bin", i / p->files, i % p->files);
        int r = objstore_put(p->store, key, "x", 1, &none, &any, NULL);
        if (r < 0)
            die(key, r);
    }
    return NULL;
}

static int put(const char *source, uint64_t dirs, uint64_t files, unsigned threads)
{
    struct putter p = {.store = open_store(source), .dirs = dirs, .files = files};
    uint64_t began = clock_mono_ns();
    g_autofree pthread_t *t = g_new0(pthread_t, threads);
    for (unsigned i = 0; i < threads; i++)
        pthread_create(&t[i], NULL, put_main, &p);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(t[i], NULL);
    printf("{\"seconds\": %.3f, \"names\": %" PRIu64 "}\n", since(began), dirs * files);
    objstore_close(p.store);
    return 0;
}

/* ---- fill ---- */

static uint64_t fill_name(struct meta *m, struct meta_batch *b, uint64_t parent, const char *name, const char *key)
{
    int64_t now = clock_wall_ns();
    bool is_dir = key == NULL;
    struct meta_inode in = {.ino = meta_next_ino(m), .nlink = 1, .mtime_ns = now, .ctime_ns = now};
    struct meta_dentry d = {.parent = parent, .name = (char *)(uintptr_t)name, .ino = in.ino};
    g_autofree char *base = g_strdup(key);
    if (is_dir) {
        in.mode = S_IFDIR | 0755;
        in.flags = INODE_DIR_LISTED;
        in.parent = parent;
        in.listed_ns = now;
        d.flags = DENTRY_IMPLICIT;
    } else {
        in.mode = S_IFREG | 0644;
        in.size = in.base_limit = 1;
        in.gen = 1;
        in.base_key = base;
        g_snprintf(in.base_etag.s, sizeof(in.base_etag.s), "\"%032" PRIx64 "\"",
                   (uint64_t)(in.ino * 0x9e3779b97f4a7c15ull));
        d.flags = DENTRY_UPSTREAM;
        d.uetag = in.base_etag;
        d.usize = 1;
    }
    d.type = in.mode & S_IFMT;
    meta_inode_put(b, &in);
    meta_dentry_put(b, &d);
    return in.ino;
}

static int fill(const char *cache, const char *source, uint64_t dirs, uint64_t files)
{
    struct objstore *store = open_store(source);
    struct meta *m = NULL;
    bool fresh = false;
    char *msg = NULL;
    int r = meta_open(cache, objstore_identity(store), &m, &fresh, &msg);
    if (r < 0)
        die(msg ? msg : cache, r);
    struct meta_batch *b = meta_batch_new(m);
    uint64_t began = clock_mono_ns();
    for (uint64_t i = 0; i < dirs; i++) {
        char dir[32];
        g_snprintf(dir, sizeof(dir), "d%06" PRIu64, i);
        uint64_t ino = fill_name(m, b, META_ROOT_INO, dir, NULL);
        for (uint64_t f = 0; f < files; f++) {
            char name[32], key[80];
            g_snprintf(name, sizeof(name), "f%06" PRIu64 ".bin", f);
            g_snprintf(key, sizeof(key), "%s/%s", dir, name);
            (void)fill_name(m, b, ino, name, key);
            if (f % 1000 == 999 && (r = meta_commit(b, false)) < 0)
                die("commit", r);
        }
    }
    struct meta_inode root;
    r = meta_inode_get(m, META_ROOT_INO, &root);
    if (r < 0)
        die("the folder was never mounted", r);
    root.flags |= INODE_DIR_LISTED;
    root.listed_ns = clock_wall_ns();
    meta_inode_put(b, &root);
    meta_inode_clear(&root);
    r = meta_commit(b, false);
    if (r < 0)
        die("commit", r);
    meta_batch_free(b);
    meta_close(m);
    objstore_close(store);
    printf("{\"seconds\": %.3f, \"names\": %" PRIu64 "}\n", since(began), dirs * files);
    return 0;
}

/* ---- walk ---- */

struct found {
    GPtrArray *dirs;  /* owned paths */
    GPtrArray *files; /* owned paths, in readdir's order */
};

/* What find does: readdir, and no stat where the type is told. */
static void read_dirs(const char *top, struct found *ret, bool keep)
{
    g_autoptr(GPtrArray) todo = g_ptr_array_new_with_free_func(g_free);
    g_ptr_array_add(todo, g_strdup(top));
    while (todo->len > 0) {
        g_autofree char *path = g_ptr_array_steal_index(todo, todo->len - 1);
        DIR *dir = opendir(path);
        if (!dir)
            die(path, errno);
        for (struct dirent *e; (e = readdir(dir));) {
            if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                continue;
            char *name = g_strconcat(path, "/", e->d_name, NULL);
            if (e->d_type == DT_DIR || (e->d_type == DT_UNKNOWN && g_file_test(name, G_FILE_TEST_IS_DIR))) /* s3fs */
                g_ptr_array_add(todo, name);
            else if (keep)
                g_ptr_array_add(ret->files, name);
            else
                g_free(name);
        }
        closedir(dir);
    }
}

static void stat_all(const GPtrArray *files)
{
    struct stat st;
    for (guint i = 0; i < files->len; i++)
        if (lstat(files->pdata[i], &st) < 0)
            die(files->pdata[i], errno);
}

static int walk(const char *top)
{
    struct found found = {.files = g_ptr_array_new_with_free_func(g_free)};
    double seconds[4];
    uint64_t began = clock_mono_ns();
    read_dirs(top, &found, true);
    seconds[0] = since(began);
    began = clock_mono_ns();
    stat_all(found.files);
    seconds[1] = since(began);
    began = clock_mono_ns();
    read_dirs(top, &found, false);
    seconds[2] = since(began);
    began = clock_mono_ns();
    stat_all(found.files);
    seconds[3] = since(began);
    printf("{\"names\": %u, \"find\": %.3f, \"stat_first\": %.3f, \"find_again\": %.3f, \"stat_again\": %.3f}\n",
           found.files->len, seconds[0], seconds[1], seconds[2], seconds[3]);
    g_ptr_array_unref(found.files);
    return 0;
}

static int first(const char *path)
{
    uint64_t began = clock_mono_ns(), n = 0;
    DIR *dir = opendir(path);
    double at = 0;
    if (!dir)
        die(path, errno);
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.' && n++ == 0)
            at = since(began);
    closedir(dir);
    printf("{\"names\": %" PRIu64 ", \"first\": %.4f, \"all\": %.3f}\n", n, at, since(began));
    return 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    (void)log_open(NULL, LOG_LEVEL_ERR);
    if (strcmp(verb, "make") == 0 && argc == 5)
        return make(argv[2], number(argv[3]), number(argv[4]));
    if (strcmp(verb, "list") == 0 && argc == 4)
        return list(argv[2], (unsigned)number(argv[3]));
    if (strcmp(verb, "put") == 0 && argc == 6)
        return put(argv[2], number(argv[3]), number(argv[4]), (unsigned)number(argv[5]));
    if (strcmp(verb, "fill") == 0 && argc == 6)
        return fill(argv[2], argv[3], number(argv[4]), number(argv[5]));
    if (strcmp(verb, "walk") == 0 && argc == 3)
        return walk(argv[2]);
    if (strcmp(verb, "first") == 0 && argc == 3)
        return first(argv[2]);
    fprintf(stderr, "usage: scale_tool make|put|list|fill|walk|first ...\n");
    return 2;
}
