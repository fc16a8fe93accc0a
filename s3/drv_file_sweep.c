/*
 * What the file driver leaves under .sluice-tmp when its process is killed, and who may remove it.
 *
 * Each store that is open has an id of its own, which its temporary files carry in their names (WHAT-ID-N), and a file live-ID that it keeps locked. So whoever opens the
 * store next, on whatever machine, can tell the leftovers from the files of those who are at work: a lock goes with its process. Ids come and go under the lock of all
 * commits, so that no file of an id is ever seen before its live-ID. Multipart uploads (mpu-ID) stay while they may be resumed or aborted by who has them recorded, until
 * nothing came to them for a week: a node that does come back then sends such a file anew.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "drv_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define LIVE      "live-"
#define ID_LEN    16
#define ID_TRIES  8
#define OLD_NS    (24 * 3600 * NS_PER_S) /* names of before there were ids tell nothing of their owner */
#define UPLOAD_NS (7 * 24 * 3600 * NS_PER_S)
#define SWEEP_NS                                                                                                       \
    (2 *                                                                                                               \
     NS_PER_S) /* for uploads, which have many parts: all commits wait, and this start. The rest is the next one's */
#define DEPTH_MAX 600 /* more than a key has directories */

static char *live_path(const char *id)
{
    return g_strconcat(FILE_TMP_DIR "/" LIVE, id, NULL);
}

/* The id of a temporary file's name, owned; NULL: it is none. *ret_old: it is one of before there were ids. */
static char *owner_of(const char *name, bool *ret_old)
{
    static const char *const kinds[] = {"put", "part", "join", "copy", "tree", "marker"};
    g_auto(GStrv) words = g_strsplit(name, "-", -1);
    unsigned n = g_strv_length(words);
    bool ours = false;
    *ret_old = n == 4;
    for (unsigned i = 0; n >= 3 && i < G_N_ELEMENTS(kinds); i++)
        ours |= g_str_equal(words[0], kinds[i]);
    return ours && n <= 4 && (n == 4 || strlen(words[1]) == ID_LEN) ? g_strdup(words[1]) : NULL;
}

static bool lives(struct drv_file *f, const char *id)
{
    g_autofree char *path = live_path(id);
    CLEANUP_FD int fd = file_at(f, path, O_RDWR, 0);
    if (fd < 0)
        return fd != -ENOENT;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return true;
    (void)file_remove(f, path, 0); /* the next one tries again */
    return false;
}

/* Whether something came to it, or went, within the time: also of a directory. */
static bool is_young(struct drv_file *f, const char *path, uint64_t ns)
{
    struct stat st;
    return file_stat(f, path, &st) < 0 ||
           clock_wall_ns() - (int64_t)st.st_ctim.tv_sec * (int64_t)NS_PER_S < (int64_t)ns;
}

static GPtrArray *names_in(struct drv_file *f, const char *path)
{
    GPtrArray *names = g_ptr_array_new_with_free_func(g_free);
    int fd = file_at(f, path, O_RDONLY | O_DIRECTORY, 0);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0)
        (void)close(fd); /* was only opened */
    for (struct dirent *e; dir && file_dir_next(dir, &e) > 0;)
        g_ptr_array_add(names, g_strdup(e->d_name));
    if (dir)
        (void)closedir(dir); /* was only read */
    return names;
}

/* A file, or a directory with all that is in it. What cannot be removed is only waste. */
static void remove_all(struct drv_file *f, const char *path, unsigned depth)
{
    if (file_remove(f, path, 0) != -EISDIR || depth > DEPTH_MAX)
        return;
    g_autoptr(GPtrArray) names = names_in(f, path);
    for (unsigned i = 0; i < names->len; i++) {
        g_autofree char *inner = g_strconcat(path, "/", names->pdata[i], NULL);
        remove_all(f, inner, depth + 1);
    }
    (void)file_remove(f, path, AT_REMOVEDIR); /* as above */
}

static void sweep_locked(struct drv_file *f)
{
    unsigned n = 0;
    uint64_t until_ns = clock_mono_ns() + SWEEP_NS;
    g_autoptr(GPtrArray) names = names_in(f, FILE_TMP_DIR);
    for (unsigned i = 0; i < names->len; i++) {
        const char *name = names->pdata[i];
        bool old;
        g_autofree char *path = g_strconcat(FILE_TMP_DIR "/", name, NULL), *id = owner_of(name, &old);
        bool upload =
            g_str_has_prefix(name, FILE_MPU_PREFIX) && clock_mono_ns() < until_ns && !is_young(f, path, UPLOAD_NS);
        if (!upload && (!id || (old ? is_young(f, path, OLD_NS) : lives(f, id))))
            continue;
        remove_all(f, path, 0);
        n++;
    }
    for (unsigned i = 0; i < names->len; i++) /* last: until then they tell that their owners are gone */
        if (g_str_has_prefix(names->pdata[i], LIVE))
            (void)lives(f, (const char *)names->pdata[i] + strlen(LIVE));
    if (n > 0)
        log_info("store", "removed %u temporary files and uploads that daemons left when they were killed source='%s'",
                 n, f->base.source);
}

static int make_live(struct drv_file *f)
{
    int fd = -EEXIST;
    for (unsigned i = 0; fd == -EEXIST && i < ID_TRIES; i++) {
        g_snprintf(f->id, sizeof(f->id), "%08x%08x", (unsigned)getpid(), g_random_int());
        g_autofree char *path = live_path(f->id);
        fd = file_at(f, path, O_RDWR | O_CREAT | O_EXCL, 0666);
    }
    if (fd >= 0)
        (void)flock(fd,
                    LOCK_EX | LOCK_NB); /* nobody else has it; where locks do not work nothing is committed either */
    if (fd >= 0)
        file_share(f, fd);
    return fd;
}

void file_join(struct drv_file *f)
{
    CLEANUP_FD int dir = file_at(f, FILE_TMP_DIR, O_RDONLY | O_DIRECTORY, 0);
    if (dir >= 0)
        file_share(f, dir);
    CLEANUP_FD int lock = file_lock(f);
    if (lock >= 0)
        file_share(f, lock);
    if (lock >= 0)
        f->live_fd = make_live(f);
    if (lock >= 0 && f->live_fd >= 0)
        sweep_locked(f);
    if (f->live_fd < 0) /* a name of another form: others leave what has it alone for a day */
        g_snprintf(f->id, sizeof(f->id), "%d-%08x", (int)getpid(), g_random_int());
}

void file_leave(struct drv_file *f)
{
    if (f->live_fd < 0)
        return;
    g_autofree char *path = live_path(f->id);
    (void)file_remove(f, path, 0); /* else the next one does it */
    (void)close(f->live_fd);       /* nothing was written */
}
