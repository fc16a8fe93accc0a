/* What may stand upstream though no record says so: notes made before an op makes something visible. */
#pragma once
#include "publish.h"

struct op;
struct outcome;
struct late_request;

/* The token of a version that is published now: uuid of the cache, id (cache file, or inode of a link or directory), generation and meta_opening(), which tells it from that of a
 * node with a copy of the cache folder. Those of earlier versions end before that. ret: TOKEN_MAX + 1 bytes. */
void token_write(struct fs *fs, uint64_t id, uint64_t gen, char *ret);
/* Is it that version, by whichever opening? */
bool token_is_version(struct fs *fs, const char *token, uint64_t id, uint64_t gen);
/* Its bytes that name the version: the opening of the database is left out. */
size_t token_version_len(const char *token);
/* Is token one of ours, which begins with prefix and ends in a generation, and of a later generation than the recorded one, if that begins so too? */
bool token_is_later(const char *token, const char *prefix, const char *recorded);
/* Before the op's upload becomes visible: its token is that of this version, or, if the upload began before, of an earlier one, but later than old_token.
 * -EAGAIN: the op was dropped, or its key rests, nothing may become visible. */
struct upload_note {
    uint64_t id, gen;
    const char *old_token;
};
int note_upload(struct op *o, const struct upload_note *upload, const struct late_request *req) MUST_CHECK;
/* The same before a copy that will have this token. */
struct copy_note {
    const char *token;
    uint64_t size;
    uint64_t same_ino;              /* the object of that inode is copied over itself; 0: it is not */
    const struct posix_attr *posix; /* what it is given; NULL: what the source has */
};
int note_copy(struct op *o, const struct copy_note *copy, const struct late_request *req) MUST_CHECK;
/* The copy; where it is made by an upload that is recorded meanwhile, so that the next start ends it if this one cannot. */
int note_and_copy(struct op *o, struct obj_copy *copy, struct etag *ret_etag) MUST_CHECK;
/* Does an object with these attributes have those that it was given? Where the store keeps none nobody knows: yes. with_mtime: the time of its last change as well. */
bool note_carries(const struct posix_attr *have, const struct posix_attr *want, bool with_mtime);
void note_clear(struct fs *fs, struct meta_batch *b, const char *key);
/* The named value goes, where there is one: most often there is none, and no tombstone is written. Reads the database. */
void note_drop_value(struct fs *fs, struct meta_batch *b, const char *name);
/* Nobody's bytes go with it: at a key that ends in '/' any empty object is as good as the one noted. */
bool note_is_marker(const char *key);
/* Was the object at key, whose token is of this cache, made by this opening, or is it noted there? */
bool note_is_own(struct fs *fs, const char *key, const struct obj_info *info);
/* The object at key if it is the one noted; asks the store. -ENOENT: no note, or it is not there. */
int note_find(struct fs *fs, const char *key, struct obj_info *ret) MUST_CHECK;
/* The object at key if it is the one noted and by its token this content of the inode: with other metadata, say. -ENOENT: it is not. */
int note_content(struct fs *fs, const char *key, uint64_t ino, const struct outcome *content, struct etag *ret_etag)
    MUST_CHECK;
/* The etag of the object at key, if that is a version of the content vid, or that of ino with other metadata, and not recorded yet. -ENOENT: it is not. Asks the store. */
int note_newer(struct fs *fs, uint64_t vid, uint64_t ino, const char *key, struct etag *ret_etag) MUST_CHECK;
