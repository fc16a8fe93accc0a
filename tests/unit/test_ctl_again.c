/* What may be asked of the next worker, and which lines of its answer are new. */
#include "tests/support/checks.h"
#include "tools/ctl_again.h"

static struct again a;
static json_t *req;

static void ask(const char *verb, const char *action)
{
    req = json_pack("{s:s, s:s}", "verb", verb, "action", action);
    again_init(&a, req);
}

static void end(void)
{
    again_clear(&a);
    json_decref(req);
}

static bool is_new(const char *event, int id)
{
    json_t *line = json_pack("{s:s, s:i, s:s}", "event", event, "id", id, "path", "d");
    bool r = again_is_new(&a, line);
    json_decref(line);
    return r;
}

START_TEST(links_are_looked_at_again_and_not_changed_again)
{
    static const struct {
        const char *verb, *action;
        bool again;
    } rows[] = {
        {"link", "list", true}, {"link", "show", true}, {"link", "sync", true}, {"link", "add", false},
        {"link", "rm", false},  {"link", "set", false}, {"sync", "", true},     {"conflicts", "keep-mine", false}};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        ask(rows[i].verb, rows[i].action);
        ck_assert_msg((again_next(&a, req) == AGAIN_ASK) == rows[i].again, "%s %s", rows[i].verb, rows[i].action);
        ck_assert_msg((*again_hint(&a) == '\0') == rows[i].again, "%s %s", rows[i].verb, rows[i].action);
        end();
    }
}
END_TEST

/* Each worker counts its syncs from 1, and tells of all that was evicted. */
START_TEST(lines_about_the_work_itself_are_always_new)
{
    static const char *const always[] = {"progress", "error", "sync", "evicted"};
    ask("sync", "");
    for (unsigned worker = 0; worker < 2; worker++) {
        for (size_t i = 0; i < G_N_ELEMENTS(always); i++)
            ck_assert_msg(is_new(always[i], 1), "%s", always[i]);
        ck_assert(is_new("pinned", 1) == (worker == 0));
        ck_assert_int_eq(again_next(&a, req), AGAIN_ASK);
    }
    end();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ctl_again");
    TCase *tc = tcase_create("ctl_again");
    tcase_add_test(tc, links_are_looked_at_again_and_not_changed_again);
    tcase_add_test(tc, lines_about_the_work_itself_are_always_new);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
