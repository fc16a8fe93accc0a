/* `sluice status [DIR]`: the state of one mount or of all, from their daemons. */
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/report.h"

#include <stdio.h>

static void print_config(void *ctx, const json_t *line)
{
    const char *text = json_string_value(json_object_get(line, "text"));
    if (text)
        fputs(text, stdout);
}

static int show(const struct mount_point *mp, const struct args *a)
{
    if (args_has(a, "config"))
        return ctl_request(mp, json_pack("{s:s}", "verb", "config"), 10, print_config, NULL);
    struct report rep = {.json = args_has(a, "json")};
    return ctl_request(mp, json_pack("{s:s}", "verb", "status"), 10, report_on_line, &rep);
}

static int show_all(const struct args *a)
{
    g_autoptr(GPtrArray) list = mount_list();
    int code = EXIT_DONE;
    if (list->len == 0 && !args_has(a, "json"))
        printf("nothing is mounted\n");
    for (guint i = 0; i < list->len; i++) {
        if (i > 0 && !args_has(a, "json"))
            putchar('\n');
        if (show(list->pdata[i], a) != EXIT_DONE)
            code = EXIT_FAILED;
    }
    return code;
}

int cmd_status(int argc, char **argv)
{
    struct args a;
    struct mount_point mp;
    int code;
    if (!args_parse(&a, argc, argv, 0, 1, &code))
        return code;
    if (a.n_words == 0) {
        code = show_all(&a);
    } else if (mount_find(a.words->pdata[0], &mp)) {
        code = show(&mp, &a);
        mount_point_clear(&mp);
    } else {
        code = EXIT_FAILED;
    }
    args_clear(&a);
    return code;
}
