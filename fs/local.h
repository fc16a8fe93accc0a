/*
 * Files that a local-only rule keeps here: closed like others, content SEALED, but without a journal record, so nothing is sent, waited for or counted as owed to the store.
 *
 * Whether a name is kept here is what the rules of this mount say of its path; nothing in its records says so. The value "local/INO" lists those that there are, with the wall clock
 * of the last close; one that is out of date harms nothing. A start goes through them: where the rule is gone the file is published.
 * They leave, or come, by rename of a file: what comes is brought here and its object is deleted. A directory with something that would come is refused (EXDEV: mv copies), and so is
 * what would leave a file with names on both sides; an exchange of two names is two such renames.
 */
#pragma once
#include "fs.h"

#define LOCAL_VALUE_PREFIX "local/"

/* Is the name with this key ("a/b", of a directory "a/b/") kept here? Any lock may be held. */
bool local_is(struct fs *fs, const char *key);
/* The inode is one of them; the value is put into the batch. Closed just now, or made. */
void local_note(struct fs *fs, struct meta_batch *b, uint64_t ino);
/* If it is one of them, which was open when the daemon ended: that was its last close. */
void local_note_again(struct fs *fs, struct meta_batch *b, uint64_t ino);
/* The last name of an inode goes. */
void local_forget(struct fs *fs, struct meta_batch *b, uint64_t ino);
/* Nobody has the file open any more. */
void local_closed(struct inode *in);

/* After publish_open(), before others work: journal records of names that are kept here now go, those that are not any more are published. */
int local_settle(struct fs *fs) MUST_CHECK;

struct local_counts {
    uint64_t files, bytes; /* bytes: their sizes */
    uint64_t disk_bytes;   /* what they take of the cache's unpublished bytes */
    uint64_t quarantined;  /* of the files */
};
void local_count(struct fs *fs, struct local_counts *ret);

/* Removes files whose ttl has ended, if it is time to look; one thread only, which calls it every now and then. Never one that is open. When the clock was set forward all ttls begin anew. */
void local_expire(struct fs *fs);
