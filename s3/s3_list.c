/*
 * Listings page by page: objects, uploads in progress, parts.
 *
 * The store is not trusted to come to an end: a page that repeats its token, is truncated without one, or goes back in key order ends
 * the listing with -EBADMSG, and so does a long run of pages that bring nothing new. No state, no locks.
 */
#include "drv_s3.h"

#include <string.h>

#define IDLE_PAGES_MAX 1000
#define PAGE_ROWS      1000u

struct lister {
    struct drv_s3 *d;
    const struct obj_list_req *req;
    obj_list_fn *fn;
    void *ctx;
    char *prefix; /* owned; full */
    char *after;  /* owned; full, or NULL */
    char *token;  /* owned; of the next page */
    char *last;   /* owned; full key of the last row given */
    size_t last_len;
    uint32_t n_rows;
    uint32_t n_rows_before; /* the latest page */
    unsigned n_idle;        /* pages without a new row, in a row */
    bool end, truncated;
};

struct page_ctx {
    const char *root; /* S3_ROOT_* */
    struct s3_list_page page;
};

static int page_done(void *ctx, const struct http_response *resp)
{
    struct page_ctx *p = ctx;
    s3_list_page_clear(&p->page);
    return s3_xml_list_parse(resp->body->str, resp->body->len, p->root, &p->page);
}

static int page_get(struct lister *l, struct s3_list_page *ret)
{
    struct s3_call c;
    struct page_ctx p = {.root = S3_ROOT_OBJECTS};
    char count[16];
    uint32_t left = l->req->max_keys ? l->req->max_keys - l->n_rows : PAGE_ROWS;
    g_snprintf(count, sizeof count, "%u", MIN(left, PAGE_ROWS));
    s3_call_init(l->d, &c, "GET", NULL, M_requests_list);
    s3_req_query(&c.req, "list-type", "2");
    s3_req_query(&c.req, "encoding-type", "url");
    s3_req_query(&c.req, "max-keys", count);
    s3_req_query(&c.req, "prefix", l->prefix);
    if (l->req->delimiter)
        s3_req_query(&c.req, "delimiter", "/");
    if (l->token)
        s3_req_query(&c.req, "continuation-token", l->token);
    else if (l->after)
        s3_req_query(&c.req, "start-after", l->after);
    c.reply_cap = S3_XML_LIST_CAP;
    c.ctx = &p;
    c.on_done = page_done;
    int r = s3_exec(l->d, &c);
    if (r == 0)
        *ret = p.page;
    else
        s3_list_page_clear(&p.page);
    s3_call_fini(&c);
    return r == -ENOENT ? -ENODEV : r;
}

static int key_cmp(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int c = memcmp(a, b, MIN(a_len, b_len));
    return c ? c : a_len < b_len ? -1 : a_len > b_len;
}

/* 1: the row is not to be given. */
static int row_skip(struct lister *l, const struct s3_list_row *row)
{
    size_t n = strlen(l->prefix);
    if (row->key_len < n || memcmp(row->key, l->prefix, n) != 0)
        return -EBADMSG;
    if (l->after && key_cmp(row->key, row->key_len, l->after, strlen(l->after)) <= 0)
        return 1;
    int c = l->last ? key_cmp(row->key, row->key_len, l->last, l->last_len) : 1;
    return c > 0 ? 0 : c == 0 ? 1 : -EBADMSG;
}

static int row_give(struct lister *l, const struct s3_list_row *row)
{
    size_t n = strlen(l->prefix);
    struct obj_entry e = {.name = row->key + n,
                          .name_len = row->key_len - n,
                          .is_prefix = row->is_prefix,
                          .archived = row->archived,
                          .odd = memchr(row->key, '\0', row->key_len) != NULL,
                          .size = row->size,
                          .mtime_ns = row->mtime_ns,
                          .etag = row->etag};
    g_free(l->last);
    l->last = g_memdup2(row->key, row->key_len + 1);
    l->last_len = row->key_len;
    l->n_rows++;
    return l->fn(l->ctx, &e);
}

static int page_rows(struct lister *l, const struct s3_list_page *page)
{
    for (guint i = 0; i < page->rows->len; i++) {
        const struct s3_list_row *row = &g_array_index(page->rows, struct s3_list_row, i);
        int r = row_skip(l, row);
        if (r < 0)
            return r;
        if (r == 1)
            continue;
        if (l->req->max_keys && l->n_rows == l->req->max_keys) {
            l->end = l->truncated = true;
            return 0;
        }
        r = row_give(l, row);
        if (r)
            return r;
    }
    return 0;
}

static int page_next(struct lister *l, struct s3_list_page *page)
{
    if (!page->truncated) {
        l->end = true;
        return 0;
    }
    if (!page->next || !*page->next || (l->token && strcmp(page->next, l->token) == 0))
        return -EBADMSG;
    l->n_idle = l->n_rows != l->n_rows_before ? 0 : l->n_idle + 1;
    l->n_rows_before = l->n_rows;
    if (l->n_idle > IDLE_PAGES_MAX)
        return -EBADMSG;
    if (l->req->max_keys && l->n_rows == l->req->max_keys) {
        l->end = l->truncated = true;
        return 0;
    }
    g_free(l->token);
    l->token = g_steal_pointer(&page->next);
    return 0;
}

int s3_list(struct objstore *st, const struct obj_list_req *req, obj_list_fn *fn, void *ctx, bool *ret_truncated)
{
    struct drv_s3 *d = s3_of(st);
    struct lister l = {.d = d, .req = req, .fn = fn, .ctx = ctx};
    l.prefix = g_strconcat(d->prefix, req->prefix, NULL);
    l.after = req->start_after ? g_strconcat(d->prefix, req->start_after, NULL) : NULL;
    int r = 0;
    while (r == 0 && !l.end) {
        struct s3_list_page page = {0};
        r = page_get(&l, &page);
        if (r == 0)
            r = page_rows(&l, &page);
        if (r == 0 && !l.end)
            r = page_next(&l, &page);
        s3_list_page_clear(&page);
    }
    if (r == 0)
        *ret_truncated = l.truncated;
    g_free(l.prefix);
    g_free(l.after);
    g_free(l.token);
    g_free(l.last);
    return r;
}

static int uploads_page(struct drv_s3 *d, const char *prefix, const char *key_marker, const char *id_marker,
                        struct s3_list_page *ret)
{
    struct s3_call c;
    struct page_ctx p = {.root = S3_ROOT_UPLOADS};
    s3_call_init(d, &c, "GET", NULL, M_requests_multipart);
    s3_req_query(&c.req, "uploads", "");
    s3_req_query(&c.req, "encoding-type", "url");
    s3_req_query(&c.req, "prefix", prefix);
    if (key_marker)
        s3_req_query(&c.req, "key-marker", key_marker);
    if (id_marker)
        s3_req_query(&c.req, "upload-id-marker", id_marker);
    c.reply_cap = S3_XML_LIST_CAP;
    c.ctx = &p;
    c.on_done = page_done;
    int r = s3_exec(d, &c);
    if (r == 0)
        *ret = p.page;
    else
        s3_list_page_clear(&p.page);
    s3_call_fini(&c);
    return r == -ENOENT ? -ENODEV : r;
}

/* Rows that are in `seen` already are not given again. */
static int uploads_give(struct drv_s3 *d, const struct s3_list_page *page, GHashTable *seen,
                        int (*fn)(void *ctx, const char *key, const char *upload_id), void *ctx)
{
    for (guint i = 0; i < page->rows->len; i++) {
        const struct s3_list_row *row = &g_array_index(page->rows, struct s3_list_row, i);
        if (!row->upload_id || !g_str_has_prefix(row->key, d->prefix) || strlen(row->key) != row->key_len)
            continue;
        if (!g_hash_table_add(seen, g_strconcat(row->upload_id, " ", row->key, NULL)))
            continue;
        int r = fn(ctx, row->key + strlen(d->prefix), row->upload_id);
        if (r)
            return r;
    }
    return 0;
}

static char *marker_text(const char *text, bool url)
{
    if (!url)
        return g_strdup(text);
    GString *out = g_string_new(NULL);
    if (s3_uri_decode(out, text, strlen(text), true) < 0)
        g_string_assign(out, text);
    return g_string_free(out, FALSE);
}

int s3_mpu_list(struct objstore *st, const char *prefix, int (*fn)(void *ctx, const char *key, const char *upload_id),
                void *ctx)
{
    struct drv_s3 *d = s3_of(st);
    g_autofree char *full = g_strconcat(d->prefix, prefix, NULL);
    g_autofree char *key_marker = NULL;
    g_autofree char *id_marker = NULL;
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    unsigned n_idle = 0;
    for (;;) {
        struct s3_list_page page = {0};
        guint before = g_hash_table_size(seen);
        int r = uploads_page(d, full, key_marker, id_marker, &page);
        if (r < 0)
            return r;
        r = uploads_give(d, &page, seen, fn, ctx);
        bool more = r == 0 && page.truncated;
        g_autofree char *next = page.next ? marker_text(page.next, page.url) : NULL;
        g_autofree char *next_id = g_steal_pointer(&page.next_upload);
        s3_list_page_clear(&page);
        if (!more)
            return r;
        if (!next || (g_strcmp0(next, key_marker) == 0 && g_strcmp0(next_id, id_marker) == 0))
            return -EBADMSG;
        n_idle = g_hash_table_size(seen) != before ? 0 : n_idle + 1;
        if (n_idle > IDLE_PAGES_MAX)
            return -EBADMSG;
        g_free(key_marker);
        g_free(id_marker);
        key_marker = g_steal_pointer(&next);
        id_marker = g_steal_pointer(&next_id);
    }
}

static int parts_page(struct drv_s3 *d, const char *key, const char *upload_id, uint32_t after,
                      struct s3_list_page *ret)
{
    struct s3_call c;
    struct page_ctx p = {.root = S3_ROOT_PARTS};
    char marker[16];
    g_snprintf(marker, sizeof marker, "%u", after);
    s3_call_init(d, &c, "GET", key, M_requests_multipart);
    s3_req_query(&c.req, "uploadId", upload_id);
    if (after)
        s3_req_query(&c.req, "part-number-marker", marker);
    c.reply_cap = S3_XML_LIST_CAP;
    c.ctx = &p;
    c.on_done = page_done;
    int r = s3_exec(d, &c);
    if (r == 0)
        *ret = p.page;
    else
        s3_list_page_clear(&p.page);
    s3_call_fini(&c);
    return r;
}

int s3_mpu_parts(struct objstore *st, const char *key, const char *upload_id, struct obj_part **ret_parts,
                 size_t *ret_n)
{
    g_autoptr(GArray) out = g_array_new(FALSE, TRUE, sizeof(struct obj_part));
    uint32_t last = 0;
    bool more = true;
    while (more) {
        struct s3_list_page page = {0};
        int r = parts_page(s3_of(st), key, upload_id, last, &page);
        if (r < 0)
            return r;
        uint32_t before = last;
        for (guint i = 0; i < page.rows->len; i++) {
            const struct s3_list_row *row = &g_array_index(page.rows, struct s3_list_row, i);
            struct obj_part part = {.number = row->part_number, .size = row->size, .etag = row->etag};
            if (part.number <= last)
                continue;
            last = part.number;
            g_array_append_val(out, part);
        }
        more = page.truncated;
        s3_list_page_clear(&page);
        if (more && last == before)
            return -EBADMSG;
    }
    *ret_n = out->len;
    *ret_parts = (struct obj_part *)(void *)g_array_free(g_steal_pointer(&out), FALSE);
    return 0;
}
