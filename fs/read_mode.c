/* See read_mode.h. What was learned is in the directory's inode in memory, under its lock: an enum, so the last reader has the word. */
#include "read_mode.h"

#include "handle.h"
#include "io_mode.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define STEP_BYTES (16u << 20) /* between two looks at a reading thread */
#define READS_MIN  16u

enum read_habit read_habit_of_sizes(uint64_t bytes, uint64_t reads)
{
    if (reads < READS_MIN)
        return READ_UNKNOWN;
    return bytes / reads >= READ_BLOCK_BYTES ? READ_BLOCKS : READ_PIECES;
}

enum read_habit read_habit_of_task(const struct read_task *then, const struct read_task *now, uint64_t bytes,
                                   bool ended)
{
    if (!then->tid || then->tid != now->tid || bytes < STEP_BYTES || now->calls < then->calls)
        return READ_UNKNOWN;
    uint64_t calls = now->calls - then->calls, read = now->bytes - then->bytes;
    if (calls == 0 || read < bytes / 2) /* mapped, or in the middle of a very large read */
        return ended ? READ_PIECES : READ_UNKNOWN;
    return read / calls >= READ_BLOCK_BYTES ? READ_BLOCKS : READ_PIECES;
}

bool read_task_look(int tid, struct read_task *ret)
{
    char path[64], line[128];
    uint64_t n;
    unsigned found = 0;
    *ret = (struct read_task){0};
    g_snprintf(path, sizeof(path), "/proc/%d/task/%d/io", tid, tid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "rchar: %" SCNu64, &n) == 1) {
            ret->bytes = n;
            found |= 1;
        } else if (sscanf(line, "syscr: %" SCNu64, &n) == 1) {
            ret->calls = n;
            found |= 2;
        }
    }
    if (f)
        fclose(f);
    ret->tid = found == 3 ? tid : 0;
    return found == 3;
}

/* ---- what is known of the directory ---- */

/* Those whose usual readers map them. */
static bool is_mapped_by_name(const char *name)
{
    static const char *const suffixes[] = {".safetensors", ".gguf", ".arrow", ".feather"};
    const char *dot = strrchr(name, '.');
    for (unsigned i = 0; dot && i < G_N_ELEMENTS(suffixes); i++)
        if (strcmp(dot, suffixes[i]) == 0)
            return true;
    return false;
}

/* The directory of one of its names, or NULL; *ret_mapped: by that name it is read by mapping. */
static struct inode *dir_of(struct inode *in, bool *ret_mapped)
{
    struct meta_dentry d = {0};
    struct inode *dir = NULL;
    if (meta_link_first(in->fs->meta, in->ino, &d) == 0) {
        *ret_mapped = is_mapped_by_name(d.name);
        if (inode_get(in->fs, d.parent, &dir) < 0)
            dir = NULL;
    }
    meta_dentry_clear(&d);
    return dir;
}

static void learn(struct inode *in, enum read_habit habit)
{
    bool mapped;
    INODE_REF dir = habit == READ_UNKNOWN ? NULL : dir_of(in, &mapped);
    if (!dir)
        return;
    mutex_lock(&dir->mu);
    bool news = dir->read_habit != habit;
    dir->read_habit = habit;
    mutex_unlock(&dir->mu);
    if (news)
        log_debug("io", "large files are read by %s dir=%" PRIu64, habit == READ_BLOCKS ? "blocks" : "pieces",
                  dir->ino);
}

bool read_mode_wants_direct(struct inode *in)
{
    const char *why;
    bool mapped = false;
    uint64_t size = cache_file_size(in->cf), absent = size - MIN(cache_file_present_bytes(in->cf), size);
    if (!(atomic_load(&in->fs->fuse_caps) & FUSE_CAP_DIRECT_IO_ALLOW_MMAP) || !io_mode_works(in->fs, &why) ||
        cache_file_complete(in->cf) || !cache_file_can_come(in->cf, absent))
        return false;
    INODE_REF dir = dir_of(in, &mapped);
    if (!dir || mapped)
        return false;
    mutex_lock(&dir->mu);
    enum read_habit habit = dir->read_habit;
    mutex_unlock(&dir->mu);
    return habit == READ_BLOCKS || (habit == READ_UNKNOWN && absent <= READ_GUESS_BYTES);
}

/* ---- readers ---- */

void read_mode_opened(struct handle *h, bool direct)
{
    h->watch.on = !h->slot->writable && !cache_file_complete(h->in->cf);
    h->watch.direct = direct;
}

/* Between STEP_BYTES and twice that the thread is looked at for the first time, and then again until it is known. */
static void look(struct handle *h, int tid, uint64_t bytes, bool ended)
{
    struct read_watch *w = &h->watch;
    struct read_task now;
    if (!read_task_look(tid, &now))
        return;
    mutex_lock(&h->in->mu);
    enum read_habit habit = read_habit_of_task(&w->first, &now, bytes - w->first_bytes, ended);
    if (w->first.tid != tid || habit != READ_UNKNOWN) {
        w->first = now;
        w->first_bytes = bytes;
    }
    mutex_unlock(&h->in->mu);
    learn(h->in, habit);
}

void read_mode_note(struct handle *h, int tid, size_t bytes)
{
    struct read_watch *w = &h->watch;
    if (!w->on)
        return;
    atomic_fetch_add_explicit(&w->reads, 1, memory_order_relaxed);
    uint64_t before = atomic_fetch_add_explicit(&w->bytes, bytes, memory_order_relaxed);
    if (before / STEP_BYTES != (before + bytes) / STEP_BYTES && tid > 0)
        look(h, tid, before + bytes, false);
}

void read_mode_released(struct handle *h)
{
    struct read_watch *w = &h->watch;
    if (!w->on)
        return;
    uint64_t bytes = atomic_load(&w->bytes), reads = atomic_load(&w->reads);
    mutex_lock(&h->in->mu);
    int tid = w->first.tid;
    mutex_unlock(&h->in->mu);
    if (w->direct)
        learn(h->in, read_habit_of_sizes(bytes, reads));
    if (tid) /* what it tells is better: a mapping reads by large requests */
        look(h, tid, bytes, true);
}
