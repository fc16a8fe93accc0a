/* notify.c: what the kernel is told to forget, by a thread of its own; in the order in which it was said. Included by fs.h. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>

struct fs;
struct inode;

struct notes {
    uint64_t covered; /* owned by the thread: notes up to this number are of what was committed */
    /* atomic */
    _Atomic uint64_t n;     /* so far */
    atomic_uint all_doubts; /* notify_all() since the look at all began that runs; 0: none does */
};

void notify_entry(struct fs *fs, uint64_t parent, const char *name);
void notify_inode(struct fs *fs, uint64_t ino);
/* The worker before ended before all that it had said was sent: all names are to be asked for anew, and it is told once more of those that are gone. Once the kernel's INIT is known. */
void notify_take_over(struct fs *fs);
/* The next user of the name asks anew, and who is at work below notices nothing; no more than a wish before Linux 6.2. */
void notify_doubt(struct fs *fs, uint64_t parent, const char *name);
/* The kernel has been told of all single names and inodes that were said before, once this returns; of what notify_below(), _names() and _all() mean perhaps not all. Or a second is
 * over: the kernel may hold up who tells it. Not by who serves a request or holds a lock. */
void notify_settle(struct fs *fs);
/* Waits a little, for as long as a second, while thousands of notes wait. Not by who serves a request or lists: the kernel may wait for that. */
void notify_pace(struct fs *fs);
/* All names below the directory, and their attributes, are to be asked for anew, for however long they were to be trusted. Who is at work in a directory notices nothing; where
 * the kernel cannot do that (before Linux 6.2) the names of directories stay as they are. */
void notify_below(struct fs *fs, uint64_t dir);
/* The same of the names in it alone. May be called for each of many events. */
void notify_names(struct fs *fs, struct inode *dir);
/* The same of all names; that one is not there counts for as long as it was to. May be called for each of many events. */
void notify_all(struct fs *fs);
