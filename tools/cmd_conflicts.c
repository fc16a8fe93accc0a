/* `sluice conflicts [list] DIR`: files that were changed here and elsewhere. */
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/report.h"

#include <stdio.h>
#include <string.h>

int cmd_conflicts(int argc, char **argv)
{
    struct args a;
    int code;
    if (!args_parse(&a, argc, argv, 1, 2, &code))
        return code;
    char **words = (char **)a.words->pdata;
    struct mount_point mp;
    if (a.n_words == 2 && strcmp(words[0], "list") != 0) {
        complain("conflicts has no action '%s'; 'list' is the one there is", words[0]);
        code = EXIT_USAGE;
    } else if (!mount_find(words[a.n_words - 1], &mp)) {
        code = EXIT_FAILED;
    } else {
        struct report rep = {.json = args_has(&a, "json")};
        code = ctl_request(&mp, json_pack("{s:s}", "verb", "conflicts"), 30, report_on_line, &rep);
        if (code == EXIT_DONE && !rep.json && rep.n_lines == 0)
            printf("no conflicts\n");
        mount_point_clear(&mp);
    }
    args_clear(&a);
    return code;
}
