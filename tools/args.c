/* Argument reading for all verbs, by the options of cmds.def, and the few things every verb prints. */
#include "base/clock.h"
#include "fs/config.h"
#include "tools/bench_run.h"
#include "tools/cmd.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void complain(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    g_autofree char *text = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    fprintf(stderr, "sluice: %s\n", text);
}

char *human_bytes(uint64_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)n;
    unsigned i = 0;
    for (; v >= 1024 && i + 1 < G_N_ELEMENTS(units); i++)
        v /= 1024;
    return g_strdup_printf(i && v < 100 ? "%.1f %s" : "%.0f %s", v, units[i]);
}

char *human_seconds(uint64_t s)
{
    if (s < 60)
        return g_strdup_printf("%" PRIu64 " s", s);
    if (s < 3600)
        return g_strdup_printf("%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    if (s < 86400)
        return g_strdup_printf("%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
    return g_strdup_printf("%" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
}

static const struct cmd_opt *find_opt(const char *verb, const char *name, size_t len, char letter)
{
    for (const struct cmd_opt *o = cmd_opt_table; o->verb; o++) {
        if (strcmp(o->verb, verb) != 0)
            continue;
        if (letter ? o->letter == letter : strlen(o->name) == len && memcmp(o->name, name, len) == 0)
            return o;
    }
    return NULL;
}

/* Reads the option at argv[*i]; false after printing what is wrong with it. */
static bool take_option(struct args *args, const char *verb, int argc, char **argv, int *i)
{
    const char *a = argv[*i];
    bool is_long = a[1] == '-';
    size_t len = is_long ? strcspn(a + 2, "=") : 0;
    const struct cmd_opt *o = find_opt(cmd_options_of(verb), a + 2, len, is_long ? '\0' : a[1]);
    if (!o) {
        complain("%s has no option '%s'; see 'sluice %s --help'", verb, a, verb);
        return false;
    }
    const char *value = is_long ? (a[2 + len] ? a + 3 + len : NULL) : (a[2] ? a + 2 : NULL);
    bool optional = o->arg && o->arg[0] == '[';
    if (!o->arg && value) {
        complain("%s: '%s' takes no value", verb, a);
        return false;
    }
    if (o->arg && !optional && !value && *i + 1 < argc)
        value = argv[++*i];
    if (o->arg && !optional && (!value || !*value)) {
        complain("%s: '%s' needs a value: %s", verb, a, o->arg);
        return false;
    }
    g_hash_table_replace(args->values, g_strdup(o->name), g_strdup(value ? value : ""));
    return true;
}

static bool usage_error(struct args *args, int *ret_exit)
{
    args_clear(args);
    *ret_exit = EXIT_USAGE;
    return false;
}

bool args_parse(struct args *args, int argc, char **argv, unsigned min_words, unsigned max_words, int *ret_exit)
{
    const struct cmd *cmd = cmd_find(argv[0]);
    args->values = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    args->words = g_ptr_array_new();
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        if (only_words || argv[i][0] != '-' || argv[i][1] == '\0') {
            g_ptr_array_add(args->words, argv[i]);
        } else if (strcmp(argv[i], "--") == 0) {
            only_words = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            cmd_print_help(cmd);
            args_clear(args);
            *ret_exit = EXIT_DONE;
            return false;
        } else if (!take_option(args, argv[0], argc, argv, &i)) {
            return usage_error(args, ret_exit);
        }
    }
    args->n_words = args->words->len;
    g_ptr_array_add(args->words, NULL);
    if (args->n_words < min_words || args->n_words > max_words) {
        complain("usage: sluice %s %s", cmd->name, cmd->usage);
        return usage_error(args, ret_exit);
    }
    return true;
}

void args_clear(struct args *args)
{
    g_clear_pointer(&args->values, g_hash_table_unref);
    if (args->words)
        g_ptr_array_free(args->words, TRUE);
    args->words = NULL;
}

bool args_has(const struct args *args, const char *name)
{
    return g_hash_table_contains(args->values, name);
}

const char *args_get(const struct args *args, const char *name)
{
    return g_hash_table_lookup(args->values, name);
}

bool args_seconds(const struct args *args, const char *name, uint64_t *ret_s)
{
    const char *text = args_get(args, name);
    uint64_t ns = 0;
    if (text && *text && parse_duration(text, &ns) < 0) {
        complain("--%s '%s': not a duration such as 30s or 10m", name, text);
        return false;
    }
    if (text && *text && ns == 0) { /* some mean not at all by that, and some for ever */
        complain("--%s '%s': give 1s or more", name, text);
        return false;
    }
    *ret_s = ns / NS_PER_S + (ns % NS_PER_S != 0);
    return true;
}

bool args_number(const struct args *args, const char *name, uint64_t min, uint64_t max, uint64_t *ret_n)
{
    const char *text = args_get(args, name);
    if (!text)
        return true;
    guint64 n;
    if (!g_ascii_string_to_unsigned(text, 10, min, max, &n, NULL)) {
        complain("--%s '%s': not a number from %" PRIu64 " to %" PRIu64, name, text, min, max);
        return false;
    }
    *ret_n = n;
    return true;
}

bool args_size(const struct args *args, const char *name, const char *standard, uint64_t max, uint64_t *ret_bytes)
{
    const char *text = args_has(args, name) ? args_get(args, name) : standard;
    uint64_t v = 0;
    if (parse_size(text, &v) < 0 || v == 0 || v > max) {
        g_autofree char *limit = human_bytes(max);
        complain("--%s '%s': not a size such as %s, at most %s", name, text, standard, limit);
        return false;
    }
    *ret_bytes = v;
    return true;
}

bool args_threads(const struct args *args, const char *name, const char *standard, unsigned ret_rows[ARGS_MAX_ROWS],
                  size_t *ret_n)
{
    const char *text = args_has(args, name) ? args_get(args, name) : standard;
    g_auto(GStrv) parts = g_strsplit(text, ",", -1);
    size_t n = 0;
    for (; parts[n] != NULL; n++) {
        guint64 v = 0;
        if (n == ARGS_MAX_ROWS || !g_ascii_string_to_unsigned(parts[n], 10, 1, BENCH_MAX_THREADS, &v, NULL))
            break;
        ret_rows[n] = (unsigned)v;
    }
    if (n == 0 || parts[n] != NULL) {
        complain("--%s '%s': not up to %d numbers from 1 to %d with commas between", name, text, ARGS_MAX_ROWS,
                 BENCH_MAX_THREADS);
        return false;
    }
    *ret_n = n;
    return true;
}
