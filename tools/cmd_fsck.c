/* `sluice fsck CACHE_DIR`: database against files of a cache folder that no daemon uses. */
#include "fs/daemon.h"
#include "tools/cmd.h"

#include <stdio.h>

int cmd_fsck(int argc, char **argv)
{
    struct args a;
    g_autofree char *msg = NULL;
    int code;
    if (!args_parse(&a, argc, argv, 1, 1, &code))
        return code;
    int r = fs_fsck(a.words->pdata[0], args_has(&a, "repair"), stdout, &msg);
    if (r < 0)
        complain("fsck: %s", msg ? msg : err_text(r));
    else
        printf(r == 0 ? "clean\n" : "%d findings\n", r);
    args_clear(&a);
    return r == 0 ? EXIT_DONE : EXIT_FAILED;
}
