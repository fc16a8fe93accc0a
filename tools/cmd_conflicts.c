/* `sluice conflicts`: files that were changed here and elsewhere, and what becomes of them. A conflict is named by its path or its number. */
#include "tools/cmd.h"
#include "tools/ctl_client.h"
#include "tools/report.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The number of "#7" or "7", 0 for a path. */
static json_int_t number_of(const char *word)
{
    const char *digits = *word == '#' ? word + 1 : word;
    guint64 n = 0;
    return g_ascii_string_to_unsigned(digits, 10, 1, INT64_MAX, &n, NULL) ? (json_int_t)n : 0;
}

/* A file whose name is a number, as those of steps are: what is meant for it must not hit another's conflict. */
static bool is_file_too(const char *word)
{
    struct mount_point mp;
    struct stat st;
    if (*word == '#' || !mount_holds(word, &mp))
        return false;
    mount_point_clear(&mp);
    return lstat(word, &st) == 0;
}

/* The mount a number belongs to: the innermost one that the working directory is in, else the only one. */
static bool mount_of_number(const char *word, struct mount_point *ret)
{
    g_autofree char *cwd = g_get_current_dir();
    g_autoptr(GPtrArray) list = mount_list();
    if (mount_holds(cwd, ret))
        return true;
    if (list->len == 1)
        return mount_find(((const struct mount_point *)list->pdata[0])->path, ret);
    complain(list->len ? "%s: there are several mounts: give the path, or change into the mount meant"
                       : "%s: nothing is mounted",
             word);
    return false;
}

/* save-as: the new path must lie in the mount of the conflict. */
static bool add_target(json_t *req, const struct mount_point *mp, const char *new_path)
{
    struct mount_point to;
    if (!mount_find(new_path, &to))
        return false;
    bool ok = strcmp(to.path, mp->path) == 0;
    if (ok)
        ok = ctl_put_text(req, "to", to.relative, new_path);
    else
        complain("'%s' does not lie in %s, the mount of the conflict", new_path, mp->path);
    mount_point_clear(&to);
    return ok;
}

static int act(const char *action, const char *word, const char *new_path, struct report *rep)
{
    struct mount_point mp;
    json_int_t number = number_of(word);
    if (number && is_file_too(word)) {
        complain("'%s' is a file here and may be the number of a conflict: give ./%s or '#%s'", word, word, word);
        return EXIT_USAGE;
    }
    if (number ? !mount_of_number(word, &mp) : !mount_find(word, &mp))
        return EXIT_FAILED;
    json_t *req = json_pack("{s:s,s:s}", "verb", "conflicts", "action", action);
    bool ok = number ? json_object_set_new(req, "id", json_integer(number)) == 0 : ctl_put_path(req, mp.relative, word);
    int code = EXIT_FAILED;
    if (!ok || (new_path && !add_target(req, &mp, new_path)))
        json_decref(req);
    else
        code = ctl_request(&mp, req, 600, report_on_line, rep); /* bytes may have to be fetched first */
    mount_point_clear(&mp);
    return code;
}

static int list_one(const struct mount_point *mp, struct report *rep)
{
    json_t *req = json_pack("{s:s,s:s,s:[s]}", "verb", "conflicts", "action", "list", "paths", mp->relative);
    return ctl_request(mp, req, 30, report_on_line, rep);
}

static int list(const char *dir, struct report *rep)
{
    int code = EXIT_DONE;
    struct mount_point mp;
    if (dir && !mount_find(dir, &mp))
        return EXIT_FAILED;
    if (dir) {
        code = list_one(&mp, rep);
        mount_point_clear(&mp);
    } else {
        g_autoptr(GPtrArray) all = mount_list();
        for (unsigned i = 0; i < all->len; i++)
            if (list_one(all->pdata[i], rep) != EXIT_DONE)
                code = EXIT_FAILED;
    }
    if (code == EXIT_DONE && !rep->json && rep->n_lines == 0)
        printf("no conflicts\n");
    return code;
}

struct action {
    const char *name, *sentence; /* NULL: a block of lines */
    unsigned min_words, max_words;
};

static int run(const struct action *a, char **words, unsigned n, struct report *rep)
{
    if (n < a->min_words || n > a->max_words) {
        complain("conflicts %s: %s", a->name,
                 g_str_equal(a->name, "save-as") ? "give a conflict and a new path" : "the number of words is wrong");
        return EXIT_USAGE;
    }
    rep->sentence = a->sentence;
    if (g_str_equal(a->name, "list"))
        return list(n ? words[0] : NULL, rep);
    if (g_str_equal(a->name, "save-as"))
        return act(a->name, words[0], words[1], rep);
    int code = EXIT_DONE;
    for (unsigned i = 0; i < n; i++)
        if (act(a->name, words[i], NULL, rep) != EXIT_DONE)
            code = EXIT_FAILED;
    return code;
}

int cmd_conflicts(int argc, char **argv)
{
    static const struct action actions[] = {
        {"list", NULL, 0, 1},
        {"show", NULL, 1, UINT_MAX},
        {"keep-mine", "will be published again:", 1, UINT_MAX},
        {"keep-theirs", "dropped our copy of", 1, UINT_MAX},
        {"save-as", "saved our copy of", 2, 2},
    };
    struct args a;
    int code;
    if (!args_parse(&a, argc, argv, 0, UINT_MAX, &code))
        return code;
    char **words = (char **)a.words->pdata;
    const struct action *action = &actions[0];
    unsigned named = 0;
    for (unsigned i = 0; a.n_words > 0 && i < G_N_ELEMENTS(actions); i++)
        if (strcmp(words[0], actions[i].name) == 0) {
            action = &actions[i];
            named = 1;
        }
    struct report rep = {.json = args_has(&a, "json")};
    code = run(action, words + named, a.n_words - named, &rep);
    args_clear(&a);
    return code;
}
