/*
 * Reading option values: sizes, durations, command lines, -o lists, config files, all through the table of config.c.
 *
 * Pure apart from config_read_file(). A bad value leaves its field as it was. Messages name option, value and what is
 * allowed in one line. Options that could carry a secret are refused before their value is looked at, so no message and no
 * process list ever shows one.
 */
#include "base/clock.h"
#include "fs/config.h"
#include "fs/config_table.h"
#include "fs/rules.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG_FILE (1u << 20)

/* ---- values ---- */

/* A decimal number >= 0 with an optional fraction; *ret_end stands behind it. strtod() would take "inf", "0x10" and "1e3". */
static int read_number(const char *text, double *ret_number, const char **ret_end)
{
    size_t n = strspn(text, "0123456789");
    size_t len = n;
    if (text[n] == '.')
        len += 1 + strspn(text + n + 1, "0123456789");
    if (n == 0 || len > 24)
        return -EINVAL;
    char buf[32];
    memcpy(buf, text, len);
    buf[len] = '\0';
    *ret_number = g_ascii_strtod(buf, NULL);
    *ret_end = text + len;
    return 0;
}

int parse_size(const char *text, uint64_t *ret_bytes)
{
    static const char letters[] = "KMGTP";
    const char *p;
    double v;
    int r = read_number(text, &v, &p);
    if (r < 0)
        return r;
    if (!strpbrk(text, ".") && (*p == '\0' || strcmp(p, "B") == 0)) { /* whole bytes, exact above 2^53 */
        errno = 0;
        uint64_t whole = strtoull(text, NULL, 10);
        if (errno)
            return -ERANGE;
        *ret_bytes = whole;
        return 0;
    }
    if (*p && strcmp(p, "B") != 0) {
        const char *l = strchr(letters, g_ascii_toupper(*p));
        if (!l)
            return -EINVAL;
        bool decimal = strcmp(p + 1, "B") == 0;
        if (p[1] && !decimal && strcmp(p + 1, "iB") != 0)
            return -EINVAL;
        v *= pow(decimal ? 1000 : 1024, (double)(l - letters + 1));
    }
    if (v >= 9.2e18)
        return -ERANGE;
    *ret_bytes = (uint64_t)v;
    return 0;
}

int parse_duration(const char *text, uint64_t *ret_ns)
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}, {"d", 86400e9}};
    double total = 0;
    const char *p = text;
    do {
        double v;
        int r = read_number(p, &v, &p);
        if (r < 0)
            return r;
        size_t len = strspn(p, "abcdefghijklmnopqrstuvwxyz");
        double ns = text[strspn(text, "0123456789.")] == '\0' ? 1e9 : 0; /* a bare number is seconds */
        for (unsigned i = 0; i < G_N_ELEMENTS(units); i++)
            if (len == strlen(units[i].unit) && memcmp(p, units[i].unit, len) == 0)
                ns = units[i].ns;
        if (ns == 0)
            return -EINVAL;
        total += v * ns;
        p += len;
    } while (*p);
    if (total >= 9.2e18)
        return -ERANGE;
    *ret_ns = (uint64_t)total;
    return 0;
}

static int parse_bool(const char *text, bool *ret)
{
    static const char *const yes[] = {"true", "yes", "on", "1", NULL}, *const no[] = {"false", "no", "off", "0", NULL};
    if (!text || g_strv_contains(yes, text))
        *ret = true;
    else if (g_strv_contains(no, text))
        *ret = false;
    else
        return -EINVAL;
    return 0;
}

static int parse_unsigned(const char *text, int base, uint64_t *ret)
{
    if (!g_ascii_isdigit(text[0]))
        return -EINVAL;
    char *end;
    errno = 0;
    uint64_t v = strtoull(text, &end, base);
    if (errno || *end)
        return -EINVAL;
    *ret = v;
    return 0;
}

/* ---- one option ---- */

static void print_number(const struct option_row *row, uint64_t v, GString *out)
{
    static const char size_letters[] = "\0KMGTP";
    unsigned i = 0;
    if (row->type == OPT_MODE) {
        g_string_append_printf(out, "%04o", (unsigned)v);
    } else if (row->type == OPT_SIZE || row->type == OPT_SIZE_PERCENT) {
        for (; v && v % 1024 == 0 && i < 5; i++)
            v /= 1024;
        g_string_append_printf(out, "%" PRIu64, v);
        if (i)
            g_string_append_c(out, size_letters[i]);
    } else if (row->type == OPT_DURATION) {
        static const struct {
            uint64_t ns;
            const char *unit;
        } units[] = {{86400 * NS_PER_S, "d"}, {3600 * NS_PER_S, "h"}, {60 * NS_PER_S, "m"},
                     {NS_PER_S, "s"},         {NS_PER_MS, "ms"},      {1, "ns"}};
        while (i < 5 && (v == 0 ? units[i].ns != NS_PER_S : v % units[i].ns != 0 || v == units[i].ns))
            i++;
        if (v && i > 0 && v == units[i - 1].ns) /* 60s reads better than 1m, but 1s better than 1000ms */
            i = v >= 60 * NS_PER_S ? i : i - 1;
        g_string_append_printf(out, "%" PRIu64 "%s", v / units[i].ns, units[i].unit);
    } else {
        g_string_append_printf(out, "%" PRIu64, v);
    }
}

void option_print(const struct config *cfg, const struct option_row *row, GString *out)
{
    const void *field = (const char *)cfg + row->offset;
    switch (row->type) {
    case OPT_STRING:
    case OPT_WORD:
    case OPT_RULES:
        g_string_append(out, *(char *const *)field ? *(char *const *)field : "");
        break;
    case OPT_FLAG:
        g_string_append(out, *(const bool *)field ? "true" : "false");
        break;
    case OPT_ENUM:
        g_string_append(out, row->choices[*(const int *)field]);
        break;
    case OPT_SIZE_PERCENT: {
        const struct size_or_percent *v = field;
        if (v->percent)
            g_string_append_printf(out, "%u%%", v->percent);
        else
            print_number(row, v->bytes, out);
        break;
    }
    case OPT_SIZE:
    case OPT_DURATION:
        print_number(row, *(const uint64_t *)field, out);
        break;
    case OPT_UINT:
    case OPT_MODE:
        print_number(row, *(const unsigned *)field, out);
        break;
    }
}

char *option_words(const struct option_row *row, const char *separator)
{
    GString *s = g_string_new(NULL);
    for (unsigned i = 0; row->choices[i]; i++)
        g_string_append_printf(s, "%s%s", i ? separator : "", row->choices[i]);
    return g_string_free(s, FALSE);
}

/* "a whole number, from 1 to 256" */
static char *allowed(const struct option_row *row)
{
    static const char *const kinds[] = {
        [OPT_STRING] = "some text",
        [OPT_FLAG] = "true or false",
        [OPT_SIZE] = "a size such as 64M",
        [OPT_SIZE_PERCENT] = "a size such as 200G or a share such as 80%",
        [OPT_DURATION] = "a duration such as 30s or 10m",
        [OPT_UINT] = "a whole number",
        [OPT_MODE] = "an octal mode such as 0644",
        [OPT_RULES] = "a glob and what holds for it",
    };
    if (row->choices) {
        g_autofree char *words = option_words(row, ", ");
        return g_strdup_printf("one of %s", words);
    }
    g_autoptr(GString) s = g_string_new(kinds[row->type]);
    if (row->min) {
        g_string_append(s, row->max ? ", from " : ", at least ");
        print_number(row, row->min, s);
    }
    if (row->max) {
        g_string_append(s, row->min ? " to " : ", at most ");
        print_number(row, row->max, s);
    }
    return g_string_free(g_steal_pointer(&s), FALSE);
}

static bool in_range(const struct option_row *row, uint64_t v)
{
    return v >= row->min && (row->max == 0 || v <= row->max);
}

static int assign_size_or_percent(const struct option_row *row, const char *value, struct size_or_percent *field)
{
    struct size_or_percent v = {0};
    size_t len = strlen(value);
    uint64_t n;
    if (len > 1 && value[len - 1] == '%') {
        g_autofree char *digits = g_strndup(value, len - 1);
        if (parse_unsigned(digits, 10, &n) < 0 || n < 1 || n > 100)
            return -EINVAL;
        v.percent = (unsigned)n;
    } else {
        if (parse_size(value, &v.bytes) < 0 || !in_range(row, v.bytes))
            return -EINVAL;
    }
    *field = v;
    return 0;
}

static int assign_number(const struct option_row *row, const char *value, void *field)
{
    uint64_t n;
    int r = row->type == OPT_SIZE       ? parse_size(value, &n)
            : row->type == OPT_DURATION ? parse_duration(value, &n)
                                        : parse_unsigned(value, row->type == OPT_MODE ? 8 : 10, &n);
    if (r < 0 || !in_range(row, n))
        return -EINVAL;
    if (row->type == OPT_SIZE || row->type == OPT_DURATION)
        *(uint64_t *)field = n;
    else
        *(unsigned *)field = (unsigned)n;
    return 0;
}

static int assign_word(const struct option_row *row, const char *value, void *field)
{
    for (int i = 0; row->choices[i]; i++) {
        if (strcmp(row->choices[i], value) != 0)
            continue;
        if (row->type == OPT_ENUM)
            *(int *)field = i;
        else {
            g_free(*(char **)field);
            *(char **)field = g_strdup(value);
        }
        return 0;
    }
    return -EINVAL;
}

/* Adds to what was given before; the value may be several lines. */
static int assign_rules(const struct option_row *row, const char *value, char **field, char **ret_msg)
{
    g_auto(GStrv) lines = g_strsplit(value, "\n", -1);
    int r = *value ? 0 : rules_check_value(row->name, value, ret_msg);
    for (unsigned i = 0; r == 0 && lines[i]; i++)
        r = rules_check_value(row->name, lines[i], ret_msg);
    if (r == 0) {
        char *all = *field ? g_strconcat(*field, "\n", value, NULL) : g_strdup(value);
        g_free(*field);
        *field = all;
    }
    return r;
}

int option_assign(struct config *cfg, const struct option_row *row, const char *value, char **ret_msg)
{
    void *field = (char *)cfg + row->offset;
    int r = -EINVAL;
    if (!value && row->type != OPT_FLAG) {
        g_autofree char *what = allowed(row);
        *ret_msg = g_strdup_printf("%s needs a value: %s", row->name, what);
        return -EINVAL;
    }
    switch (row->type) {
    case OPT_STRING:
        if (*value || (row->def && *row->def)) { /* only what has a default can be switched off by "" */
            g_free(*(char **)field);
            *(char **)field = g_strdup(value);
            r = 0;
        }
        break;
    case OPT_FLAG:
        r = parse_bool(value, field);
        break;
    case OPT_SIZE_PERCENT:
        r = assign_size_or_percent(row, value, field);
        break;
    case OPT_ENUM:
    case OPT_WORD:
        r = assign_word(row, value, field);
        break;
    case OPT_SIZE:
    case OPT_DURATION:
    case OPT_UINT:
    case OPT_MODE:
        r = assign_number(row, value, field);
        break;
    case OPT_RULES:
        return assign_rules(row, value, field, ret_msg);
    }
    if (r < 0) {
        g_autofree char *what = allowed(row);
        *ret_msg = g_strdup_printf("%s '%s': not %s", row->name, value, what);
    }
    return r;
}

/* ---- names ---- */

static bool is_secret(const char *name)
{
    static const char *const globs[] = {"*access*key*", "*secret*", "*passw*", "*session*token*", "*credential*", "key",
                                        "token",        "ak",       "sk"};
    for (unsigned i = 0; i < G_N_ELEMENTS(globs); i++)
        if (fnmatch(globs[i], name, FNM_CASEFOLD) == 0)
            return true;
    return false;
}

/* Levenshtein, short strings only. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[64];
    size_t n = strlen(b);
    if (n >= G_N_ELEMENTS(row) || strlen(a) >= G_N_ELEMENTS(row))
        return UINT_MAX;
    for (unsigned j = 0; j <= n; j++)
        row[j] = j;
    for (unsigned i = 1; a[i - 1]; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= n; j++) {
            unsigned best = MIN(row[j], row[j - 1]) + 1;
            best = MIN(best, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

static int unknown_option(const char *name, char **ret_msg)
{
    const char *nearest = NULL;
    unsigned best = UINT_MAX;
    for (unsigned i = 0; i < n_option_rows; i++) {
        unsigned d = option_table[i].section ? distance(name, option_table[i].name) : UINT_MAX;
        if (d < best) {
            best = d;
            nearest = option_table[i].name;
        }
    }
    if (nearest && best <= 2 + strlen(name) / 4)
        *ret_msg = g_strdup_printf("unknown option '%s'; did you mean '%s'?", name, nearest);
    else
        *ret_msg = g_strdup_printf("unknown option '%s'; 'sluice mount --help' lists all", name);
    return -ENOENT;
}

int config_set(struct config *cfg, const char *name, const char *value, char **ret_msg)
{
    int i = option_find(name);
    if (i < 0 && is_secret(name)) {
        *ret_msg = g_strdup_printf(
            "option '%s' is refused: keys belong into the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) "
            "or ~/.aws/credentials (--profile), where no process list shows them",
            name);
        return -EINVAL;
    }
    if (i < 0)
        return unknown_option(name, ret_msg);
    int r = option_assign(cfg, &option_table[i], value, ret_msg);
    if (r == 0)
        cfg->origin[i] = cfg->origin_now;
    return r;
}

/* ---- config file ---- */

static int set_file_line(struct config *cfg, char *line, char **ret_msg)
{
    char *value = strchr(line, '=');
    if (value)
        *value++ = '\0';
    g_strstrip(line);
    if (value) {
        g_strstrip(value);
        size_t len = strlen(value);
        if (len >= 2 && value[0] == '"' && value[len - 1] == '"') {
            value[len - 1] = '\0';
            value++;
        }
    }
    char **text = strcmp(line, "source") == 0       ? &cfg->source
                  : strcmp(line, "mountpoint") == 0 ? &cfg->mountpoint
                                                    : NULL;
    if (!text)
        return config_set(cfg, line, value, ret_msg);
    if (!value || !*value) {
        *ret_msg = g_strdup_printf("%s needs a value", line);
        return -EINVAL;
    }
    g_free(*text);
    *text = g_strdup(value);
    return 0;
}

int config_read_file(struct config *cfg, const char *path, char **ret_msg)
{
    g_autofree char *text = NULL;
    g_autofree char *detail = NULL;
    g_autoptr(GError) err = NULL;
    gsize len;
    if (!g_file_get_contents(path, &text, &len, &err)) {
        *ret_msg = g_strdup_printf("config file: %s", err->message);
        return -EINVAL;
    }
    if (len > MAX_CONFIG_FILE || strlen(text) != len || !g_utf8_validate(text, -1, NULL)) {
        *ret_msg = g_strdup_printf("config file %s: not a text of 'name = value' lines", path);
        return -EINVAL;
    }
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    uint8_t origin = cfg->origin_now;
    cfg->origin_now = CONFIG_FROM_FILE;
    int r = 0;
    for (unsigned i = 0; lines[i] && r == 0; i++) {
        char *line = g_strstrip(lines[i]);
        if (*line == '\0' || *line == '#' || *line == ';')
            continue;
        r = set_file_line(cfg, line, &detail);
        if (r < 0)
            *ret_msg = g_strdup_printf("%s:%u: %s", path, i + 1, detail);
    }
    cfg->origin_now = origin;
    return r;
}

/* ---- command line ---- */

/* What mount(8) and fstab hand over and the kernel or mount itself deals with. */
static bool is_mount_word(const char *word)
{
    static const char *const words[] = {"defaults", "rw",       "auto",    "noauto", "nofail",     "_netdev", "user",
                                        "nouser",   "users",    "owner",   "group",  "dev",        "nodev",   "suid",
                                        "nosuid",   "relatime", "noatime", "atime",  "nodiratime", "async",   NULL};
    return g_strv_contains(words, word) || g_str_has_prefix(word, "x-") || g_str_has_prefix(word, "comment=");
}

static int read_named_file(struct config *cfg, const char *name, char **ret_msg)
{
    g_autofree char *path = strchr(name, '/') ? g_strdup(name) : g_strdup_printf("/etc/sluice/%s.conf", name);
    return config_read_file(cfg, path, ret_msg);
}

/* One item of an -o list; files as for set_long(). */
static int set_o_item(struct config *cfg, const char *item, bool files, char **ret_msg)
{
    bool config = g_str_has_prefix(item, "config=");
    if (config && files)
        return read_named_file(cfg, item + 7, ret_msg);
    if (config || files || *item == '\0' || is_mount_word(item))
        return 0;
    if (strcmp(item, "ro") == 0)
        return config_set(cfg, "read-only", NULL, ret_msg);
    if (strcmp(item, "exec") == 0) /* the later word counts, as for mount(8) */
        return config_set(cfg, "noexec", "false", ret_msg);
    g_autofree char *name = g_strdup(item);
    char *value = strchr(name, '=');
    if (value)
        *value++ = '\0';
    return config_set(cfg, name, value, ret_msg);
}

/* Splits at commas; "\," is a comma inside a value. */
static int set_o_list(struct config *cfg, const char *list, bool files, char **ret_msg)
{
    g_autoptr(GString) item = g_string_new(NULL);
    for (const char *p = list;; p++) {
        if (*p == '\\' && (p[1] == ',' || p[1] == '\\')) {
            g_string_append_c(item, *++p);
        } else if (*p == ',' || *p == '\0') {
            int r = set_o_item(cfg, item->str, files, ret_msg);
            if (r < 0)
                return r;
            if (*p == '\0')
                return 0;
            g_string_truncate(item, 0);
        } else {
            g_string_append_c(item, *p);
        }
    }
}

/* Sets the option at argv[*i], advancing *i over its value. files: only --config is looked at; else everything but it. */
static int set_long(struct config *cfg, int argc, char **argv, int *i, bool files, char **ret_msg)
{
    g_autofree char *name = g_strdup(argv[*i] + 2);
    char *value = strchr(name, '=');
    if (value)
        *value++ = '\0';
    int row = option_find(name);
    bool config = strcmp(name, "config") == 0;
    bool takes_value = config || (row >= 0 && option_table[row].type != OPT_FLAG);
    if (takes_value && !value && *i + 1 < argc)
        value = argv[++*i];
    if (config && !value) {
        *ret_msg = g_strdup("config needs a value: a file, or NAME for /etc/sluice/NAME.conf");
        return -EINVAL;
    }
    if (config)
        return files ? read_named_file(cfg, value, ret_msg) : 0;
    return files ? 0 : config_set(cfg, name, value, ret_msg);
}

static int parse_pass(struct config *cfg, int argc, char **argv, bool files, char **ret_msg)
{
    GPtrArray *words = g_ptr_array_new();
    bool only_words = false;
    int r = 0;
    for (int i = 1; i < argc && r == 0; i++) {
        char *a = argv[i];
        if (only_words || a[0] != '-' || a[1] == '\0') {
            g_ptr_array_add(words, a);
        } else if (strcmp(a, "--") == 0) {
            only_words = true;
        } else if (g_str_has_prefix(a, "--")) {
            r = set_long(cfg, argc, argv, &i, files, ret_msg);
        } else if (a[1] == 'o') {
            const char *list = a[2] ? a + 2 : i + 1 < argc ? argv[++i] : NULL;
            if (!list) {
                *ret_msg = g_strdup("-o needs a list: name=value,...");
                r = -EINVAL;
            } else {
                r = set_o_list(cfg, list, files, ret_msg);
            }
        } else if (strcmp(a, "-f") == 0) {
            r = files ? 0 : config_set(cfg, "foreground", NULL, ret_msg);
        } else {
            *ret_msg = g_strdup_printf("unknown option '%s'; 'sluice mount --help' lists all", a);
            r = -ENOENT;
        }
    }
    if (r == 0 && !files && words->len > 2) {
        *ret_msg = g_strdup_printf("'%s' is one word too many: mount takes SOURCE and DIR", (char *)words->pdata[2]);
        r = -EINVAL;
    } else if (r == 0 && !files && words->len == 1 && strstr(words->pdata[0], "://")) {
        *ret_msg = g_strdup_printf("mount takes SOURCE and DIR: where to mount %s is missing",
                                   strchr(words->pdata[0], '@') ? "it" : (char *)words->pdata[0]);
        r = -EINVAL;
    } else if (r == 0 && !files &&
               words->len > 0) { /* one word, DIR: the source is in a config file, or there is none */
        if (words->len == 2) {
            g_free(cfg->source);
            cfg->source = g_strdup(words->pdata[0]);
        }
        g_free(cfg->mountpoint);
        cfg->mountpoint = g_strdup(words->pdata[words->len - 1]);
    }
    g_ptr_array_free(words, TRUE);
    return r;
}

int config_parse_argv(struct config *cfg, int argc, char **argv, char **ret_msg)
{
    int r = parse_pass(cfg, argc, argv, true,
                       ret_msg); /* files first: the command line overrides them wherever it names them */
    if (r < 0)
        return r;
    cfg->origin_now = CONFIG_FROM_ARGV;
    r = parse_pass(cfg, argc, argv, false, ret_msg);
    cfg->origin_now = CONFIG_DEFAULT;
    return r;
}
