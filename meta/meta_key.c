/*
 * Encoder and decoder of every key and value, see meta_key.h and FORMAT.md.
 *
 * A record is described once, by a function that walks its fields through a struct codec; the codec either appends each field
 * or reads it, so both directions cannot disagree. Numbers are LEB128 varints (signed ones zigzag), checksums and the
 * database's format number are fixed little endian, strings have their length first; an owned string's length is stored
 * plus one, 0 meaning NULL. Checks of ranges (codec_check) apply to decoding only.
 *
 * Concurrency: none, all state is on the caller's stack.
 */
#include "meta_key.h"

#include <assert.h>
#include <string.h>
#include <sys/stat.h>

#define VALUE_VERSION 1u

/* ---- keys ---- */

static const struct {
    uint8_t tag;
    uint8_t n_numbers;
    bool has_name;
    const char *name;
} key_rows[] = {
    {TAG_CACHED, 1, false, "cached"},  {TAG_DENTRY, 2, false, "dentry"},   {TAG_HEADER, 0, false, "header"},
    {TAG_INODE, 1, false, "inode"},    {TAG_CRC, 2, false, "crc"},         {TAG_LINK, 3, false, "link"},
    {TAG_NAME, 1, true, "name"},       {TAG_OP, 1, false, "op"},           {TAG_PART, 2, false, "part"},
    {TAG_COUNTER, 0, true, "counter"}, {TAG_SEGMENT, 2, false, "segment"}, {TAG_UPLOAD, 1, false, "upload"},
    {TAG_VALUE, 0, true, "value"},     {TAG_XATTR, 1, true, "xattr"},      {TAG_REPLY, 2, false, "reply"},
};

static void append_be64(GString *k, uint64_t v)
{
    uint64_t be = GUINT64_TO_BE(v);
    g_string_append_len(k, (const char *)&be, sizeof(be));
}

GString *meta_key0(enum meta_tag tag, const char *name)
{
    GString *k = g_string_sized_new(48);
    g_string_append_c(k, (char)tag);
    if (name)
        g_string_append(k, name);
    return k;
}

GString *meta_key1(enum meta_tag tag, uint64_t a, const char *name)
{
    GString *k = meta_key0(tag, NULL);
    append_be64(k, a);
    if (name)
        g_string_append(k, name);
    return k;
}

GString *meta_key2(enum meta_tag tag, uint64_t a, uint64_t b)
{
    GString *k = meta_key1(tag, a, NULL);
    append_be64(k, b);
    return k;
}

GString *meta_key3(enum meta_tag tag, uint64_t a, uint64_t b, uint64_t c)
{
    GString *k = meta_key2(tag, a, b);
    append_be64(k, c);
    return k;
}

int meta_key_parse(const void *key, size_t len, struct meta_key *ret)
{
    const uint8_t *p = key;
    for (unsigned i = 0; len > 0 && i < G_N_ELEMENTS(key_rows); i++) {
        if (key_rows[i].tag != p[0])
            continue;
        size_t fixed = 1 + 8u * key_rows[i].n_numbers;
        bool has_name = key_rows[i].has_name;
        if (len < fixed || (!has_name && len > fixed) || memchr(p + fixed, '\0', len - fixed))
            return -EBADMSG;
        struct meta_key k = {.tag = (enum meta_tag)p[0]};
        for (unsigned n = 0; n < key_rows[i].n_numbers; n++) {
            uint64_t be;
            memcpy(&be, p + 1 + 8 * n, sizeof(be));
            k.n[n] = GUINT64_FROM_BE(be);
        }
        if (has_name) {
            k.name = (const char *)p + fixed;
            k.name_len = len - fixed;
        }
        *ret = k;
        return 0;
    }
    return -EBADMSG;
}

const char *meta_tag_name(uint8_t tag)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(key_rows); i++)
        if (key_rows[i].tag == tag)
            return key_rows[i].name;
    return NULL;
}

/* ---- the codec ---- */

struct codec {
    GString *out; /* NULL: decoding */
    const uint8_t *p, *end;
    bool bad;
};

static void codec_check(struct codec *c, bool ok)
{
    if (!c->out && !ok)
        c->bad = true;
}

static uint64_t get_varint(struct codec *c)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (c->p == c->end)
            break;
        uint8_t byte = *c->p++;
        if (shift == 63 && byte > 1)
            break;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return v;
    }
    c->bad = true;
    return 0;
}

static void codec_u64(struct codec *c, uint64_t *v)
{
    if (!c->out) {
        *v = get_varint(c);
        return;
    }
    uint64_t left = *v;
    while (left >= 0x80) {
        g_string_append_c(c->out, (char)(left | 0x80));
        left >>= 7;
    }
    g_string_append_c(c->out, (char)left);
}

static void codec_u32(struct codec *c, uint32_t *v)
{
    uint64_t wide = *v;
    codec_u64(c, &wide);
    codec_check(c, wide <= UINT32_MAX);
    *v = (uint32_t)wide;
}

static void codec_i64(struct codec *c, int64_t *v)
{
    uint64_t zigzag = ((uint64_t)*v << 1) ^ (*v < 0 ? UINT64_MAX : 0);
    codec_u64(c, &zigzag);
    if (!c->out)
        *v = (int64_t)((zigzag >> 1) ^ (0 - (zigzag & 1)));
}

static void codec_i32(struct codec *c, int32_t *v)
{
    int64_t wide = *v;
    codec_i64(c, &wide);
    codec_check(c, wide >= INT32_MIN && wide <= INT32_MAX);
    *v = (int32_t)wide;
}

static void codec_fixed32(struct codec *c, uint32_t *v)
{
    uint32_t le = GUINT32_TO_LE(*v);
    if (c->out) {
        g_string_append_len(c->out, (const char *)&le, sizeof(le));
        return;
    }
    if (c->end - c->p < (ptrdiff_t)sizeof(le)) {
        c->bad = true;
        return;
    }
    memcpy(&le, c->p, sizeof(le));
    c->p += sizeof(le);
    *v = GUINT32_FROM_LE(le);
}

/* n bytes of the input, NULL when there are not as many. */
static const uint8_t *take(struct codec *c, uint64_t n)
{
    if (c->bad || n > (uint64_t)(c->end - c->p)) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += n;
    return p;
}

static void codec_bytes(struct codec *c, uint8_t *v, size_t size)
{
    const uint8_t *p = c->out ? v : take(c, size);
    if (c->out)
        g_string_append_len(c->out, (const char *)v, (gssize)size);
    else if (p)
        memcpy(v, p, size);
}

/* A string in its own array of `size` bytes. */
static void codec_chars(struct codec *c, char *s, size_t size)
{
    uint64_t len = c->out ? strnlen(s, size - 1) : 0;
    codec_u64(c, &len);
    if (c->out) {
        g_string_append_len(c->out, s, (gssize)len);
        return;
    }
    const uint8_t *p = take(c, len);
    if (!p || len >= size || memchr(p, '\0', len)) {
        c->bad = true;
        return;
    }
    memcpy(s, p, len);
    s[len] = '\0';
}

/* A string on the heap, NULL allowed. */
static void codec_owned(struct codec *c, char **s)
{
    uint64_t stored = c->out && *s ? strlen(*s) + 1 : 0;
    codec_u64(c, &stored);
    if (stored == 0)
        return;
    if (c->out) {
        g_string_append_len(c->out, *s, (gssize)(stored - 1));
        return;
    }
    const uint8_t *p = take(c, stored - 1);
    if (!p || memchr(p, '\0', stored - 1)) {
        c->bad = true;
        return;
    }
    *s = g_strndup((const char *)p, stored - 1);
}

static struct codec encoder(void)
{
    struct codec c = {.out = g_string_sized_new(128)};
    g_string_append_c(c.out, (char)VALUE_VERSION);
    return c;
}

/* Reads the bytes of val; NULL is as good as any address when there are none. */
static struct codec reader(const void *val, size_t len)
{
    static const uint8_t nothing[1];
    const uint8_t *p = len > 0 ? val : nothing;
    return (struct codec){.p = p, .end = p + len};
}

static struct codec decoder(const void *val, size_t len)
{
    struct codec c = reader(val, len);
    if (len == 0 || c.p[0] != VALUE_VERSION)
        c.bad = true;
    else
        c.p++;
    return c;
}

/* 0 when all was read and nothing is left over. */
static int finish(const struct codec *c)
{
    return c->bad || c->p != c->end ? -EBADMSG : 0;
}

/* ---- header and counters ---- */

GString *meta_enc_header(const struct meta_header *h)
{
    struct codec c = {.out = g_string_sized_new(128)};
    struct meta_header tmp = *h;
    codec_fixed32(&c, &tmp.format);
    codec_chars(&c, tmp.uuid, sizeof(tmp.uuid));
    codec_owned(&c, &tmp.identity);
    return c.out;
}

int meta_dec_header(const void *val, size_t len, struct meta_header *ret)
{
    struct codec c = reader(val, len);
    struct meta_header h = {0};
    codec_fixed32(&c, &h.format);
    if (!c.bad && h.format != META_FORMAT) {
        *ret = h;
        return 0;
    }
    codec_chars(&c, h.uuid, sizeof(h.uuid));
    codec_owned(&c, &h.identity);
    codec_check(&c, strlen(h.uuid) == 32 && h.identity);
    int r = finish(&c);
    if (r < 0) {
        g_free(h.identity);
        return r;
    }
    *ret = h;
    return 0;
}

static void walk_counter(struct codec *c, struct meta_counter *n)
{
    codec_u64(c, &n->limit);
    codec_chars(c, n->boot_id, sizeof(n->boot_id));
}

GString *meta_enc_counter(const struct meta_counter *n)
{
    struct codec c = encoder();
    struct meta_counter tmp = *n;
    walk_counter(&c, &tmp);
    return c.out;
}

int meta_dec_counter(const void *val, size_t len, struct meta_counter *ret)
{
    struct codec c = decoder(val, len);
    struct meta_counter n = {0};
    walk_counter(&c, &n);
    int r = finish(&c);
    if (r == 0)
        *ret = n;
    return r;
}

/* ---- inodes ---- */

static void walk_inode(struct codec *c, struct meta_inode *in)
{
    codec_u32(c, &in->mode);
    codec_u32(c, &in->uid);
    codec_u32(c, &in->gid);
    codec_u32(c, &in->nlink);
    codec_u32(c, &in->rdev);
    codec_u32(c, &in->flags);
    codec_u64(c, &in->size);
    codec_i64(c, &in->mtime_ns);
    codec_i64(c, &in->ctime_ns);
    codec_u64(c, &in->vid);
    codec_u64(c, &in->gen);
    codec_u32(c, &in->content);
    codec_check(c, in->content <= CONTENT_QUARANTINED);
    codec_u64(c, &in->base_limit);
    codec_owned(c, &in->base_key);
    codec_chars(c, in->base_etag.s, sizeof(in->base_etag.s));
    codec_i64(c, &in->dirty_since_ns);
    codec_chars(c, in->boot_id, sizeof(in->boot_id));
    codec_owned(c, &in->target);
    codec_u64(c, &in->parent);
    codec_i64(c, &in->listed_ns);
}

GString *meta_enc_inode(const struct meta_inode *in)
{
    struct codec c = encoder();
    struct meta_inode tmp = *in;
    walk_inode(&c, &tmp);
    return c.out;
}

int meta_dec_inode(uint64_t ino, const void *val, size_t len, struct meta_inode *ret)
{
    struct codec c = decoder(val, len);
    struct meta_inode in = {.ino = ino};
    walk_inode(&c, &in);
    int r = finish(&c);
    if (r < 0) {
        meta_inode_clear(&in);
        return r;
    }
    *ret = in;
    return 0;
}

void meta_inode_clear(struct meta_inode *in)
{
    g_clear_pointer(&in->base_key, g_free);
    g_clear_pointer(&in->target, g_free);
}

void meta_inode_copy(struct meta_inode *dst, const struct meta_inode *src)
{
    *dst = *src;
    dst->base_key = g_strdup(src->base_key);
    dst->target = g_strdup(src->target);
}

/* ---- names ---- */

static void walk_dentry(struct codec *c, struct meta_dentry *d)
{
    codec_owned(c, &d->name);
    codec_check(c, d->name && d->name[0] && !strchr(d->name, '/'));
    codec_u64(c, &d->id);
    codec_u64(c, &d->ino);
    codec_u32(c, &d->type);
    codec_check(c, (d->type & ~(uint32_t)S_IFMT) == 0);
    codec_u32(c, &d->flags);
    codec_u64(c, &d->stamp);
    codec_u64(c, &d->op_seq);
    codec_owned(c, &d->ukey);
    codec_chars(c, d->uetag.s, sizeof(d->uetag.s));
    codec_u64(c, &d->usize);
    codec_chars(c, d->dest_etag.s, sizeof(d->dest_etag.s));
    codec_u64(c, &d->pub_vid);
    codec_u64(c, &d->pub_gen);
    codec_chars(c, d->token, sizeof(d->token));
    if (c->out ? d->umtime_ns != 0 : c->p != c->end) { /* most have none */
        codec_i64(c, &d->umtime_ns);
        codec_check(c, d->umtime_ns != 0);
    }
}

GString *meta_enc_dentry(const struct meta_dentry *d)
{
    struct codec c = encoder();
    struct meta_dentry tmp = *d;
    walk_dentry(&c, &tmp);
    return c.out;
}

int meta_dec_dentry(uint64_t parent, const void *val, size_t len, struct meta_dentry *ret)
{
    struct codec c = decoder(val, len);
    struct meta_dentry d = {.parent = parent};
    walk_dentry(&c, &d);
    int r = finish(&c);
    if (r < 0) {
        meta_dentry_clear(&d);
        return r;
    }
    *ret = d;
    return 0;
}

void meta_dentry_clear(struct meta_dentry *d)
{
    g_clear_pointer(&d->name, g_free);
    g_clear_pointer(&d->ukey, g_free);
}

void meta_dentry_copy(struct meta_dentry *dst, const struct meta_dentry *src)
{
    *dst = *src;
    dst->name = g_strdup(src->name);
    dst->ukey = g_strdup(src->ukey);
}

GString *meta_enc_link(void)
{
    return encoder().out;
}

/* ---- journal ---- */

static bool has_turn(const struct meta_op *op)
{
    return op->turn != 0 || op->unclosed;
}

static void walk_op_turn(struct codec *c, struct meta_op *op)
{
    if (c->out ? has_turn(op) : c->p != c->end) {
        uint32_t unclosed = op->unclosed;
        codec_u64(c, &op->turn);
        codec_u32(c, &unclosed);
        codec_check(c, unclosed <= 1 && (op->turn != 0 || unclosed));
        op->unclosed = unclosed != 0;
    } else {
        codec_check(c, op->wave != 0);
    }
}

static void walk_op(struct codec *c, struct meta_op *op)
{
    codec_u32(c, &op->kind);
    codec_check(c, op->kind == OP_SYNC || op->kind == OP_DELETE);
    codec_u32(c, &op->state);
    codec_check(c, op->state <= OPS_CONFLICT);
    codec_i32(c, &op->err);
    codec_u64(c, &op->parent);
    codec_owned(c, &op->name);
    codec_owned(c, &op->key);
    codec_check(c, op->kind == OP_SYNC ? op->name != NULL : op->key != NULL);
    codec_chars(c, op->etag.s, sizeof(op->etag.s));
    codec_i64(c, &op->created_ns);
    if (c->out ? op->place != 0 : c->p != c->end) {
        codec_u64(c, &op->place);
        codec_check(c, op->place != 0);
        if (c->out ? op->wave != 0 || has_turn(op) : c->p != c->end) {
            codec_u64(c, &op->wave);
            walk_op_turn(c, op);
        }
    }
}

GString *meta_enc_op(const struct meta_op *op)
{
    struct codec c = encoder();
    struct meta_op tmp = *op;
    walk_op(&c, &tmp);
    return c.out;
}

int meta_dec_op(uint64_t seq, const void *val, size_t len, struct meta_op *ret)
{
    struct codec c = decoder(val, len);
    struct meta_op op = {.seq = seq};
    walk_op(&c, &op);
    int r = finish(&c);
    if (r < 0) {
        meta_op_clear(&op);
        return r;
    }
    *ret = op;
    return 0;
}

void meta_op_clear(struct meta_op *op)
{
    g_clear_pointer(&op->name, g_free);
    g_clear_pointer(&op->key, g_free);
}

/* ---- uploads ---- */

static void walk_upload(struct codec *c, struct meta_upload *u)
{
    codec_owned(c, &u->key);
    codec_owned(c, &u->upload_id);
    codec_check(c, u->key && u->upload_id);
    codec_u64(c, &u->part_bytes);
    codec_u64(c, &u->gen);
}

GString *meta_enc_upload(const struct meta_upload *u)
{
    struct codec c = encoder();
    struct meta_upload tmp = *u;
    walk_upload(&c, &tmp);
    return c.out;
}

int meta_dec_upload(uint64_t vid, const void *val, size_t len, struct meta_upload *ret)
{
    struct codec c = decoder(val, len);
    struct meta_upload u = {.vid = vid};
    walk_upload(&c, &u);
    int r = finish(&c);
    if (r < 0) {
        meta_upload_clear(&u);
        return r;
    }
    *ret = u;
    return 0;
}

void meta_upload_clear(struct meta_upload *u)
{
    g_clear_pointer(&u->key, g_free);
    g_clear_pointer(&u->upload_id, g_free);
}

static void walk_part(struct codec *c, struct meta_part *p)
{
    codec_u64(c, &p->size);
    codec_fixed32(c, &p->crc32c);
    codec_chars(c, p->etag.s, sizeof(p->etag.s));
    static const uint8_t none[sizeof(p->sha256)];
    if (c->out ? memcmp(p->sha256, none, sizeof(none)) != 0 : c->p != c->end)
        codec_bytes(c, p->sha256, sizeof(p->sha256));
}

GString *meta_enc_part(const struct meta_part *p)
{
    struct codec c = encoder();
    struct meta_part tmp = *p;
    walk_part(&c, &tmp);
    return c.out;
}

int meta_dec_part(uint64_t vid, uint32_t number, const void *val, size_t len, struct meta_part *ret)
{
    struct codec c = decoder(val, len);
    struct meta_part p = {.vid = vid, .number = number};
    walk_part(&c, &p);
    int r = finish(&c);
    if (r == 0)
        *ret = p;
    return r;
}

/* ---- cache index, presence, checksums ---- */

static void walk_cached(struct codec *c, struct meta_cached *f)
{
    codec_u64(c, &f->ino);
    codec_u64(c, &f->bytes);
    codec_u64(c, &f->last_use);
    codec_u64(c, &f->use_gap);
    codec_u32(c, &f->flags);
    if (c->out ? f->tier != 0 : c->p != c->end) { /* most have none */
        codec_u32(c, &f->tier);
        codec_check(c, f->tier != 0);
    }
}

GString *meta_enc_cached(const struct meta_cached *f)
{
    struct codec c = encoder();
    struct meta_cached tmp = *f;
    walk_cached(&c, &tmp);
    return c.out;
}

int meta_dec_cached(uint64_t vid, const void *val, size_t len, struct meta_cached *ret)
{
    struct codec c = decoder(val, len);
    struct meta_cached f = {.vid = vid};
    walk_cached(&c, &f);
    int r = finish(&c);
    if (r == 0)
        *ret = f;
    return r;
}

/* A bit map as: number of leading 0xff bytes, number of plain bytes that follow, those bytes; the rest is 0. */
static void walk_bitmap(struct codec *c, uint8_t *map, size_t size)
{
    uint64_t full = 0, plain = 0;
    if (c->out) {
        while (full < size && map[full] == 0xff)
            full++;
        plain = size - full;
        while (plain > 0 && map[full + plain - 1] == 0)
            plain--;
    }
    codec_u64(c, &full);
    codec_u64(c, &plain);
    if (c->out) {
        g_string_append_len(c->out, (const char *)map + full, (gssize)plain);
        return;
    }
    const uint8_t *p = take(c, plain);
    if (!p || full > size || plain > size - full) {
        c->bad = true;
        return;
    }
    memset(map, 0xff, full);
    memcpy(map + full, p, plain);
    memset(map + full + plain, 0, size - full - plain);
}

GString *meta_enc_segment(const struct meta_segment *s)
{
    struct codec c = encoder();
    struct meta_segment tmp = *s;
    walk_bitmap(&c, tmp.present, sizeof(tmp.present));
    walk_bitmap(&c, tmp.dirty, sizeof(tmp.dirty));
    return c.out;
}

int meta_dec_segment(const void *val, size_t len, struct meta_segment *ret)
{
    struct codec c = decoder(val, len);
    struct meta_segment s;
    walk_bitmap(&c, s.present, sizeof(s.present));
    walk_bitmap(&c, s.dirty, sizeof(s.dirty));
    int r = finish(&c);
    if (r == 0)
        *ret = s;
    return r;
}

GString *meta_enc_crc(uint32_t crc)
{
    struct codec c = encoder();
    codec_fixed32(&c, &crc);
    return c.out;
}

int meta_dec_crc(const void *val, size_t len, uint32_t *ret_crc)
{
    struct codec c = decoder(val, len);
    uint32_t crc = 0;
    codec_fixed32(&c, &crc);
    int r = finish(&c);
    if (r == 0)
        *ret_crc = crc;
    return r;
}

/* ---- replies ---- */

static void walk_reply(struct codec *c, struct meta_reply *reply)
{
    codec_u64(c, &reply->unique);
    codec_u64(c, &reply->ino);
}

GString *meta_enc_reply(const struct meta_reply *reply)
{
    struct codec c = encoder();
    struct meta_reply copy = *reply;
    walk_reply(&c, &copy);
    return c.out;
}

int meta_dec_reply(const void *val, size_t len, struct meta_reply *ret)
{
    struct codec c = decoder(val, len);
    struct meta_reply reply = {0};
    walk_reply(&c, &reply);
    int r = finish(&c);
    if (r == 0) {
        ret->unique = reply.unique;
        ret->ino = reply.ino;
    }
    return r;
}

/* ---- blobs ---- */

GString *meta_enc_blob(const void *data, size_t len)
{
    struct codec c = encoder();
    g_string_append_len(c.out, data, (gssize)len);
    return c.out;
}

int meta_dec_blob(const void *val, size_t len, const void **ret_data, size_t *ret_len)
{
    struct codec c = decoder(val, len);
    if (c.bad)
        return -EBADMSG;
    *ret_data = c.p;
    *ret_len = (size_t)(c.end - c.p);
    return 0;
}

GString *meta_enc_number(uint64_t number)
{
    struct codec c = encoder();
    codec_u64(&c, &number);
    return c.out;
}

int meta_dec_number(const void *val, size_t len, uint64_t *ret_number)
{
    struct codec c = decoder(val, len);
    uint64_t number = 0;
    codec_u64(&c, &number);
    int r = finish(&c);
    if (r == 0)
        *ret_number = number;
    return r;
}
