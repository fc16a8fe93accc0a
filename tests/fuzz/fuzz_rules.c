/* Rules, a path on the second line: a refusal says why in one line; what was taken can be matched, shown, and given again as it was. */
#include "fs/rules.h"
#include "fuzz.h"

#include <string.h>

static void use(const struct rule *rule, const char *path)
{
    const char *name;
    char *text;
    PROMISE(rule->match && rule->literal <= strlen(rule->match));
    bool found = rule_glob_matches(rule->match, path);
    PROMISE(!found || strncmp(path, rule->match, rule->literal) == 0);
    PROMISE(rule->literal != strlen(rule->match) || found == (strcmp(path, rule->match) == 0));
    for (unsigned i = 0; rule_set_at(&rule->set, i, &name, &text); i++) {
        PROMISE(*name && text && *text);
        g_free(text);
    }
    struct rule again;
    char *msg = NULL;
    PROMISE(rule_parse(rule->text, &again, &msg) == 0 && again.given == rule->given);
    PROMISE(strcmp(again.match, rule->match) == 0);
    rule_clear(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_auto(GStrv) lines = fuzz_lines(data, size, 2);
    struct rule rule;
    g_autofree char *msg = NULL, *other = NULL;
    int r = rule_parse(lines[0], &rule, &msg);
    PROMISE((r < 0) == (msg != NULL));
    if (r == 0)
        use(&rule, lines[1]);
    rule_clear(&rule);
    r = rules_check_value("on-create", lines[0], &other);
    PROMISE((r < 0) == (other != NULL));
    return 0;
}
