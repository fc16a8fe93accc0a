#include "wide_split.h"

#include <glib.h>
#include <string.h>

#define DIGITS      10 /* of a name that are looked at behind what all have in common: more than a double holds */
#define LEAST_PAGES 2.0

static bool is_plain(char c)
{
    return c >= ' ' && c < 127 && c != '/';
}

static void add(struct wide_alphabet *a, char c)
{
    bool *has = &a->has[(unsigned char)c];
    for (unsigned i = (unsigned char)c + 1; !*has && i < G_N_ELEMENTS(a->below); i++)
        a->below[i]++;
    a->n += !*has;
    *has = true;
}

void wide_alphabet_note(struct wide_alphabet *a, const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!is_plain(name[i]) || a->has[(unsigned char)name[i]])
            continue;
        add(a, name[i]);
        for (char c = '0'; g_ascii_isdigit(name[i]) && c <= '9'; c++)
            add(a, c);
    }
}

/* Of the bytes that come: 1 for the first of the alphabet; one that is not of it is half a step behind the one before. */
static double rank(const struct wide_alphabet *a, unsigned char c)
{
    return c < G_N_ELEMENTS(a->below) ? a->below[c] + (a->has[c] ? 1 : 0.5) : a->n + 0.5;
}

/* 0 to 1: the text as a fraction; NULL: 1. */
static double value(const struct wide_alphabet *a, const char *text, size_t skip)
{
    double v = 0, unit = 1;
    if (!text)
        return 1;
    for (size_t i = skip; i < skip + DIGITS && text[i]; i++) {
        unit /= a->n + 2;
        v += rank(a, (unsigned char)text[i]) * unit;
    }
    return v;
}

static char member(const struct wide_alphabet *a, unsigned nth)
{
    unsigned c = 0;
    while (c < G_N_ELEMENTS(a->has) - 1 && (a->below[c] != nth || !a->has[c]))
        c++;
    return (char)c;
}

static size_t common(const char *a, const char *b)
{
    size_t n = 0;
    while (b && a[n] && a[n] == b[n])
        n++;
    return n;
}

static bool is_behind(const struct wide_range *r, const char *text)
{
    return strcmp(text, r->last) > 0 && (!r->until || strcmp(text, r->until) < 0);
}

static bool are_plain(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (!is_plain(text[i]))
            return false;
    }
    return true;
}

/* The shortest text that begins as r->last does up to skip, stands for about v behind it and lies in the range. */
static char *text_of(const struct wide_alphabet *a, const struct wide_range *r, size_t skip, double v)
{
    g_autoptr(GString) text = g_string_new_len(r->last, (gssize)skip);
    for (unsigned i = 0; i < DIGITS; i++) {
        v *= a->n + 2;
        unsigned digit = CLAMP((unsigned)v, 1u, a->n);
        v = CLAMP(v - (unsigned)v, 0, 1);
        g_string_append_c(text, member(a, digit - 1));
        if (is_behind(r, text->str))
            return g_string_free(g_steal_pointer(&text), FALSE);
    }
    return NULL;
}

char *wide_split(const struct wide_alphabet *a, const struct wide_range *r, double *ret_pages)
{
    size_t skip = MIN(common(r->last, r->until), common(r->first, r->until));
    *ret_pages = 0;
    if (!are_plain(r->last, skip))
        return NULL;
    double first = value(a, r->first, skip), last = value(a, r->last, skip), until = value(a, r->until, skip);
    double page = MAX(last - first, 1e-15);
    if (a->n == 0 || until - last < LEAST_PAGES * page)
        return NULL;
    *ret_pages = (until - last) / page;
    return text_of(a, r, skip, (last + until) / 2);
}

char *wide_split_off(const struct wide_range *r)
{
    size_t len = common(r->first, r->last);
    while (len > 0 && g_ascii_isdigit(r->last[len - 1]))
        len--;
    g_autofree char *text = g_strdup_printf("%.*s~", (int)len, r->last);
    return len > 0 && are_plain(text, len) && is_behind(r, text) ? g_steal_pointer(&text) : NULL;
}
