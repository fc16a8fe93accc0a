/*
 * Pins: content that is kept in the cache. INODE_PINNED (and INODE_PIN_MEMORY) in the inode's record is the truth, the cache's mark follows it.
 * INODE_PIN_RULE says that a rule pinned it: what was pinned by name stays as it is whatever rules say.
 *
 * What `sluice pin` named is remembered as value "pin-name/INO": its path, and looked at again at each start: what is pinned of it and absent is fetched, so that neither a kill nor
 * an outage leaves a pin without its bytes for long. Such a value goes with the pin, or at the start that does not find it pinned by name any more.
 *
 * A pinned directory hands its pin on to what appears in it: made here, moved there or found by a listing. A name pinned by name stays pinned when another is renamed over it;
 * one that is removed, and made again, does not.
 *
 * A rule keeps the newest N names that match a glob pinned and present: "ckpt/STAR.pt" = 3, stored as value "pin/<glob>": "3", or "3 memory". These are the N newest that are
 * published and verified, and what is newer than these: an older one is let go only for one that is safe. The folder part of a glob is literal, its last component may have wildcards; what matches may be files or directories (then everything below). Names still open
 * for writing do not count. What is renamed to where no rule reaches is not kept by one any more. What several rules match is unpinned when none of them wants it, and in memory while one of them wants it there. Rules are looked at behind, when something under a
 * rule's folder was sealed, renamed or published, when a listing changed it, and at the start.
 *
 * An option, --rule GLOB=pin=N, is such a rule for the checkpoints that it means (ckpt.h). The value "rule-pin/<glob>" says that it pinned something: a mount that does not have it any more lets go of that.
 */
#pragma once
#include "fs.h"

#define PIN_VALUE_PREFIX  "pin/"
#define PIN_OPTION_PREFIX "rule-pin/"
#define PIN_NAME_PREFIX   "pin-name/"

static inline enum cache_pin pin_of(const struct meta_inode *rec)
{
    return !(rec->flags & INODE_PINNED) ? PIN_NONE : rec->flags & INODE_PIN_MEMORY ? PIN_MEMORY : PIN_DISK;
}

/* INODE_PIN_FLAGS that a new name in this directory gets. */
uint32_t pin_inherited(struct fs *fs, uint64_t dir) REQUIRES(fs->ns);
/* INODE_PIN_FLAGS of `to`, which takes the place of `from`. */
uint32_t pin_handed_on(const struct meta_inode *from, const struct meta_inode *to);
/* The record of the inode, now at path, got other such flags: the cache, and what is below it, follow, what is absent is fetched behind. */
void pin_follow(struct fs *fs, uint64_t ino, const char *path);
/* Pins or (PIN_NONE) unpins an inode by name and, for a directory, everything below that is known. */
int pin_tree(struct fs *fs, uint64_t ino, enum cache_pin pin) MUST_CHECK;
/* The same, and is told before each page of n names is marked; < 0 ends it there. NULL: nobody is told. */
struct pin_tick {
    int (*fn)(void *ctx, unsigned n);
    void *ctx;
};
int pin_tree_told(struct fs *fs, uint64_t ino, enum cache_pin pin, const struct pin_tick *tick) MUST_CHECK;
/* Fetches what is absent below the paths (NULL-terminated), of a pinned one what is pinned, of a directory that --on-create looks through (rules_warms_below()) what it means, in the
 * background: a few warm-ups at a time, and none for a path that another is on; it is looked at again after that. What fails, but for names that are gone, is tried again later,
 * PIN_FETCH_TRIES times in all within about an hour. Any thread; no ranked lock may be held. */
#define PIN_FETCH_TRIES 12u
void pin_fetch(struct fs *fs, const char *const *paths);
/* Something may be missing here: a directory that was not listed, or a clean file that is not complete. */
bool pin_is_absent(struct fs *fs, const struct meta_inode *rec);
/* Adds paths, owned, that bring what is absent of what is pinned in a pinned directory, as far as it is known. Of more than a few names none is named: the walk of the directory finds them page by page. */
void pin_absent_in(struct fs *fs, const char *dir, GPtrArray *ret_paths);

/* The inode of a path as far as it is known here: nothing is asked of the store. ret_above (may be NULL) gets it and those of the directories above. */
int pin_resolve_known(struct fs *fs, const char *path, GArray *ret_above, uint64_t *ret_ino) MUST_CHECK;

/* ---- pin_names.c ---- */

/* As pin_tree_told() of what is at path now, and remembers it; an unpin that was ended remembers that it is pinned: the directory itself is, and hands it on. */
int pin_by_name(struct fs *fs, uint64_t ino, const char *path, enum cache_pin pin, const struct pin_tick *tick)
    MUST_CHECK;
/* Paths of what was pinned so, owned: all of it that is still. */
void pin_names_add(struct fs *fs, GPtrArray *ret_paths);

/* ---- pin.c ---- */

/* Stores the rule and applies it: pins the newest, unpins others as far as newer ones are safe, fetches behind. ret_pinned (may be NULL) gets the paths pinned, owned. What is not
 * known here it waits for. -EINVAL: wildcards in the folder part, or no name. */
int pin_rule_set(struct fs *fs, const char *glob, unsigned latest, enum cache_pin pin, GPtrArray *ret_pinned)
    MUST_CHECK;
/* Unpins what the rule held and removes it. -ENOENT: there is none; or, latest != 0, it keeps another number of names. */
int pin_rule_remove(struct fs *fs, const char *glob, unsigned latest) MUST_CHECK;

/* A name at path was sealed or renamed to, or (path with a '/' at its end, the root "/") a listing changed names of a directory, or (NULL) nobody knows
 * what changed: the rules are looked at behind. Cheap; no ranked lock may be held. */
void pin_rules_apply(struct fs *fs, const char *path);
/* What is at path was published: an older name may be let go for it. As cheap. */
void pin_rules_note_published(struct fs *fs, const char *path);
