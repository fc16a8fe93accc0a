/* See rules.h. */
#include "rules.h"

#include "base/clock.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define GLOB_MAX 1024
#define PIN_MAX  1000
#define TTL_MAX  (3650 * 86400 * NS_PER_S)

/* ---- keys ---- */

enum kind { KIND_WORD, KIND_NUMBER, KIND_DURATION };

struct key {
    const char *name;
    enum kind kind;
    size_t offset;
    const char *const *words; /* KIND_WORD: by value */
    uint64_t min, max;        /* of numbers */
    bool flag;                /* without a value: the second word */
};

static const char *const close_words[] = {"buffered", "local", "remote", NULL};
static const char *const fsync_words[] = {"local", "remote", NULL};
static const char *const order_words[] = {"ancestor", "none", "mount", NULL};
static const char *const hold_words[] = {"no", "yes", NULL};
static const char *const tier_words[] = {"disk", "memory", NULL};
static const char *const switch_words[] = {"no", "yes", NULL};

#define AT(field) offsetof(struct rule_set, field)
enum { K_CLOSE, K_FSYNC, K_ORDER, K_HOLD, K_PIN, K_TIER, K_LOCAL_ONLY, K_TTL, K_METADATA_TTL };
static const struct key keys[] = {
    [K_CLOSE] = {"close", KIND_WORD, AT(close), close_words, 0, 0, false},
    [K_FSYNC] = {"fsync", KIND_WORD, AT(fsync), fsync_words, 0, 0, false},
    [K_ORDER] = {"order", KIND_WORD, AT(order), order_words, 0, 0, false},
    [K_HOLD] = {"hold", KIND_WORD, AT(hold), hold_words, 0, 0, false},
    [K_PIN] = {"pin", KIND_NUMBER, AT(pin), NULL, 0, PIN_MAX, false},
    [K_TIER] = {"tier", KIND_WORD, AT(tier), tier_words, 0, 0, false},
    [K_LOCAL_ONLY] = {"local-only", KIND_WORD, AT(local_only), switch_words, 0, 0, true},
    [K_TTL] = {"ttl", KIND_DURATION, AT(ttl_ns), NULL, NS_PER_S, TTL_MAX, false},
    [K_METADATA_TTL] = {"metadata-ttl", KIND_DURATION, AT(metadata_ttl_ns), NULL, 0, 365 * 86400 * NS_PER_S, false},
};
#define BIT(k) (1u << (k))

static int key_find(const char *name, size_t len)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(keys); i++)
        if (strlen(keys[i].name) == len && memcmp(keys[i].name, name, len) == 0)
            return (int)i;
    return -1;
}

static void *field_of(struct rule_set *set, const struct key *k)
{
    return (char *)set + k->offset;
}

void rule_set_apply(struct rule_set *to, const struct rule_set *from, uint32_t given)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(keys); i++) {
        const struct key *k = &keys[i];
        size_t size = k->kind == KIND_DURATION ? sizeof(uint64_t) : sizeof(int);
        if (given & BIT(i))
            memcpy(field_of(to, k), (const char *)from + k->offset, size);
    }
}

static char *show_duration(uint64_t ns)
{
    static const struct {
        uint64_t ns;
        const char *unit;
    } units[] = {{86400 * NS_PER_S, "d"}, {3600 * NS_PER_S, "h"}, {60 * NS_PER_S, "m"},
                 {NS_PER_S, "s"},         {NS_PER_MS, "ms"},      {1, "ns"}};
    unsigned i = ns == 0 ? 3 : 0;
    while (i < G_N_ELEMENTS(units) - 1 && ns % units[i].ns != 0)
        i++;
    return g_strdup_printf("%" G_GUINT64_FORMAT "%s", ns / units[i].ns, units[i].unit);
}

bool rule_set_at(const struct rule_set *set, unsigned index, const char **ret_name, char **ret_text)
{
    if (index >= G_N_ELEMENTS(keys))
        return false;
    const struct key *k = &keys[index];
    const void *field = (const char *)set + k->offset;
    *ret_name = k->name;
    if (index == K_HOLD && set->hold == RULE_HOLD_BY_NAME)
        *ret_text = g_strdup("by name");
    else if (k->kind == KIND_WORD)
        *ret_text = g_strdup(k->words[*(const int *)field]);
    else if (k->kind == KIND_NUMBER)
        *ret_text = g_strdup_printf("%u", *(const unsigned *)field);
    else if (index == K_TTL && set->ttl_ns == 0)
        *ret_text = g_strdup("never");
    else
        *ret_text = show_duration(*(const uint64_t *)field);
    return true;
}

/* ---- globs ---- */

/* The ']' that ends the class at p, which is behind its '['; NULL: there is none. */
static const char *class_end(const char *p)
{
    p += *p == '!';
    const char *first = p;
    for (; *p && (*p != ']' || p == first); p++)
        if (*p == '\\' && p[1])
            p++;
    return *p ? p : NULL;
}

static unsigned char take_char(const char **p)
{
    if (**p == '\\' && (*p)[1])
        ++*p;
    return (unsigned char)*(*p)++;
}

/* p: behind the '['. */
static bool class_matches(const char *p, const char *end, unsigned char c)
{
    bool negated = *p == '!', found = false;
    p += negated;
    while (p < end) {
        unsigned char first = take_char(&p), last = first;
        if (*p == '-' && p + 1 < end) {
            p++;
            last = take_char(&p);
        }
        found |= first <= c && c <= last;
    }
    return found != negated;
}

/* One character of s by what stands at *p, which is no star; both go on behind it. '/' is met by itself only. */
static bool one_matches(const char **p, const char **s)
{
    unsigned char c = (unsigned char)**s;
    if (c == '\0' || **p == '\0')
        return false;
    if (**p == '?' && c != '/') {
        ++*p;
        do
            ++*s;
        while (((unsigned char)**s & 0xc0) == 0x80); /* the rest of a UTF-8 character */
        return true;
    }
    if (**p == '[') {
        const char *end = class_end(*p + 1);
        if (!end || c == '/' || !class_matches(*p + 1, end, c))
            return false;
        *p = end + 1;
        ++*s;
        return true;
    }
    const char *next = *p;
    if (**p == '?' || take_char(&next) != c)
        return false;
    *p = next;
    ++*s;
    return true;
}

/* Where to go on when what stands behind a star did not match: one more character is the star's. */
struct retry {
    const char *p, *s; /* p NULL: none */
    bool whole;        /* two stars and '/': whole components only */
};

static bool retry_within(struct retry *star)
{
    if (!star->p || *star->s == '\0' || *star->s == '/')
        return false;
    star->s++;
    return true;
}

static bool retry_across(struct retry *stars)
{
    if (!stars->p || *stars->s == '\0')
        return false;
    if (!stars->whole) {
        stars->s++;
        return true;
    }
    const char *slash = strchr(stars->s, '/');
    if (slash)
        stars->s = slash + 1;
    return slash;
}

/* begins: it is enough that something longer than path, which begins with it, would match. */
static bool glob_matches(const char *glob, const char *path, bool begins)
{
    const char *p = glob, *s = path;
    struct retry star = {0}, stars = {0};
    while (*p || *s) {
        if (begins && *p && !*s)
            return true;
        if (p[0] == '*' && p[1] == '*') {
            bool first = p == glob || p[-1] == '/';
            p += strspn(p, "*");
            bool whole = first && *p == '/';
            p += whole;
            stars = (struct retry){p, s, whole};
            star = (struct retry){0};
        } else if (*p == '*') {
            star = (struct retry){++p, s, false};
        } else if (one_matches(&p, &s)) {
            continue;
        } else if (retry_within(&star)) {
            p = star.p;
            s = star.s;
        } else if (retry_across(&stars)) {
            star = (struct retry){0};
            p = stars.p;
            s = stars.s;
        } else {
            return false;
        }
    }
    return true;
}

bool rule_glob_matches(const char *glob, const char *path)
{
    return glob_matches(glob, path, false);
}

/* NULL: good. Static storage. */
static const char *glob_fault(const char *glob)
{
    if (*glob == '\0')
        return "a glob is missing before the '='";
    if (strlen(glob) > GLOB_MAX)
        return "the glob is longer than 1024 bytes";
    if (strstr(glob, "//") || strcmp(glob, "/") == 0)
        return "the glob has an empty name and never matches";
    g_auto(GStrv) parts = g_strsplit(glob, "/", -1);
    if (g_strv_contains((const char *const *)parts, ".") || g_strv_contains((const char *const *)parts, ".."))
        return "the glob has a name '.' or '..' and never matches";
    for (const char *p = glob; *p; p++) {
        if (*p == '\\' && !*++p)
            return "the glob ends in '\\'";
        if (*p == '[' && !(p = class_end(p + 1)))
            return "the glob has a '[' without ']'";
    }
    return NULL;
}

static char *glob_from_root(const char *glob)
{
    bool rooted = *glob == '/';
    glob += rooted;
    size_t len = strlen(glob);
    bool deep = len > 0 && glob[len - 1] == '/';
    return g_strconcat(rooted || strchr(glob, '/') ? "" : "**/", glob, deep ? "**" : NULL, NULL);
}

/* ---- parsing ---- */

static int refuse(char **ret_msg, const char *text, char *why)
{
    *ret_msg = g_strdup_printf("rule '%s': %s", text, why);
    g_free(why);
    return -EINVAL;
}

/* The '=' behind the glob: the first one that a key follows, else the first one. NULL: there is none. */
static const char *glob_end(const char *text)
{
    const char *first = NULL;
    for (const char *p = text; *p; p++) {
        if (*p == '\\' && p[1]) {
            p++;
        } else if (*p == '=') {
            first = first ? first : p;
            if (key_find(p + 1, strcspn(p + 1, "=,")) >= 0)
                return p;
        }
    }
    return first;
}

/* "a, b, c" */
static char *all_keys(void)
{
    GString *s = g_string_new(NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(keys); i++)
        g_string_append_printf(s, "%s%s", i ? ", " : "", keys[i].name);
    return g_string_free(s, FALSE);
}

static char *allowed(const struct key *k)
{
    if (k->kind == KIND_WORD) {
        g_autofree char *words = g_strjoinv(", ", (char **)(uintptr_t)k->words);
        return g_strdup_printf("one of %s", words);
    }
    if (k->kind == KIND_NUMBER)
        return g_strdup_printf("a whole number, at most %" G_GUINT64_FORMAT, k->max);
    g_autofree char *min = show_duration(k->min), *max = show_duration(k->max);
    return g_strdup_printf("a duration such as 30s or 7d, from %s to %s", min, max);
}

static bool read_word(const struct key *k, const char *value, int *ret)
{
    for (int i = 0; k->words[i]; i++)
        if (strcmp(k->words[i], value) == 0) {
            *ret = i;
            return true;
        }
    return false;
}

static bool read_value(const struct key *k, const char *value, void *field)
{
    uint64_t n;
    if (k->kind == KIND_WORD)
        return read_word(k, value, field);
    if (k->kind == KIND_DURATION) {
        bool ok = parse_duration(value, &n) == 0 && n >= k->min && n <= k->max;
        if (ok)
            *(uint64_t *)field = n;
        return ok;
    }
    char *end;
    if (!g_ascii_isdigit(*value) || strlen(value) > 9)
        return false;
    n = strtoull(value, &end, 10);
    if (*end || n < k->min || n > k->max)
        return false;
    *(unsigned *)field = (unsigned)n;
    return true;
}

/* One "key=value" of a rule. */
static int take_setting(struct rule *rule, char *item, char **ret_msg)
{
    char *value = strchr(item, '=');
    if (value)
        *value++ = '\0';
    int i = key_find(item, strlen(item));
    if (i < 0) {
        g_autofree char *all = all_keys();
        return refuse(ret_msg, rule->text, g_strdup_printf("unknown key '%s'; keys are %s", item, all));
    }
    const struct key *k = &keys[i];
    if (rule->given & BIT(i))
        return refuse(ret_msg, rule->text, g_strdup_printf("%s is given twice", k->name));
    if (!value && k->flag)
        value = (char *)(uintptr_t)k->words[1];
    if (!value || !read_value(k, value, field_of(&rule->set, k))) {
        g_autofree char *what = allowed(k);
        return refuse(ret_msg, rule->text,
                      value ? g_strdup_printf("%s '%s': not %s", k->name, value, what)
                            : g_strdup_printf("%s needs a value: %s", k->name, what));
    }
    rule->given |= BIT(i);
    return 0;
}

/* What a rule says against itself; NULL: nothing. Owned by the caller. */
static char *contradiction(const struct rule *rule)
{
    const struct rule_set *set = &rule->set;
    uint32_t g = rule->given;
    bool local = (g & BIT(K_LOCAL_ONLY)) && set->local_only;
    if ((g & BIT(K_TTL)) && !local)
        return g_strdup("ttl needs local-only: what is in the store is never removed by age");
    if ((g & BIT(K_TIER)) && !(g & BIT(K_PIN)))
        return g_strdup("tier needs pin: it says where the pinned checkpoints are kept");
    size_t literal = strcspn(rule->glob, "*?[\\");
    bool everywhere = !strchr(rule->glob, '/') || (strstr(rule->glob, "**") && !memchr(rule->glob, '/', literal));
    if ((g & BIT(K_PIN)) && set->pin && everywhere)
        return g_strdup("pin needs a folder to look in: DIR/GLOB, or /GLOB for the root");
    if (!local)
        return NULL;
    const char *with = (g & BIT(K_CLOSE)) && set->close == CLOSE_REMOTE   ? "close=remote"
                       : (g & BIT(K_FSYNC)) && set->fsync == FSYNC_REMOTE ? "fsync=remote"
                       : g & BIT(K_HOLD)                                  ? "hold"
                       : g & BIT(K_ORDER)                                 ? "order"
                       : g & BIT(K_PIN)                                   ? "pin"
                                                                          : NULL;
    return with ? g_strdup_printf("local-only and %s conflict: nothing of it is published", with) : NULL;
}

int rule_parse(const char *text, struct rule *ret, char **ret_msg)
{
    *ret = (struct rule){.text = g_strdup(text)};
    const char *end = glob_end(text);
    if (!end || !end[1])
        return refuse(ret_msg, text, g_strdup("not GLOB=KEY[=VALUE],..."));
    ret->glob = g_strndup(text, (gsize)(end - text));
    const char *fault = glob_fault(ret->glob);
    if (fault)
        return refuse(ret_msg, text, g_strdup(fault));
    g_auto(GStrv) items = g_strsplit(end + 1, ",", -1);
    for (unsigned i = 0; items[i]; i++) {
        int r = take_setting(ret, items[i], ret_msg);
        if (r < 0)
            return r;
    }
    char *wrong = contradiction(ret);
    if (wrong)
        return refuse(ret_msg, text, wrong);
    ret->match = glob_from_root(ret->glob);
    ret->literal = strcspn(ret->match, "*?[\\");
    return 0;
}

void rule_clear(struct rule *rule)
{
    g_clear_pointer(&rule->text, g_free);
    g_clear_pointer(&rule->glob, g_free);
    g_clear_pointer(&rule->match, g_free);
}

/* "GLOB=warm"; *ret is the glob from the root, owned. */
static int parse_on_create(const char *text, char **ret, char **ret_msg)
{
    const char *end = strrchr(text, '=');
    if (!end || strcmp(end, "=warm") != 0) {
        *ret_msg = g_strdup_printf("on-create '%s': not GLOB=warm", text);
        return -EINVAL;
    }
    g_autofree char *glob = g_strndup(text, (gsize)(end - text));
    const char *fault = glob_fault(glob);
    if (fault) {
        *ret_msg = g_strdup_printf("on-create '%s': %s", text, fault);
        return -EINVAL;
    }
    *ret = glob_from_root(glob);
    return 0;
}

int rules_check_value(const char *option, const char *value, char **ret_msg)
{
    struct rule rule = {0};
    g_autofree char *glob = NULL;
    int r;
    if (!g_utf8_validate(value, -1, NULL)) {
        *ret_msg = g_strdup_printf("%s: not UTF-8 text", option);
        return -EINVAL;
    }
    if (strcmp(option, "on-create") == 0)
        return parse_on_create(value, &glob, ret_msg);
    r = rule_parse(value, &rule, ret_msg);
    rule_clear(&rule);
    return r;
}

/* ---- all of a mount ---- */

static void clear_rule(void *rule)
{
    rule_clear(rule);
}

static int most_specific_first(const void *a, const void *b)
{
    const struct rule *x = a, *y = b;
    size_t n = strlen(x->match), m = strlen(y->match);
    if (x->literal != y->literal)
        return x->literal > y->literal ? -1 : 1;
    if (n != m)
        return n > m ? -1 : 1;
    return x->number > y->number ? -1 : x->number < y->number;
}

/* The rule's set becomes all of what applies. */
static void complete_set(struct rules *r, struct rule *rule)
{
    struct rule_set set = r->base;
    rule_set_apply(&set, &rule->set, rule->given);
    set.rule = rule->text;
    if (set.local_only) { /* whatever the mount's options wait for: there is no store to wait for */
        set.close = MIN(set.close, CLOSE_LOCAL);
        set.fsync = FSYNC_LOCAL;
    }
    rule->set = set;
    r->pins |= set.pin > 0;
    r->ttls |= set.ttl_ns > 0;
    r->local_only |= set.local_only;
}

static int check_against(const struct config *cfg, const struct rule *rule, char **ret_msg)
{
    uint32_t writing = rule->given & ~(BIT(K_PIN) | BIT(K_TIER) | BIT(K_METADATA_TTL));
    if ((rule->given & BIT(K_TIER)) && rule->set.tier == RULE_TIER_MEMORY && !cfg->memory_cache)
        return refuse(ret_msg, rule->text, g_strdup("tier=memory needs --memory-cache"));
    if (cfg->read_only && writing)
        return refuse(
            ret_msg, rule->text,
            g_strdup_printf("read-only and %s conflict: nothing is written", keys[__builtin_ctz(writing)].name));
    if (cfg->immutable && (rule->given & BIT(K_METADATA_TTL)))
        return refuse(ret_msg, rule->text, g_strdup("immutable and metadata-ttl conflict: nothing is looked at again"));
    return 0;
}

int rules_new(const struct config *cfg, struct rules **ret, char **ret_msg)
{
    struct rules *r = g_new0(struct rules, 1);
    r->base = (struct rule_set){.close = cfg->close,
                                .fsync = cfg->fsync,
                                .order = cfg->order,
                                .hold = RULE_HOLD_BY_NAME,
                                .metadata_ttl_ns = cfg->metadata_ttl_ns};
    r->all = g_array_new(FALSE, FALSE, sizeof(struct rule));
    g_array_set_clear_func(r->all, clear_rule);
    r->on_create = g_ptr_array_new_with_free_func(g_free);
    g_auto(GStrv) lines = g_strsplit(cfg->rule ? cfg->rule : "", "\n", -1);
    g_auto(GStrv) created = g_strsplit(cfg->on_create ? cfg->on_create : "", "\n", -1);
    int err = 0;
    for (unsigned i = 0; err == 0 && lines[i]; i++) {
        struct rule rule;
        err = rule_parse(lines[i], &rule, ret_msg);
        rule.number = i;
        if (err == 0)
            err = check_against(cfg, &rule, ret_msg);
        if (err == 0)
            complete_set(r, &rule);
        g_array_append_val(r->all, rule);
    }
    for (unsigned i = 0; err == 0 && created[i]; i++) {
        char *glob = NULL;
        err = parse_on_create(created[i], &glob, ret_msg);
        if (err == 0)
            g_ptr_array_add(r->on_create, glob);
    }
    if (err < 0) {
        rules_free(r);
        return err;
    }
    g_array_sort(r->all, most_specific_first);
    *ret = r;
    return 0;
}

void rules_free(struct rules *r)
{
    if (!r)
        return;
    g_array_unref(r->all);
    g_ptr_array_unref(r->on_create);
    g_free(r);
}

const struct rule_set *rules_match(const struct rules *r, const char *path)
{
    for (unsigned i = 0; i < r->all->len; i++) {
        const struct rule *rule = &g_array_index(r->all, struct rule, i);
        if (rule_glob_matches(rule->match, path))
            return &rule->set;
    }
    return &r->base;
}

bool rules_warms(const struct rules *r, const char *path)
{
    for (unsigned i = 0; i < r->on_create->len; i++)
        if (rule_glob_matches(r->on_create->pdata[i], path))
            return true;
    return false;
}

bool rules_warms_below(const struct rules *r, const char *dir)
{
    for (unsigned i = 0; i < r->on_create->len; i++) {
        const char *glob = r->on_create->pdata[i];
        if (memchr(glob, '/', strcspn(glob, "*?[\\")) && glob_matches(glob, dir, true))
            return true;
    }
    return false;
}
