/* What the kernel is told to forget; the notes are sent by a thread of their own. */
#pragma once
#include <stdint.h>

struct fs;

void notify_entry(struct fs *fs, uint64_t parent, const char *name);
void notify_inode(struct fs *fs, uint64_t ino);
/* Waits a little, for as long as a second, while thousands of notes wait. Not by who serves a request or lists: the kernel may wait for that. */
void notify_pace(struct fs *fs);
/* All names below the directory, and their attributes, are to be asked for anew, for however long they were to be trusted. Who is at work in a directory notices nothing; where
 * the kernel cannot do that (before Linux 6.2) the names of directories stay as they are. */
void notify_below(struct fs *fs, uint64_t dir);
/* The same of the names in it alone. */
void notify_names(struct fs *fs, uint64_t dir);
/* The same of all names, and since Linux 6.16 of those that are known not to be there. May be called for each of many events. */
void notify_all(struct fs *fs);
