/* Between the parts of fsck: fsck.c (folder, database, order of passes), fsck_names.c, fsck_data.c, fsck_bytes.c, fsck_store.c, fsck_report.c. */
#pragma once
#include "cache_scan.h"
#include "fsck.h"
#include "meta.h"
#include "objstore.h"

#include <glib.h>

struct fsck {
    const struct fsck_options *o;
    struct fsck_result *res;
    struct meta *m;
    const char *dir, *binding, *identity; /* binding: of the folder, identity: of its store */
    bool escape;
    uint64_t done, total; /* records, for the progress */
    /* of the pass in progress */
    uint32_t at_tier;   /* number of the disk being looked through */
    const char *at_dir; /* and its folder */
    struct meta_batch *b;
    GHashTable *op_seqs; /* journal records that a name waits for: seq -> itself */
    GHashTable *intents; /* vids of data files with an intent */
    GHashTable *dirty;   /* vids of unpublished inodes: vid -> struct dirty_file */
    GHashTable *right;   /* vids whose record names another disk than the one with the right bytes: vid -> its number */
    GArray *stray;       /* struct stray: data files to put aside */
    GPtrArray *values;   /* names of values to remove */
    unsigned n_rescued;  /* of this disk */
    unsigned lost_files; /* with an intent, no record */
    uint64_t disk_bytes; /* of data files with a record */
    uint64_t noted_bytes; /* what those records say */
};

/* An unpublished inode, by its cache file. */
struct dirty_file {
    uint64_t vid, ino;
    bool has_base; /* part of it may be in the store only: without the record nobody knows which */
};

/* A data file that no record knows. */
struct stray {
    uint64_t vid;
    bool keep; /* its bytes may be nowhere else */
};

/* ---- fsck_report.c ---- */

/* Something is wrong. action: what repair does about it, and did when it runs; NULL: nobody but the reader can. */
void fsck_finding(struct fsck *f, const char *path, const char *action, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Something worth knowing. */
void fsck_remark(struct fsck *f, const char *path, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* One record more was looked at. */
void fsck_step(struct fsck *f);
/* The first path of an inode, or "inode N"; of a name. Owned. */
char *fsck_path(struct fsck *f, uint64_t ino);
char *fsck_path_of_name(struct fsck *f, uint64_t parent, const char *name);

/* ---- passes: 0 or -errno; what is to be changed is put into f->b or the lists, and written by fsck.c after each ---- */

int fsck_op(void *f, const struct meta_op *op);
int fsck_inode(void *f, const struct meta_inode *in);
int fsck_name(void *f, const struct meta_dentry *d);
int fsck_conflicts(struct fsck *f);
int fsck_cached(void *f, const struct meta_cached *c);
int fsck_values(struct fsck *f);
/* Data files of all disks. */
int fsck_data(struct fsck *f);
int fsck_end_pass(struct fsck *f, int r);

/* ---- fsck_bytes.c ---- */

enum bytes_state {
    BYTES_UNKNOWN, /* it could not be found out this time, and nothing is to be done about the file */
    BYTES_LOST,    /* they are not what was closed, whatever comes */
    BYTES_OTHER,   /* those of another disk than the record's are */
};
/* What is wrong with the bytes of an unpublished file; NULL when nothing is. Owned. *ret_dir: the folder with its data file, *ret_disk: its number. */
char *fsck_bytes_fault(struct fsck *f, const struct meta_inode *in, char **ret_dir, uint32_t *ret_disk,
                       enum bytes_state *ret);
/* The number of the disk whose data file is that of an unpublished inode without a record: the first one with the right bytes, as far as anything tells. */
int fsck_bytes_disk(struct fsck *f, uint64_t ino, uint32_t *ret) MUST_CHECK;
/* Asks the bucket. */
int fsck_store(struct fsck *f);
