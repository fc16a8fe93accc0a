/*
 * Keys and values: random records survive the round trip, every truncation and every random corruption is either refused or decoded,
 * never a crash, and encoded keys sort like the numbers in them. The generator is seeded with a constant: a failure repeats.
 */
#include "meta_key.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ROUNDS 300

static GRand *rng;

static void setup(void)
{
    rng = g_rand_new_with_seed(20260501);
}

static void teardown(void)
{
    g_rand_free(rng);
}

static uint64_t rnd64(void)
{
    uint64_t v = ((uint64_t)g_rand_int(rng) << 32) | g_rand_int(rng);
    return v >> g_rand_int_range(rng, 0, 64);
}

static uint32_t rnd32(void)
{
    return (uint32_t)(rnd64() >> g_rand_int_range(rng, 0, 32));
}

static int64_t rnd_signed(void)
{
    int64_t v = (int64_t)rnd64();
    return g_rand_boolean(rng) ? v : -v - 1;
}

/* Up to max bytes of anything but NUL and '/'. */
static char *rnd_string(unsigned max, unsigned min)
{
    unsigned len = (unsigned)g_rand_int_range(rng, (gint32)min, (gint32)max + 1);
    char *s = g_malloc(len + 1);
    for (unsigned i = 0; i < len; i++) {
        do {
            s[i] = (char)g_rand_int_range(rng, 1, 256);
        } while (s[i] == '/');
    }
    s[len] = '\0';
    return s;
}

static char *rnd_maybe(unsigned max)
{
    return g_rand_int_range(rng, 0, 4) == 0 ? NULL : rnd_string(max, 0);
}

static void rnd_chars(char *dst, size_t size)
{
    g_autofree char *s = rnd_string((unsigned)size - 1, 0);
    memset(dst, 0, size);
    strcpy(dst, s);
}

static void rnd_inode(struct meta_inode *in)
{
    *in = (struct meta_inode){
        .ino = rnd64(),
        .mode = rnd32(),
        .uid = rnd32(),
        .gid = rnd32(),
        .nlink = rnd32(),
        .rdev = rnd32(),
        .flags = rnd32(),
        .size = rnd64(),
        .mtime_ns = rnd_signed(),
        .ctime_ns = rnd_signed(),
        .vid = rnd64(),
        .gen = rnd64(),
        .content = (uint32_t)g_rand_int_range(rng, 0, CONTENT_QUARANTINED + 1),
        .base_limit = rnd64(),
        .base_key = rnd_maybe(1024),
        .dirty_since_ns = rnd_signed(),
        .target = rnd_maybe(300),
        .parent = rnd64(),
        .listed_ns = rnd_signed(),
    };
    rnd_chars(in->base_etag.s, sizeof(in->base_etag.s));
    rnd_chars(in->boot_id, sizeof(in->boot_id));
}

static void rnd_dentry(struct meta_dentry *d)
{
    *d = (struct meta_dentry){
        .parent = rnd64(),
        .name = rnd_string(255, 1),
        .id = rnd64(),
        .ino = rnd64(),
        .type = rnd32() & S_IFMT,
        .flags = rnd32(),
        .stamp = rnd64(),
        .op_seq = rnd64(),
        .ukey = rnd_maybe(1024),
        .usize = rnd64(),
        .pub_vid = rnd64(),
        .pub_gen = rnd64(),
        .umtime_ns = g_rand_boolean(rng) ? rnd_signed() : 0,
    };
    rnd_chars(d->uetag.s, sizeof(d->uetag.s));
    rnd_chars(d->dest_etag.s, sizeof(d->dest_etag.s));
    rnd_chars(d->token, sizeof(d->token));
}

static void rnd_op(struct meta_op *op)
{
    *op = (struct meta_op){
        .seq = rnd64(),
        .kind = g_rand_boolean(rng) ? OP_SYNC : OP_DELETE,
        .parent = rnd64(),
        .err = (int32_t)rnd_signed(),
        .state = (uint32_t)g_rand_int_range(rng, 0, OPS_CONFLICT + 1),
        .created_ns = rnd_signed(),
        .place = g_rand_boolean(rng) ? rnd64() | 1 : 0,
        .name = rnd_string(200, 0),
        .key = rnd_string(1024, 0),
    };
    op->wave = op->place && g_rand_boolean(rng) ? rnd64() | 1 : 0;
    op->turn = op->place && g_rand_boolean(rng) ? rnd64() | 1 : 0;
    op->unclosed = op->place && g_rand_boolean(rng);
    rnd_chars(op->etag.s, sizeof(op->etag.s));
}

static void same_string(const char *a, const char *b)
{
    ck_assert(g_strcmp0(a, b) == 0);
}

static void same_bytes(const GString *a, const GString *b)
{
    ck_assert(g_string_equal(a, b));
}

START_TEST(random_inodes_survive_the_round_trip)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct meta_inode in, out;
        rnd_inode(&in);
        g_autoptr(GString) v = meta_enc_inode(&in);
        ck_assert_int_eq(meta_dec_inode(in.ino, v->str, v->len, &out), 0);
        g_autoptr(GString) again = meta_enc_inode(&out);
        same_bytes(v, again);
        ck_assert_uint_eq(out.ino, in.ino);
        ck_assert_uint_eq(out.mode, in.mode);
        ck_assert_uint_eq(out.size, in.size);
        ck_assert_int_eq(out.mtime_ns, in.mtime_ns);
        ck_assert_int_eq(out.listed_ns, in.listed_ns);
        ck_assert_uint_eq(out.content, in.content);
        ck_assert_uint_eq(out.base_limit, in.base_limit);
        same_string(out.base_key, in.base_key);
        same_string(out.target, in.target);
        same_string(out.base_etag.s, in.base_etag.s);
        same_string(out.boot_id, in.boot_id);
        meta_inode_clear(&in);
        meta_inode_clear(&out);
    }
}
END_TEST

START_TEST(random_dentries_survive_the_round_trip)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct meta_dentry in, out;
        rnd_dentry(&in);
        g_autoptr(GString) v = meta_enc_dentry(&in);
        ck_assert_int_eq(meta_dec_dentry(in.parent, v->str, v->len, &out), 0);
        g_autoptr(GString) again = meta_enc_dentry(&out);
        same_bytes(v, again);
        ck_assert_uint_eq(out.parent, in.parent);
        ck_assert_uint_eq(out.id, in.id);
        ck_assert_uint_eq(out.pub_gen, in.pub_gen);
        ck_assert_int_eq(out.umtime_ns, in.umtime_ns);
        same_string(out.name, in.name);
        same_string(out.ukey, in.ukey);
        same_string(out.uetag.s, in.uetag.s);
        same_string(out.dest_etag.s, in.dest_etag.s);
        same_string(out.token, in.token);
        meta_dentry_clear(&in);
        meta_dentry_clear(&out);
    }
}
END_TEST

START_TEST(random_ops_survive_the_round_trip)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct meta_op in, out;
        rnd_op(&in);
        g_autoptr(GString) v = meta_enc_op(&in);
        ck_assert_int_eq(meta_dec_op(in.seq, v->str, v->len, &out), 0);
        ck_assert_uint_eq(out.seq, in.seq);
        ck_assert_uint_eq(out.kind, in.kind);
        ck_assert_uint_eq(out.state, in.state);
        ck_assert_int_eq(out.err, in.err);
        ck_assert_int_eq(out.created_ns, in.created_ns);
        ck_assert_uint_eq(out.place, in.place);
        ck_assert_uint_eq(out.wave, in.wave);
        ck_assert_uint_eq(out.turn, in.turn);
        ck_assert(out.unclosed == in.unclosed);
        same_string(out.name, in.name);
        same_string(out.key, in.key);
        same_string(out.etag.s, in.etag.s);
        meta_op_clear(&in);
        meta_op_clear(&out);
    }
}
END_TEST

START_TEST(random_uploads_parts_and_cached_survive_the_round_trip)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct meta_upload u = {.key = rnd_string(1024, 0), .upload_id = rnd_string(200, 0), .part_bytes = rnd64()}, u2;
        g_autoptr(GString) uv = meta_enc_upload(&u);
        ck_assert_int_eq(meta_dec_upload(5, uv->str, uv->len, &u2), 0);
        ck_assert_uint_eq(u2.vid, 5);
        ck_assert_uint_eq(u2.part_bytes, u.part_bytes);
        same_string(u2.key, u.key);
        same_string(u2.upload_id, u.upload_id);
        meta_upload_clear(&u);
        meta_upload_clear(&u2);
        struct meta_part p = {.size = rnd64(), .crc32c = rnd32()}, p2;
        rnd_chars(p.etag.s, sizeof(p.etag.s));
        if (i % 2) /* an older program wrote none */
            memset(p.sha256, (int)(rnd32() | 1), sizeof(p.sha256));
        g_autoptr(GString) pv = meta_enc_part(&p);
        ck_assert_int_eq(meta_dec_part(5, 7, pv->str, pv->len, &p2), 0);
        ck_assert(p2.vid == 5 && p2.number == 7 && p2.size == p.size && p2.crc32c == p.crc32c);
        ck_assert_mem_eq(p2.sha256, p.sha256, sizeof(p.sha256));
        same_string(p2.etag.s, p.etag.s);
        struct meta_cached c = {.vid = 9,
                                .ino = rnd64(),
                                .bytes = rnd64(),
                                .last_use = rnd64(),
                                .use_gap = rnd64(),
                                .flags = rnd32(),
                                .tier = rnd32() % 3};
        struct meta_cached c2;
        g_autoptr(GString) cv = meta_enc_cached(&c);
        ck_assert_int_eq(meta_dec_cached(9, cv->str, cv->len, &c2), 0);
        ck_assert(c2.vid == 9 && c2.ino == c.ino && c2.bytes == c.bytes && c2.last_use == c.last_use &&
                  c2.use_gap == c.use_gap && c2.flags == c.flags && c2.tier == c.tier);
    }
}
END_TEST

static void fill_map(uint8_t *map, size_t size)
{
    unsigned from = (unsigned)g_rand_int_range(rng, 0, (gint32)size + 1);
    unsigned to = (unsigned)g_rand_int_range(rng, (gint32)from, (gint32)size + 1);
    memset(map, 0xff, from);
    for (unsigned i = from; i < to; i++)
        map[i] = (uint8_t)g_rand_int(rng);
    memset(map + to, 0, size - to);
}

START_TEST(random_segments_survive_the_round_trip)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct meta_segment in, out;
        fill_map(in.present, sizeof(in.present));
        fill_map(in.dirty, sizeof(in.dirty));
        g_autoptr(GString) v = meta_enc_segment(&in);
        memset(&out, 0x5a, sizeof(out));
        ck_assert_int_eq(meta_dec_segment(v->str, v->len, &out), 0);
        ck_assert_mem_eq(&in, &out, sizeof(in));
    }
}
END_TEST

START_TEST(segment_of_one_chunk_or_all_chunks_is_small)
{
    struct meta_segment s = {.present = {1}};
    g_autoptr(GString) one = meta_enc_segment(&s);
    ck_assert_uint_le(one->len, 8);
    memset(s.present, 0xff, sizeof(s.present));
    g_autoptr(GString) all = meta_enc_segment(&s);
    ck_assert_uint_le(all->len, 8);
}
END_TEST

/* ---- damage ---- */

static int dec_inode(const void *v, size_t n)
{
    struct meta_inode x;
    int r = meta_dec_inode(1, v, n, &x);
    if (r == 0)
        meta_inode_clear(&x);
    return r;
}
static int dec_dentry(const void *v, size_t n)
{
    struct meta_dentry x;
    int r = meta_dec_dentry(1, v, n, &x);
    if (r == 0)
        meta_dentry_clear(&x);
    return r;
}
static int dec_op(const void *v, size_t n)
{
    struct meta_op x;
    int r = meta_dec_op(1, v, n, &x);
    if (r == 0)
        meta_op_clear(&x);
    return r;
}
static int dec_upload(const void *v, size_t n)
{
    struct meta_upload x;
    int r = meta_dec_upload(1, v, n, &x);
    if (r == 0)
        meta_upload_clear(&x);
    return r;
}
static int dec_part(const void *v, size_t n)
{
    struct meta_part x;
    return meta_dec_part(1, 1, v, n, &x);
}
static int dec_cached(const void *v, size_t n)
{
    struct meta_cached x;
    return meta_dec_cached(1, v, n, &x);
}
static int dec_segment(const void *v, size_t n)
{
    struct meta_segment x;
    return meta_dec_segment(v, n, &x);
}
static int dec_crc(const void *v, size_t n)
{
    uint32_t x;
    return meta_dec_crc(v, n, &x);
}
static int dec_counter(const void *v, size_t n)
{
    struct meta_counter x;
    return meta_dec_counter(v, n, &x);
}
static int dec_number(const void *v, size_t n)
{
    uint64_t x;
    return meta_dec_number(v, n, &x);
}
static int dec_reply(const void *v, size_t n)
{
    struct meta_reply x;
    return meta_dec_reply(v, n, &x);
}
static int dec_header(const void *v, size_t n)
{
    struct meta_header x = {0};
    int r = meta_dec_header(v, n, &x);
    g_free(x.identity);
    return r;
}

static GString *sample(int kind)
{
    struct meta_inode in;
    struct meta_dentry d;
    struct meta_op op;
    GString *v = NULL;
    char text[] = "text", id[] = "s3://b/p";
    switch (kind) {
    case 0:
        rnd_inode(&in);
        v = meta_enc_inode(&in);
        meta_inode_clear(&in);
        break;
    case 1:
        rnd_dentry(&d);
        d.umtime_ns = 0; /* the last field may be missing */
        v = meta_enc_dentry(&d);
        meta_dentry_clear(&d);
        break;
    case 2:
        rnd_op(&op);
        op.place = op.wave = op.turn = 0; /* likewise */
        op.unclosed = false;
        v = meta_enc_op(&op);
        meta_op_clear(&op);
        break;
    case 3:
        v = meta_enc_upload(&(struct meta_upload){.key = text, .upload_id = id, .part_bytes = 8 << 20, .gen = 3});
        break;
    case 4:
        v = meta_enc_part(&(struct meta_part){.size = 1000000, .crc32c = 77, .etag = {"abcdef"}});
        break;
    case 5:
        v = meta_enc_cached(&(struct meta_cached){.ino = 300, .bytes = 1 << 30, .last_use = 5});
        break;
    case 6:
        v = meta_enc_segment(&(struct meta_segment){.present = {0xff, 0xff, 3}, .dirty = {0, 1}});
        break;
    case 7:
        v = meta_enc_crc(0xdeadbeef);
        break;
    case 8:
        v = meta_enc_counter(&(struct meta_counter){.limit = 4096, .boot_id = "0-1-2"});
        break;
    case 9:
        v = meta_enc_number(1ull << 40);
        break;
    case 10:
        v = meta_enc_reply(&(struct meta_reply){.unique = 1ull << 40, .ino = 300});
        break;
    default:
        v = meta_enc_header(
            &(struct meta_header){.format = META_FORMAT, .uuid = "0123456789abcdef0123456789abcdef", .identity = id});
    }
    return v;
}

static int (*const decoders[])(const void *, size_t) = {dec_inode,   dec_dentry, dec_op,      dec_upload,
                                                        dec_part,    dec_cached, dec_segment, dec_crc,
                                                        dec_counter, dec_number, dec_reply,   dec_header};

START_TEST(truncated_values_are_refused)
{
    g_autoptr(GString) v = sample(_i);
    ck_assert_int_eq(decoders[_i](v->str, v->len), 0);
    for (size_t n = 0; n < v->len; n++) {
        g_autofree char *exact = g_memdup2(v->str, n); /* its own block, so that a read past the end is seen by ASan */
        ck_assert_int_eq(decoders[_i](exact, n), -EBADMSG);
    }
}
END_TEST

START_TEST(trailing_bytes_are_refused)
{
    g_autoptr(GString) v = sample(_i);
    g_string_append_c(v, '\0');
    ck_assert_int_eq(decoders[_i](v->str, v->len), -EBADMSG);
}
END_TEST

START_TEST(unknown_value_version_is_refused)
{
    g_autoptr(GString) v = sample(_i);
    v->str[0] = 2;
    int r = decoders[_i](v->str, v->len);
    ck_assert_int_eq(r,
                     decoders[_i] == dec_header ? 0 : -EBADMSG); /* a header of another format is that number alone */
}
END_TEST

START_TEST(corrupt_values_never_crash)
{
    unsigned refused = 0;
    for (int round = 0; round < 3000; round++) {
        g_autoptr(GString) v = sample(_i);
        g_autofree char *bytes = g_memdup2(v->str, v->len);
        for (int flips = g_rand_int_range(rng, 1, 5); flips > 0; flips--)
            bytes[g_rand_int_range(rng, 0, (gint32)v->len)] = (char)g_rand_int(rng);
        int r = decoders[_i](bytes, v->len);
        ck_assert(r == 0 || r == -EBADMSG);
        refused += r != 0;
    }
    ck_assert_uint_gt(refused, 0);
}
END_TEST

START_TEST(part_without_all_of_its_sum_is_refused)
{
    struct meta_part p = {.size = 5, .etag = {"e"}, .sha256 = {1, 2, 3}}, out;
    g_autoptr(GString) v = meta_enc_part(&p);
    size_t bare = v->len - sizeof(p.sha256);
    for (size_t n = bare; n <= v->len; n++)
        ck_assert_int_eq(meta_dec_part(1, 1, v->str, n, &out), n == bare || n == v->len ? 0 : -EBADMSG);
    g_string_append_c(v, 'x');
    ck_assert_int_eq(meta_dec_part(1, 1, v->str, v->len, &out), -EBADMSG);
}
END_TEST

START_TEST(refused_value_leaves_the_output_alone)
{
    struct meta_part p = {.vid = 42, .size = 43};
    ck_assert_int_eq(meta_dec_part(1, 1, "\x01\x05", 2, &p), -EBADMSG);
    ck_assert(p.vid == 42 && p.size == 43);
}
END_TEST

START_TEST(overlong_etag_and_embedded_nul_are_refused)
{
    struct meta_part p;
    g_autoptr(GString) v = g_string_new("\x01\x05"
                                        "CRCC");
    g_string_append_c(v, (char)0x80); /* 128 bytes of etag: one more than fits */
    g_string_append_c(v, 0x01);
    for (int i = 0; i < 128; i++)
        g_string_append_c(v, 'e');
    ck_assert_int_eq(meta_dec_part(1, 1, v->str, v->len, &p), -EBADMSG);
    g_autoptr(GString) w = g_string_new("\x01\x05"
                                        "CRCC\x03"
                                        "a");
    g_string_append_len(w, "\0b", 2);
    ck_assert_int_eq(meta_dec_part(1, 1, w->str, w->len, &p), -EBADMSG);
}
END_TEST

START_TEST(overlong_varint_is_refused)
{
    struct meta_counter c;
    ck_assert_int_eq(meta_dec_counter("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", 12, &c), 0);
    ck_assert_uint_eq(c.limit, UINT64_MAX);
    ck_assert_int_eq(meta_dec_counter("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02\x00", 12, &c), -EBADMSG);
}
END_TEST

START_TEST(numbers_are_the_same_bytes_on_every_machine)
{
    g_autoptr(GString) v = meta_enc_number(300);
    uint64_t n = 0;
    ck_assert_uint_eq(v->len, 3);
    ck_assert_mem_eq(v->str, "\x01\xac\x02", 3);
    ck_assert_int_eq(meta_dec_number(v->str, v->len, &n), 0);
    ck_assert_uint_eq(n, 300);
}
END_TEST

START_TEST(reply_survives_the_round_trip)
{
    g_autoptr(GString) v = meta_enc_reply(&(struct meta_reply){.unique = UINT64_MAX, .ino = 300});
    struct meta_reply reply = {.generation = 1, .place = 2};
    ck_assert_int_eq(meta_dec_reply(v->str, v->len, &reply), 0);
    ck_assert(reply.unique == UINT64_MAX && reply.ino == 300 && reply.generation == 1 && reply.place == 2);
}
END_TEST

START_TEST(dentry_name_with_slash_is_refused)
{
    char name[] = "a/b";
    g_autoptr(GString) v = meta_enc_dentry(&(struct meta_dentry){.name = name});
    ck_assert_int_eq(dec_dentry(v->str, v->len), -EBADMSG);
}
END_TEST

/* ---- keys ---- */

static int compare_keys(const GString *a, const GString *b)
{
    int r = memcmp(a->str, b->str, MIN(a->len, b->len));
    return r ? r : (a->len > b->len) - (a->len < b->len);
}

START_TEST(keys_sort_like_their_numbers)
{
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t a = rnd64(), b = rnd64(), c = rnd64(), d = rnd64();
        g_autoptr(GString) x = meta_key2(TAG_DENTRY, a, c);
        g_autoptr(GString) y = meta_key2(TAG_DENTRY, b, d);
        int want = a != b ? (a > b ? 1 : -1) : (c > d) - (c < d);
        int got = compare_keys(x, y);
        ck_assert_int_eq((got > 0) - (got < 0), want);
        g_autoptr(GString) near = meta_key2(TAG_DENTRY, a, c + 1);
        if (c != UINT64_MAX)
            ck_assert_int_lt(compare_keys(x, near), 0);
    }
}
END_TEST

START_TEST(keys_parse_back)
{
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t a = rnd64(), b = rnd64(), c = rnd64();
        g_autofree char *name = rnd_string(255, 0);
        struct meta_key k;
        g_autoptr(GString) link = meta_key3(TAG_LINK, a, b, c);
        ck_assert_int_eq(meta_key_parse(link->str, link->len, &k), 0);
        ck_assert(k.tag == TAG_LINK && k.n[0] == a && k.n[1] == b && k.n[2] == c && !k.name);
        g_autoptr(GString) named = meta_key1(TAG_XATTR, a, name);
        ck_assert_int_eq(meta_key_parse(named->str, named->len, &k), 0);
        ck_assert(k.tag == TAG_XATTR && k.n[0] == a && k.name_len == strlen(name));
        ck_assert_mem_eq(k.name, name, k.name_len);
    }
}
END_TEST

START_TEST(bad_keys_are_refused)
{
    struct meta_key k;
    ck_assert_int_eq(meta_key_parse("", 0, &k), -EBADMSG);
    ck_assert_int_eq(meta_key_parse("I", 1, &k), -EBADMSG);
    ck_assert_int_eq(meta_key_parse("I12345678x", 10, &k), -EBADMSG);
    ck_assert_int_eq(meta_key_parse("?12345678", 9, &k), -EBADMSG);
    ck_assert_int_eq(meta_key_parse("Va\0b", 4, &k), -EBADMSG);
    for (int i = 0; i < 3000; i++) {
        char bytes[40];
        size_t len = (size_t)g_rand_int_range(rng, 0, sizeof(bytes));
        for (size_t n = 0; n < len; n++)
            bytes[n] = (char)g_rand_int(rng);
        int r = meta_key_parse(bytes, len, &k);
        ck_assert(r == 0 || r == -EBADMSG);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("meta_key");
    TCase *t = tcase_create("records");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, random_inodes_survive_the_round_trip);
    tcase_add_test(t, random_dentries_survive_the_round_trip);
    tcase_add_test(t, random_ops_survive_the_round_trip);
    tcase_add_test(t, random_uploads_parts_and_cached_survive_the_round_trip);
    tcase_add_test(t, random_segments_survive_the_round_trip);
    tcase_add_test(t, segment_of_one_chunk_or_all_chunks_is_small);
    tcase_add_loop_test(t, truncated_values_are_refused, 0, G_N_ELEMENTS(decoders));
    tcase_add_loop_test(t, trailing_bytes_are_refused, 0, G_N_ELEMENTS(decoders));
    tcase_add_loop_test(t, unknown_value_version_is_refused, 0, G_N_ELEMENTS(decoders));
    tcase_add_loop_test(t, corrupt_values_never_crash, 0, G_N_ELEMENTS(decoders));
    tcase_add_test(t, part_without_all_of_its_sum_is_refused);
    tcase_add_test(t, refused_value_leaves_the_output_alone);
    tcase_add_test(t, overlong_etag_and_embedded_nul_are_refused);
    tcase_add_test(t, overlong_varint_is_refused);
    tcase_add_test(t, numbers_are_the_same_bytes_on_every_machine);
    tcase_add_test(t, reply_survives_the_round_trip);
    tcase_add_test(t, dentry_name_with_slash_is_refused);
    tcase_add_test(t, keys_sort_like_their_numbers);
    tcase_add_test(t, keys_parse_back);
    tcase_add_test(t, bad_keys_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
