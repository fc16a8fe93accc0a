/* What the name's record does not know of its key. */
#pragma once
#include "fs.h"

struct op;

/* The file of that inode lost, or is about to lose, an object: if somebody has it open its absent bytes are brought here, and stay if it has no name. No lock is held. ino 0: 0.
 * -EBUSY: it is not, or not kept, whole here; -errno: try again later. */
int place_bring_here(struct fs *fs, uint64_t ino) MUST_CHECK;
/* Before a delete: the same for keep_ino, and for files without a name that rest on its key: a name that took over an earlier delete left that, and may have gone on. */
int place_keep_readers(struct op *o) MUST_CHECK;
/* Before the op replaces the object of its name d: the same for files without a name that somebody has open and that rest on it. -errno: try again later, which it does not say for
 * ever: what cannot be brought here is lost to their readers, who are told so. */
int place_spare_readers(struct op *o, const struct meta_dentry *d) MUST_CHECK;
/* The same before the op takes over a delete, which would have done it. */
int place_ready(struct op *o) MUST_CHECK;
/* Under ns, after place_ready() and before the op looks at d, its name: a delete of its key that waits is taken over. -EBUSY: a reader still needs the object, try again. */
int place_take_delete(struct op *o, struct meta_dentry *d) MUST_CHECK;
/* Under ns: etag is what stands at the name's own key, "": nothing; d follows. -EAGAIN: the name went on. */
int place_adopt(struct op *o, struct meta_dentry *d, const struct etag *etag) MUST_CHECK;
/* The store refused because another object than known, or none, stands there. Where none is left of what was to be replaced nobody's bytes are in danger: -EAGAIN, the record says
 * so now. So it is, and the next try goes on from there, where what stands at a key that is new to the name is what this one made and got no answer for. -ESTALE: a conflict. */
int place_look_again(struct op *o, struct meta_dentry *d) MUST_CHECK;
