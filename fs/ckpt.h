/*
 * Checkpoints: files or directories that a pin rule means, or that look like one: *.pt, *.pth, *.ckpt, *.safetensors, *.bin; directories such as step_100, checkpoint-200,
 * global_step300, epoch=3. What is below a checkpoint is part of it.
 */
#pragma once
#include "fs.h"

struct ckpt {
    const char *path; /* from the root of the mount */
    uint64_t ino, id; /* id: of its name */
    bool dir;
};

/* What is known of all files of one; nothing is asked of the store. */
struct ckpt_sum {
    uint64_t files, bytes, cached_bytes;
    int64_t mtime_ns; /* of the newest file; of the directory where no file is known */
    bool open;        /* a file is being written */
    bool owed;        /* bytes of it are not in the store, but for files that a rule keeps here, unless all are such */
    bool pending;     /* something is still to be done there: a rename, attributes */
    bool unfinished;  /* it has a name that --hold means: whoever wrote it was to rename it */
    bool pinned;      /* all files are */
    bool in_memory;   /* pinned there */
};

/* Non-zero ends the walk and is returned. */
typedef int ckpt_fn(void *ctx, const struct ckpt *c);

bool ckpt_has_shape(const char *name, bool dir);
/* Calls fn for the checkpoints of a glob (struct rule.match) that are known here: one that ends in two stars means what has the shape of one, any other one what it
 * matches. rule: of these only what this rule (struct rule.text) applies to; NULL: all. */
int ckpt_each(struct fs *fs, const char *match, const char *rule, ckpt_fn *fn, void *ctx) MUST_CHECK;
/* Those that have the shape of one in a directory and below it. list (may be NULL) is called for each directory before its names are read: non-zero from it leaves the directory
 * out. */
int ckpt_each_below(struct fs *fs, const char *dir, bool (*list)(void *ctx, uint64_t ino, const char *path),
                    ckpt_fn *fn, void *ctx) MUST_CHECK;
int ckpt_sum_up(struct fs *fs, const struct ckpt *c, struct ckpt_sum *ret) MUST_CHECK;
/* Everything of it is published and verified, and under its final name. */
static inline bool ckpt_is_safe(const struct ckpt_sum *s)
{
    return s->files > 0 && !s->open && !s->owed && !s->pending && !s->unfinished;
}
/* May older ones be let go for it? So where it is safe as far as it is known: of an unlisted directory nothing was made here. Not so an empty one. */
bool ckpt_may_replace(struct fs *fs, const struct ckpt *c);

/* Rules of the mount that pin. */
void ckpt_rules_each(struct fs *fs,
                     void (*fn)(void *ctx, const char *match, const char *rule, unsigned latest, enum cache_pin pin),
                     void *ctx);
/* The folder that a glob names before its first wildcard, "" the root. Owned by the caller. */
char *ckpt_folder(const char *match);
