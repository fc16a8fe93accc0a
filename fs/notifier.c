/* See notifier.h. */
#include "notifier.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "channel.h"
#include "objstore.h"

#include <glib.h>
#include <limits.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE_MAX 4096u
#define END_WAIT_MS 1000
#define LOOK_MS     100 /* between two looks whether to stop */

/* A question is a notification with a number where the kernel wants 0. */
struct question {
    struct fuse_out_header head;
    struct fuse_notify_inval_inode_out inode;
};

/* Often the kernel knows nothing of it: that matters to who asked only. */
static void hand_on(int fuse_fd, int from, char *bytes, size_t len)
{
    struct question q = {0};
    memcpy(&q, bytes, MIN(len, sizeof(q)));
    struct notifier_answer a = {.number = q.head.unique, .ino = q.inode.ino};
    q.head.unique = 0;
    memcpy(bytes, &q, MIN(len, sizeof(q.head)));
    ssize_t n = RET_ERRNO(write(fuse_fd, bytes, len));
    a.r = n < 0 ? (int32_t)n : 0;
    if (a.number)
        (void)!send(from, &a, sizeof(a), MSG_DONTWAIT | MSG_NOSIGNAL); /* a worker that is no more does not read it */
}

/* The child: never returns. It keeps nothing but what it needs, or what the supervisor closes would stay open. */
static void become_notifier(int fuse_fd, int in)
{
    char bytes[MESSAGE_MAX];
    unsigned low = (unsigned)MIN(fuse_fd, in), high = (unsigned)MAX(fuse_fd, in);
    if (low > 3)
        (void)close_range(3, low - 1, 0);
    if (high > low + 1)
        (void)close_range(low + 1, high - 1, 0);
    (void)close_range(high + 1, UINT_MAX, 0);
    (void)prctl(PR_SET_NAME, "sluice-notify", 0, 0, 0);
    objstore_drop_env();
    for (ssize_t n; (n = recv(in, bytes, sizeof(bytes), 0)) != 0;)
        if (n > 0)
            hand_on(fuse_fd, in, bytes, (size_t)n);
    _exit(0);
}

int notifier_start(int fuse_fd, pid_t *ret_pid, int *ret_fd)
{
    int ends[2];
    int r = channel_pair(ends);
    if (r < 0)
        return r;
    pid_t pid = RET_ERRNO(fork());
    if (pid == 0)
        become_notifier(fuse_fd, ends[1]);
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        return pid;
    }
    *ret_pid = pid;
    *ret_fd = ends[0];
    return 0;
}

int notifier_end(pid_t pid)
{
    CLEANUP_FD int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    (void)kill(pid, SIGKILL);
    if (pidfd >= 0 && poll(&p, 1, END_WAIT_MS) == 0)
        return -ETIMEDOUT;
    (void)waitpid(pid, NULL, 0);
    return 0;
}

static int send_note(int fd, uint64_t ino, const char *name, bool doubt)
{
    size_t len = name ? strlen(name) + 1 : 0;
    struct fuse_notify_inval_inode_out inode = {.ino = ino, .off = doubt ? -1 : 0};
    struct fuse_notify_inval_entry_out entry = {
        .parent = ino, .namelen = (uint32_t)len - 1, .flags = doubt ? FUSE_EXPIRE_ONLY : 0};
    struct fuse_out_header head = {.error = name ? FUSE_NOTIFY_INVAL_ENTRY : FUSE_NOTIFY_INVAL_INODE};
    struct iovec iov[] = {{&head, sizeof(head)},
                          {name ? (void *)&entry : (void *)&inode, name ? sizeof(entry) : sizeof(inode)},
                          {(char *)(uintptr_t)name, len}};
    head.len = (uint32_t)(iov[0].iov_len + iov[1].iov_len + iov[2].iov_len);
    const struct msghdr msg = {.msg_iov = iov, .msg_iovlen = G_N_ELEMENTS(iov)};
    ssize_t n = RET_ERRNO(sendmsg(fd, &msg, MSG_NOSIGNAL));
    return n < 0 ? (int)n : 0;
}

int notifier_send(int fd, uint64_t ino, const char *name)
{
    return send_note(fd, ino, name, false);
}

int notifier_send_doubt(int fd, uint64_t ino, const char *name)
{
    return send_note(fd, ino, name, true);
}

/* Attributes are asked for anew, which is what this notification is made for; pages stay. */
static int send_question(int fd, uint64_t ino, uint64_t number)
{
    struct question q = {.head = {.len = sizeof(q), .error = FUSE_NOTIFY_INVAL_INODE, .unique = number},
                         .inode = {.ino = ino, .off = -1}};
    ssize_t n = RET_ERRNO(send(fd, &q, sizeof(q), MSG_NOSIGNAL));
    return n < 0 ? (int)n : 0;
}

int notifier_ask(int fd, uint64_t ino, const atomic_bool *stop)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct notifier_answer a = {0};
    uint64_t number = clock_mono_ns();
    int r = send_question(fd, ino, number);
    while (r == 0 && (a.number != number || a.ino != ino)) { /* others are to workers before */
        if (atomic_load(stop))
            return -ECANCELED;
        if (poll(&p, 1, LOOK_MS) <= 0)
            continue;
        ssize_t n = RET_ERRNO(recv(fd, &a, sizeof(a), MSG_DONTWAIT));
        r = n == 0 || n == -ECONNRESET ? -EPIPE : n < 0 && n != -EINTR && n != -EAGAIN ? (int)n : 0;
    }
    return r < 0 ? r : a.r == 0 ? 1 : a.r == -ENOENT ? 0 : a.r;
}
