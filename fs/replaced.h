/*
 * A file that was renamed over another, and is perhaps not on the disk yet. The other one stays, whole, until it is: a power loss leaves the name with the one or the other.
 *
 * As long as that is so the record of the replaced file without a name tells who took its place, and what its name was like (meta_orphan.h). What came is brought to the
 * disk at once, by threads of their own: the program that renames does not wait. A start after a power loss that took what came gives the name back; what is left
 * of the other then goes, as its old name is not its any more, also for a program that has synced the directory.
 *
 * It is not given back where the name, or a directory above, was moved on before: what came is quarantined then, as any file that a power loss took.
 */
#pragma once
#include "fs.h"

struct meta_dentry;

/* Under ns: `was`, whose journal record was op_seq, is dropped by b, and in takes its place. over: its inode, NULL allowed. True: replaced_settle() once that is committed. */
bool replaced_note(struct fs *fs, struct meta_batch *b, const struct meta_dentry *was, uint64_t op_seq,
                   struct inode *over, struct inode *in) REQUIRES(fs->ns) MUST_CHECK;
/* Behind: what came is brought to the disk; then the file without a name goes if nobody uses it. What fails is tried again after another one did not. */
void replaced_settle(struct fs *fs, uint64_t ino);
/* The same of all that workers before left. */
void replaced_resume(struct fs *fs);
/* Once a second: they all go, whatever a power loss then takes, when a writer waits for room that nothing else makes: else a slow disk would end the program that
 * saves a file by another name again and again. */
void replaced_make_room(struct fs *fs);

/* For a start, before anything else is settled: gives names back, see above. */
int replaced_recover(struct fs *fs) MUST_CHECK;
