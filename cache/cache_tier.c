/* See cache_tier.h. */
#include "cache_tier.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "cache_disks.h"
#include "cache_file.h"
#include "cache_scan.h"
#include "cache_space.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#define VALUE_AWAY  "cache/away/" /* number -> "" or AWAY_FAILED: files of it may be in another tier meanwhile */
#define AWAY_FAILED "failed"      /* and what was not synced may be gone */
#define MEMORY_FILL                                                                                                    \
    97u /* percent up to which clean files come to memory unasked: as far as nothing is dropped for them */
#define MEMORY_MAX_SHARE 8u

static int fail_msg(int r, char **ret_msg, char *msg)
{
    *ret_msg = msg;
    return r;
}

/* ---- data files ---- */

int tier_data_open(struct cache_tier *t, uint64_t vid, int flags)
{
    char path[32];
    if (t->kind == TIER_NOWHERE)
        return flags & O_CREAT ? RET_ERRNO(memfd_create("sluice", MFD_CLOEXEC)) : -ENOENT;
    if (t->dir_fd < 0)
        return -EIO;
    cache_data_path(vid, path);
    return RET_ERRNO(openat(t->dir_fd, path, O_NOFOLLOW | O_CLOEXEC | flags, 0600));
}

void tier_large_page(const struct cache_tier *t, int fd, off_t off)
{
    if (!t->large_pages)
        return;
    void *p = mmap(NULL, TIER_LARGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, off);
    if (p == MAP_FAILED)
        return;
    if (madvise(p, TIER_LARGE_PAGE, MADV_HUGEPAGE) == 0)
        (void)madvise(p, TIER_LARGE_PAGE,
                      MADV_POPULATE_WRITE); /* what failed, as for want of space, the write will meet */
    (void)munmap(p, TIER_LARGE_PAGE);
}

int tier_data_unlink(struct cache_tier *t, uint64_t vid)
{
    char path[32];
    if (t->kind == TIER_NOWHERE || tier_state(t) != TIER_OK)
        return 0;
    cache_data_path(vid, path);
    int r = RET_ERRNO(unlinkat(t->dir_fd, path, 0));
    if (r == 0)
        removed_mark(t, vid);
    return r == -ENOENT ? 0 : r;
}

struct sweep {
    struct cache_tier *t;
    unsigned n, open;
    uint64_t next_look_ns; /* at what else the evictor does */
};

/* Unpublished bytes that the database lost: fsck brings them back. */
static bool has_intent(struct cache_tier *t, const char *path)
{
    CLEANUP_FD int fd = openat(t->dir_fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 || fgetxattr(fd, INTENT_NAME, NULL, 0) >= 0;
}

static int sweep_file(void *ctx, const struct cache_scanned *file)
{
    struct sweep *s = ctx;
    struct cache *c = s->t->c;
    if (clock_mono_ns() >= s->next_look_ns) {
        space_tend(s->t, true); /* no more: what is removed here may be all that is too much */
        s->next_look_ns = clock_mono_ns() + SPACE_LOOK_NS;
    }
    struct cfile *cf = table_claim(c, file->vid);
    if (cf) {
        s->open += cfile_tier(cf) != s->t; /* it may be moving here */
        int r = cfile_tier(cf) == s->t && space_entry_take_stale(c, cf->entry) ? cfile_save(cf) : 0;
        cache_file_unref(cf);
        return r;
    }
    struct cache_entry *e = space_entry_find(c, file->vid);
    if (!e && index_is_dying(c, file->vid)) /* it was to be removed while the tier was not used */
        s->n += index_end_removal(s->t, file->vid) == 0;
    else if (e ? entry_tier(e) != s->t : !has_intent(s->t, file->path))
        s->n += tier_data_unlink(s->t, file->vid) == 0;
    int r = e && entry_tier(e) == s->t && space_entry_take_stale(c, e) ? index_save_entry(c, e) : 0;
    table_release(c, file->vid);
    mutex_lock(&c->space.mu);
    bool stop = c->space.stop;
    mutex_unlock(&c->space.mu);
    return stop ? -ECANCELED : r;
}

static int put_value(struct meta *m, const char *prefix, uint32_t number, const char *text)
{
    g_autofree char *name = g_strdup_printf("%s%u", prefix, number);
    struct meta_batch *b = meta_batch_new(m);
    if (text)
        meta_value_put(b, name, text, strlen(text));
    else
        meta_value_del(b, name);
    int r = meta_commit(b, true);
    meta_batch_free(b);
    return r;
}

static bool says_failed(const void *value, size_t len)
{
    return len == strlen(AWAY_FAILED) && memcmp(value, AWAY_FAILED, len) == 0;
}

static bool is_noted_failed(struct cache *c, uint32_t number, bool *ret_noted)
{
    g_autoptr(GBytes) value = NULL;
    g_autofree char *name = g_strdup_printf(VALUE_AWAY "%u", number);
    *ret_noted = meta_value_get(c->meta, name, &value) == 0;
    return *ret_noted && says_failed(g_bytes_get_data(value, NULL), g_bytes_get_size(value));
}

int tier_note_away(struct cache *c, uint32_t number, bool failed)
{
    bool noted;
    failed |= is_noted_failed(c, number, &noted);
    return put_value(c->meta, VALUE_AWAY, number, failed ? AWAY_FAILED : "");
}

int tier_note_whole(struct cache_tier *t)
{
    return put_value(t->c->meta, VALUE_AWAY, t->number, "");
}

int tier_note_path(struct meta *m, uint32_t number, const char *dir)
{
    return put_value(m, TIER_VALUE_PATH, number, dir);
}

bool tier_sweep(struct cache_tier *t)
{
    struct sweep s = {.t = t};
    unsigned n_away = __atomic_load_n(&t->n_away, __ATOMIC_ACQUIRE);
    int r = cache_scan_files(t->dir, sweep_file, &s);
    if (r == 0)
        r = put_value(t->c->meta, VALUE_AWAY, t->number, s.open == 0 ? NULL : "");
    mutex_lock(&t->c->space.mu);
    bool again = n_away != __atomic_load_n(&t->n_away, __ATOMIC_ACQUIRE);
    t->failed &= again || r < 0;
    bool failed = t->failed;
    mutex_unlock(&t->c->space.mu);
    if (again)
        r = tier_note_away(t->c, t->number, failed); /* what was just removed may be the note of this time */
    log_notice("cache", "cache disk is back path='%s' stale_files_removed=%u still_open=%u r=%s", t->dir, s.n, s.open,
               err_name(r));
    return s.open == 0;
}

/* ---- placement ---- */

/* Better: keeps the file whole, has room for it, is filled to a smaller share of its limit. */
static bool better_locked(const struct cache_tier *a, const struct cache_tier *b, uint64_t size)
{
    bool whole_a = size <= a->whole_bytes, whole_b = size <= b->whole_bytes;
    bool room_a = space_tier_room_locked(a, 100) > size, room_b = space_tier_room_locked(b, 100) > size;
    if (whole_a != whole_b)
        return whole_a;
    if (room_a != room_b)
        return room_a;
    return (double)(a->used_bytes + a->reserved_bytes) * (double)b->limit_bytes <
           (double)(b->used_bytes + b->reserved_bytes) * (double)a->limit_bytes;
}

static bool memory_takes_locked(const struct cache_tier *t, uint64_t size, enum tier_want want)
{
    if (want == TIER_WANT_MEMORY)
        return t->pinned_bytes + t->dirty_bytes + size <= t->limit_bytes;
    return want == TIER_WANT_ANY && size <= t->limit_bytes / MEMORY_MAX_SHARE &&
           size <= space_tier_room_locked(t, MEMORY_FILL);
}

struct cache_tier *tier_choose(struct cache *c, uint64_t size, enum tier_want want)
{
    struct cache_tier *best = NULL, *memory = NULL;
    mutex_lock(&c->space.mu);
    for (guint i = 0; i < c->tiers->len; i++) {
        struct cache_tier *t = c->tiers->pdata[i];
        if (tier_state(t) != TIER_OK)
            continue;
        if (t->kind == TIER_MEMORY && memory_takes_locked(t, size, want))
            memory = t;
        if (t->kind == TIER_DISK && (!best || better_locked(t, best, size)))
            best = t;
    }
    mutex_unlock(&c->space.mu);
    if (memory)
        return memory;
    return best ? best : tier_by_number(c, TIER_NUMBER_NOWHERE);
}

/* ---- opening ---- */

struct cache_tier *tier_by_number(struct cache *c, uint32_t number)
{
    for (guint i = 0; i < c->tiers->len; i++) {
        struct cache_tier *t = c->tiers->pdata[i];
        if (t->number == number)
            return t;
    }
    return NULL;
}

int cache_memory_fd(struct cache *c)
{
    struct cache_tier *t = tier_by_number(c, TIER_NUMBER_MEMORY);
    return t ? t->dir_fd : -1;
}

static void tier_free(void *p)
{
    struct cache_tier *t = p;
    space_tier_fini(t);
    if (t->dir_fd >= 0)
        (void)close(t->dir_fd);
    if (t->probe_fd >= 0)
        (void)close(t->probe_fd);
    if (t->lock_fd >= 0)
        (void)close(t->lock_fd);
    g_free(t->dir);
    g_free(t);
}

/* dir is copied, dir_fd taken over. */
static int add_tier(struct cache *c, enum tier_kind kind, uint32_t number, const char *dir, int dir_fd,
                    struct cache_tier **ret)
{
    struct cache_tier *t = g_new0(struct cache_tier, 1);
    t->c = c;
    t->kind = kind;
    t->number = number;
    t->dir = g_strdup(dir);
    t->dir_fd = dir_fd;
    t->lock_fd = t->probe_fd = -1;
    t->state = kind == TIER_DISK && dir_fd < 0 ? TIER_MISSING : TIER_OK;
    t->leases = kind != TIER_DISK ? LEASES_THERE : dir_fd < 0 ? LEASES_NONE : LEASES_UNTRIED; /* memory has them */
    (void)tier_has_leases(t);
    g_ptr_array_add(c->tiers, t);
    *ret = t;
    return space_tier_init(t);
}

struct known { /* a disk that the database knows */
    uint32_t number;
    char *path;
    bool away, failed;
};

static void known_clear(void *k)
{
    g_free(((struct known *)k)->path);
}

static int on_path(void *ctx, const char *name, const void *value, size_t len)
{
    struct known k = {.number = (uint32_t)strtoul(name + strlen(TIER_VALUE_PATH), NULL, 10),
                      .path = g_strndup(value, len)};
    g_array_append_val((GArray *)ctx, k);
    return 0;
}

static int on_away(void *ctx, const char *name, const void *value, size_t len)
{
    GArray *known = ctx;
    uint32_t number = (uint32_t)strtoul(name + strlen(VALUE_AWAY), NULL, 10);
    for (guint i = 0; i < known->len; i++) {
        struct known *k = &g_array_index(known, struct known, i);
        k->away |= k->number == number;
        k->failed |= k->number == number && says_failed(value, len);
    }
    return 0;
}

int tier_read(const char *dir, char **ret_uuid, uint32_t *ret_number)
{
    g_autofree char *path = g_build_filename(dir, TIER_ID_FILE, NULL);
    g_autofree char *text = NULL;
    g_autoptr(GError) err = NULL;
    if (!g_file_get_contents(path, &text, NULL, &err))
        return g_error_matches(err, G_FILE_ERROR, G_FILE_ERROR_NOENT) ? -ENOENT : -EIO;
    g_auto(GStrv) words = g_strsplit(g_strstrip(text), " ", 2);
    uint32_t number = words[0] && words[1] ? (uint32_t)strtoul(words[1], NULL, 10) : 0;
    if (number == 0)
        return -EEXIST;
    *ret_uuid = g_strdup(words[0]);
    *ret_number = number;
    return 0;
}

int tier_read_id(const char *dir, const char *uuid, uint32_t *ret_number)
{
    g_autofree char *of = NULL;
    uint32_t number = 0;
    int r = tier_read(dir, &of, &number);
    if (r < 0 || strcmp(of, uuid) != 0)
        return r < 0 ? r : -EEXIST;
    *ret_number = number;
    return 0;
}

static const struct known *known_at(const GArray *known, const char *path, uint32_t number)
{
    const struct known *best = NULL;
    for (guint i = 0; i < known->len; i++) {
        const struct known *k = &g_array_index(known, struct known, i);
        if (number ? k->number == number : g_str_equal(k->path, path))
            best = k;
    }
    return best;
}

/* Only DIR/disks knows it. */
static bool is_lost_disk(struct cache *c, const char *dir)
{
    g_autoptr(GPtrArray) lost = NULL;
    bool found = false;
    if (cache_disks_lost(c->meta, c->cfg.dir, &lost) < 0)
        return false;
    for (guint i = 0; i < lost->len; i++)
        found |= g_str_equal(((const struct cache_disk *)lost->pdata[i])->path, dir);
    return found;
}

/* A disk that cannot be used: the mount goes on without it when it was part of this cache before. */
static int add_broken(struct cache *c, const char *dir, const GArray *known, int r, char **ret_msg)
{
    struct cache_tier *t;
    const struct known *k = known_at(known, dir, 0);
    if ((!k && !is_lost_disk(c, dir)) || r == -EBUSY || r == -EEXIST)
        return r;
    log_err("cache", "a cache disk is missing, going on without it path='%s': %s", dir, *ret_msg);
    g_clear_pointer(ret_msg, g_free);
    if (!k) /* no record names it */
        return 0;
    r = add_tier(c, TIER_DISK, k->number, dir, -1, &t);
    return r < 0 ? r : tier_note_away(c, t->number, false);
}

static int on_any_intent(void *ctx, const char *path, uint64_t vid, uint64_t size, const char *text)
{
    return 1;
}

/* A folder without an id is a new disk, unless somebody's unpublished files are in it. */
static int check_new(const char *dir, char **ret_msg)
{
    int r = cache_scan_intents(dir, on_any_intent, NULL);
    return r <= 0 ? r
                  : fail_msg(-EEXIST, ret_msg,
                             g_strdup_printf("cache folder '%s' holds unpublished files of another cache", dir));
}

/* DIR/disks knows it before anything else does, so that a database that is lost takes no disk along. */
static int begin_disk(struct cache *c, const char *dir, GArray *known, uint32_t *ret_number, char **ret_msg)
{
    if (known_at(known, dir, 0))
        log_warn("cache", "the cache disk that was here is gone, using what is there now path='%s'", dir);
    int r = check_new(dir, ret_msg);
    if (r == 0)
        r = cache_disks_number(c->meta, c->cfg.dir, dir, ret_number);
    if (r < 0)
        return r;
    r = cache_disks_note(c->cfg.dir, meta_uuid(c->meta), *ret_number, dir);
    if (r < 0)
        return fail_msg(r, ret_msg,
                        g_strdup_printf("cannot use cache folder '%s', as it cannot be written down in '%s/disks': %s",
                                        dir, c->cfg.dir, err_text(r)));
    struct known fresh = {.number = *ret_number, .path = g_strdup(dir)};
    g_array_append_val(known, fresh);
    return tier_write(dir, meta_uuid(c->meta), *ret_number);
}

static int use_disk(struct cache *c, const char *dir, int *lock_fd, GArray *known, uint32_t number, char **ret_msg)
{
    struct cache_tier *t;
    const struct known *k = number ? known_at(known, dir, number) : NULL;
    bool away = k && k->away, failed = k && k->failed, moved = !k || !g_str_equal(k->path, dir);
    int r = number == 0 ? begin_disk(c, dir, known, &number, ret_msg) : 0;
    if (r == 0 && k && moved && cache_disks_note(c->cfg.dir, meta_uuid(c->meta), number, dir) < 0)
        log_warn("cache", "where a cache disk is now cannot be written beside the database path='%s'", dir);
    if (r == 0 && moved)
        r = tier_note_path(c->meta, number, dir);
    int fd = r == 0 ? RET_ERRNO(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) : r;
    if (fd < 0)
        return fd;
    r = add_tier(c, TIER_DISK, number, dir, fd, &t);
    t->lock_fd = steal_fd(lock_fd);
    t->sweep = away;
    t->failed = failed;
    return r;
}

static char *of_another(struct cache *c, const char *dir)
{
    g_autofree char *uuid = NULL, *how = NULL;
    uint32_t number = 0;
    if (tier_read(dir, &uuid, &number) == 0) {
        g_autofree char *file = g_build_filename(c->cfg.dir, "disks", NULL), *to = g_shell_quote(file);
        g_autofree char *path = g_uri_escape_string(dir, "/", FALSE);
        how = g_strdup_printf("; if it is a disk of this one, whose database was lost: `echo '%s %u %s' >> %s`, and "
                              "the next mount brings back what is unpublished in it",
                              uuid, number, path, to);
    }
    return g_strdup_printf("cache folder '%s' belongs to another cache, whose first folder is not among those of "
                           "--cache-dir: give that one too, or another folder%s",
                           dir, how ? how : "");
}

static int add_disk(struct cache *c, const char *dir, GArray *known, char **ret_msg)
{
    CLEANUP_FD int lock_fd = -1;
    uint32_t number = 0;
    int r = cache_dir_prepare(dir, &lock_fd, ret_msg);
    if (r == 0)
        r = tier_read_id(dir, meta_uuid(c->meta), &number);
    if (r == -EEXIST)
        *ret_msg = of_another(c, dir);
    r = r == -ENOENT && !*ret_msg ? 0 : r; /* a new one */
    if (r == 0 && number && tier_by_number(c, number))
        return fail_msg(-EEXIST, ret_msg, g_strdup_printf("cache folder '%s' is a copy of another one", dir));
    if (r == 0)
        r = use_disk(c, dir, &lock_fd, known, number, ret_msg);
    if (r < 0 && !*ret_msg)
        *ret_msg = g_strdup_printf("cannot use cache folder '%s': %s", dir, err_text(r));
    return r < 0 ? add_broken(c, dir, known, r, ret_msg) : 0;
}

/* A tmpfs that is mounted nowhere: it lives as long as somebody has a file of it open. */
static int mount_memory(uint64_t bytes)
{
    g_autofree char *size = g_strdup_printf("%" PRIu64, bytes + bytes / 64); /* our own limit is met first */
    CLEANUP_FD int fs = (int)RET_ERRNO(syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC));
    if (fs < 0)
        return fs;
    long r = RET_ERRNO(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "size", size, 0));
    if (r == 0)
        r = RET_ERRNO(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "mode", "0700", 0));
    if (r == 0)
        r = RET_ERRNO(syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
    return r < 0 ? (int)r : (int)RET_ERRNO(syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0));
}

/* Pages of tier_large_page(), also in the file system of a process before that did not ask for them. False: the kernel has none. */
static bool allow_large_pages(int fd)
{
    CLEANUP_FD int fs = (int)RET_ERRNO(syscall(SYS_fspick, fd, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC));
    return fs >= 0 && syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "huge", "advise", 0) == 0 &&
           syscall(SYS_fsconfig, fs, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) == 0;
}

static int add_memory(struct cache *c, char **ret_msg)
{
    struct cache_tier *t;
    int old = c->cfg.memory_fd;
    int fd = old > 0 ? RET_ERRNO(fcntl(old, F_DUPFD_CLOEXEC, 3)) : mount_memory(c->cfg.memory_bytes);
    if (fd < 0)
        return fail_msg(fd, ret_msg,
                        g_strdup_printf("--memory-cache: cannot make a memory file system: %s%s", err_text(fd),
                                        fd == -EPERM ? " (it needs CAP_SYS_ADMIN; a folder on a tmpfs that is mounted "
                                                       "already can be given as a further --cache-dir)"
                                                     : ""));
    int r = cache_make_folders(fd);
    if (r < 0) {
        (void)close(fd);
        return r;
    }
    r = add_tier(c, TIER_MEMORY, TIER_NUMBER_MEMORY, "memory", fd, &t);
    if (r == 0)
        t->large_pages = allow_large_pages(fd);
    return r;
}

/* Those that a lost database knew and that are not there, for who asks which disks there are: no record names them. */
static int add_lost(struct cache *c)
{
    g_autoptr(GPtrArray) lost = NULL;
    int r = cache_disks_lost(c->meta, c->cfg.dir, &lost);
    for (guint i = 0; r == 0 && i < lost->len; i++) {
        const struct cache_disk *d = lost->pdata[i];
        struct cache_tier *t;
        r = tier_by_number(c, d->number) ? 0 : add_tier(c, TIER_DISK, d->number, d->path, -1, &t);
    }
    return r;
}

int tiers_open(struct cache *c, char **ret_msg)
{
    struct cache_tier *t;
    g_autoptr(GArray) known = g_array_new(FALSE, FALSE, sizeof(struct known));
    g_array_set_clear_func(known, known_clear);
    int r = meta_value_each(c->meta, TIER_VALUE_PATH, on_path, known);
    if (r == 0)
        r = meta_value_each(c->meta, VALUE_AWAY, on_away, known);
    if (r == 0 && cache_disks_save(c->meta, c->cfg.dir) < 0)
        log_warn("cache", "which cache disks there are cannot be written beside the database path='%s'", c->cfg.dir);
    int fd = r == 0 ? RET_ERRNO(open(c->cfg.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) : r;
    r = fd < 0 ? fd : add_tier(c, TIER_DISK, TIER_NUMBER_FIRST, c->cfg.dir, fd, &t);
    if (r == 0)
        t->failed = is_noted_failed(c, TIER_NUMBER_FIRST, &t->sweep);
    for (unsigned i = 0; r == 0 && c->cfg.more_dirs && c->cfg.more_dirs[i]; i++)
        r = add_disk(c, c->cfg.more_dirs[i], known, ret_msg);
    if (r == 0 && c->cfg.memory_bytes)
        r = add_memory(c, ret_msg);
    if (r == 0)
        r = add_tier(c, TIER_NOWHERE, TIER_NUMBER_NOWHERE, "nowhere", -1, &t);
    if (r == 0)
        r = add_lost(c);
    if (r < 0 && !*ret_msg)
        *ret_msg = g_strdup_printf("cannot use cache folder '%s': %s", c->cfg.dir, err_text(r));
    return r;
}

struct cache_tier *tier_missing(struct cache *c, uint32_t number)
{
    struct cache_tier *t;
    g_autoptr(GBytes) value = NULL;
    g_autofree char *name = g_strdup_printf("%s%u", TIER_VALUE_PATH, number);
    g_autofree char *path = NULL;
    if (meta_value_get(c->meta, name, &value) == 0)
        path = g_strndup(g_bytes_get_data(value, NULL), g_bytes_get_size(value));
    int r = add_tier(c, TIER_DISK, number, path ? path : "unknown", -1, &t);
    if (r == 0)
        r = tier_note_away(c, t->number, false);
    if (r < 0)
        log_warn("cache", "a missing disk could not be noted path='%s' r=%s", t->dir, err_name(r));
    return t;
}

GPtrArray *tiers_new(void)
{
    return g_ptr_array_new_with_free_func(tier_free);
}

/* The first folder, though its database is lost. */
static unsigned bound_dir(char **dirs)
{
    for (unsigned i = 0; dirs[i]; i++) {
        g_autofree char *link = g_build_filename(dirs[i], "link", NULL);
        if (g_file_test(link, G_FILE_TEST_EXISTS))
            return i;
    }
    return 0;
}

int cache_dirs_sort(char **dirs, char **ret_msg)
{
    unsigned first = 0, n = 0;
    for (unsigned i = 0; dirs[i]; i++) {
        g_autofree char *meta = g_build_filename(dirs[i], "meta", NULL);
        if (!g_file_test(meta, G_FILE_TEST_IS_DIR) && !g_file_test(meta, G_FILE_TEST_IS_SYMLINK))
            continue; /* a symlink counts also while its disk is not there */
        first = i;
        n++;
    }
    if (n > 1)
        return fail_msg(-EEXIST, ret_msg,
                        g_strdup("several folders of --cache-dir are caches of their own: each has a database"));
    if (n == 0)
        first = bound_dir(dirs);
    char *dir = dirs[first];
    memmove(dirs + 1, dirs, first * sizeof(*dirs));
    dirs[0] = dir;
    return 0;
}
