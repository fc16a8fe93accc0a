/*
 * The end of the database's logs after a power loss.
 *
 * Bytes that were appended and not synced reach the disk in any order, while the file has its new length, or an older one: what is missing are sectors of zeros, in front
 * of bytes that are there, or the end of the file. RocksDB takes zeros for a gap that it may pass over, and either goes on behind it (a batch without those before it) or
 * refuses the whole log as damaged. So before it opens a log is cut off at the first record that a gap has damaged. A record that is wrong in any other way is
 * left for RocksDB, which refuses it: that is no end that was lost, but something that was there and is not any more.
 *
 * There are several logs while the memtable of an older one is written to a table. RocksDB would replay the newer one behind an older one that lost its end. But a
 * sync syncs all logs from the oldest live one on, so what lost its end has no synced batch behind it: what stands in newer logs goes too. Live are those from the number on that
 * MANIFEST tells last; what is in others is in tables, they may have lost anything. Batches are numbered without gaps, so each log tells
 * with which number the next one begins.
 *
 * RocksDB's format: blocks of 32 KiB; in them records with crc (masked CRC32C of type and bytes), length, type (whole, or first, middle, last piece of one that
 * spans blocks), bytes; less than a header at the end of a block is zeros. Logs are neither reused nor compressed (meta_db.c). A record of a log is a batch: le64 number of its first
 * change, le32 how many it has. A record of MANIFEST is an edit, varint tags with values, those of log numbers among the first.
 */
#include "base/cleanup.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "meta_db.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES  32768u
#define HEADER_BYTES 7u
#define SECTOR_BYTES 512u
#define CRC_DELTA    0xa282ead8u

enum piece { PIECE_WHOLE = 1, PIECE_FIRST, PIECE_MIDDLE, PIECE_LAST };

/* Of a record: there; there is none any more; it was begun and the file ends; zeros are in it; it is damaged otherwise. */
enum found { FOUND_RECORD, FOUND_END, FOUND_TORN, FOUND_GAP, FOUND_DAMAGE };

#define BATCH_BYTES 12u /* number and count, in front of a batch */

struct wal {
    uint8_t *bytes; /* owned */
    size_t size;
};

static bool is_zero(const struct wal *w, size_t from, size_t to)
{
    for (size_t i = from; i < to && i < w->size; i++)
        if (w->bytes[i])
            return false;
    return true;
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static size_t piece_bytes(const uint8_t *header)
{
    return HEADER_BYTES + ((size_t)header[4] | (size_t)header[5] << 8);
}

static bool piece_fits(const uint8_t *p, bool inside)
{
    uint32_t crc = crc32c(0, p + 6, piece_bytes(p) - 6);
    bool goes_on = p[6] == PIECE_MIDDLE || p[6] == PIECE_LAST;
    return p[6] >= PIECE_WHOLE && p[6] <= PIECE_LAST && goes_on == inside &&
           get32(p) == ((crc >> 15 | crc << 17) + CRC_DELTA);
}

/* Zeros from at to the end of its sector, or in a whole sector up to end. */
static bool has_gap(const struct wal *w, size_t at, size_t end)
{
    size_t next = at - at % SECTOR_BYTES + SECTOR_BYTES;
    if (is_zero(w, at, next))
        return true;
    for (; next < MIN(end, w->size); next += SECTOR_BYTES)
        if (is_zero(w, next, next + SECTOR_BYTES))
            return true;
    return false;
}

struct reader {
    const struct wal *w;
    size_t at;    /* where the next piece begins */
    size_t start; /* of the record last looked at */
};

/* The bytes of the next record go to ret. */
static enum found next_record(struct reader *rd, GByteArray *ret)
{
    const struct wal *w = rd->w;
    bool inside = false;
    g_byte_array_set_size(ret, 0);
    while (rd->at < w->size) {
        size_t at = rd->at, block_end = at - at % BLOCK_BYTES + BLOCK_BYTES;
        if (block_end - at < HEADER_BYTES) {
            rd->at = block_end;
            continue;
        }
        rd->start = inside ? rd->start : at;
        bool header = at + HEADER_BYTES <= w->size;
        size_t end = header ? at + piece_bytes(w->bytes + at) : w->size;
        if (!header || end > MIN(block_end, w->size) || !piece_fits(w->bytes + at, inside)) {
            if (has_gap(w, at, MIN(MAX(end, at + HEADER_BYTES), block_end)))
                return FOUND_GAP;
            return !header || (end > w->size && end <= block_end) ? FOUND_TORN : FOUND_DAMAGE;
        }
        g_byte_array_append(ret, w->bytes + at + HEADER_BYTES, (guint)(end - at - HEADER_BYTES));
        rd->at = end;
        inside = w->bytes[at + 6] == PIECE_FIRST || w->bytes[at + 6] == PIECE_MIDDLE;
        if (!inside)
            return FOUND_RECORD;
    }
    return inside ? FOUND_TORN : FOUND_END;
}

static int read_whole(const char *path, int flags, int *ret_fd, struct wal *ret)
{
    CLEANUP_FD int fd = RET_ERRNO(open(path, flags | O_CLOEXEC));
    struct stat st;
    int r = fd < 0 ? fd : RET_ERRNO(fstat(fd, &st));
    if (r < 0)
        return r;
    g_autofree uint8_t *bytes = g_try_malloc((gsize)st.st_size + 1);
    ssize_t n = bytes ? RET_ERRNO(pread(fd, bytes, (size_t)st.st_size, 0)) : -ENOMEM;
    if (n < 0)
        return (int)n;
    *ret = (struct wal){g_steal_pointer(&bytes), (size_t)n};
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* ---- which logs are live ---- */

static bool get_varint(const uint8_t **p, const uint8_t *end, uint64_t *ret)
{
    uint64_t v = 0;
    for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
        uint8_t byte = *(*p)++;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *ret = v;
            return true;
        }
    }
    return false;
}

/* The tags that stand in front of an edit's tables and files. */
enum {
    TAG_COMPARATOR = 1,
    TAG_LOG,
    TAG_NEXT_FILE,
    TAG_LAST_SEQUENCE,
    TAG_PREV_LOG = 9,
    TAG_MIN_LOG,
    TAG_MAX_FAMILY = 203,
    TAG_DB_ID = 8193
};

static void edit_log_number(const GByteArray *edit, uint64_t *number)
{
    const uint8_t *p = edit->data, *end = p + edit->len;
    uint64_t tag, v;
    while (get_varint(&p, end, &tag) && get_varint(&p, end, &v)) {
        switch (tag) {
        case TAG_LOG:
        case TAG_MIN_LOG:
            *number = MAX(*number, v);
            break;
        case TAG_COMPARATOR:
        case TAG_DB_ID:
            if (v > (uint64_t)(end - p))
                return;
            p += v;
            break;
        case TAG_NEXT_FILE:
        case TAG_LAST_SEQUENCE:
        case TAG_PREV_LOG:
        case TAG_MAX_FAMILY:
            break;
        default:
            return;
        }
    }
}

/* The number from which on logs are replayed; false: not known. */
static bool first_live_log(const char *dir, uint64_t *ret)
{
    g_autofree char *current = g_build_filename(dir, "CURRENT", NULL), *name = NULL;
    g_autoptr(GByteArray) edit = g_byte_array_new();
    CLEANUP_FD int fd = -1;
    struct wal w;
    if (!g_file_get_contents(current, &name, NULL, NULL) || !g_str_has_prefix(name, "MANIFEST-"))
        return false;
    g_autofree char *path = g_build_filename(dir, g_strchomp(name), NULL);
    if (read_whole(path, O_RDONLY, &fd, &w) < 0)
        return false;
    struct reader rd = {.w = &w};
    enum found found;
    *ret = 0;
    while ((found = next_record(&rd, edit)) == FOUND_RECORD)
        edit_log_number(edit, ret);
    g_free(w.bytes);
    return *ret > 0 && (found == FOUND_END || found == FOUND_TORN);
}

/* ---- mending ---- */

struct log_file {
    uint64_t number;
    char *path; /* owned */
};

/* What the logs looked at so far say of the next one. */
struct chain {
    bool lost;  /* batches are missing: nothing behind them counts */
    bool known; /* next is */
    bool
        empty; /* a log without any batch: RocksDB leaves none behind, it goes on to another only from one that has some */
    uint64_t next; /* number of the next change */
};

struct log_state {
    enum found found;
    size_t end;           /* of what is whole */
    bool any;             /* it has batches */
    uint64_t first, next; /* numbers of its first change, and of the one after its last */
};

static uint64_t get64(const uint8_t *p)
{
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static void look(const struct wal *w, struct log_state *ret)
{
    g_autoptr(GByteArray) batch = g_byte_array_new();
    struct reader rd = {.w = w};
    *ret = (struct log_state){.end = 0};
    while ((ret->found = next_record(&rd, batch)) == FOUND_RECORD) {
        ret->end = rd.at;
        if (batch->len < BATCH_BYTES)
            continue;
        ret->first = ret->any ? ret->first : get64(batch->data);
        ret->next = get64(batch->data) + get32(batch->data + 8);
        ret->any = true;
    }
    if (ret->found != FOUND_END)
        ret->end = rd.start;
    else
        ret->end = w->size;
}

static int cut(int fd, const char *path, size_t size, size_t end)
{
    log_warn(
        "meta",
        "the end of the database's log was not on the disk when the machine went down, it is cut off path='%s' size=%zu end=%zu",
        path, size, end);
    int r = RET_ERRNO(ftruncate(fd, (off_t)end));
    return r < 0 ? r : RET_ERRNO(fsync(fd));
}

static int mend(const struct log_file *l, struct chain *c)
{
    CLEANUP_FD int fd = -1;
    struct wal w;
    struct log_state s;
    int r = read_whole(l->path, O_RDWR, &fd, &w);
    if (r < 0)
        return r;
    look(&w, &s);
    g_free(w.bytes);
    c->lost = c->lost || (s.any && (c->empty || (c->known && s.first > c->next)));
    if (s.found == FOUND_DAMAGE && !c->lost)
        return -EBADMSG;
    if (c->lost && w.size)
        return cut(fd, l->path, w.size, 0);
    if (s.found == FOUND_GAP)
        r = cut(fd, l->path, w.size, s.end);
    c->empty = c->empty || !s.any;
    c->known = c->known || s.any;
    c->next = s.any ? s.next : c->next;
    return r;
}

/* Taken while the log is looked at. RocksDB in another process (or this one) has the file locked as long as the database is open. */
static int lock_database(const char *dir)
{
    g_autofree char *path = g_build_filename(dir, "LOCK", NULL);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    int r = fd < 0 ? fd : RET_ERRNO(fcntl(fd, F_OFD_SETLK, &all));
    return r < 0 ? r : steal_fd(&fd);
}

static int by_number(const void *a, const void *b)
{
    const struct log_file *x = a, *y = b;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void log_clear(void *l)
{
    g_free(((struct log_file *)l)->path);
}

/* Those that are replayed, in order; the newest alone when that is not known. */
static GArray *live_logs(const char *dir)
{
    g_autoptr(GDir) d = g_dir_open(dir, 0, NULL);
    GArray *logs = g_array_new(FALSE, FALSE, sizeof(struct log_file));
    uint64_t first = 0;
    bool known = first_live_log(dir, &first);
    g_array_set_clear_func(logs, log_clear);
    for (const char *name; d && (name = g_dir_read_name(d));) {
        char *end;
        struct log_file l = {.number = strtoull(name, &end, 10)};
        if (end == name || strcmp(end, ".log") != 0 || (known && l.number < first))
            continue;
        l.path = g_build_filename(dir, name, NULL);
        g_array_append_val(logs, l);
    }
    g_array_sort(logs, by_number);
    if (!known && logs->len > 1)
        g_array_remove_range(logs, 0, logs->len - 1);
    return logs;
}

void meta_wal_mend(const char *dir)
{
    g_autoptr(GArray) logs = live_logs(dir);
    if (!logs->len)
        return;
    CLEANUP_FD int lock = lock_database(dir);
    struct chain c = {.lost = false};
    int r = lock < 0 ? lock : 0;
    for (guint i = 0; r == 0 && i < logs->len; i++)
        r = mend(&g_array_index(logs, struct log_file, i), &c);
    if (r < 0) /* opening it tells what is wrong */
        log_debug("meta", "the end of the database's log was not looked at dir='%s' r=%s", dir, err_name(r));
}
