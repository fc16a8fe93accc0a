/* `sluice publish --retry|--skip PATH...`: decisions about files whose upload cannot go on by itself. */
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/report.h"

int cmd_publish(int argc, char **argv)
{
    struct args a;
    int code;
    if (!args_parse(&a, argc, argv, 1, UINT_MAX, &code))
        return code;
    if (args_has(&a, "retry") == args_has(&a, "skip")) {
        complain("publish: give --retry or --skip");
        args_clear(&a);
        return EXIT_USAGE;
    }
    const char *action = args_has(&a, "retry") ? "retry" : "skip";
    struct report rep = {.json = args_has(&a, "json"), .sentence = action};
    code = ctl_request_paths((char **)a.words->pdata, json_pack("{s:s,s:s}", "verb", "publish", "action", action), 60,
                             report_on_line, &rep);
    args_clear(&a);
    return code == EXIT_DONE && rep.n_errors ? EXIT_FAILED : code;
}
