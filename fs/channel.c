/* See channel.h. One packet: a byte for the kind, then the text without its end. */
#include "channel.h"

#include "base/cleanup.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

union ancillary {
    char bytes[CMSG_SPACE(CHANNEL_FDS * sizeof(int))];
    struct cmsghdr align;
};

int channel_pair(int ret_ends[2])
{
    return RET_ERRNO(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret_ends));
}

static int send_message(int end, enum channel_kind kind, const char *text, const int *fds, unsigned n_fds)
{
    char byte = (char)kind;
    struct iovec iov[2] = {{&byte, 1}, {(char *)(uintptr_t)text, MIN(strlen(text), CHANNEL_TEXT - 1)}};
    union ancillary extra = {0};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    if (n_fds > 0) {
        msg.msg_control = extra.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    ssize_t n;
    do
        n = RET_ERRNO(sendmsg(end, &msg, MSG_NOSIGNAL));
    while (n == -EINTR);
    return n < 0 ? (int)n : 0;
}

int channel_send_fds(int end, enum channel_kind kind, const int *fds, unsigned n_fds)
{
    assert(n_fds <= CHANNEL_FDS);
    return send_message(end, kind, "", fds, n_fds);
}

int channel_send(int end, enum channel_kind kind, const char *text)
{
    return send_message(end, kind, text, NULL, 0);
}

static void take_fds(struct msghdr *msg, struct channel_message *ret)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(ret->fds, CMSG_DATA(c), MIN(c->cmsg_len - CMSG_LEN(0), sizeof(ret->fds)));
}

int channel_receive(int end, bool wait, struct channel_message *ret)
{
    char byte = 0;
    struct iovec iov[2] = {{&byte, 1}, {ret->text, CHANNEL_TEXT - 1}};
    union ancillary extra;
    struct msghdr msg = {
        .msg_iov = iov, .msg_iovlen = 2, .msg_control = extra.bytes, .msg_controllen = sizeof(extra.bytes)};
    ssize_t n;
    do
        n = RET_ERRNO(recvmsg(end, &msg, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT)));
    while (n == -EINTR);
    if (n <= 0)
        return n == 0 || n == -ECONNRESET ? -EPIPE : (int)n;
    for (unsigned i = 0; i < CHANNEL_FDS; i++)
        ret->fds[i] = -1;
    take_fds(&msg, ret);
    ret->kind = (enum channel_kind)byte;
    ret->text[n - 1] = '\0';
    return 0;
}

void channel_message_close(struct channel_message *m)
{
    for (unsigned i = 0; i < CHANNEL_FDS; i++)
        if (m->fds[i] >= 0)
            (void)close(m->fds[i]); /* nobody wanted it */
}
