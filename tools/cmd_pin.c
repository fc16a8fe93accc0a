/* `sluice pin` and `sluice unpin`: files that stay in the cache, by path or as "the N newest of a glob". */
#include "tools/answer.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"

#include <string.h>

/* A shell that expanded the pattern leaves names that a rule each would keep, with all that is saved under them, for ever. */
static bool is_expanded(char **words)
{
    for (char **w = words; words[1] && *w; w++)
        if (!strpbrk(*w, "*?["))
            return true;
    return false;
}

static int pin_or_unpin(int argc, char **argv, bool adds, const char *sentence)
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
    if (latest && adds && is_expanded((char **)a.words->pdata)) {
        complain(
            "pin --latest keeps the newest of each pattern, and several names are none: quote it, as in 'DIR/*.pt'");
        args_clear(&a);
        return EXIT_USAGE;
    }
    json_t *req = json_pack("{s:s}", "verb", argv[0]);
    if (latest)
        json_object_set_new(req, "latest", json_integer((json_int_t)latest));
    if (args_has(&a, "memory"))
        json_object_set_new(req, "memory", json_true());
    struct answer an;
    (void)answer_init(&an, &a, argv[0]); /* no word of progress to be wrong */
    an.rep.sentence = sentence;
    code = answer_end(&an, ctl_request_paths((char **)a.words->pdata, req, 60, answer_on_line, &an));
    args_clear(&a);
    return code;
}

int cmd_pin(int argc, char **argv)
{
    return pin_or_unpin(argc, argv, true, "pinned");
}

int cmd_unpin(int argc, char **argv)
{
    return pin_or_unpin(argc, argv, false, "unpinned");
}
