/* What worker and supervisor say to each other: texts, descriptors, and the end of either. */
#include "fs/channel.h"
#include "tests/support/checks.h"

#include <check.h>
#include <fcntl.h>
#include <glib.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int ends[2];
static struct channel_message m;

static void setup(void)
{
    ck_assert_int_eq(channel_pair(ends), 0);
}

static void teardown(void)
{
    for (unsigned i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
}

START_TEST(messages_stay_apart)
{
    ck_assert_int_eq(channel_receive(ends[1], false, &m), -EAGAIN);
    ck_assert_int_eq(channel_send(ends[0], CHANNEL_PROGRESS, "asking the store"), 0);
    ck_assert_int_eq(channel_send(ends[0], CHANNEL_READY, ""), 0);
    ck_assert_int_eq(channel_receive(ends[1], true, &m), 0);
    ck_assert_int_eq(m.kind, CHANNEL_PROGRESS);
    ck_assert_str_eq(m.text, "asking the store");
    ck_assert_int_eq(m.fds[0], -1);
    ck_assert_int_eq(channel_receive(ends[1], false, &m), 0);
    ck_assert_int_eq(m.kind, CHANNEL_READY);
    ck_assert_str_eq(m.text, "");
    ck_assert_int_eq(channel_receive(ends[1], false, &m), -EAGAIN);
}
END_TEST

START_TEST(descriptors_become_the_receivers_own)
{
    int pipe_ends[2];
    char byte = 0;
    ck_assert_int_eq(pipe(pipe_ends), 0);
    ck_assert_int_eq(channel_send_fds(ends[0], CHANNEL_CONNECTION, (const int[]){pipe_ends[1], pipe_ends[0]}, 2), 0);
    close(pipe_ends[1]);
    ck_assert_int_eq(channel_receive(ends[1], true, &m), 0);
    ck_assert_int_ge(m.fds[1], 0);
    ck_assert_int_eq(fcntl(m.fds[0], F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(write(m.fds[0], "x", 1), 1);
    ck_assert_int_eq(read(pipe_ends[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'x');
    channel_message_close(&m);
    ck_assert_int_eq(read(pipe_ends[0], &byte, 1), 0);
    close(pipe_ends[0]);
}
END_TEST

START_TEST(long_text_is_cut)
{
    g_autofree char *text = g_strnfill(3 * CHANNEL_TEXT, 'a');
    ck_assert_int_eq(channel_send(ends[0], CHANNEL_FAILED, text), 0);
    ck_assert_int_eq(channel_receive(ends[1], true, &m), 0);
    ck_assert_uint_eq(strlen(m.text), CHANNEL_TEXT - 1);
}
END_TEST

/* What it said before is still heard. */
START_TEST(end_of_the_other_side_is_told)
{
    ck_assert_int_eq(channel_send(ends[0], CHANNEL_FAILED, "why"), 0);
    close(ends[0]);
    ends[0] = -1;
    ck_assert_int_eq(channel_receive(ends[1], true, &m), 0);
    ck_assert_str_eq(m.text, "why");
    ck_assert_int_eq(channel_receive(ends[1], true, &m), -EPIPE);
    ck_assert_int_eq(channel_send(ends[1], CHANNEL_READY, ""), -EPIPE);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("channel");
    TCase *tc = tcase_create("channel");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, messages_stay_apart);
    tcase_add_test(tc, descriptors_become_the_receivers_own);
    tcase_add_test(tc, long_text_is_cut);
    tcase_add_test(tc, end_of_the_other_side_is_told);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
