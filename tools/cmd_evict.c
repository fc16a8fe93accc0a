/* `sluice evict PATH...`: drops clean copies from the cache. */
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/report.h"

int cmd_evict(int argc, char **argv)
{
    struct args a;
    int code;
    if (!args_parse(&a, argc, argv, 1, UINT_MAX, &code))
        return code;
    struct report rep = {.json = args_has(&a, "json"), .sentence = "evicted"};
    code = ctl_request_paths((char **)a.words->pdata, json_pack("{s:s}", "verb", "evict"), 300, report_on_line, &rep);
    args_clear(&a);
    return code == EXIT_DONE && rep.n_errors ? EXIT_FAILED : code;
}
