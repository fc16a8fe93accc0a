/* Reading the records of many inodes and names that were made one after the other, see meta.h. */
#include "meta_db.h"

struct meta_near {
    struct meta_db_reader *inodes, *names; /* owned; apart, so that each stays close to what it is asked for next */
};

struct meta_near *meta_near_new(struct meta *m)
{
    struct meta_near *n = g_new0(struct meta_near, 1);
    n->inodes = meta_db_reader_new(m->db, TAG_INODE);
    n->names = meta_db_reader_new(m->db, TAG_NAME);
    return n;
}

void meta_near_free(struct meta_near *n)
{
    if (!n)
        return;
    meta_db_reader_free(n->inodes);
    meta_db_reader_free(n->names);
    g_free(n);
}

int meta_near_inode(struct meta_near *n, uint64_t ino, struct meta_inode *ret)
{
    META_VAL v = {0};
    int r = meta_db_read(n->inodes, meta_key1(TAG_INODE, ino, NULL), &v);
    return r < 0 ? r : meta_inode_decode(ino, &v, ret);
}

int meta_near_dentry(struct meta_near *n, uint64_t parent, const char *name, struct meta_dentry *ret)
{
    META_VAL v = {0};
    int r = meta_db_read(n->names, meta_key1(TAG_NAME, parent, name), &v);
    return r < 0 ? r : meta_dentry_decode(parent, name, &v, ret);
}
