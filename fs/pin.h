/*
 * Pins: content that is kept in the cache. INODE_PINNED (and INODE_PIN_MEMORY) in the inode's record is the truth, the cache's mark follows it.
 *
 * A rule keeps the newest N names that match a glob pinned and present: "ckpt/STAR.pt" = 3, stored as value "pin/<glob>": "3", or "3 memory". The folder part of a glob is
 * literal, its last component may have wildcards; what matches may be files or directories (then everything below). Names still open for writing do not
 * count. Rules are looked at behind, when something under a rule's folder was sealed, renamed or appeared.
 * A pinned directory hands the pin on to files that appear in it.
 */
#pragma once
#include "fs.h"

#define PIN_VALUE_PREFIX "pin/"

static inline enum cache_pin pin_of(const struct meta_inode *rec)
{
    return !(rec->flags & INODE_PINNED) ? PIN_NONE : rec->flags & INODE_PIN_MEMORY ? PIN_MEMORY : PIN_DISK;
}

/* Pins or (PIN_NONE) unpins an inode and, for a directory, everything below that is known. */
int pin_tree(struct fs *fs, uint64_t ino, enum cache_pin pin) MUST_CHECK;
/* Fetches what is absent below the paths (NULL-terminated), in the background. */
void pin_fetch(struct fs *fs, const char *const *paths);

/* True for a last component with '*', '?' or '['. */
bool pin_is_glob(const char *path);
/* Stores the rule (latest > 0) or removes it (0). -EINVAL: wildcards in the folder part. -ENOENT: no such rule to remove. */
int pin_rule_set(struct fs *fs, const char *glob, unsigned latest, enum cache_pin pin) MUST_CHECK;
/* Applies one rule now: pins the newest, unpins the others, fetches behind. ret_pinned (may be NULL) gets the paths pinned, owned. latest 0 unpins all matches. */
int pin_rule_apply(struct fs *fs, const char *glob, unsigned latest, enum cache_pin pin, GPtrArray *ret_pinned)
    MUST_CHECK;

/* A name at path was sealed, renamed to or appeared: its rules are looked at behind. Cheap; no ranked lock may be held. */
void pin_rules_apply(struct fs *fs, const char *path);
