/*
 * See orphan.h. Whether a signal ended the program is in its exit code, which the kernel knows before it closes what was open; it shows it to whoever may trace the
 * program, so not for every program to a daemon of a user. Where it cannot be seen a close is a close.
 */
#include "orphan.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define EXIT_CODE_FIELD 52 /* of /proc/TID/stat, from 1 */
#define AFTER_NAME      3  /* the name is the second, and may hold anything */
#define SIGNAL_BITS     0x7f

static bool ended_by_signal(int tid)
{
    char path[64], line[1024];
    g_snprintf(path, sizeof(path), "/proc/%d/stat", tid);
    FILE *f = tid > 0 ? fopen(path, "re") : NULL;
    const char *at = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
    if (f)
        fclose(f);
    for (unsigned field = AFTER_NAME - 1; at && field < EXIT_CODE_FIELD; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return at && g_ascii_strtoull(at, NULL, 10) & SIGNAL_BITS;
}

bool orphan_note_close(struct handle *h, int tid)
{
    struct inode *in = h->in;
    bool left = in->fs->cfg->orphan == ORPHAN_HOLD && ended_by_signal(tid);
    mutex_lock(&in->mu);
    in->orphan = left;
    atomic_store(&h->slot->left, left ? h->slot->gen : 0); /* the release may be another worker's */
    mutex_unlock(&in->mu);
    return left;
}

bool orphan_stays_open(struct inode *in)
{
    mutex_lock(&in->mu);
    bool stays = in->orphan && in->rec.content == CONTENT_OPEN;
    mutex_unlock(&in->mu);
    if (stays)
        log_warn("content",
                 "a signal ended the program that wrote a file; it is kept here and published after its next close "
                 "ino=%" G_GUINT64_FORMAT,
                 in->ino);
    return stays;
}
