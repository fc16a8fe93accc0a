/* `sluice link`: other buckets at directories of a mount. What its options mean is known to the daemon, which refuses what makes no sense. */
#include "tools/answer.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/sync_shown.h"

#include <stdio.h>
#include <string.h>

/* Those of the table that are not the link's own. */
static const char *const ours[] = {"unset", "drain", "progress", "json", NULL};

/* NULL, after a complaint: one is not UTF-8, and the link would do without it. */
static json_t *options_of(const struct args *a)
{
    json_t *o = json_object();
    bool ok = true;
    for (const struct cmd_opt *opt = cmd_opt_table; opt->verb; opt++) {
        if (strcmp(opt->verb, "link") != 0 || !args_has(a, opt->name) || g_strv_contains(ours, opt->name))
            continue;
        const char *value = args_get(a, opt->name);
        bool flag = opt->arg && opt->arg[0] == '[';
        g_autofree char *absolute = strcmp(opt->name, "ca-bundle") == 0 ? g_canonicalize_filename(value, NULL) : NULL;
        g_autofree char *what = g_strdup_printf("link: the value of --%s", opt->name);
        ok &= ctl_put_text(o, opt->name, absolute ? absolute : flag && !*value ? "true" : value, what);
    }
    g_auto(GStrv) unset = g_strsplit(args_get(a, "unset") ? args_get(a, "unset") : "", ",", -1);
    for (unsigned i = 0; unset[i]; i++)
        if (*unset[i] && json_object_set_new(o, unset[i], json_null()) < 0) {
            complain("link: --unset %s names no option", unset[i]);
            ok = false;
        }
    if (!ok)
        json_decref(o);
    return ok ? o : NULL;
}

/* The mount that dir lies in, which need not be there. */
static int ask_with(const char *dir, json_t *req, unsigned quiet_s, ctl_line_fn *fn, void *ctx)
{
    struct mount_point mp;
    if (!mount_find(dir, &mp)) {
        json_decref(req);
        return EXIT_FAILED;
    }
    int code = EXIT_FAILED;
    if (ctl_put_path(req, mp.relative, dir))
        code = ctl_request(&mp, req, quiet_s, fn, ctx);
    else
        json_decref(req);
    mount_point_clear(&mp);
    return code;
}

static int ask(const char *dir, json_t *req, unsigned quiet_s, struct answer *an)
{
    return ask_with(dir, req, quiet_s, answer_on_line, an);
}

static json_t *request(const char *action)
{
    return json_pack("{s:s,s:s}", "verb", "link", "action", action);
}

static int do_add(const struct args *a, char **words, struct answer *an)
{
    json_t *req = request("add"), *options = options_of(a);
    if (!options || !ctl_put_text(req, "source", words[0], words[0])) {
        json_decref(options);
        json_decref(req);
        return EXIT_USAGE;
    }
    json_object_set_new(req, "options", options);
    an->rep.sentence = "linked";
    return ask(words[1], req, 600, an);
}

static int do_list(const struct args *a, char **words, struct answer *an)
{
    g_autoptr(GPtrArray) all = mount_list();
    int code = EXIT_DONE;
    if (words[0]) { /* of the mount at or above it */
        struct mount_point mp;
        if (!mount_find(words[0], &mp))
            return EXIT_FAILED;
        json_t *req = request("list");
        if (*mp.relative && !ctl_put_path(req, mp.relative, words[0])) {
            json_decref(req);
            code = EXIT_FAILED;
        } else {
            code = ctl_request(&mp, req, 30, answer_on_line, an);
        }
        mount_point_clear(&mp);
    }
    for (unsigned i = 0; !words[0] && i < all->len; i++)
        if (ctl_request(all->pdata[i], request("list"), 30, answer_on_line, an) != EXIT_DONE)
            code = EXIT_FAILED;
    if (code == EXIT_DONE && !an->rep.json && an->rep.n_lines == 0)
        printf("no links\n");
    return code;
}

static int do_show(const struct args *a, char **words, struct answer *an)
{
    return ask(words[0], request("show"), 30, an);
}

static int do_set(const struct args *a, char **words, struct answer *an)
{
    json_t *req = request("set"), *options = options_of(a);
    if (json_object_size(options) == 0) { /* of NULL, too */
        if (options)
            complain("link set: give the options to be changed, see 'sluice link --help'");
        json_decref(options);
        json_decref(req);
        return EXIT_USAGE;
    }
    json_object_set_new(req, "options", options);
    return ask(words[0], req, 600, an);
}

static int do_rm(const struct args *a, char **words, struct answer *an)
{
    json_t *req = request("rm");
    uint64_t s = 0;
    if (args_has(a, "drain"))
        json_object_set_new(req, "drain", json_true());
    if (args_get(a, "drain") && *args_get(a, "drain") && !args_seconds(a, "drain", &s)) {
        json_decref(req);
        return EXIT_USAGE;
    }
    json_object_set_new(req, "timeout_s", json_integer((json_int_t)s));
    an->rep.sentence = "unlinked";
    return ask(words[0], req, 600, an);
}

static int do_sync(const struct args *a, char **words, struct answer *an)
{
    struct sync_shown w = {.json = an->rep.json, .progress = an->bar};
    int code = ask_with(words[0], request("sync"), 600, sync_on_line, &w);
    progress_break(&w.progress);
    return code;
}

int cmd_link(int argc, char **argv)
{
    static const struct {
        const char *name;
        unsigned min_words, max_words;
        int (*fn)(const struct args *a, char **words, struct answer *an);
    } actions[] = {{"add", 2, 2, do_add}, {"list", 0, 1, do_list}, {"show", 1, 1, do_show},
                   {"set", 1, 1, do_set}, {"rm", 1, 1, do_rm},     {"sync", 1, 1, do_sync}};
    struct args a;
    int code;
    if (!args_parse(&a, argc, argv, 1, 3, &code))
        return code;
    char **words = (char **)a.words->pdata;
    struct answer an;
    if (!answer_init(&an, &a, "link")) {
        args_clear(&a);
        return EXIT_USAGE;
    }
    code = EXIT_USAGE;
    bool known = false;
    for (unsigned i = 0; i < G_N_ELEMENTS(actions); i++) {
        if (strcmp(words[0], actions[i].name) != 0)
            continue;
        known = true;
        if (a.n_words - 1 < actions[i].min_words || a.n_words - 1 > actions[i].max_words)
            complain("link %s: the number of words is wrong; see 'sluice link --help'", actions[i].name);
        else
            code = actions[i].fn(&a, words + 1, &an);
    }
    if (!known)
        complain("link: '%s' is none of add, list, show, set, rm, sync", words[0]);
    progress_break(&an.bar);
    args_clear(&a);
    return code;
}
