/* People's form of the daemon's answers. Units are told by the ends of names (_bytes, _seconds), which the protocol keeps to. */
#include "tools/report.h"

#include "tools/cmd.h"
#include "tools/ctl_client.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static char *show_time(json_int_t t)
{
    if (t == 0)
        return g_strdup("never");
    g_autoptr(GDateTime) at = g_date_time_new_from_unix_local(t);
    return at ? g_date_time_format(at, "%F %T") : g_strdup_printf("%" JSON_INTEGER_FORMAT, t);
}

/* "a, b, c" */
static char *show_list(const json_t *list)
{
    GString *s = g_string_new(NULL);
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v)
        g_string_append_printf(s, "%s%s", i ? ", " : "", json_is_string(v) ? json_string_value(v) : "?");
    return g_string_free(s, FALSE);
}

static bool tells_time(const char *key)
{
    static const char *const keys[] = {"started", "mtime", "ctime", "atime", NULL};
    return g_strv_contains(keys, key) || g_str_has_suffix(key, "_at") || g_str_has_suffix(key, "_since");
}

static char *show_value(const char *key, const json_t *v)
{
    json_int_t n = json_integer_value(v);
    if (json_is_string(v))
        return g_strdup(json_string_value(v));
    if (json_is_boolean(v))
        return g_strdup(json_is_true(v) ? "yes" : "no");
    if (json_is_null(v))
        return g_strdup("-");
    if (json_is_integer(v) && n >= 0 &&
        (g_str_has_suffix(key, "_bytes") || strcmp(key, "size") == 0 || strcmp(key, "bytes") == 0))
        return human_bytes((uint64_t)n);
    if (json_is_integer(v) && n >= 0 && g_str_has_suffix(key, "_seconds"))
        return human_seconds((uint64_t)n);
    if (json_is_number(v) && tells_time(key))
        return show_time((json_int_t)json_number_value(v));
    if (json_is_array(v) && (json_array_size(v) == 0 || json_is_string(json_array_get(v, 0))))
        return json_array_size(v) ? show_list(v) : g_strdup("-");
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    char *copy = g_strdup(text ? text : "");
    free(text);
    return copy;
}

/* "hit_bytes" -> "hit" when the value carries its unit, '_' -> ' '. */
static char *show_key(const char *key)
{
    char *text = g_strdup(key);
    char *unit = g_str_has_suffix(text, "_bytes")     ? strrchr(text, '_')
                 : g_str_has_suffix(text, "_seconds") ? strrchr(text, '_')
                                                      : NULL;
    if (unit)
        *unit = '\0';
    return g_strdelimit(text, "_", ' ');
}

/* A list of objects: one line each, "path: state ok, used 1.2 GB". */
static void report_list(const char *name, const json_t *list, const char *indent)
{
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item)
    {
        g_autoptr(GString) line = g_string_new(json_string_value(json_object_get(item, "path")));
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)(uintptr_t)item, key, v)
        {
            if (strcmp(key, "path") == 0)
                continue;
            g_autofree char *what = show_key(key);
            g_autofree char *value = show_value(key, v);
            g_string_append_printf(line, ", %s %s", what, value);
        }
        printf("%s%-20s %s\n", indent, i == 0 ? name : "", line->str);
    }
}

void report_block(const json_t *object, const char *indent)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        if (strcmp(key, "event") == 0)
            continue;
        g_autofree char *name = show_key(key);
        if (json_is_object(v)) {
            g_autofree char *deeper = g_strconcat(indent, "  ", NULL);
            printf("%s%s:\n", indent, name);
            report_block(v, deeper);
            continue;
        }
        if (json_is_object(json_array_get(v, 0))) {
            report_list(name, v, indent);
            continue;
        }
        g_autofree char *value = show_value(key, v);
        printf("%s%-20s %s\n", indent, name, value);
    }
}

void report_on_line(void *ctx, const json_t *line)
{
    struct report *rep = ctx;
    const char *event = json_string_value(json_object_get(line, "event"));
    if (g_strcmp0(event, "again") == 0) {
        rep->n_errors = 0;
        return;
    }
    rep->n_errors += g_strcmp0(event, "error") == 0;
    if (rep->json) {
        print_json(line);
        return;
    }
    if (print_if_error(line))
        return;
    if (!rep->sentence) {
        if (rep->n_lines++ > 0)
            putchar('\n');
        report_block(line, "");
        return;
    }
    rep->n_lines++;
    const char *path = json_string_value(json_object_get(line, "path"));
    const json_t *files = json_object_get(line, "files"), *size = json_object_get(line, "size");
    const json_t *bytes = size ? size : json_object_get(line, "bytes");
    g_autofree char *amount = human_bytes((uint64_t)json_integer_value(bytes));
    if (files)
        printf("%s %" JSON_INTEGER_FORMAT " files, %s\n", rep->sentence, json_integer_value(files), amount);
    else if (size)
        printf("%s %s (%s)\n", rep->sentence, path ? path : "", amount);
    else
        printf("%s %s\n", rep->sentence, path ? path : "");
}
