/*
 * Names and texts of errno values, independent of locale and sign. glibc has both tables; a number it does not know gets an
 * interned string, so callers never own what they get. Any thread.
 */
#include "base/err.h"

#include <glib.h>
#include <string.h>

const char *err_name(int err)
{
    unsigned n = err < 0 ? 0u - (unsigned)err : (unsigned)err;
    if (n == 0)
        return "OK";
    const char *name = n <= G_MAXINT ? strerrorname_np((int)n) : NULL;
    if (name)
        return name;
    g_autofree char *made = g_strdup_printf("E%u", n);
    return g_intern_string(made);
}

const char *err_text(int err)
{
    unsigned n = err < 0 ? 0u - (unsigned)err : (unsigned)err;
    const char *text = n <= G_MAXINT ? strerrordesc_np((int)n) : NULL;
    if (text)
        return text;
    g_autofree char *made = g_strdup_printf("Unknown error %u", n);
    return g_intern_string(made);
}
