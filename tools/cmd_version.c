/* `sluice version` */
#include "tools/cmd.h"

#include <stdio.h>

int cmd_version(int argc, char **argv)
{
    if (argc > 1 && g_strcmp0(argv[1], "--help") == 0)
        cmd_print_help(cmd_find("version"));
    else
        printf("sluice %s\n", SLUICE_VERSION);
    return EXIT_DONE;
}
