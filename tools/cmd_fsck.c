/* `sluice fsck CACHE_DIR`: a cache folder that no daemon uses, against its database and its bucket. */
#include "base/clock.h"
#include "fs/fsck.h"
#include "tools/cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

struct shown {
    uint64_t start_ns, drawn_ns, every_ns;
    bool on_line;
};

/* On standard error, after the first second: a line that is drawn again on a terminal, else one every 10 s. */
static void show(void *ctx, uint64_t done, uint64_t total)
{
    struct shown *s = ctx;
    uint64_t now = clock_mono_ns();
    bool terminal = s->every_ns < NS_PER_S;
    if (now - s->start_ns < NS_PER_S || now - s->drawn_ns < s->every_ns)
        return;
    s->drawn_ns = now;
    s->on_line = terminal;
    fprintf(stderr, terminal ? "\rfsck: %" PRIu64 " records looked at\033[K" : "fsck: %" PRIu64 " records looked at\n",
            done);
}

static int summary(const struct args *a, const struct fsck_result *res, bool offline)
{
    if (args_has(a, "json"))
        printf("{\"event\":\"fsck\",\"findings\":%u,\"left\":%u,\"bucket_asked\":%s}\n", res->findings, res->left,
               res->bucket_asked ? "true" : "false");
    else if (res->left > 0)
        printf("%u findings%s\n", res->left,
               args_has(a, "repair") ? " that no repair settles; each says what to do"
                                     : "; `sluice fsck --repair` does what they say");
    else if (res->findings > 0)
        printf("%u findings, all repaired\n", res->findings);
    else
        puts(res->bucket_asked || offline ? "clean" : "clean, but the bucket was not asked, or not all of it");
    if (res->left > 0)
        return EXIT_FAILED;
    return res->bucket_asked || offline ? EXIT_DONE : EXIT_TIME;
}

int cmd_fsck(int argc, char **argv)
{
    struct args a;
    g_autofree char *msg = NULL;
    int code;
    if (!args_parse(&a, argc, argv, 1, 1, &code))
        return code;
    uint64_t now = clock_mono_ns();
    struct shown s = {now, now, isatty(STDERR_FILENO) ? NS_PER_S / 5 : 10 * NS_PER_S, false};
    struct fsck_result res;
    const struct fsck_options o = {.cache_dir = a.words->pdata[0],
                                   .repair = args_has(&a, "repair"),
                                   .offline = args_has(&a, "offline"),
                                   .json = args_has(&a, "json"),
                                   .out = stdout,
                                   .progress = show,
                                   .ctx = &s};
    int r = fs_fsck(&o, &res, &msg);
    if (s.on_line)
        fputs("\r\033[K", stderr);
    if (r < 0)
        complain("fsck: %s", msg ? msg : err_text(r));
    code = r < 0 ? EXIT_FAILED : summary(&a, &res, o.offline);
    args_clear(&a);
    return code;
}
