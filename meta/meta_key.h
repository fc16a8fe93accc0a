/*
 * The only encoder of keys and values; FORMAT.md describes the same bytes as tables. Pure: bytes in, bytes out, no I/O, no logging, no
 * state. Every decoder checks bounds, ranges, embedded NULs and trailing bytes, answers -EBADMSG, and leaves its output alone.
 *
 *   g_autoptr(GString) k = meta_key1(TAG_INODE, ino, NULL);
 *   g_autoptr(GString) v = meta_enc_inode(&in);
 *   r = meta_dec_inode(ino, v->str, v->len, &out);
 */
#pragma once
#include "meta.h"

/* First byte of each key. Never reuse one. */
enum meta_tag {
    TAG_CACHED = 'C',  /* vid */
    TAG_DENTRY = 'D',  /* parent, id */
    TAG_HEADER = 'H',  /* - */
    TAG_INODE = 'I',   /* ino */
    TAG_CRC = 'K',     /* vid, chunk */
    TAG_LINK = 'L',    /* ino, parent, id */
    TAG_NAME = 'N',    /* parent, name */
    TAG_OP = 'O',      /* seq */
    TAG_PART = 'P',    /* vid, number */
    TAG_COUNTER = 'Q', /* name */
    TAG_REPLY = 'R',   /* generation, place */
    TAG_SEGMENT = 'S', /* vid, segment */
    TAG_UPLOAD = 'U',  /* vid */
    TAG_VALUE = 'V',   /* name */
    TAG_XATTR = 'X',   /* ino, name */
};

struct meta_key {
    enum meta_tag tag;
    uint64_t n[3];
    const char *name; /* borrowed from the parsed key, not terminated; NULL: this tag has none */
    size_t name_len;
};

/* Tag, then the numbers big-endian, then the name's bytes (NULL: none). The same functions make prefixes to scan by. */
GString *meta_key0(enum meta_tag tag, const char *name);
GString *meta_key1(enum meta_tag tag, uint64_t a, const char *name);
GString *meta_key2(enum meta_tag tag, uint64_t a, uint64_t b);
GString *meta_key3(enum meta_tag tag, uint64_t a, uint64_t b, uint64_t c);
int meta_key_parse(const void *key, size_t len, struct meta_key *ret) MUST_CHECK;
/* "inode", "dentry", ...; NULL for a byte that is no tag. */
const char *meta_tag_name(uint8_t tag);

struct meta_header {
    uint32_t format;
    char uuid[33];
    char *identity; /* owned */
};
struct meta_counter {
    uint64_t limit;   /* every value below may have been handed out */
    char boot_id[40]; /* boot in which the limit was written */
};

GString *meta_enc_header(const struct meta_header *h);
/* A format other than META_FORMAT decodes to that number alone. */
int meta_dec_header(const void *val, size_t len, struct meta_header *ret) MUST_CHECK;
GString *meta_enc_counter(const struct meta_counter *c);
int meta_dec_counter(const void *val, size_t len, struct meta_counter *ret) MUST_CHECK;

GString *meta_enc_inode(const struct meta_inode *in);
int meta_dec_inode(uint64_t ino, const void *val, size_t len, struct meta_inode *ret) MUST_CHECK;
/* One encoding for the record by id and by name. */
GString *meta_enc_dentry(const struct meta_dentry *d);
int meta_dec_dentry(uint64_t parent, const void *val, size_t len, struct meta_dentry *ret) MUST_CHECK;
GString *meta_enc_op(const struct meta_op *op);
int meta_dec_op(uint64_t seq, const void *val, size_t len, struct meta_op *ret) MUST_CHECK;
GString *meta_enc_upload(const struct meta_upload *u);
int meta_dec_upload(uint64_t vid, const void *val, size_t len, struct meta_upload *ret) MUST_CHECK;
GString *meta_enc_part(const struct meta_part *p);
int meta_dec_part(uint64_t vid, uint32_t number, const void *val, size_t len, struct meta_part *ret) MUST_CHECK;
GString *meta_enc_cached(const struct meta_cached *c);
int meta_dec_cached(uint64_t vid, const void *val, size_t len, struct meta_cached *ret) MUST_CHECK;
GString *meta_enc_segment(const struct meta_segment *s);
int meta_dec_segment(const void *val, size_t len, struct meta_segment *ret) MUST_CHECK;
GString *meta_enc_crc(uint32_t crc);
int meta_dec_crc(const void *val, size_t len, uint32_t *ret_crc) MUST_CHECK;
GString *meta_enc_reply(const struct meta_reply *reply);
int meta_dec_reply(const void *val, size_t len, struct meta_reply *ret) MUST_CHECK; /* all but the key's fields */
/* Extended attributes and named values: the version byte, then the caller's bytes; the result points into val. */
GString *meta_enc_blob(const void *data, size_t len);
int meta_dec_blob(const void *val, size_t len, const void **ret_data, size_t *ret_len) MUST_CHECK;
/* A named value that is a number. */
GString *meta_enc_number(uint64_t number);
int meta_dec_number(const void *val, size_t len, uint64_t *ret_number) MUST_CHECK;
/* The link index carries nothing but its version byte. */
GString *meta_enc_link(void);
