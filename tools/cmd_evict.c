/* `sluice evict PATH...`: drops clean copies from the cache. */
#include "tools/answer.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"

int cmd_evict(int argc, char **argv)
{
    struct args a;
    int code;
    if (!args_parse(&a, argc, argv, 1, UINT_MAX, &code))
        return code;
    struct answer an;
    (void)answer_init(&an, &a, "evict"); /* no word of progress to be wrong */
    an.rep.sentence = "evicted";
    json_t *req = json_pack("{s:s}", "verb", "evict");
    code = answer_end(&an, ctl_request_paths((char **)a.words->pdata, req, 300, answer_on_line, &an));
    args_clear(&a);
    return code;
}
