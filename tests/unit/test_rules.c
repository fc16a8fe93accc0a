/* Rules: the text, what matches, which one applies, and what they say against other options. */
#include "base/clock.h"
#include "fs/rules.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct config cfg;
static struct rules *rules;
static char *msg;

static void setup(void)
{
    config_init(&cfg);
    rules = NULL;
    msg = NULL;
}

static void teardown(void)
{
    rules_free(rules);
    config_clear(&cfg);
    g_free(msg);
}

static void add(const char *rule)
{
    ck_assert_msg(config_set(&cfg, "rule", rule, &msg) == 0, "%s", msg);
}

static void compile(void)
{
    ck_assert_msg(rules_new(&cfg, &rules, &msg) == 0, "%s", msg);
}

static const char *rule_at(const char *path)
{
    const char *rule = rules_match(rules, path)->rule;
    return rule ? rule : "-";
}

static const struct {
    const char *glob, *path;
    bool matches;
} globs[] = {
    {"ckpt/**", "ckpt/a", true},
    {"ckpt/**", "ckpt/a/b/c", true},
    {"ckpt/**", "ckpt/", true},
    {"ckpt/**", "ckpt", false},
    {"ckpt/**", "ckpts/a", false},
    {"ckpt/**", "a/ckpt/b", false},
    {"/ckpt/**", "ckpt/a", true},
    {"ckpt/", "ckpt/a/b", true},
    {"ckpt/*", "ckpt/a", true},
    {"ckpt/*", "ckpt/a/b", false},
    {"ckpt/*.pt", "ckpt/step.pt", true},
    {"ckpt/*.pt", "ckpt/step.pt.tmp", false},
    {"ckpt/*/x", "ckpt/a/x", true},
    {"ckpt/*/x", "ckpt/x", false},
    {"a/**/b", "a/b", true},
    {"a/**/b", "a/x/b", true},
    {"a/**/b", "a/x/y/b", true},
    {"a/**/b", "a/xb", false},
    {"**/b", "b", true},
    {"**/b", "x/y/b", true},
    {"**/b", "xb", false},
    {"*.log", "x.log", true},
    {"*.log", "a/b/x.log", true},
    {"/*.log", "a/x.log", false},
    {"/*.log", "x.log", true},
    {"a?c", "abc", true},
    {"a?c", "a/c", false},
    {"a?c",
     "a\xc3\xa4"
     "c",
     true},
    {"x/[a-c]1", "x/b1", true},
    {"x/[a-c]1", "x/d1", false},
    {"x/[!a-c]1", "x/d1", true},
    {"x/[!a-c]1", "x/b1", false},
    {"x/[]]", "x/]", true},
    {"x/[a/]b", "x//b", false},
    {"x/\\*", "x/*", true},
    {"x/\\*", "x/a", false},
    {"x/a**b", "x/a/1/b", true},
    {"x/**.pt", "x/a/1/b.pt", true},
    {"x/*a*b*c", "x/aabbcc", true},
    {"x/*a*b*c", "x/aabb", false},
    {"x/*a/**/*b", "x/ca/d/eb", true},
    {"x/**/a/**/b", "x/a/a/c/b", true},
    {"x/**/a/**/b", "x/a/c/ab", false},
    {"epoch=*/**", "epoch=3/w", true},
    {"", "", false},
};

START_TEST(globs_match_as_described)
{
    g_autofree char *text = g_strconcat(globs[_i].glob, "=close=local", NULL);
    struct rule rule;
    int r = rule_parse(text, &rule, &msg);
    ck_assert_int_eq(r, *globs[_i].glob ? 0 : -EINVAL);
    if (r == 0)
        ck_assert_msg(rule_glob_matches(rule.match, globs[_i].path) == globs[_i].matches, "%s %s", globs[_i].glob,
                      globs[_i].path);
    rule_clear(&rule);
}
END_TEST

static const struct {
    const char *text, *word; /* word: in the message, beside the rule */
} bad[] = {
    {"ckpt/**", "GLOB=KEY"},
    {"ckpt/**=", "GLOB=KEY"},
    {"=pin=1", "glob"},
    {"a=pim=2", "'pim'"},
    {"a=pin", "pin needs a value"},
    {"a=pin=x", "pin 'x'"},
    {"a=pin=1001", "pin '1001'"},
    {"a=pin=-1", "pin '-1'"},
    {"a=pin=", "pin ''"},
    {"a=close=maybe", "buffered, local, remote"},
    {"a=fsync=buffered", "local, remote"},
    {"a=hold=maybe", "no, yes"},
    {"a=order=Ancestor", "ancestor, none, mount"},
    {"a=local-only=2", "local-only '2'"},
    {"a=local-only,ttl=0", "ttl '0'"},
    {"a=local-only,ttl=soon", "ttl 'soon'"},
    {"a=metadata-ttl=400d", "metadata-ttl '400d'"},
    {"a=pin=1,pin=2", "twice"},
    {"a=pin=1,", "unknown key ''"},
    {"a=ttl=1d", "local-only"},
    {"a=tier=memory", "pin"},
    {"*.pt=pin=2", "folder"},
    {"**=pin=2", "folder"},
    {"*/ckpt/**=pin=2", "folder"},
    {"a=local-only,close=remote", "close=remote"},
    {"a=local-only,fsync=remote", "fsync=remote"},
    {"a=local-only,pin=2", "pin"},
    {"a=local-only,hold=yes", "hold"},
    {"a//b=pin=1", "empty name"},
    {"a/../b=pin=1", "'..'"},
    {"a[b=pin=1", "']'"},
};

START_TEST(bad_rules_are_refused_by_name)
{
    struct rule rule;
    ck_assert_int_eq(rule_parse(bad[_i].text, &rule, &msg), -EINVAL);
    rule_clear(&rule);
    ck_assert_msg(strstr(msg, bad[_i].text) && strstr(msg, bad[_i].word) && !strchr(msg, '\n'), "%s", msg);
}
END_TEST

START_TEST(rule_says_what_it_says_and_the_options_the_rest)
{
    ck_assert_int_eq(config_set(&cfg, "fsync", "remote", &msg), 0);
    ck_assert_int_eq(config_set(&cfg, "memory-cache", "1G", &msg), 0);
    add("ckpt/**=close=remote,pin=2,tier=memory,metadata-ttl=5s");
    add("tmp/**=local-only,ttl=1d");
    compile();
    const struct rule_set *set = rules_match(rules, "ckpt/a.pt");
    ck_assert_int_eq(set->close, CLOSE_REMOTE);
    ck_assert_int_eq(set->fsync, FSYNC_REMOTE);
    ck_assert_int_eq(set->hold, RULE_HOLD_BY_NAME);
    ck_assert_uint_eq(set->pin, 2);
    ck_assert_int_eq(set->tier, RULE_TIER_MEMORY);
    ck_assert_uint_eq(set->metadata_ttl_ns, 5 * NS_PER_S);
    ck_assert(!set->local_only);
    set = rules_match(rules, "tmp/x");
    ck_assert(set->local_only);
    ck_assert_uint_eq(set->ttl_ns, 86400 * NS_PER_S);
    ck_assert_int_eq(set->close, CLOSE_BUFFERED);
    ck_assert_int_eq(set->fsync, FSYNC_LOCAL); /* there is no store to wait for */
    set = rules_match(rules, "other");
    ck_assert_ptr_null(set->rule);
    ck_assert_int_eq(set->close, CLOSE_BUFFERED);
    ck_assert_int_eq(set->fsync, FSYNC_REMOTE);
    ck_assert_uint_eq(set->metadata_ttl_ns, 60 * NS_PER_S);
    ck_assert(rules->pins && rules->ttls && rules->local_only);
}
END_TEST

START_TEST(most_specific_rule_applies)
{
    add("**=metadata-ttl=1s");
    add("a/**=metadata-ttl=2s");
    add("a/b/**=metadata-ttl=3s");
    add("a/*/c=metadata-ttl=4s");
    add("a/b/c=metadata-ttl=5s");
    add("a/b/d=metadata-ttl=6s");
    add("a/b/d=metadata-ttl=7s");
    add("*.log=metadata-ttl=8s");
    compile();
    ck_assert_str_eq(rule_at("x"), "**=metadata-ttl=1s");
    ck_assert_str_eq(rule_at("a/x"), "a/**=metadata-ttl=2s");
    ck_assert_str_eq(rule_at("a/b/x"), "a/b/**=metadata-ttl=3s");
    ck_assert_str_eq(rule_at("a/x/c"), "a/*/c=metadata-ttl=4s");
    ck_assert_str_eq(rule_at("a/b/c"), "a/b/c=metadata-ttl=5s");
    ck_assert_str_eq(rule_at("a/b/d"), "a/b/d=metadata-ttl=7s");
    ck_assert_str_eq(rule_at("x.log"), "*.log=metadata-ttl=8s");
    ck_assert_str_eq(rule_at("a/x.log"), "a/**=metadata-ttl=2s");
}
END_TEST

START_TEST(rules_of_file_and_command_line_add_up)
{
    cfg.origin_now = CONFIG_FROM_FILE;
    add("a/*=pin=1");
    cfg.origin_now = CONFIG_FROM_ARGV;
    g_auto(GStrv) argv = g_strsplit("mount file:///x /y -o rule=b/*=pin=2\\,close=local,on-create=m/**=warm", " ", -1);
    ck_assert_msg(config_parse_argv(&cfg, (int)g_strv_length(argv), argv, &msg) == 0, "%s", msg);
    ck_assert_int_eq(config_validate(&cfg, &msg), 0);
    compile();
    ck_assert_str_eq(rule_at("a/x"), "a/*=pin=1");
    ck_assert_str_eq(rule_at("b/x"), "b/*=pin=2,close=local");
    ck_assert(rules_warms(rules, "m/x"));
    ck_assert(!rules_warms(rules, "n/x"));
    g_autoptr(GString) dump = g_string_new(NULL);
    config_dump(&cfg, "/c", dump);
    ck_assert_ptr_nonnull(strstr(dump->str, "\nrule = a/*=pin=1  # command line\nrule = b/*=pin=2,close=local  #"));
}
END_TEST

START_TEST(rules_reach_another_process)
{
    add("a/*=pin=1");
    add("b=local-only");
    cfg.source = g_strdup("file:///x");
    cfg.mountpoint = g_strdup("/y");
    g_autoptr(GString) saved = g_string_new(NULL);
    config_save(&cfg, saved);
    struct config other;
    ck_assert_int_eq(config_restore(&other, saved->str, saved->len, &msg), 0);
    ck_assert_str_eq(other.rule, "a/*=pin=1\nb=local-only");
    ck_assert_ptr_null(other.on_create);
    config_clear(&other);
}
END_TEST

static const struct {
    const char *option, *value, *rule, *word;
} against[] = {
    {"memory-cache", "0", "a/*=pin=1,tier=memory", "--memory-cache"},
    {"read-only", "true", "a=close=remote", "close"},
    {"read-only", "true", "a=local-only", "local-only"},
    {"immutable", "true", "a=metadata-ttl=1s", "metadata-ttl"},
};

START_TEST(rules_against_options_are_refused)
{
    cfg.source = g_strdup("file:///x");
    cfg.mountpoint = g_strdup("/y");
    ck_assert_int_eq(config_set(&cfg, against[_i].option, against[_i].value, &msg), 0);
    add(against[_i].rule);
    ck_assert_int_eq(config_validate(&cfg, &msg), -EINVAL);
    ck_assert_msg(strstr(msg, against[_i].rule) && strstr(msg, against[_i].word), "%s", msg);
}
END_TEST

START_TEST(layers_replace_what_they_give)
{
    struct rule_set to = {.close = CLOSE_LOCAL, .pin = 3, .metadata_ttl_ns = 7};
    struct rule rule;
    ck_assert_int_eq(rule_parse("x=close=remote,metadata-ttl=1s", &rule, &msg), 0);
    rule_set_apply(&to, &rule.set, rule.given);
    ck_assert_int_eq(to.close, CLOSE_REMOTE);
    ck_assert_uint_eq(to.pin, 3);
    ck_assert_uint_eq(to.metadata_ttl_ns, NS_PER_S);
    rule_clear(&rule);
}
END_TEST

static const struct {
    const char *glob, *dir;
    bool below;
} lower[] = {
    {"m/**/*.st", "m/", true},       {"m/**/*.st", "m/a/", true},    {"m/**/*.st", "m/a/b/", true},
    {"m/**/*.st", "n/", false},      {"m/**/*.st", "mm/", false},    {"m/**.st", "m/a/", true},
    {"m/a**b", "m/a/", true},        {"m/a**b", "m/zab/", false},    {"m/*.st", "m/", true},
    {"m/*.st", "m/a/", false},       {"m/*.st", "m/a.st/", false},   {"m/*/w/*", "m/a/", true},
    {"m/*/w/*", "m/a/w/", true},     {"m/*/w/*", "m/a/x/", false},   {"m/*/w/*", "m/a/w/x/", false},
    {"m/a/b/c", "m/a/", true},       {"m/a/b/c", "m/b/", false},     {"m/", "m/a/", true},
    {"m/[ab]/**/x", "m/a/c/", true}, {"m/[ab]/**/x", "m/c/", false}, {"*.st", "m/", false}, /* of no folder */
    {"**/*.st", "m/", false},        {"m*/x", "m/", false},          {"/*.st", "m/", false},
};

START_TEST(directories_are_known_below_which_something_is_warmed)
{
    cfg.on_create = g_strconcat(lower[_i].glob, "=warm", NULL);
    compile();
    ck_assert_msg(rules_warms_below(rules, lower[_i].dir) == lower[_i].below, "%s %s", lower[_i].glob, lower[_i].dir);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rules");
    TCase *tc = tcase_create("rules");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, globs_match_as_described, 0, (int)G_N_ELEMENTS(globs));
    tcase_add_loop_test(tc, directories_are_known_below_which_something_is_warmed, 0, (int)G_N_ELEMENTS(lower));
    tcase_add_loop_test(tc, bad_rules_are_refused_by_name, 0, (int)G_N_ELEMENTS(bad));
    tcase_add_test(tc, rule_says_what_it_says_and_the_options_the_rest);
    tcase_add_test(tc, most_specific_rule_applies);
    tcase_add_test(tc, rules_of_file_and_command_line_add_up);
    tcase_add_test(tc, rules_reach_another_process);
    tcase_add_loop_test(tc, rules_against_options_are_refused, 0, (int)G_N_ELEMENTS(against));
    tcase_add_test(tc, layers_replace_what_they_give);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
