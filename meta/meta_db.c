/*
 * RocksDB: the only file that knows it. One column family, keys ordered by tag, see FORMAT.md.
 *
 * Durability: a batch is one WAL record, handed to the kernel before commit returns (survives kill -9); with sync the WAL is synced
 * as well (survives power loss). Recovery tolerates a torn last record and refuses anything else: the default mode of RocksDB would
 * silently drop all that follows a damaged record. What a power loss makes of an unsynced end is cut off before (meta_wal.c). For the same reason a folder that has data files but no CURRENT is refused
 * instead of being started afresh.
 *
 * Failure: after a write that failed nothing more is written; what the disk holds then is not known, and writing on could put
 * newer records after a hole. So it is after a read that failed while a batch was built. meta_is_stuck() tells; a restart reads what was kept. A full disk need not come to that: meta_space.c.
 *
 * Ranges are removed key by key up to SINGLE_DELETES and by one range tombstone above: many tombstones slow every later read,
 * one is cheap, and most inodes and cache files have only a handful of records.
 *
 * Concurrency: RocksDB's own; the flags are atomic. A batch belongs to one thread at a time.
 */
#include "meta_db.h"

#include "base/log.h"

#include <assert.h>
#include <inttypes.h>
#include <rocksdb/c.h>
#include <stdatomic.h>
#include <string.h>

#define BLOCK_CACHE_BYTES (64u << 20)
#define MEMTABLE_BYTES    (32u << 20)
#define WAL_BYTES         (128u << 20)
#define MAX_OPEN_FILES    256
#define SINGLE_DELETES    256u
#define GROUP_FROM        64 /* records of a batch */
#define STEPS_BEFORE_SEEK 8  /* seeking costs as many steps */
/* A block of 1024 keys with 512 deletions is compacted early: seeks over removed names stay short. */
#define DELETION_WINDOW  1024
#define DELETION_TRIGGER 512

/*
 * RocksDB's own log gets its header and no more: the library's build in Debian 12 (7.8.3, asserts on) aborts the process at the line
 * after one that the disk refused, which on a full disk would be soon. Its errors reach our log by db_error().
 */
#define INFO_LOG_FATAL 4

struct meta_db {
    /* immutable after _open */
    rocksdb_t *rocks;
    rocksdb_options_t *options;
    rocksdb_readoptions_t *reads;
    rocksdb_writeoptions_t *writes, *synced_writes;
    /* atomic */
    _Atomic bool failed;                  /* some read or write failed */
    _Atomic bool write_failed;            /* no further writes */
    _Atomic bool stuck;                   /* because the disk refused one, or the read of what one needs */
    _Atomic bool read_stuck;              /* that read, and no write before it */
    _Atomic uint64_t n_written, n_synced; /* batches: that many are in the log, at least that many on the disk */

    struct mutex sync_mu; /* META */
    struct cond sync_ended;
    /* guarded by sync_mu */
    bool syncing;
};

struct meta_batch {
    struct meta *m;     /* borrowed */
    struct meta_db *db; /* borrowed from m */
    rocksdb_writebatch_t *wb;
    int err;                                   /* first failure while the batch was built: commit returns it */
    uint32_t n_puts['Z' + 1], n_dels['Z' + 1]; /* by tag, since the last commit */
    bool has_range;                            /* one was deleted as a whole */
};

/* ---- errors ---- */

static int error_to_errno(const char *text)
{
    static const struct {
        const char *part;
        int err;
    } rows[] = {
        {"lock hold by", -EBUSY},          {"lock file", -EBUSY},         {"Corruption", -EBADMSG},
        {"No space left", -ENOSPC},        {"Disk quota", -ENOSPC},       {"Permission denied", -EACCES},
        {"Read-only file system", -EROFS}, {"Not implemented", -ENOTSUP},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++)
        if (strstr(text, rows[i].part))
            return rows[i].err;
    return -EIO;
}

/* Takes RocksDB's error text over; 0 when there is none. */
static int db_error(struct meta_db *db, const char *what, char *text)
{
    if (!text)
        return 0;
    int r = error_to_errno(text);
    meta_db_set_failed(db);
    log_err("meta", "%s failed r=%s error='%s'", what, err_name(r), text);
    rocksdb_free(text);
    return r == -EBADMSG || r == -ENOSPC ? r : -EIO;
}

bool meta_db_failed(const struct meta_db *db)
{
    return atomic_load_explicit(&db->failed, memory_order_relaxed);
}

bool meta_db_is_stuck(const struct meta_db *db)
{
    return atomic_load_explicit(&db->stuck, memory_order_acquire);
}

bool meta_db_is_stuck_by_read(const struct meta_db *db)
{
    return atomic_load_explicit(&db->read_stuck, memory_order_relaxed);
}

void meta_db_set_failed(struct meta_db *db)
{
    atomic_store_explicit(&db->failed, true, memory_order_relaxed);
}

int meta_db_bad(GString *key, int r)
{
    g_autoptr(GString) hex = g_string_new(NULL);
    for (size_t i = 0; i < key->len; i++)
        g_string_append_printf(hex, "%02x", (unsigned char)key->str[i]);
    const char *tag = key->len > 0 ? meta_tag_name((uint8_t)key->str[0]) : NULL;
    log_err("meta", "record cannot be decoded kind=%s key=%s r=%s", tag ? tag : "?", hex->str, err_name(r));
    g_string_free(key, TRUE);
    return r;
}

/* What a write came to. After the first that failed there is none; one that damage prevented would meet it again. */
static int note_write(struct meta_db *db, int r)
{
    if (r < 0)
        atomic_store_explicit(&db->write_failed, true, memory_order_relaxed);
    if (r < 0 && r != -EBADMSG)
        atomic_store_explicit(&db->stuck, true, memory_order_release);
    return r;
}

/* A batch could not be built: its change is lost as if it had not been written. Who sees `stuck` knows by what. */
static void note_unread(struct meta_db *db, int r)
{
    if (r != -EBADMSG && !meta_db_is_stuck(db))
        atomic_store_explicit(&db->read_stuck, true, memory_order_relaxed);
    (void)note_write(db, r);
}

/* ---- open and close ---- */

static void set_table_options(rocksdb_options_t *o)
{
    rocksdb_block_based_table_options_t *t = rocksdb_block_based_options_create();
    rocksdb_cache_t *cache = rocksdb_cache_create_lru(BLOCK_CACHE_BYTES);
    rocksdb_block_based_options_set_block_cache(t, cache);
    rocksdb_cache_destroy(cache); /* the table options hold a reference */
    rocksdb_block_based_options_set_filter_policy(t, rocksdb_filterpolicy_create_ribbon(10));
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, 1);
    rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(t, 1);
    /* in pieces: the index of a large file whole would not fit into its share of the cache, and be read from the disk for each key */
    rocksdb_block_based_options_set_index_type(t, rocksdb_block_based_table_index_type_two_level_index_search);
    rocksdb_block_based_options_set_partition_filters(t, 1);
    rocksdb_block_based_options_set_block_size(t, 8192);
    rocksdb_block_based_options_set_format_version(t, 5);
    rocksdb_options_set_block_based_table_factory(o, t);
    rocksdb_block_based_options_destroy(t);
}

/* Files preallocated by the background threads would take the last free space from the log. Only the text form has the option. Takes o over. */
static rocksdb_options_t *without_preallocation(rocksdb_options_t *o)
{
    rocksdb_options_t *changed = rocksdb_options_create();
    char *err = NULL;
    rocksdb_get_options_from_string(o, "allow_fallocate=false", changed, &err);
    rocksdb_options_destroy(err ? changed : o);
    free(err);
    return err ? o : changed;
}

static rocksdb_options_t *make_options(bool create)
{
    rocksdb_options_t *o = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(o, create);
    rocksdb_options_set_paranoid_checks(o, 1);
    rocksdb_options_set_wal_recovery_mode(o, rocksdb_tolerate_corrupted_tail_records_recovery);
    rocksdb_options_set_recycle_log_file_num(o, 0); /* a recycled WAL's tail cannot be told from a torn one */
    rocksdb_options_set_max_total_wal_size(o, WAL_BYTES);
    rocksdb_options_set_write_buffer_size(o, MEMTABLE_BYTES);
    rocksdb_options_set_max_write_buffer_number(o, 3);
    rocksdb_options_set_max_background_jobs(o, 2);
    rocksdb_options_set_max_open_files(o, MAX_OPEN_FILES);
    rocksdb_options_set_compression(o, rocksdb_lz4_compression);
    rocksdb_options_set_level_compaction_dynamic_level_bytes(o, 1);
    rocksdb_options_add_compact_on_deletion_collector_factory(o, DELETION_WINDOW, DELETION_TRIGGER);
    rocksdb_options_set_bytes_per_sync(o, 1 << 20);
    rocksdb_options_set_info_log_level(o, INFO_LOG_FATAL);
    rocksdb_options_set_max_log_file_size(o, 1 << 20);
    rocksdb_options_set_keep_log_file_num(o, 2);
    rocksdb_options_set_stats_dump_period_sec(o, 0);
    rocksdb_options_set_stats_persist_period_sec(o, 0);
    rocksdb_options_set_skip_stats_update_on_db_open(o, 1);
    set_table_options(o);
    return without_preallocation(o);
}

/* Decides whether the folder may be started afresh: 1 yes, 0 it holds a database, -EBADMSG it holds a part of one. */
static int may_create(const char *path)
{
    g_autofree char *current = g_build_filename(path, "CURRENT", NULL);
    if (g_file_test(current, G_FILE_TEST_EXISTS))
        return 0;
    g_autoptr(GDir) d = g_dir_open(path, 0, NULL);
    const char *name;
    while (d && (name = g_dir_read_name(d)))
        if (g_str_has_suffix(name, ".sst") || g_str_has_suffix(name, ".log"))
            return -EBADMSG;
    return 1;
}

static char *open_message(const char *path, int r, const char *text)
{
    if (r == -EBUSY)
        return g_strdup_printf("%s is in use by another process", path);
    if (r == -EBADMSG)
        return g_strdup_printf("the database in %s is damaged and was not opened: %s", path, text);
    return g_strdup_printf("cannot open the database in %s: %s", path, text);
}

int meta_db_open(const char *path, struct meta_db **ret_db, char **ret_msg)
{
    int create = may_create(path);
    if (create < 0) {
        *ret_msg = open_message(path, create, "CURRENT is missing");
        return create;
    }
    meta_wal_mend(path);
    rocksdb_options_t *options = make_options(create == 1);
    char *text = NULL;
    rocksdb_t *rocks = rocksdb_open(options, path, &text);
    if (text) {
        int r = error_to_errno(text);
        *ret_msg = open_message(path, r, text);
        rocksdb_free(text);
        rocksdb_options_destroy(options);
        return r;
    }
    struct meta_db *db = g_new0(struct meta_db, 1);
    db->rocks = rocks;
    db->options = options;
    db->reads = rocksdb_readoptions_create();
    db->writes = rocksdb_writeoptions_create();
    db->synced_writes = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(db->synced_writes, 1);
    mutex_init(&db->sync_mu, LOCK_META);
    cond_init(&db->sync_ended);
    *ret_db = db;
    return 0;
}

void meta_db_close(struct meta_db *db)
{
    if (!db)
        return;
    if (meta_db_sync(db) < 0)
        log_warn("meta", "closed without sync, a power loss may take back the last changes");
    rocksdb_cancel_all_background_work(db->rocks, 1);
    rocksdb_close(db->rocks);
    rocksdb_readoptions_destroy(db->reads);
    rocksdb_writeoptions_destroy(db->writes);
    rocksdb_writeoptions_destroy(db->synced_writes);
    rocksdb_options_destroy(db->options);
    cond_fini(&db->sync_ended);
    mutex_fini(&db->sync_mu);
    g_free(db);
}

static void note_synced(struct meta_db *db, uint64_t n)
{
    uint64_t old = atomic_load(&db->n_synced);
    while (old < n && !atomic_compare_exchange_weak(&db->n_synced, &old, n))
        ; /* old was read again */
}

uint64_t meta_db_written(const struct meta_db *db)
{
    return atomic_load(&db->n_written);
}

static int sync_once(struct meta_db *db)
{
    uint64_t written = meta_db_written(db);
    if (atomic_load_explicit(&db->write_failed, memory_order_relaxed))
        return -EIO;
    char *text = NULL;
    rocksdb_flush_wal(db->rocks, 1, &text);
    int r = note_write(db, db_error(db, "sync", text));
    if (r == 0)
        note_synced(db, written);
    return r;
}

/* Those who come while one syncs share the next sync. */
int meta_db_sync_from(struct meta_db *db, uint64_t written)
{
    mutex_assert_none_held();
    int r = 0;
    mutex_lock(&db->sync_mu);
    while (r == 0 && atomic_load(&db->n_synced) < written) {
        if (db->syncing) {
            cond_wait(&db->sync_ended, &db->sync_mu);
            continue;
        }
        db->syncing = true;
        mutex_unlock(&db->sync_mu);
        r = sync_once(db);
        mutex_lock(&db->sync_mu);
        db->syncing = false;
        cond_broadcast(&db->sync_ended);
    }
    mutex_unlock(&db->sync_mu);
    return r;
}

int meta_db_sync(struct meta_db *db)
{
    if (atomic_load_explicit(&db->write_failed, memory_order_relaxed))
        return -EIO;
    return meta_db_sync_from(db, meta_db_written(db));
}

/* RocksDB counts for each thread what it compares and reads, which nobody looks at: a seventh of what writing the names of a listing costs. */
static void count_nothing(void)
{
    rocksdb_set_perf_level(rocksdb_disable);
}

/* ---- reads ---- */

void meta_val_clear(struct meta_val *v)
{
    if (v->pin)
        rocksdb_pinnableslice_destroy(v->pin);
    v->pin = NULL;
}

int meta_db_get(struct meta_db *db, GString *key, struct meta_val *ret)
{
    char *text = NULL;
    count_nothing();
    rocksdb_pinnableslice_t *pin = rocksdb_get_pinned(db->rocks, db->reads, key->str, key->len, &text);
    g_string_free(key, TRUE);
    if (text)
        return db_error(db, "get", text);
    if (!pin)
        return -ENOENT;
    ret->pin = pin;
    ret->data = rocksdb_pinnableslice_value(pin, &ret->len);
    return 0;
}

struct cursor {
    GString *end; /* owned, lives as long as the read options borrow it */
    rocksdb_readoptions_t *reads;
    rocksdb_iterator_t *it;
};

/* The smallest string above all that begin with prefix. Tags are below 0x80, so one exists. */
static GString *prefix_end(const GString *prefix)
{
    if (prefix->len == 0)
        return g_string_new("\xff");
    GString *end = g_string_new_len(prefix->str, (gssize)prefix->len);
    while ((uint8_t)end->str[end->len - 1] == 0xff)
        g_string_truncate(end, end->len - 1);
    end->str[end->len - 1]++;
    return end;
}

static void cursor_open(struct cursor *c, struct meta_db *db, const GString *prefix, const GString *from)
{
    count_nothing();
    c->end = prefix_end(prefix);
    c->reads = rocksdb_readoptions_create();
    rocksdb_readoptions_set_iterate_upper_bound(c->reads, c->end->str, c->end->len);
    c->it = rocksdb_create_iterator(db->rocks, c->reads);
    const GString *start = from ? from : prefix;
    rocksdb_iter_seek(c->it, start->str, start->len);
}

/* 0, or what stopped the iterator. */
static int cursor_close(struct cursor *c, struct meta_db *db)
{
    char *text = NULL;
    rocksdb_iter_get_error(c->it, &text);
    rocksdb_iter_destroy(c->it);
    rocksdb_readoptions_destroy(c->reads);
    g_string_free(c->end, TRUE);
    return db_error(db, "scan", text);
}

int meta_db_scan(struct meta_db *db, GString *prefix, GString *from, meta_scan_fn *fn, void *ctx)
{
    struct cursor c;
    cursor_open(&c, db, prefix, from);
    int r = 0;
    for (; r == 0 && rocksdb_iter_valid(c.it); rocksdb_iter_next(c.it)) {
        size_t key_len, val_len;
        const char *key = rocksdb_iter_key(c.it, &key_len);
        const char *val = rocksdb_iter_value(c.it, &val_len);
        struct meta_key parsed;
        r = meta_key_parse(key, key_len, &parsed);
        if (r == 0)
            r = fn(ctx, &parsed, val, val_len);
        if (r == -EBADMSG)
            r = meta_db_bad(g_string_new_len(key, (gssize)key_len), r);
    }
    int err = cursor_close(&c, db);
    g_string_free(prefix, TRUE);
    if (from)
        g_string_free(from, TRUE);
    return r != 0 ? r : err;
}

/*
 * An iterator is a snapshot, so it serves as long as nothing is committed. The first read after that is by key, and the next one, if it was the only commit, makes
 * another iterator: who reads beside a writer pays for none.
 */
struct meta_db_reader {
    struct meta_db *db; /* borrowed */
    enum meta_tag tag;
    bool open;
    struct cursor c; /* if open */
    uint64_t as_of;  /* n_written before the iterator was made, or at the last read by key */
};

struct meta_db_reader *meta_db_reader_new(struct meta_db *db, enum meta_tag tag)
{
    struct meta_db_reader *rd = g_new0(struct meta_db_reader, 1);
    rd->db = db;
    rd->tag = tag;
    rd->as_of = UINT64_MAX;
    return rd;
}

static int reader_close(struct meta_db_reader *rd)
{
    bool was_open = rd->open;
    rd->open = false;
    return was_open ? cursor_close(&rd->c, rd->db) : 0;
}

void meta_db_reader_free(struct meta_db_reader *rd)
{
    if (!rd)
        return;
    (void)reader_close(rd); /* what was read was right */
    g_free(rd);
}

static int cursor_compare(const struct cursor *c, const GString *key)
{
    size_t len;
    const char *at = rocksdb_iter_key(c->it, &len);
    int r = memcmp(at, key->str, MIN(len, key->len));
    return r != 0 ? r : len < key->len ? -1 : len > key->len;
}

/* Moves to key: true, or to the first one above, or the end. */
static bool cursor_find(struct cursor *c, const GString *key)
{
    int at = -1;
    for (unsigned i = 0; at < 0 && i < STEPS_BEFORE_SEEK && rocksdb_iter_valid(c->it); i++) {
        at = cursor_compare(c, key);
        if (at < 0)
            rocksdb_iter_next(c->it);
    }
    if (at == 0)
        return true;
    rocksdb_iter_seek(c->it, key->str, key->len);
    return rocksdb_iter_valid(c->it) && cursor_compare(c, key) == 0;
}

int meta_db_read(struct meta_db_reader *rd, GString *key, struct meta_val *ret)
{
    uint64_t written = meta_db_written(rd->db);
    bool quiet = rd->as_of == written;
    int r = quiet ? 0 : reader_close(rd);
    rd->as_of = written;
    if (quiet && !rd->open) {
        g_autoptr(GString) prefix = meta_key0(rd->tag, NULL);
        cursor_open(&rd->c, rd->db, prefix, key);
        rd->open = true;
    }
    if (quiet && cursor_find(&rd->c, key)) {
        ret->data = rocksdb_iter_value(rd->c.it, &ret->len);
        g_string_free(key, TRUE);
        return 0;
    }
    if (r == 0)
        return meta_db_get(rd->db, key, ret); /* what an iterator does not find may be damage */
    g_string_free(key, TRUE);
    return r;
}

int meta_db_any(struct meta_db *db, GString *prefix)
{
    struct cursor c;
    cursor_open(&c, db, prefix, NULL);
    int found = rocksdb_iter_valid(c.it) ? 1 : 0;
    int err = cursor_close(&c, db);
    g_string_free(prefix, TRUE);
    return err < 0 ? err : found;
}

/* ---- batches ---- */

struct meta_batch *meta_db_batch_new(struct meta *m)
{
    struct meta_batch *b = g_new0(struct meta_batch, 1);
    b->m = m;
    b->db = m->db;
    b->wb = rocksdb_writebatch_create();
    return b;
}

struct meta *meta_db_batch_owner(struct meta_batch *b)
{
    return b->m;
}

void meta_batch_free(struct meta_batch *b)
{
    if (!b)
        return;
    rocksdb_writebatch_destroy(b->wb);
    g_free(b);
}

void meta_db_put(struct meta_batch *b, GString *key, GString *val)
{
    rocksdb_writebatch_put(b->wb, key->str, key->len, val->str, val->len);
    b->n_puts[(uint8_t)key->str[0]]++;
    g_string_free(key, TRUE);
    g_string_free(val, TRUE);
}

void meta_db_del(struct meta_batch *b, GString *key)
{
    rocksdb_writebatch_delete(b->wb, key->str, key->len);
    b->n_dels[(uint8_t)key->str[0]]++;
    g_string_free(key, TRUE);
}

struct batch_match {
    const GString *prefix;
    GPtrArray *keys; /* of GString */
};

static void match_put(void *state, const char *key, size_t key_len, const char *val, size_t val_len)
{
    struct batch_match *m = state;
    if (key_len >= m->prefix->len && memcmp(key, m->prefix->str, m->prefix->len) == 0)
        g_ptr_array_add(m->keys, g_string_new_len(key, (gssize)key_len));
}

static void match_delete(void *state, const char *key, size_t key_len)
{
}

/* Removes what this very batch put: a scan of the database does not see it. */
static void del_own_puts(struct meta_batch *b, const GString *prefix)
{
    g_autoptr(GPtrArray) keys = g_ptr_array_new();
    struct batch_match m = {prefix, keys};
    rocksdb_writebatch_iterate(b->wb, &m, match_put, match_delete);
    for (unsigned i = 0; i < keys->len; i++)
        meta_db_del(b, keys->pdata[i]);
}

void meta_db_del_prefix(struct meta_batch *b, GString *prefix)
{
    if (b->n_puts[(uint8_t)prefix->str[0]] > 0)
        del_own_puts(b, prefix);
    struct cursor c;
    cursor_open(&c, b->db, prefix, NULL);
    for (unsigned n = 0; rocksdb_iter_valid(c.it); n++, rocksdb_iter_next(c.it)) {
        size_t len;
        const char *key = rocksdb_iter_key(c.it, &len);
        if (n == SINGLE_DELETES) {
            rocksdb_writebatch_delete_range(b->wb, key, len, c.end->str, c.end->len);
            b->has_range = true;
            break;
        }
        rocksdb_writebatch_delete(b->wb, key, len);
        b->n_dels[(uint8_t)key[0]]++;
    }
    int r = cursor_close(&c, b->db);
    if (r < 0 && b->err == 0)
        b->err = r;
    g_string_free(prefix, TRUE);
}

struct by_tag {
    rocksdb_writebatch_t *out;
    char tag;
};

static void copy_put(void *state, const char *key, size_t key_len, const char *val, size_t val_len)
{
    const struct by_tag *t = state;
    if (key[0] == t->tag)
        rocksdb_writebatch_put(t->out, key, key_len, val, val_len);
}

static void copy_delete(void *state, const char *key, size_t key_len)
{
    const struct by_tag *t = state;
    if (key[0] == t->tag)
        rocksdb_writebatch_delete(t->out, key, key_len);
}

/*
 * Records of one kind one after another: those of many names are neighbours then, and a memtable takes a neighbour of its last key at a third of the cost. What is done to one key keeps its
 * order, since a key has one tag.
 */
static void group_by_tag(struct meta_batch *b)
{
    if (b->has_range || rocksdb_writebatch_count(b->wb) < GROUP_FROM)
        return;
    struct by_tag t = {.out = rocksdb_writebatch_create()};
    for (unsigned tag = 0; tag < G_N_ELEMENTS(b->n_puts); tag++) {
        t.tag = (char)tag;
        if (b->n_puts[tag] + b->n_dels[tag] > 0)
            rocksdb_writebatch_iterate(b->wb, &t, copy_put, copy_delete);
    }
    assert(rocksdb_writebatch_count(t.out) == rocksdb_writebatch_count(b->wb));
    rocksdb_writebatch_destroy(b->wb);
    b->wb = t.out;
}

static int batch_write(struct meta_batch *b, bool sync)
{
    struct meta_db *db = b->db;
    group_by_tag(b);
    if (atomic_load_explicit(&db->write_failed, memory_order_relaxed))
        return -EIO;
    if (rocksdb_writebatch_count(b->wb) == 0)
        return sync ? meta_db_sync(db) : 0;
    meta_space_look(&b->m->space);
    uint64_t written = meta_db_written(db);
    char *text = NULL;
    count_nothing();
    rocksdb_write(db->rocks, sync ? db->synced_writes : db->writes, b->wb, &text);
    int r = note_write(db, db_error(db, "commit", text));
    if (r < 0)
        return r;
    atomic_fetch_add(&db->n_written, 1);
    if (sync)
        note_synced(db, written);
    return 0;
}

int meta_commit(struct meta_batch *b, bool sync)
{
    if (sync)
        mutex_assert_none_held();
    int r = b->err;
    if (r == 0)
        r = batch_write(b, sync);
    else
        note_unread(b->db, r);
    rocksdb_writebatch_clear(b->wb);
    memset(b->n_puts, 0, sizeof(b->n_puts));
    memset(b->n_dels, 0, sizeof(b->n_dels));
    b->has_range = false;
    b->err = 0;
    return r;
}
