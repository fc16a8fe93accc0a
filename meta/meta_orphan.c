/* See meta_orphan.h: an empty value, or 16 bytes (le64: the inode that came, the directory) and a dentry record; a name where no inode came. Any thread. */
#include "meta_orphan.h"

#include "base/log.h"
#include "meta_key.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX       "orphan/"
#define NAME_MAX_LEN 32
#define HEAD         (2 * sizeof(uint64_t))

static void value_name(uint64_t ino, char buf[NAME_MAX_LEN])
{
    g_snprintf(buf, NAME_MAX_LEN, PREFIX "%016" G_GINT64_MODIFIER "x", ino);
}

void meta_replaced_clear(struct meta_replaced *rep)
{
    meta_dentry_clear(&rep->was);
    *rep = (struct meta_replaced){0};
}

void meta_orphan_put(struct meta_batch *b, uint64_t ino, const struct meta_replaced *rep)
{
    char name[NAME_MAX_LEN];
    value_name(ino, name);
    if (!rep) {
        meta_value_put(b, name, "", 0);
        return;
    }
    uint64_t head[2] = {GUINT64_TO_LE(rep->by), GUINT64_TO_LE(rep->was.parent)};
    GString *v = meta_enc_dentry(&rep->was);
    g_string_prepend_len(v, (const char *)head, HEAD);
    meta_value_put(b, name, v->str, v->len);
    (void)g_string_free(v, TRUE);
}

void meta_orphan_put_lost(struct meta_batch *b, uint64_t ino, uint64_t parent, const char *name)
{
    char value[NAME_MAX_LEN];
    value_name(ino, value);
    uint64_t head[2] = {0, GUINT64_TO_LE(parent)};
    GString *v = g_string_new_len((const char *)head, HEAD);
    g_string_append(v, name);
    meta_value_put(b, value, v->str, v->len);
    (void)g_string_free(v, TRUE);
}

void meta_orphan_del(struct meta_batch *b, uint64_t ino)
{
    char name[NAME_MAX_LEN];
    value_name(ino, name);
    meta_value_del(b, name);
}

static int parse(const void *value, size_t len, struct meta_replaced *ret)
{
    uint64_t head[2];
    *ret = (struct meta_replaced){0};
    if (len == 0)
        return 0;
    if (len < HEAD)
        return -EBADMSG;
    memcpy(head, value, HEAD);
    if (head[0] == 0) {
        ret->was.parent = GUINT64_FROM_LE(head[1]);
        ret->was.name = g_strndup((const char *)value + HEAD, len - HEAD);
        return 0;
    }
    int r = meta_dec_dentry(GUINT64_FROM_LE(head[1]), (const char *)value + HEAD, len - HEAD, &ret->was);
    ret->by = r == 0 ? GUINT64_FROM_LE(head[0]) : 0;
    return r;
}

int meta_orphan_get(struct meta *m, uint64_t ino, struct meta_replaced *ret)
{
    char name[NAME_MAX_LEN];
    GBytes *value = NULL;
    value_name(ino, name);
    int r = meta_value_get(m, name, &value);
    if (r < 0)
        return r;
    size_t len;
    const void *data = g_bytes_get_data(value, &len);
    r = parse(data, len, ret);
    g_bytes_unref(value);
    return r;
}

struct orphan_each {
    int (*fn)(void *ctx, uint64_t ino, const struct meta_replaced *rep);
    void *ctx;
};

static int on_orphan(void *ctx, const char *name, const void *value, size_t len)
{
    const struct orphan_each *e = ctx;
    struct meta_replaced rep;
    int r = parse(value, len, &rep);
    if (r < 0) {
        log_err("meta", "what is known of a removed file cannot be decoded, it is kept as it is name='%s' r=%s", name,
                err_name(r));
        r = 0;
    } else {
        r = e->fn(e->ctx, strtoull(name + strlen(PREFIX), NULL, 16), &rep);
    }
    meta_replaced_clear(&rep);
    return r;
}

int meta_orphan_each(struct meta *m, int (*fn)(void *ctx, uint64_t ino, const struct meta_replaced *rep), void *ctx)
{
    struct orphan_each e = {fn, ctx};
    return meta_value_each(m, PREFIX, on_orphan, &e);
}
