/* `sluice rmdir [--force] DIR...`: removes directories, by --force also the bytes that another tool put into their markers. */
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/report.h"

int cmd_rmdir(int argc, char **argv)
{
    struct args a;
    int code;
    if (!args_parse(&a, argc, argv, 1, UINT_MAX, &code))
        return code;
    struct report rep = {.json = args_has(&a, "json"), .sentence = "removed"};
    json_t *req = json_pack("{s:s,s:b}", "verb", "rmdir", "force", args_has(&a, "force"));
    code = ctl_request_paths((char **)a.words->pdata, req, 300, report_on_line, &rep);
    args_clear(&a);
    return code == EXIT_DONE && rep.n_errors ? EXIT_FAILED : code;
}
