/* See testpoint.h. */
#include "testpoint.h"

#ifdef SLUICE_TEST_POINTS
#include <glib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void testpoint(const char *name)
{
    const char *dir = getenv("SLUICE_DIE_IN");
    if (!dir)
        return;
    g_autofree char *path = g_build_filename(dir, name, NULL);
    g_autofree char *again = g_strconcat(path, ".again", NULL);
    if (unlink(path) < 0)
        return;
    (void)rename(again, path); /* fails if once is enough */
    (void)raise(SIGKILL);
}
#endif
