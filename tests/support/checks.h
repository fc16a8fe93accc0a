/* What Check lacks. */
#pragma once
#include <check.h>
#include <glib.h>
#include <stdlib.h>

/* Waits, 20 s at most, for what goes on behind. */
#define EVENTUALLY(cond)                                                                                               \
    do {                                                                                                               \
        for (unsigned tries_ = 0; !(cond) && tries_ < 2000; tries_++)                                                  \
            g_usleep(10000);                                                                                           \
        ck_assert_msg(cond, "never came true: " #cond);                                                                \
    } while (0)

/* Runs all of it, as CK_RUN_CASE, CK_FORK and so on say. Owns s. The exit status of the program. */
static inline int run_suite(Suite *s)
{
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
