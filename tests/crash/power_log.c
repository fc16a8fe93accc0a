/* See power_log.h. Of the C library only what does not come back to the wrappers is used where files are touched. */
#include "power_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct power_state power;

/* ---- the log ---- */

static void map_log(const char *path)
{
    struct stat st;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0 || syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) < 0)
        abort();
    if (power.head) /* the log before, of a program that drives many runs */
        (void)munmap(power.head, power.size);
    power.size = (uint64_t)st.st_size;
    power.head = mmap(NULL, power.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (power.head == MAP_FAILED || power.head->magic != POWER_MAGIC)
        abort();
    (void)syscall(SYS_close, fd);
}

__attribute__((constructor)) static void begin(void)
{
    const char *log = getenv("POWER_LOG");
    power.roots[0] = getenv("POWER_CACHE");
    power.roots[1] = getenv("POWER_LAKE");
    power.boot = getenv("POWER_BOOT_ID");
    power.passed = getenv("POWER_PASSED") != NULL;
    if (log)
        map_log(log);
}

void power_lock(void)
{
    if (power.head)
        pthread_mutex_lock(&power.head->mu);
}

void power_unlock(void)
{
    int kept = errno;
    if (power.head)
        pthread_mutex_unlock(&power.head->mu);
    errno = kept;
}

/* Under power_lock(). */
void power_append(const struct power_entry *e)
{
    struct power_head *h = power.head;
    if (!h)
        return;
    size_t a = e->a ? strlen(e->a) : 0, b = e->b ? strlen(e->b) : 0;
    size_t bytes = (sizeof(struct power_rec) + a + b + e->data_len + 7) & ~(size_t)7;
    if (h->used + bytes > power.size || e->data_len > UINT32_MAX / 2) {
        h->overflow++;
        return;
    }
    struct power_rec *r = (struct power_rec *)((char *)h + h->used);
    char *p = (char *)(r + 1);
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    *r = (struct power_rec){.bytes = (uint32_t)bytes,
                            .kind = e->kind,
                            .a_len = (uint32_t)a,
                            .b_len = (uint32_t)b,
                            .data_len = (uint32_t)e->data_len,
                            .ino = e->ino,
                            .off = e->off,
                            .len = e->len,
                            .when = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec};
    if (a)
        memcpy(p, e->a, a);
    if (b)
        memcpy(p + a, e->b, b);
    if (e->data_len)
        memcpy(p + a + b, e->data, e->data_len);
    h->used += bytes;
}

void power_create(const char *path, uint64_t size)
{
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    pthread_mutexattr_t shared;
    if (fd < 0 || syscall(SYS_ftruncate, fd, size) < 0)
        abort();
    struct power_head *h = mmap(NULL, POWER_HEAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (h == MAP_FAILED)
        abort();
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&h->mu, &shared);
    h->used = POWER_HEAD_BYTES;
    h->magic = POWER_MAGIC;
    (void)munmap(h, POWER_HEAD_BYTES);
    (void)syscall(SYS_close, fd);
    map_log(path);
}

void power_note(const char *text)
{
    power_lock();
    power_append(&(struct power_entry){.kind = POWER_NOTE, .a = text});
    power_unlock();
}

void power_strange(const char *what)
{
    power_append(&(struct power_entry){.kind = POWER_STRANGE, .a = what});
}

/* What the file holds, under power_lock(). */
void power_append_snapshot(int fd, const struct stat *st)
{
    char link[64];
    char *data = malloc((size_t)st->st_size + 1);
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd); /* which may be open for writing only */
    int in = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    long n = data && in >= 0 ? syscall(SYS_pread64, in, data, st->st_size, 0) : -1;
    if (n >= 0)
        power_append(
            &(struct power_entry){.kind = POWER_SNAPSHOT, .data = data, .data_len = (size_t)n, .ino = st->st_ino});
    else
        power_strange("a file could not be read");
    if (in >= 0)
        (void)syscall(SYS_close, in);
    free(data);
}

void power_snapshot(const char *path)
{
    struct stat st;
    power_lock();
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd >= 0 && syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) == 0)
        power_append_snapshot(fd, &st);
    if (fd >= 0)
        (void)syscall(SYS_close, fd);
    power_unlock();
}

/* ---- whose file is it ---- */

bool power_below(const char *path, const char *root)
{
    size_t n = root ? strlen(root) : 0;
    return n && strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static bool ours(const char *path)
{
    const char *base = strrchr(path, '/');
    if (!power_below(path, power.roots[0]) && !power_below(path, power.roots[1]))
        return false;
    return !(base && strncmp(base, "/LOG", 4) == 0 && strcmp(base, "/LOCK") != 0);
}

bool power_fd_path(int fd, char out[POWER_PATH_BYTES])
{
    char link[64];
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, out, POWER_PATH_BYTES - 1);
    if (n <= 0)
        return false;
    out[n] = '\0';
    return out[0] == '/';
}

/* The path without dots or doubled slashes. */
static void tidy(char *path)
{
    char *to = path;
    for (const char *from = path; *from;) {
        const char *end = strchrnul(from + 1, '/');
        size_t n = (size_t)(end - from);
        if (n > 1 && !(n == 2 && from[1] == '.')) {
            memmove(to, from, n);
            to += n;
        }
        from = end;
    }
    *to = '\0';
}

bool power_path_at(int dirfd, const char *name, char out[POWER_PATH_BYTES])
{
    char dir[POWER_PATH_BYTES] = "";
    if (name[0] != '/' && dirfd == AT_FDCWD && syscall(SYS_getcwd, dir, sizeof(dir)) < 0)
        return false;
    if (name[0] != '/' && dirfd != AT_FDCWD && !power_fd_path(dirfd, dir))
        return false;
    int n = snprintf(out, POWER_PATH_BYTES, name[0] == '/' ? "%s%s" : "%s/%s", dir, name);
    tidy(out);
    return n > 0 && n < POWER_PATH_BYTES;
}

bool power_path_ours(int dirfd, const char *name, char out[POWER_PATH_BYTES])
{
    return (power.head || power.roots[1]) && power_path_at(dirfd, name, out) && ours(out);
}

/* A regular file of ours, or with want_dir also a directory. Removed ones count: "(deleted)" only follows the name. */
bool power_fd_ours(int fd, struct stat *st, char out[POWER_PATH_BYTES])
{
    int kept = errno;
    bool yes = power.head && fd >= 0 && power_fd_path(fd, out) && ours(out) &&
               syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH) == 0;
    errno = kept;
    return yes;
}
