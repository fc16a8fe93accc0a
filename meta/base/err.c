/* Names and texts of errno values. Any thread. */
#include "base/err.h"

#include <string.h>

const char *err_name(int err)
{
    const char *name = strerrorname_np(err < 0 ? -err : err);
    return name ? name : "E?";
}

const char *err_text(int err)
{
    const char *text = strerrordesc_np(err < 0 ? -err : err);
    return text ? text : "unknown error";
}
