/* See key_names.h. */
#include "key_names.h"

#include <string.h>

static const struct {
    const char *plain, *coded; /* coded: behind the '%' */
} odd[] = {{"", "2F"}, {".", "2E"}, {"..", "2E%2E"}};

static bool is(const char *s, size_t len, const char *text)
{
    return strlen(text) == len && memcmp(s, text, len) == 0;
}

/* Which one stands behind '%' and any number of "25"; -1: none. */
static int odd_of(const char *name, size_t len)
{
    if (len == 0 || *name != '%')
        return -1;
    for (name++, len--; len >= 2 && memcmp(name, "25", 2) == 0; len -= 2)
        name += 2;
    for (unsigned i = 0; i < G_N_ELEMENTS(odd); i++)
        if (is(name, len, odd[i].coded))
            return (int)i;
    return -1;
}

bool key_name_is_escaped(const char *name, size_t len)
{
    return odd_of(name, len) >= 0;
}

bool key_name_is_odd(const char *name)
{
    return odd_of(name, strlen(name)) >= 0 && strncmp(name, "%25", 3) != 0;
}

bool key_name_is_empty(const char *name)
{
    return strcmp(name, "%2F") == 0;
}

static void escape(const char *name, size_t len, GString *ret)
{
    bool looks_like = key_name_is_escaped(name, len);
    if (looks_like)
        g_string_append(ret, "%25");
    for (unsigned i = 0; !looks_like && i < G_N_ELEMENTS(odd); i++) {
        if (!is(name, len, odd[i].plain))
            continue;
        g_string_append_printf(ret, "%%%s", odd[i].coded);
        return;
    }
    g_string_append_len(ret, name + looks_like, (gssize)(len - looks_like));
}

void key_to_path(const char *key, size_t len, GString *ret)
{
    for (;;) {
        const char *slash = memchr(key, '/', len);
        size_t n = slash ? (size_t)(slash - key) : len;
        if (!slash && n == 0)
            return;
        escape(key, n, ret);
        if (!slash)
            return;
        g_string_append_c(ret, '/');
        key += n + 1;
        len -= n + 1;
    }
}

/* False: it is no component of a path. */
static bool unescape(const char *name, size_t len, GString *ret)
{
    int i = odd_of(name, len);
    if (i >= 0 && len > 2 && memcmp(name + 1, "25", 2) == 0) {
        g_string_append_c(ret, '%');
        g_string_append_len(ret, name + 3, (gssize)(len - 3));
        return true;
    }
    for (unsigned k = 0; k < G_N_ELEMENTS(odd); k++)
        if (is(name, len, odd[k].plain))
            return false;
    if (i >= 0)
        g_string_append(ret, odd[i].plain);
    else
        g_string_append_len(ret, name, (gssize)len);
    return true;
}

char *key_of_path(const char *path)
{
    g_autoptr(GString) key = g_string_new(NULL);
    while (*path) {
        size_t n = strcspn(path, "/");
        bool last = path[n] == '\0';
        if (!unescape(path, n, key) || (last && is(path, n, "%2F")))
            return NULL;
        if (!last)
            g_string_append_c(key, '/');
        path += n + !last;
    }
    return g_string_free(g_steal_pointer(&key), FALSE);
}
