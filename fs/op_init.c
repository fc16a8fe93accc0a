/* INIT, DESTROY, STATFS and the virtual files. */
#include "io_mode.h"
#include "no_open.h"
#include "op.h"

#include <sys/statvfs.h>

#define LAKE_BYTES (1ull << 50) /* what df shows: the lake has no size of its own */

/* What the first worker agreed on with the kernel holds for the life of the connection, whoever serves it. */
static void keep_agreement(struct session *session, struct fuse_conn_info *conn)
{
    struct sess_head *head = session->head;
    for (unsigned bit = 0; bit < 64 && session_is_takeover(session); bit++) {
        if (head->want_ext & (1ull << bit))
            (void)fuse_set_feature_flag(conn, 1ull << bit);
        else
            fuse_unset_feature_flag(conn, 1ull << bit);
    }
    head->want_ext = conn->want_ext & conn->capable_ext;
    head->max_write = conn->max_write;
}

void op_init(void *userdata, struct fuse_conn_info *conn)
{
    static const uint64_t wanted[] = {
        FUSE_CAP_HANDLE_KILLPRIV_V2,  FUSE_CAP_PARALLEL_DIROPS,      FUSE_CAP_ASYNC_DIO,        FUSE_CAP_ASYNC_READ,
        FUSE_CAP_EXPLICIT_INVAL_DATA, FUSE_CAP_READDIRPLUS,          FUSE_CAP_READDIRPLUS_AUTO, FUSE_CAP_ATOMIC_O_TRUNC,
        FUSE_CAP_NO_EXPORT_SUPPORT,   FUSE_CAP_DIRECT_IO_ALLOW_MMAP, FUSE_CAP_EXPIRE_ONLY,
    };
    static const uint64_t unwanted[] = {
        FUSE_CAP_AUTO_INVAL_DATA, FUSE_CAP_WRITEBACK_CACHE, FUSE_CAP_SPLICE_READ, FUSE_CAP_SPLICE_WRITE,
        FUSE_CAP_SPLICE_MOVE,     FUSE_CAP_POSIX_LOCKS,     FUSE_CAP_FLOCK_LOCKS,
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(wanted); i++)
        (void)fuse_set_feature_flag(conn, wanted[i]);
    for (unsigned i = 0; i < G_N_ELEMENTS(unwanted); i++)
        fuse_unset_feature_flag(conn, unwanted[i]);
    struct fs *fs = userdata;
    bool opens = !fs->cfg->immutable || !fuse_set_feature_flag(conn, FUSE_CAP_NO_OPEN_SUPPORT);
    if (!opens)
        (void)fuse_set_feature_flag(conn, FUSE_CAP_NO_OPENDIR_SUPPORT);
    if (opens && fs->cfg->passthrough == SWITCH_ON)
        (void)fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH);
    conn->max_backing_stack_depth = 1; /* the cache folder may lie on an overlay */
    conn->max_write = FS_MAX_WRITE;
    conn->max_read = 0;
    conn->max_background = 64;
    conn->congestion_threshold = 48;
    conn->time_gran = 1;
    conn->no_interrupt = 1; /* fuse_loop.c sees to that */
    keep_agreement(fs->session, conn);
    atomic_store(&fs->fuse_caps, conn->want_ext & conn->capable_ext);
    if (session_is_takeover(fs->session))
        notify_take_over(fs);
    io_mode_connected(fs, conn->want_ext & FUSE_CAP_PASSTHROUGH);
    log_info("fuse", "connected proto=%u.%u capable=%#" G_GINT64_MODIFIER "x want=%#" G_GINT64_MODIFIER "x",
             conn->proto_major, conn->proto_minor, (uint64_t)conn->capable_ext, (uint64_t)conn->want_ext);
}

void op_destroy(void *userdata)
{
    log_info("fuse", "connection closed");
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs s = {
        .f_bsize = 1 << 20,
        .f_frsize = 4096,
        .f_blocks = LAKE_BYTES / 4096,
        .f_bfree = LAKE_BYTES / 4096,
        .f_bavail = LAKE_BYTES / 4096,
        .f_files = 1ull << 40,
        .f_ffree = 1ull << 40,
        .f_favail = 1ull << 40,
        .f_namemax = FS_NAME_MAX,
    };
    (void)fuse_reply_statfs(req, &s); /* an interrupted request has nobody to tell */
}

uint64_t virt_lookup(uint64_t parent, const char *name)
{
    if (parent != META_ROOT_INO || name[0] != '.')
        return 0;
    return g_str_equal(name, ".stats") ? VIRT_STATS : g_str_equal(name, ".config") ? VIRT_CONFIG : 0;
}

void virt_stat(struct fs *fs, uint64_t ino, struct stat *ret)
{
    time_t now = (time_t)(clock_wall_ns() / (int64_t)NS_PER_S);
    *ret = (struct stat){.st_ino = ino,
                         .st_mode = S_IFREG | 0444,
                         .st_nlink = 1,
                         .st_uid = fs->uid,
                         .st_gid = fs->gid,
                         .st_mtime = now,
                         .st_ctime = now};
}

char *virt_text(struct fs *fs, uint64_t ino)
{
    GString *s = g_string_new(NULL);
    if (ino == VIRT_STATS)
        metric_expose(s);
    else
        config_dump(fs->cfg, fs->cache_dir, s);
    return g_string_free(s, FALSE);
}
