/* `sluice pin` and `sluice unpin`: files that stay in the cache, by path or as "the N newest of a glob". */
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/report.h"

#include <string.h>

static int pin_or_unpin(int argc, char **argv, const char *sentence)
{
    struct args a;
    int code;
    uint64_t latest = 0;
    if (!args_parse(&a, argc, argv, 1, UINT_MAX, &code))
        return code;
    if (!args_number(&a, "latest", 1, 1000000, &latest)) {
        args_clear(&a);
        return EXIT_USAGE;
    }
    json_t *req = json_pack("{s:s}", "verb", argv[0]);
    if (latest)
        json_object_set_new(req, "latest", json_integer((json_int_t)latest));
    if (args_has(&a, "memory"))
        json_object_set_new(req, "memory", json_true());
    struct report rep = {.json = args_has(&a, "json"), .sentence = sentence};
    code = ctl_request_paths((char **)a.words->pdata, req, 60, report_on_line, &rep);
    args_clear(&a);
    return code == EXIT_DONE && rep.n_errors ? EXIT_FAILED : code;
}

int cmd_pin(int argc, char **argv)
{
    return pin_or_unpin(argc, argv, "pinned");
}

int cmd_unpin(int argc, char **argv)
{
    return pin_or_unpin(argc, argv, "unpinned");
}
