/* `sluice wait PATH...`: returns when everything under the paths is published and verified. */
#include "base/clock.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/progress.h"

int cmd_wait(int argc, char **argv)
{
    struct args a;
    struct progress p;
    int code;
    uint64_t timeout_s;
    if (!args_parse(&a, argc, argv, 1, UINT_MAX, &code))
        return code;
    if (!args_seconds(&a, "timeout", &timeout_s) || !progress_init(&p, &a, "wait")) {
        args_clear(&a);
        return EXIT_USAGE;
    }
    json_t *req = json_pack("{s:s,s:I}", "verb", "wait", "timeout_s", (json_int_t)timeout_s);
    code = ctl_request_paths((char **)a.words->pdata, req, 60, progress_on_line, &p);
    progress_break(&p);
    args_clear(&a);
    return code;
}
