/* `sluice sync [PATH...]`: lists everything below directories of a mount; shows the syncs of one. */
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/sync_shown.h"

#include <inttypes.h>
#include <stdio.h>

#define QUIET_S      120
#define PARALLEL_MAX 64

static int show_status(const struct args *a, char *path)
{
    struct mount_point mp;
    if (a->n_words > 1) {
        complain("sync --status takes one PATH in the mount");
        return EXIT_USAGE;
    }
    if (!mount_find(path, &mp))
        return EXIT_FAILED;
    struct report rep = {.json = args_has(a, "json")};
    int code = ctl_request(&mp, json_pack("{s:s}", "verb", "sync-status"), 30, report_on_line, &rep);
    if (code == EXIT_DONE && rep.n_lines == 0 && !rep.json)
        printf("no sync runs or ended lately\n");
    mount_point_clear(&mp);
    return code;
}

static int run(const struct args *a, char **paths)
{
    struct sync_shown w = {.json = args_has(a, "json"), .background = args_has(a, "background")};
    uint64_t parallel = 0;
    if (args_has(a, "full") && args_has(a, "incremental")) {
        complain("sync: --full and --incremental conflict");
        return EXIT_USAGE;
    }
    if (!args_number(a, "parallel", 1, PARALLEL_MAX, &parallel) || !progress_init(&w.progress, a, "sync"))
        return EXIT_USAGE;
    json_t *req = json_pack("{s:s,s:b,s:b,s:I}", "verb", "sync", "incremental", args_has(a, "incremental"),
                            "background", args_has(a, "background"), "parallel", (json_int_t)parallel);
    int code = ctl_request_paths(paths, req, QUIET_S, sync_on_line, &w);
    progress_break(&w.progress);
    return code;
}

int cmd_sync(int argc, char **argv)
{
    struct args a;
    int code;
    static char here[] = ".";
    char *only_here[] = {here, NULL};
    if (!args_parse(&a, argc, argv, 0, UINT_MAX, &code))
        return code;
    char **paths = a.n_words ? (char **)a.words->pdata : only_here;
    code = args_has(&a, "status") ? show_status(&a, paths[0]) : run(&a, paths);
    args_clear(&a);
    return code;
}
