/* Manifests: lines are handed on as they are read; JSON is parsed as a whole, with a limit; patterns are expanded one name at a time. */
#include "tools/manifest.h"

#include <glib.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define MAX_PATTERN 4096u /* bytes; what is nested costs a copy each */

bool manifest_kind_of(const char *word, enum manifest_kind *ret)
{
    static const char *const names[] = {"auto", "list", "safetensors", "webdataset"};
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++)
        if (strcmp(word, names[i]) == 0) {
            *ret = i;
            return true;
        }
    return false;
}

/* ---- patterns ---- */

struct expansion {
    manifest_fn *fn;
    void *ctx;
    uint64_t n;
    char **error;
    bool in_json;
};

struct range {
    int64_t from, to, step;
    unsigned width; /* digits, with zeros before */
    bool letters;
};

static bool fail(char **error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool fail(char **error, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    g_free(*error);
    *error = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    return false;
}

/* The '}' of the '{' at `open`, NULL: it has none. */
static const char *closing(const char *open)
{
    unsigned depth = 0;
    for (const char *p = open; *p; p++) {
        depth += *p == '{';
        if (*p == '}' && --depth == 0)
            return p;
    }
    return NULL;
}

/* "-12", "007": its value and how many digits it is wide. */
static bool parse_number(const char **p, int64_t *ret, unsigned *ret_width)
{
    const char *s = *p + (**p == '-');
    size_t digits = strspn(s, "0123456789");
    if (digits == 0 || digits > 18)
        return false;
    *ret = g_ascii_strtoll(*p, NULL, 10);
    *ret_width = s[0] == '0' && digits > 1 ? (unsigned)digits : 0;
    *p = s + digits;
    return true;
}

static bool parse_ends(const char **p, struct range *r)
{
    unsigned a = 0, b = 0;
    if (g_ascii_isalpha((*p)[0]) && strncmp(*p + 1, "..", 2) == 0 && g_ascii_isalpha((*p)[3])) {
        *r = (struct range){.from = (*p)[0], .to = (*p)[3], .letters = true};
        *p += 4;
        return true;
    }
    if (!parse_number(p, &r->from, &a) || strncmp(*p, "..", 2) != 0)
        return false;
    *p += 2;
    if (!parse_number(p, &r->to, &b))
        return false;
    r->width = MAX(a, b);
    return true;
}

/* What stands between braces, up to end: a range? */
static bool parse_range(const char *p, const char *end, struct range *ret)
{
    struct range r = {0};
    unsigned width;
    int64_t step = 1;
    if (!parse_ends(&p, &r))
        return false;
    if (p < end && strncmp(p, "..", 2) == 0) {
        p += 2;
        if (!parse_number(&p, &step, &width) || step == 0)
            return false;
    }
    step = ABS(step);
    r.step = r.from <= r.to ? step : -step;
    *ret = r;
    return p == end;
}

static uint64_t range_count(const struct range *r)
{
    return (uint64_t)((r->to - r->from) / r->step) + 1;
}

static void append_value(GString *s, const struct range *r, int64_t v)
{
    if (r->letters)
        g_string_append_c(s, (char)v);
    else
        g_string_append_printf(s, "%s%0*" PRId64, v < 0 ? "-" : "", (int)r->width, ABS(v));
}

/* The next ',' of this level, or end. */
static const char *word_end(const char *p, const char *end)
{
    unsigned depth = 0;
    for (; p < end && (depth || *p != ','); p++) {
        depth += *p == '{';
        depth -= *p == '}' && depth;
    }
    return p;
}

static bool too_many(struct expansion *x)
{
    return fail(x->error, "a pattern stands for more than %u names", MANIFEST_MAX_NAMES);
}

/* Hands over `done` followed by whatever `rest` stands for; done is as before afterwards. */
static bool expand(struct expansion *x, GString *done, const char *rest)
{
    size_t len = done->len;
    const char *open = rest, *close = NULL;
    struct range r;
    bool is_range = false;
    for (; (open = strchr(open, '{')); open++) { /* the first that means something */
        close = closing(open);
        is_range = close && parse_range(open + 1, close, &r);
        if (is_range || (close && word_end(open + 1, close) < close))
            break;
    }
    g_string_append_len(done, rest, open ? open - rest : (gssize)strlen(rest));
    bool ok = true;
    if (!open) {
        ok = x->n++ < MANIFEST_MAX_NAMES || too_many(x);
        if (ok && done->len > 0)
            ok = x->fn(x->ctx, done->str, x->in_json);
    } else if (is_range) {
        ok = range_count(&r) <= MANIFEST_MAX_NAMES || too_many(x);
        for (uint64_t i = 0, n = range_count(&r); ok && i < n; i++) {
            size_t before = done->len;
            append_value(done, &r, r.from + (int64_t)i * r.step);
            ok = expand(x, done, close + 1);
            g_string_truncate(done, before);
        }
    } else {
        for (const char *p = open + 1, *end; ok && p <= close; p = end + 1) {
            end = word_end(p, close);
            g_autofree char *word = g_strdup_printf("%.*s%s", (int)(end - p), p, close + 1);
            ok = expand(x, done, word);
        }
    }
    g_string_truncate(done, len);
    return ok;
}

static bool expand_one(const char *pattern, bool in_json, manifest_fn *fn, void *ctx, char **ret_error)
{
    struct expansion x = {.fn = fn, .ctx = ctx, .error = ret_error, .in_json = in_json};
    g_autoptr(GString) done = g_string_new(NULL);
    if (strlen(pattern) > MAX_PATTERN)
        return fail(ret_error, "a pattern is longer than %u bytes", MAX_PATTERN);
    return expand(&x, done, pattern);
}

bool manifest_expand(const char *pattern, manifest_fn *fn, void *ctx, char **ret_error)
{
    return expand_one(pattern, false, fn, ctx, ret_error);
}

/* ---- lines ---- */

struct reading {
    enum manifest_kind kind;
    manifest_fn *fn;
    void *ctx;
    char **error;
};

static bool has_range(const char *line)
{
    struct range r;
    for (const char *open = line; (open = strchr(open, '{')); open++) {
        const char *close = strchr(open, '}'); /* within a range there are no braces */
        if (close && parse_range(open + 1, close, &r))
            return true;
    }
    return false;
}

/* As users of webdataset write it, and nobody names a file. */
static bool looks_like_shards(const char *line)
{
    return strncmp(line, "pipe:", 5) == 0 || strstr(line, "://") || has_range(line);
}

/* "a.tar::b.tar" */
static bool take_shards(struct reading *rd, const char *text, bool in_json)
{
    g_auto(GStrv) parts = g_strsplit(text, "::", -1);
    bool ok = true;
    for (unsigned i = 0; ok && parts[i]; i++)
        if (*parts[i])
            ok = expand_one(parts[i], in_json, rd->fn, rd->ctx, rd->error);
    return ok;
}

static bool take_line(struct reading *rd, char *line)
{
    g_strchomp(line);
    if (!*line)
        return true;
    if (rd->kind == MANIFEST_WEBDATASET || (rd->kind == MANIFEST_AUTO && looks_like_shards(line)))
        return take_shards(rd, line, false);
    return rd->fn(rd->ctx, line, false);
}

static bool take_lines(struct reading *rd, FILE *in)
{
    char *line = NULL;
    size_t room = 0;
    bool ok = true;
    while (ok && getline(&line, &room, in) >= 0)
        ok = take_line(rd, line);
    free(line);
    if (ok && ferror(in))
        return fail(rd->error, "it cannot be read to its end");
    return ok;
}

/* ---- JSON ---- */

static bool take_weight_map(struct reading *rd, json_t *map)
{
    g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    const char *tensor;
    json_t *v;
    json_object_foreach(map, tensor, v)
    {
        const char *file = json_string_value(v);
        if (!file || !*file)
            return fail(rd->error, "the weight_map names no file for '%s'", tensor);
        if (g_hash_table_add(seen, g_strdup(file)) && !rd->fn(rd->ctx, file, true))
            return false;
    }
    return true;
}

static bool take_shard_list(struct reading *rd, const json_t *list)
{
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v)
    {
        const char *url = json_string_value(json_is_object(v) ? json_object_get(v, "url") : v);
        if (!url || !*url)
            return fail(rd->error, "shard %zu of the list has no url", i);
        if (!take_shards(rd, url, true))
            return false;
    }
    return true;
}

static bool take_json(struct reading *rd, const json_t *doc)
{
    json_t *map = json_object_get(doc, "weight_map");
    const json_t *list = json_is_array(doc) ? doc : json_object_get(doc, "shardlist");
    if (rd->kind != MANIFEST_WEBDATASET && json_is_object(map))
        return take_weight_map(rd, map);
    if (rd->kind != MANIFEST_SAFETENSORS && json_is_array(list))
        return take_shard_list(rd, list);
    return fail(rd->error, rd->kind == MANIFEST_SAFETENSORS  ? "it has no weight_map, as an index of safetensors has"
                           : rd->kind == MANIFEST_WEBDATASET ? "it has no list of shards"
                                                             : "it has neither a weight_map nor a list of shards");
}

static GString *slurp(FILE *in, char **error)
{
    g_autoptr(GString) text = g_string_new(NULL);
    char buf[8192];
    for (size_t n; (n = fread(buf, 1, sizeof buf, in)) > 0;) {
        if (text->len + n > MANIFEST_MAX_JSON) {
            (void)fail(error, "it is larger than %u MiB", MANIFEST_MAX_JSON >> 20);
            return NULL;
        }
        g_string_append_len(text, buf, (gssize)n);
    }
    if (ferror(in)) {
        (void)fail(error, "it cannot be read to its end");
        return NULL;
    }
    return g_steal_pointer(&text);
}

/* What begins like JSON, or must be it. In a list such a line may be the name of a file after all. */
static bool take_document(struct reading *rd, FILE *in)
{
    g_autoptr(GString) text = slurp(in, rd->error);
    json_error_t err;
    if (!text)
        return false;
    json_t *doc = json_loadb(text->str, text->len, 0, &err);
    if (doc) {
        bool ok = take_json(rd, doc);
        json_decref(doc);
        return ok;
    }
    bool meant = rd->kind == MANIFEST_SAFETENSORS || strchr(text->str, '"');
    if (meant)
        return fail(rd->error, "it is no JSON: line %d: %s", err.line, err.text);
    bool ok = true;
    char *rest = text->str;
    for (char *line; ok && (line = strsep(&rest, "\n"));)
        ok = take_line(rd, line);
    return ok;
}

bool manifest_read(FILE *in, enum manifest_kind kind, manifest_fn *fn, void *ctx, char **ret_error)
{
    struct reading rd = {.kind = kind, .fn = fn, .ctx = ctx, .error = ret_error};
    int c = kind == MANIFEST_LIST ? 0 : getc(in);
    while (c == ' ' || c == '\t' || c == '\r' || c == '\n')
        c = getc(in);
    if (kind != MANIFEST_LIST && c != EOF)
        (void)ungetc(c, in);
    return kind == MANIFEST_SAFETENSORS || c == '{' || c == '[' ? take_document(&rd, in) : take_lines(&rd, in);
}
