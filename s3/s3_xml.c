/*
 * XML by SAX push; see s3_xml.h. No state, no locks; any thread (libxml2 parser contexts are private to the call).
 *
 * One walker turns a document into (path, text) pairs at each end tag; what the pairs mean is in the functions at the bottom.
 */
#include "s3_xml.h"

#include "base/clock.h"
#include "s3_meta.h"
#include "s3_uri.h"

#include <libxml/parser.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define DEPTH_MAX 32
#define TEXT_MAX  (64u << 10)
#define FEED_STEP (64u << 10)

struct walker;
/* path: local names from below the root, joined by '/'; "" for the root itself. Non-zero stops and is the result. */
typedef int start_fn(void *ctx, const char *path);
typedef int end_fn(void *ctx, const char *path, const char *text, size_t len);

struct walker {
    start_fn *on_start; /* may be NULL */
    end_fn *on_end;
    void *ctx;
    bool blank;  /* keys are not read: what XML cannot hold may be in them */
    bool marked; /* the document's control characters stand behind marks */
    xmlParserCtxtPtr parser;
    char root[64];
    GString *path;
    GString *text;
    unsigned depth;
    int r;
};

static void stop(struct walker *w, int r)
{
    if (w->r == 0)
        w->r = r;
    xmlStopParser(w->parser);
}

static void on_start_element(void *ctx, const xmlChar *name, const xmlChar *prefix, const xmlChar *uri, int n_ns,
                             const xmlChar **ns, int n_attr, int n_default, const xmlChar **attr)
{
    struct walker *w = ctx;
    if (w->r)
        return;
    if (++w->depth > DEPTH_MAX || strlen((const char *)name) > 63) {
        stop(w, -EBADMSG);
        return;
    }
    if (w->depth == 1) {
        g_strlcpy(w->root, (const char *)name, sizeof w->root);
    } else {
        if (w->depth > 2)
            g_string_append_c(w->path, '/');
        g_string_append(w->path, (const char *)name);
    }
    g_string_truncate(w->text, 0);
    int r = w->on_start ? w->on_start(w->ctx, w->path->str) : 0;
    if (r)
        stop(w, r);
}

/*
 * A control character, which no document may have, is handed to the parser as MARK and two hex digits; and a MARK of the document's own as MARK and "00". Back again.
 */
#define MARK      "\xee\x80\x80" /* U+E000, of private use */
#define MARK_LEN  3u
#define MARK_CODE 0xe000
#define MARK_MAX  S3_XML_LIST_CAP /* a document with marks */

static void unmark(GString *text)
{
    char *out = text->str;
    for (const char *at = text->str, *end = at + text->len; at < end;) {
        bool mark = (size_t)(end - at) >= MARK_LEN + 2 && memcmp(at, MARK, MARK_LEN) == 0 &&
                    g_ascii_isxdigit(at[MARK_LEN]) && g_ascii_isxdigit(at[MARK_LEN + 1]);
        int code = mark ? g_ascii_xdigit_value(at[MARK_LEN]) * 16 + g_ascii_xdigit_value(at[MARK_LEN + 1]) : 0;
        size_t n = mark && code == 0 ? MARK_LEN : 1;
        memmove(out, mark && code ? (const char[]){(char)code} : at, n);
        out += n;
        at += mark ? MARK_LEN + 2 : 1;
    }
    g_string_truncate(text, (gsize)(out - text->str));
}

static void on_end_element(void *ctx, const xmlChar *name, const xmlChar *prefix, const xmlChar *uri)
{
    struct walker *w = ctx;
    if (w->r)
        return;
    if (w->marked)
        unmark(w->text);
    int r = w->on_end(w->ctx, w->path->str, w->text->str, w->text->len);
    if (r)
        stop(w, r);
    char *slash = strrchr(w->path->str, '/');
    g_string_truncate(w->path, slash ? (gsize)(slash - w->path->str) : 0);
    g_string_truncate(w->text, 0);
    w->depth--;
}

static void on_text(void *ctx, const xmlChar *s, int len)
{
    struct walker *w = ctx;
    if (w->r)
        return;
    if (w->text->len + (size_t)len > TEXT_MAX)
        stop(w, -EBADMSG);
    else
        g_string_append_len(w->text, (const char *)s, len);
}

static void on_doctype(void *ctx, const xmlChar *name, const xmlChar *external, const xmlChar *system)
{
    stop(ctx, -EBADMSG);
}

static void on_error(void *ctx, const xmlError *error)
{
    /* the parse result tells; nothing is to be printed */
}

static bool is_control(unsigned code)
{
    return code < 0x20 && code != '\t' && code != '\n' && code != '\r';
}

/* Length of a reference at the start ("&#x1;", "&#01;") to a character; 0: there is none. */
static size_t char_ref(const char *buf, size_t len, unsigned *ret_code)
{
    unsigned code = 0, base = len > 2 && buf[2] == 'x' ? 16 : 10;
    size_t first = base == 16 ? 3 : 2, n = first;
    if (len < 4 || buf[0] != '&' || buf[1] != '#')
        return 0;
    for (; n < len && (base == 16 ? g_ascii_isxdigit(buf[n]) : g_ascii_isdigit(buf[n])) && code < 0x110000; n++)
        code = code * base + (unsigned)g_ascii_xdigit_value(buf[n]);
    bool whole = n > first && n < len && buf[n] == ';';
    *ret_code = code;
    return whole ? n + 1 : 0;
}

/* The same to one that no document may have. */
static size_t control_ref(const char *buf, size_t len, unsigned *ret_code)
{
    size_t n = char_ref(buf, len, ret_code);
    return n > 0 && is_control(*ret_code) ? n : 0;
}

/* The document with spaces in place of those, NULL: it has none. Ceph repeats a key so where the name has control characters, for which there is no other way. */
static char *blank_controls(const char *buf, size_t len)
{
    char *copy = NULL;
    unsigned code;
    for (size_t i = 0; i + 3 < len; i++) {
        size_t n = control_ref(buf + i, len - i, &code);
        if (n > 0 && !copy)
            copy = g_memdup2(buf, len);
        if (n > 0)
            memset(copy + i, ' ', n);
    }
    return copy;
}

/* Length of what is to be marked at the start: a control character but NUL, or MARK (*ret_code 0), or a reference to one of them; 0: there is none. */
static size_t to_mark(const char *buf, size_t len, unsigned *ret_code)
{
    unsigned code = (unsigned char)buf[0];
    size_t n = buf[0] == '&' ? char_ref(buf, len, &code) : is_control(code);
    bool literal = n == 0 && len >= MARK_LEN && memcmp(buf, MARK, MARK_LEN) == 0;
    *ret_code = 0;
    if (literal || (n > 0 && code == MARK_CODE))
        return literal ? MARK_LEN : n;
    *ret_code = code;
    return code && is_control(code) ? n : 0;
}

static bool has_controls(const char *buf, size_t len)
{
    unsigned code;
    for (size_t i = 0; i < len; i++)
        if (to_mark(buf + i, len - i, &code) > 0 && code)
            return true;
    return false;
}

/* The document with marks, as far as it is not longer than MARK_MAX, NULL: it has no control characters. Ceph encodes the keys of a listing, not what it repeats of the request, nor where
 * the next page begins. */
static GString *mark_controls(const char *buf, size_t len)
{
    if (!has_controls(buf, len))
        return NULL;
    GString *out = g_string_sized_new(len + 1024);
    size_t from = 0;
    for (size_t i = 0; i < len && out->len <= MARK_MAX;) {
        unsigned code;
        size_t n = to_mark(buf + i, len - i, &code);
        if (n > 0) {
            g_string_append_len(out, buf + from, (gssize)(i - from));
            g_string_append_printf(out, MARK "%02x", code);
            from = i + n;
        }
        i += MAX(n, 1);
    }
    g_string_append_len(out, buf + from, (gssize)(len - from));
    return out;
}

static int parse(struct walker *w, const char *buf, size_t len)
{
    xmlSAXHandler sax = {
        .initialized = XML_SAX2_MAGIC,
        .startElementNs = on_start_element,
        .endElementNs = on_end_element,
        .characters = on_text,
        .ignorableWhitespace = on_text,
        .cdataBlock = on_text,
        .internalSubset = on_doctype,
        .serror = (xmlStructuredErrorFunc)(void (*)(void))on_error,
    };
    while (len && g_ascii_isspace(*buf)) { /* sent to keep the connection alive while the store works */
        buf++;
        len--;
    }
    w->parser = xmlCreatePushParserCtxt(&sax, w, NULL, 0, NULL);
    if (!w->parser)
        return -ENOMEM;
    (void)xmlCtxtUseOptions(w->parser, XML_PARSE_NONET | XML_PARSE_NOCDATA); /* returns unknown options: none */
    w->path = g_string_new(NULL);
    w->text = g_string_new(NULL);
    int code = 0;
    while (len && code == 0 && w->r == 0) {
        size_t n = MIN(len, FEED_STEP);
        code = xmlParseChunk(w->parser, buf, (int)n, 0);
        buf += n;
        len -= n;
    }
    if (code == 0 && w->r == 0)
        code = xmlParseChunk(w->parser, NULL, 0, 1);
    bool ok = code == 0 && w->parser->wellFormed && w->root[0];
    xmlFreeParserCtxt(w->parser);
    g_string_free(w->path, TRUE);
    g_string_free(w->text, TRUE);
    if (w->r)
        return w->r;
    return ok ? 0 : -EBADMSG;
}

static int walk(struct walker *w, const char *buf, size_t len)
{
    g_autofree char *copy = w->blank ? blank_controls(buf, len) : NULL;
    g_autoptr(GString) marked = w->blank ? NULL : mark_controls(buf, len);
    w->marked = marked != NULL;
    if (marked && marked->len > MARK_MAX)
        return -EBADMSG;
    return marked ? parse(w, marked->str, marked->len) : parse(w, copy ? copy : buf, len);
}

void s3_xml_init(void)
{
    xmlInitParser();
}

static int error_end(void *ctx, const char *path, const char *text, size_t len)
{
    struct s3_xml_error *e = ctx;
    const char *name = g_str_has_prefix(path, "Error/") ? path + 6 : path;
    if (strcmp(name, "Code") == 0)
        g_strlcpy(e->code, text, sizeof e->code);
    else if (strcmp(name, "Message") == 0)
        g_strlcpy(e->message, text, sizeof e->message);
    else if (strcmp(name, "Region") == 0)
        g_strlcpy(e->region, text, sizeof e->region);
    else if (strcmp(name, "RequestId") == 0)
        g_strlcpy(e->request_id, text, sizeof e->request_id);
    return 0;
}

int s3_xml_error_parse(const char *buf, size_t len, struct s3_xml_error *ret)
{
    struct s3_xml_error e = {0};
    struct walker w = {.on_end = error_end, .ctx = &e, .blank = true};
    if (len > S3_XML_ERROR_CAP)
        return -EBADMSG;
    int r = walk(&w, buf, len);
    if (r < 0)
        return r;
    if (strcmp(w.root, "Error") != 0 && strcmp(w.root, "ErrorResponse") != 0)
        return -ENOMSG;
    *ret = e;
    return 0;
}

struct text_ctx {
    const char *name;
    char *found;
};

static int text_end(void *ctx, const char *path, const char *text, size_t len)
{
    struct text_ctx *t = ctx;
    const char *slash = strrchr(path, '/');
    if (!t->found && strcmp(slash ? slash + 1 : path, t->name) == 0)
        t->found = g_strndup(text, len);
    return 0;
}

int s3_xml_text(const char *buf, size_t len, const char *name, char **ret_text)
{
    struct text_ctx t = {.name = name};
    struct walker w = {.on_end = text_end, .ctx = &t, .blank = true};
    int r = len > S3_XML_ERROR_CAP ? -EBADMSG : walk(&w, buf, len);
    if (r == 0 && !t.found)
        r = -ENOMSG;
    if (r < 0) {
        g_free(t.found);
        return r;
    }
    *ret_text = t.found;
    return 0;
}

void s3_etag_parse(const char *text, struct etag *ret)
{
    ret->s[0] = '\0';
    if (g_str_has_prefix(text, "W/"))
        text += 2;
    size_t n = strlen(text);
    if (n >= 2 && text[0] == '"' && text[n - 1] == '"') {
        text++;
        n -= 2;
    }
    if (n > ETAG_MAX)
        return;
    for (size_t i = 0; i < n; i++) {
        if (!g_ascii_isgraph(text[i]) || text[i] == '"')
            return;
    }
    memcpy(ret->s, text, n);
    ret->s[n] = '\0';
}

int64_t s3_time_parse(const char *text)
{
    struct tm tm = {0};
    int n = 0;
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min,
               &tm.tm_sec, &n) != 6)
        return 0;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    int64_t ns = 0;
    int64_t unit = (int64_t)NS_PER_S / 10;
    if (text[n] == '.') {
        for (const char *p = text + n + 1; g_ascii_isdigit(*p); p++) {
            ns += (*p - '0') * unit;
            unit /= 10;
        }
    }
    return clock_wall_of((int64_t)timegm(&tm), ns);
}

struct list_ctx {
    struct s3_list_page page;
    bool said; /* IsTruncated was there */
    struct s3_list_row row;
};

static void row_clear(void *p)
{
    struct s3_list_row *row = p;
    g_free(row->key);
    g_free(row->upload_id);
}

static bool is_row(const char *path)
{
    return strcmp(path, "Contents") == 0 || strcmp(path, "CommonPrefixes") == 0 || strcmp(path, "Upload") == 0 ||
           strcmp(path, "Part") == 0;
}

static int list_start(void *ctx, const char *path)
{
    struct list_ctx *l = ctx;
    if (is_row(path)) {
        row_clear(&l->row);
        memset(&l->row, 0, sizeof l->row);
    }
    return 0;
}

static int parse_number(const char *text, uint64_t max, uint64_t *ret)
{
    guint64 v = 0;
    if (!g_ascii_string_to_unsigned(text, 10, 0, max, &v, NULL))
        return -EBADMSG;
    *ret = v;
    return 0;
}

static int row_field(struct s3_list_row *row, const char *name, const char *text, size_t len)
{
    uint64_t v = 0;
    int r = 0;
    if (strcmp(name, "Key") == 0 || strcmp(name, "Prefix") == 0) {
        g_free(row->key);
        row->key = g_strndup(text, len);
        row->key_len = len;
    } else if (strcmp(name, "Size") == 0) {
        r = parse_number(text, INT64_MAX, &row->size);
    } else if (strcmp(name, "LastModified") == 0) {
        row->mtime_ns = s3_time_parse(text);
    } else if (strcmp(name, "ETag") == 0) {
        s3_etag_parse(text, &row->etag);
    } else if (strcmp(name, "StorageClass") == 0) {
        row->archived = s3_meta_is_archive(text);
    } else if (strcmp(name, "UploadId") == 0) {
        g_free(row->upload_id);
        row->upload_id = g_strndup(text, len);
    } else if (strcmp(name, "PartNumber") == 0) {
        r = parse_number(text, 100000, &v);
        row->part_number = (uint32_t)v;
    }
    return r;
}

static int list_end(void *ctx, const char *path, const char *text, size_t len)
{
    struct list_ctx *l = ctx;
    const char *slash = strchr(path, '/');
    if (slash) {
        g_autofree char *parent = g_strndup(path, (gsize)(slash - path));
        return is_row(parent) && !strchr(slash + 1, '/') ? row_field(&l->row, slash + 1, text, len) : 0;
    }
    if (is_row(path)) {
        if ((!l->row.key && strcmp(path, "Part") != 0) || l->page.rows->len == S3_XML_ROWS_MAX)
            return -EBADMSG;
        l->row.is_prefix = path[0] == 'C' && path[3] == 'm';
        g_array_append_val(l->page.rows, l->row);
        memset(&l->row, 0, sizeof l->row);
    } else if (strcmp(path, "IsTruncated") == 0) {
        l->page.truncated = strcmp(text, "true") == 0;
        l->said = l->page.truncated || strcmp(text, "false") == 0;
    } else if (strcmp(path, "EncodingType") == 0) {
        l->page.url = strcmp(text, "url") == 0;
    } else if (strcmp(path, "NextContinuationToken") == 0 || strcmp(path, "NextKeyMarker") == 0 ||
               strcmp(path, "NextPartNumberMarker") == 0) {
        g_free(l->page.next);
        l->page.next = g_strndup(text, len);
    } else if (strcmp(path, "NextUploadIdMarker") == 0) {
        g_free(l->page.next_upload);
        l->page.next_upload = g_strndup(text, len);
    }
    return 0;
}

static int row_cmp(const void *a, const void *b)
{
    const struct s3_list_row *x = a;
    const struct s3_list_row *y = b;
    int c = memcmp(x->key, y->key, MIN(x->key_len, y->key_len));
    return c ? c : x->key_len < y->key_len ? -1 : x->key_len > y->key_len;
}

/* Ceph encodes the keys of uploads when asked to but does not say so. */
static bool upload_looks_encoded(const struct s3_list_row *row)
{
    if (!row->upload_id)
        return false;
    for (size_t i = 0; i < row->key_len; i++) {
        char c = row->key[i];
        if (c == '%' && i + 2 < row->key_len && g_ascii_isxdigit(row->key[i + 1]) && g_ascii_isxdigit(row->key[i + 2]))
            i += 2;
        else if (!g_ascii_isalnum(c) && !strchr("-_.~/*+", c))
            return false;
    }
    return true;
}

/* Decodes the keys and brings objects and common prefixes into one order. */
static int rows_finish(struct list_ctx *l)
{
    GArray *rows = l->page.rows;
    bool keys = true;
    for (guint i = 0; i < rows->len; i++) {
        struct s3_list_row *row = &g_array_index(rows, struct s3_list_row, i);
        keys = keys && row->key && !row->upload_id;
        if (!row->key || !(l->page.url || upload_looks_encoded(row)))
            continue;
        GString *out = g_string_sized_new(row->key_len);
        int r = s3_uri_decode(out, row->key, row->key_len, true);
        if (r < 0) {
            g_string_free(out, TRUE);
            return r;
        }
        g_free(row->key);
        row->key_len = out->len;
        row->key = g_string_free(out, FALSE);
    }
    if (keys)
        g_array_sort(rows, row_cmp);
    return 0;
}

int s3_xml_list_parse(const char *buf, size_t len, const char *root, struct s3_list_page *ret)
{
    struct list_ctx l = {.page.rows = g_array_new(FALSE, TRUE, sizeof(struct s3_list_row))};
    struct walker w = {
        .on_start = list_start, .on_end = list_end, .ctx = &l, .blank = strcmp(root, S3_ROOT_PARTS) == 0};
    g_array_set_clear_func(l.page.rows, row_clear);
    int r = len > S3_XML_LIST_CAP ? -EBADMSG : walk(&w, buf, len);
    row_clear(&l.row);
    if (r == 0 && (strcmp(w.root, root) != 0 || !l.said))
        r = -EBADMSG;
    if (r == 0)
        r = rows_finish(&l);
    if (r < 0) {
        s3_list_page_clear(&l.page);
        return r;
    }
    *ret = l.page;
    return 0;
}

void s3_list_page_clear(struct s3_list_page *page)
{
    if (page->rows)
        g_array_unref(page->rows);
    g_free(page->next);
    g_free(page->next_upload);
    memset(page, 0, sizeof *page);
}
