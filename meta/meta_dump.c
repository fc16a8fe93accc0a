/*
 * Every record as text, for tests and `fsck`: one line each, `kind key=value ...`, in key order. Strings are escaped as in C, so
 * that a line is always a line. A record that cannot be decoded is printed as `kind BAD` and does not stop the rest.
 *
 * Concurrency: a scan, see meta_db.h.
 */
#include "meta_db.h"

#include <inttypes.h>
#include <string.h>

static void put_text(GString *out, const char *label, const char *text)
{
    g_autofree char *escaped = g_strescape(text ? text : "", NULL);
    g_string_append_printf(out, text ? " %s='%s'" : " %s=-", label, escaped);
}

static void put_num(GString *out, const char *label, uint64_t n)
{
    g_string_append_printf(out, " %s=%" PRIu64, label, n);
}

static void put_time(GString *out, const char *label, int64_t ns)
{
    g_string_append_printf(out, " %s=%" PRId64, label, ns);
}

static int dump_inode(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_inode in;
    int r = meta_dec_inode(key->n[0], val, len, &in);
    if (r < 0)
        return r;
    put_num(out, "ino", in.ino);
    g_string_append_printf(out, " mode=%o", in.mode);
    put_num(out, "uid", in.uid);
    put_num(out, "gid", in.gid);
    put_num(out, "nlink", in.nlink);
    put_num(out, "rdev", in.rdev);
    g_string_append_printf(out, " flags=%#x", in.flags);
    put_num(out, "size", in.size);
    put_time(out, "mtime_ns", in.mtime_ns);
    put_time(out, "ctime_ns", in.ctime_ns);
    put_num(out, "vid", in.vid);
    put_num(out, "gen", in.gen);
    put_num(out, "content", in.content);
    put_num(out, "base_limit", in.base_limit);
    put_text(out, "base_key", in.base_key);
    put_text(out, "base_etag", in.base_etag.s);
    put_time(out, "dirty_since_ns", in.dirty_since_ns);
    put_text(out, "boot_id", in.boot_id);
    put_text(out, "target", in.target);
    put_num(out, "parent", in.parent);
    put_time(out, "listed_ns", in.listed_ns);
    meta_inode_clear(&in);
    return 0;
}

/* By id the whole record; by name only where it leads, the rest is the same. */
static int dump_dentry(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_dentry d;
    int r = meta_dec_dentry(key->n[0], val, len, &d);
    if (r < 0)
        return r;
    put_num(out, "parent", d.parent);
    put_num(out, "id", d.id);
    put_text(out, "name", d.name);
    put_num(out, "ino", d.ino);
    if (key->tag == TAG_DENTRY) {
        g_string_append_printf(out, " type=%o flags=%#x", d.type, d.flags);
        put_num(out, "stamp", d.stamp);
        put_num(out, "op_seq", d.op_seq);
        put_text(out, "ukey", d.ukey);
        put_text(out, "uetag", d.uetag.s);
        put_num(out, "usize", d.usize);
        put_text(out, "dest_etag", d.dest_etag.s);
        put_num(out, "pub_vid", d.pub_vid);
        put_num(out, "pub_gen", d.pub_gen);
        put_text(out, "token", d.token);
        if (d.umtime_ns)
            put_time(out, "umtime_ns", d.umtime_ns);
    }
    meta_dentry_clear(&d);
    return 0;
}

static int dump_link(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    put_num(out, "ino", key->n[0]);
    put_num(out, "parent", key->n[1]);
    put_num(out, "id", key->n[2]);
    return 0;
}

static int dump_op(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_op op;
    int r = meta_dec_op(key->n[0], val, len, &op);
    if (r < 0)
        return r;
    put_num(out, "seq", op.seq);
    g_string_append_printf(out, " kind=%s", op.kind == OP_SYNC ? "sync" : "delete");
    put_num(out, "state", op.state);
    put_text(out, "err", err_name(op.err));
    put_num(out, "parent", op.parent);
    put_text(out, "name", op.name);
    put_text(out, "key", op.key);
    put_text(out, "etag", op.etag.s);
    put_time(out, "created_ns", op.created_ns);
    put_num(out, "place", op.place);
    if (op.wave)
        put_num(out, "wave", op.wave);
    if (op.turn)
        put_num(out, "turn", op.turn);
    if (op.unclosed)
        put_num(out, "unclosed", 1);
    meta_op_clear(&op);
    return 0;
}

static int dump_upload(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_upload u;
    int r = meta_dec_upload(key->n[0], val, len, &u);
    if (r < 0)
        return r;
    put_num(out, "vid", u.vid);
    put_text(out, "key", u.key);
    put_text(out, "upload_id", u.upload_id);
    put_num(out, "part_bytes", u.part_bytes);
    put_num(out, "gen", u.gen);
    meta_upload_clear(&u);
    return 0;
}

static int dump_part(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_part p;
    int r = meta_dec_part(key->n[0], (uint32_t)key->n[1], val, len, &p);
    if (r < 0)
        return r;
    put_num(out, "vid", p.vid);
    put_num(out, "number", p.number);
    put_num(out, "size", p.size);
    g_string_append_printf(out, " crc32c=%08x", p.crc32c);
    put_text(out, "etag", p.etag.s);
    static const uint8_t none[sizeof(p.sha256)];
    bool known = memcmp(p.sha256, none, sizeof(none)) != 0;
    for (size_t i = 0; known && i < sizeof(p.sha256); i++)
        g_string_append_printf(out, "%s%02x", i == 0 ? " sha256=" : "", p.sha256[i]);
    return 0;
}

static int dump_cached(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_cached c;
    int r = meta_dec_cached(key->n[0], val, len, &c);
    if (r < 0)
        return r;
    put_num(out, "vid", c.vid);
    put_num(out, "ino", c.ino);
    put_num(out, "bytes", c.bytes);
    put_num(out, "last_use", c.last_use);
    put_num(out, "use_gap", c.use_gap);
    g_string_append_printf(out, " flags=%#x", c.flags);
    if (c.tier)
        put_num(out, "tier", c.tier);
    return 0;
}

static unsigned count_bits(const uint8_t *map, size_t size)
{
    unsigned n = 0;
    for (size_t i = 0; i < size; i++)
        n += (unsigned)__builtin_popcount(map[i]);
    return n;
}

static int dump_segment(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_segment s;
    int r = meta_dec_segment(val, len, &s);
    if (r < 0)
        return r;
    put_num(out, "vid", key->n[0]);
    put_num(out, "segment", key->n[1]);
    put_num(out, "present", count_bits(s.present, sizeof(s.present)));
    put_num(out, "dirty", count_bits(s.dirty, sizeof(s.dirty)));
    return 0;
}

static int dump_crc(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    uint32_t crc;
    int r = meta_dec_crc(val, len, &crc);
    if (r < 0)
        return r;
    put_num(out, "vid", key->n[0]);
    put_num(out, "chunk", key->n[1]);
    g_string_append_printf(out, " crc32c=%08x", crc);
    return 0;
}

static int dump_reply(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_reply reply;
    int r = meta_dec_reply(val, len, &reply);
    if (r < 0)
        return r;
    put_num(out, "generation", key->n[0]);
    put_num(out, "place", key->n[1]);
    put_num(out, "unique", reply.unique);
    put_num(out, "ino", reply.ino);
    return 0;
}

/* Values may be secrets of the user (extended attributes) or long: only their size is shown. */
static int dump_blob(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    const void *data;
    size_t data_len;
    int r = meta_dec_blob(val, len, &data, &data_len);
    if (r < 0)
        return r;
    if (key->tag == TAG_XATTR)
        put_num(out, "ino", key->n[0]);
    g_autofree char *name = g_strndup(key->name, key->name_len);
    put_text(out, "name", name);
    put_num(out, "bytes", data_len);
    return 0;
}

static int dump_header(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_header h;
    int r = meta_dec_header(val, len, &h);
    if (r < 0)
        return r;
    put_num(out, "format", h.format);
    put_text(out, "uuid", h.uuid);
    put_text(out, "identity", h.identity);
    g_free(h.identity);
    return 0;
}

static int dump_counter(GString *out, const struct meta_key *key, const void *val, size_t len)
{
    struct meta_counter c;
    int r = meta_dec_counter(val, len, &c);
    if (r < 0)
        return r;
    g_autofree char *name = g_strndup(key->name, key->name_len);
    put_text(out, "name", name);
    put_num(out, "limit", c.limit);
    return 0;
}

static int on_record(void *ctx, const struct meta_key *key, const void *val, size_t len)
{
    static int (*const dumpers[])(GString *, const struct meta_key *, const void *, size_t) = {
        [TAG_CACHED] = dump_cached,   [TAG_DENTRY] = dump_dentry,   [TAG_HEADER] = dump_header,
        [TAG_INODE] = dump_inode,     [TAG_CRC] = dump_crc,         [TAG_LINK] = dump_link,
        [TAG_NAME] = dump_dentry,     [TAG_OP] = dump_op,           [TAG_PART] = dump_part,
        [TAG_COUNTER] = dump_counter, [TAG_SEGMENT] = dump_segment, [TAG_UPLOAD] = dump_upload,
        [TAG_VALUE] = dump_blob,      [TAG_XATTR] = dump_blob,      [TAG_REPLY] = dump_reply,
    };
    GString *out = ctx;
    g_string_append(out, meta_tag_name((uint8_t)key->tag));
    if (dumpers[key->tag](out, key, val, len) < 0)
        g_string_append(out, " BAD");
    g_string_append_c(out, '\n');
    return 0;
}

int meta_dump(struct meta *m, GString *out)
{
    return meta_db_scan(m->db, g_string_new(NULL), NULL, on_record, out);
}
