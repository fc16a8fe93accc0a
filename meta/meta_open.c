/*
 * Life of struct meta: opening with its checks (format, identity), and the two counters.
 *
 * A counter is reserved in blocks: the limit in the database is raised before any value below it is handed out, by an unsynced write, so
 * no value repeats after kill -9. Only power loss can take such a write back, and power loss means another boot: when the
 * boot id differs from the one stored with the limit, the counter jumps by POWER_LOSS_GAP, more than one boot can hand out
 * between two flushes of the database. So handing out a number never waits for the disk, which callers with locks rely on.
 *
 * Concurrency: the counters are guarded by mu; the write that raises a limit runs without it, by one thread, half a block ahead.
 */
#include "base/clock.h"
#include "base/log.h"
#include "meta_db.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ID_BLOCK       1024u
#define POWER_LOSS_GAP (UINT64_C(1) << 32)
#define COUNTER_INO    "ino"
#define COUNTER_SEQ    "seq"
#define OPEN_BYTES     (32u << 20) /* beside what the logs become: more than opening was seen to write */

static GString *encode_limit(uint64_t limit)
{
    struct meta_counter c = {.limit = limit};
    g_strlcpy(c.boot_id, clock_boot_id(), sizeof(c.boot_id));
    return meta_enc_counter(&c);
}

/* Decides where a counter goes on, and puts the new limit into b. */
static int load_counter(struct meta *m, struct meta_batch *b, const char *name, uint64_t first, struct meta_ids *ret)
{
    META_VAL v = {0};
    struct meta_counter c = {.limit = first};
    int r = meta_db_get(m->db, meta_key0(TAG_COUNTER, name), &v);
    if (r == 0) {
        r = meta_dec_counter(v.data, v.len, &c);
        if (r < 0)
            return meta_db_bad(meta_key0(TAG_COUNTER, name), r);
        bool same_boot = c.boot_id[0] && strcmp(c.boot_id, clock_boot_id()) == 0;
        if (!same_boot)
            c.limit += POWER_LOSS_GAP;
    } else if (r != -ENOENT) {
        return r;
    }
    *ret = (struct meta_ids){.next = c.limit, .limit = c.limit + ID_BLOCK};
    meta_db_put(b, meta_key0(TAG_COUNTER, name), encode_limit(ret->limit));
    return 0;
}

static char *new_uuid(void)
{
    g_autofree char *dashed = g_uuid_string_random();
    g_auto(GStrv) parts = g_strsplit(dashed, "-", -1);
    return g_strjoinv(NULL, parts);
}

static void put_new_header(struct meta *m, struct meta_batch *b, const char *identity)
{
    g_autofree char *uuid = new_uuid();
    g_autofree char *owned_identity = g_strdup(identity);
    struct meta_header h = {.format = META_FORMAT, .identity = owned_identity};
    g_strlcpy(h.uuid, uuid, sizeof(h.uuid));
    g_strlcpy(m->uuid, uuid, sizeof(m->uuid));
    meta_db_put(b, meta_key0(TAG_HEADER, NULL), meta_enc_header(&h));
}

static int check_header(struct meta *m, const char *path, const char *identity, const struct meta_header *h,
                        char **ret_msg)
{
    if (h->format != META_FORMAT) {
        *ret_msg = g_strdup_printf("%s has format %" PRIu32 ", this version reads format %u only: use the version that "
                                   "made it, or publish with that version and start with an empty folder",
                                   path, h->format, META_FORMAT);
        return -ENOTSUP;
    }
    if (strcmp(h->identity, identity) != 0) {
        *ret_msg =
            g_strdup_printf("%s belongs to '%s', not to '%s': use another cache folder", path, h->identity, identity);
        return -EEXIST;
    }
    g_strlcpy(m->uuid, h->uuid, sizeof(m->uuid));
    return 0;
}

/* Reads the header, or makes one in an empty database. */
static int load_header(struct meta *m, struct meta_batch *b, const char *path, const char *identity, bool *ret_fresh,
                       char **ret_msg)
{
    META_VAL v = {0};
    int r = meta_db_get(m->db, meta_key0(TAG_HEADER, NULL), &v);
    if (r == -ENOENT) {
        r = meta_db_any(m->db, g_string_new(NULL));
        if (r == 0) {
            put_new_header(m, b, identity);
            *ret_fresh = true;
            return 0;
        }
        r = r > 0 ? -EBADMSG : r;
    }
    if (r < 0) {
        *ret_msg = g_strdup_printf("the database in %s has no readable header: %s", path, err_text(r));
        return r;
    }
    struct meta_header h = {0};
    r = meta_dec_header(v.data, v.len, &h);
    if (r < 0) {
        *ret_msg = g_strdup_printf("the database in %s has no readable header: %s", path, err_text(r));
        return meta_db_bad(meta_key0(TAG_HEADER, NULL), r);
    }
    r = check_header(m, path, identity, &h, ret_msg);
    g_free(h.identity);
    *ret_fresh = false;
    return r;
}

static int load(struct meta *m, const char *path, const char *identity, bool *ret_fresh, char **ret_msg)
{
    struct meta_batch *b = meta_batch_new(m);
    int r = load_header(m, b, path, identity, ret_fresh, ret_msg);
    if (r == 0) {
        r = load_counter(m, b, COUNTER_INO, META_ROOT_INO + 1, &m->ino);
        if (r == 0)
            r = load_counter(m, b, COUNTER_SEQ, 1, &m->seq);
        if (r == 0)
            r = meta_commit(b, true);
        m->last_seq = m->seq.next - 1;
        if (r < 0)
            *ret_msg = g_strdup_printf("cannot prepare the database in %s: %s", path, err_text(r));
    }
    meta_batch_free(b);
    return r;
}

/* The database's folder, and the file in which space of its disk is kept back. Nothing that comes later goes through a symlink on the disk of dir, which may fail or hang. */
static int find_folder(const char *dir, char **ret_path, char **ret_reserve, char **ret_msg)
{
    g_autofree char *path = g_build_filename(dir, "meta", NULL);
    g_autofree char *target = NULL;
    bool elsewhere = g_file_test(path, G_FILE_TEST_IS_SYMLINK);
    int r = RET_ERRNO(g_mkdir_with_parents(path, 0700));
    if (r == 0 && elsewhere && !(target = realpath(path, NULL)))
        r = -errno;
    if (r < 0) {
        *ret_msg = g_strdup_printf("cannot make the folder %s: %s", path, err_text(r));
        return r;
    }
    *ret_reserve = elsewhere ? g_strconcat(target, ".reserve", NULL) : g_build_filename(dir, "reserve", NULL);
    *ret_path = elsewhere ? g_steal_pointer(&target) : g_steal_pointer(&path);
    return 0;
}

int meta_open(const char *dir, const char *identity, struct meta **ret_meta, bool *ret_fresh, char **ret_msg)
{
    g_autofree char *reserve = NULL;
    char *path = NULL;
    int r = find_folder(dir, &path, &reserve, ret_msg);
    if (r < 0)
        return r;
    struct meta *m = g_new0(struct meta, 1);
    m->path = path;
    g_snprintf(m->opening, sizeof(m->opening), "%08x", g_random_int());
    mutex_init(&m->mu, LOCK_META);
    cond_init(&m->refilled);
    meta_space_open(&m->space, reserve); /* opening writes */
    bool fresh = false;
    r = meta_db_open(path, &m->db, ret_msg);
    if (r == 0)
        r = load(m, path, identity, &fresh, ret_msg);
    if (r < 0) {
        meta_close(m);
        return r;
    }
    *ret_meta = m;
    *ret_fresh = fresh;
    return 0;
}

void meta_close(struct meta *m)
{
    if (!m)
        return;
    meta_db_close(m->db);
    meta_space_close(&m->space);
    cond_fini(&m->refilled);
    mutex_fini(&m->mu);
    g_free(m->path);
    g_free(m);
}

void meta_keep_space(struct meta *m, uint64_t most)
{
    meta_space_keep(&m->space, most);
}

int meta_sync(struct meta *m)
{
    return meta_db_sync(m->db);
}

uint64_t meta_written(const struct meta *m)
{
    return meta_db_written(m->db);
}

int meta_sync_from(struct meta *m, uint64_t written)
{
    return meta_db_sync_from(m->db, written);
}

bool meta_failed(const struct meta *m)
{
    return meta_db_failed(m->db);
}

bool meta_is_stuck(const struct meta *m)
{
    return meta_db_is_stuck(m->db);
}

bool meta_is_stuck_by_read(const struct meta *m)
{
    return meta_db_is_stuck_by_read(m->db);
}

/* Logs that were not yet made tables of: opening does. */
static uint64_t log_bytes(const char *path)
{
    uint64_t n = 0;
    struct stat st;
    g_autoptr(GDir) d = g_dir_open(path, 0, NULL);
    const char *name;
    while (d && (name = g_dir_read_name(d))) {
        g_autofree char *file = g_build_filename(path, name, NULL);
        if (g_str_has_suffix(name, ".log") && stat(file, &st) == 0)
            n += (uint64_t)st.st_size;
    }
    return n;
}

int meta_try_disk(struct meta *m)
{
    return meta_space_try(&m->space, 2 * log_bytes(m->path) + OPEN_BYTES);
}

const char *meta_uuid(const struct meta *m)
{
    return m->uuid;
}

const char *meta_opening(const struct meta *m)
{
    return m->opening;
}

struct meta_batch *meta_batch_new(struct meta *m)
{
    return meta_db_batch_new(m);
}

static void write_limit(struct meta *m, const char *name, uint64_t limit)
{
    struct meta_batch *b = meta_batch_new(m);
    meta_db_put(b, meta_key0(TAG_COUNTER, name), encode_limit(limit));
    int r = meta_commit(b, false);
    meta_batch_free(b);
    if (r < 0) /* nothing can be committed any more, so the numbers that follow cannot reach the disk either */
        log_err("meta", "cannot reserve numbers counter=%s r=%s", name, err_name(r));
}

static uint64_t next_id(struct meta *m, const char *name, struct meta_ids *ids)
{
    mutex_lock(&m->mu);
    while (ids->next == ids->limit && ids->refilling)
        cond_wait(&m->refilled, &m->mu);
    if (ids->limit - ids->next <= ID_BLOCK / 2 && !ids->refilling) {
        ids->refilling = true;
        uint64_t limit = ids->limit + ID_BLOCK;
        mutex_unlock(&m->mu);
        write_limit(m, name, limit);
        mutex_lock(&m->mu);
        ids->limit = limit;
        ids->refilling = false;
        cond_broadcast(&m->refilled);
    }
    uint64_t id = ids->next++;
    mutex_unlock(&m->mu);
    return id;
}

static void reserve_above(struct meta *m, const char *name, struct meta_ids *ids, uint64_t id)
{
    mutex_lock(&m->mu);
    bool below = ids->next <= id;
    if (below) {
        ids->next = id + 1;
        ids->limit = id + 1 + ID_BLOCK;
    }
    uint64_t limit = ids->limit;
    mutex_unlock(&m->mu);
    if (below)
        write_limit(m, name, limit);
}

void meta_reserve(struct meta *m, uint64_t ino, uint64_t seq)
{
    reserve_above(m, COUNTER_INO, &m->ino, ino);
    reserve_above(m, COUNTER_SEQ, &m->seq, seq);
    if (meta_last_seq(m) < seq)
        atomic_store(&m->last_seq, seq);
}

uint64_t meta_next_ino(struct meta *m)
{
    return next_id(m, COUNTER_INO, &m->ino);
}

uint64_t meta_next_seq(struct meta *m)
{
    uint64_t seq = next_id(m, COUNTER_SEQ, &m->seq);
    uint64_t last = atomic_load_explicit(&m->last_seq, memory_order_relaxed);
    while (last < seq &&
           !atomic_compare_exchange_weak_explicit(&m->last_seq, &last, seq, memory_order_relaxed, memory_order_relaxed))
        ; /* last was read again */
    return seq;
}

uint64_t meta_last_seq(const struct meta *m)
{
    return atomic_load_explicit(&m->last_seq, memory_order_relaxed);
}
