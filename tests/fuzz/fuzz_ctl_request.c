/* One line to the control socket: every request gets one "done" line, whatever stands in it. */
#include "../../fs/ctl.c"
#include "fuzz.h"

static int verb_echo(struct fs *fs, struct ctl_client *client, const json_t *req)
{
    const char *text = json_string_value(json_object_get(req, "text"));
    json_t *line = json_pack("{s:s}", "event", "echo");
    json_object_set(line, "all", (json_t *)(uintptr_t)req);
    if (ctl_emit(client, line) < 0)
        return 3;
    if (text)
        ctl_fail(client, "%s", text);
    return (int)json_integer_value(json_object_get(req, "code"));
}

static const struct ctl_verb verbs[] = {{"echo", verb_echo}, {NULL, NULL}};

static void check_reply(int fd)
{
    g_autoptr(GString) all = g_string_new(NULL);
    char buf[4096];
    for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0;)
        g_string_append_len(all, buf, n);
    g_string_truncate(all, all->len ? all->len - 1 : 0);
    const char *last = strrchr(all->str, '\n');
    json_t *done = json_loads(last ? last + 1 : all->str, 0, NULL);
    PROMISE(g_strcmp0(json_string_value(json_object_get(done, "event")), "done") == 0);
    PROMISE(json_integer_value(json_object_get(done, "exit")) == 0 || json_object_get(done, "message"));
    json_decref(done);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    if (size > 16384) /* what the socket holds without anybody reading */
        return 0;
    PROMISE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    struct ctl ctl = {.verbs = verbs};
    struct ctl_client client = {.ctl = &ctl, .fd = pair[0]};
    PROMISE(write(pair[1], data, size) == (ssize_t)size && shutdown(pair[1], SHUT_WR) == 0);
    serve(&client);
    (void)close(pair[0]);
    check_reply(pair[1]);
    (void)close(pair[1]);
    g_free(client.message);
    return 0;
}
