/* Between processes: duplicated and inherited descriptors, flock, fcntl locks, open file description locks. */
#include "posix.h"

#include <sys/file.h>
#include <sys/socket.h>
#include <sys/uio.h>

CASE(dup_shares_the_offset)
{
    int a = (int)OK(open("f", O_CREAT | O_RDWR, 0644)), b = (int)OK(dup(a));
    EQ(3, write(a, "abc", 3));
    EQ(3, write(b, "def", 3));
    EQ(6, lseek(a, 0, SEEK_CUR));
    OK(close(a));
    EQ(1, write(b, "g", 1));
    OK(close(b));
    TRUE(file_has("f", "abcdefg"));
}

CASE(dup2_onto_an_open_descriptor)
{
    int a = (int)OK(open("a", O_CREAT | O_RDWR, 0644)), b = (int)OK(open("b", O_CREAT | O_RDWR, 0644));
    EQ(b, dup2(a, b));
    EQ(1, write(b, "x", 1));
    TRUE(file_has("a", "x"));
    TRUE(file_has("b", ""));
    OK(close(a));
    OK(close(b));
}

CASE(inherited_descriptor_shares_the_offset)
{
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    EQ(7, write(fd, "parent ", 7));
    IN_CHILD
    EQ(6, write(fd, "child ", 6));
    EQ(5, write(fd, "again", 5));
    OK(close(fd));
    TRUE(file_has("f", "parent child again"));
}

CASE(child_writes_after_the_parent_closed)
{
    int go[2];
    char c;
    OK(pipe(go));
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    BESIDE
    {
        if (read(go[0], &c, 1) != 1 || write(fd, "late", 4) != 4 || close(fd))
            _exit(1);
    }
    OK(close(fd));
    EQ(1, write(go[1], "g", 1));
    wait_children();
    TRUE(file_has("f", "late"));
}

CASE(shell_redirection_and_append)
{
    EQ(0, system("echo one > f && echo two >> f && (echo three; echo four) >> f && cat f f > g"));
    TRUE(file_has("f", "one\ntwo\nthree\nfour\n"));
    EQ(38, stat_of("g").st_size);
}

CASE(close_on_exec_is_honoured)
{
    int keep = (int)OK(open("f", O_CREAT | O_WRONLY, 0644)),
        drop = (int)OK(open("g", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    char cmd[128];
    snprintf(cmd, sizeof(cmd), "test -e /proc/self/fd/%d && test ! -e /proc/self/fd/%d", keep, drop);
    EQ(0, system(cmd));
}

CASE(descriptor_passed_over_a_socket)
{
    int pair[2];
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'b';
    struct iovec iov = {&byte, 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    BESIDE
    {
        int fd = open("f", O_CREAT | O_RDWR, 0644);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
        if (fd < 0 || sendmsg(pair[1], &msg, 0) != 1)
            _exit(1);
    }
    int fd = -1;
    EQ(1, recvmsg(pair[0], &msg, 0));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
    wait_children();
    EQ(6, write(fd, "passed", 6));
    OK(close(fd));
    TRUE(file_has("f", "passed"));
}

CASE(flock_excludes_other_processes)
{
    make_text("f", "");
    int fd = (int)OK(open("f", O_RDWR));
    OK(flock(fd, LOCK_EX));
    IN_CHILD
    {
        int mine = (int)OK(open("f", O_RDWR));
        FAILS(EWOULDBLOCK, flock(mine, LOCK_EX | LOCK_NB));
        FAILS(EWOULDBLOCK, flock(mine, LOCK_SH | LOCK_NB));
    }
    OK(flock(fd, LOCK_SH));
    IN_CHILD
    {
        int mine = (int)OK(open("f", O_RDWR));
        OK(flock(mine, LOCK_SH | LOCK_NB));
        FAILS(EWOULDBLOCK, flock(mine, LOCK_EX | LOCK_NB));
    }
    OK(flock(fd, LOCK_UN));
    IN_CHILD
    OK(flock((int)OK(open("f", O_RDWR)), LOCK_EX | LOCK_NB));
    OK(close(fd));
}

CASE(flock_belongs_to_the_open_description)
{
    make_text("f", "");
    int a = (int)OK(open("f", O_RDWR)), b = (int)OK(open("f", O_RDWR)), dup_a = (int)OK(dup(a));
    OK(flock(a, LOCK_EX));
    FAILS(EWOULDBLOCK, flock(b, LOCK_EX | LOCK_NB));
    OK(close(a));
    FAILS(EWOULDBLOCK, flock(b, LOCK_EX | LOCK_NB));
    OK(close(dup_a));
    OK(flock(b, LOCK_EX | LOCK_NB));
    OK(close(b));
}

CASE(flock_waits_until_it_is_free)
{
    int ready[2];
    char c;
    OK(pipe(ready));
    make_text("f", "");
    BESIDE
    {
        int fd = open("f", O_RDWR);
        if (flock(fd, LOCK_EX) || write(ready[1], "r", 1) != 1)
            _exit(1);
        usleep(200000);
        if (pwrite(fd, "done", 4, 0) != 4 || close(fd))
            _exit(2);
    }
    EQ(1, read(ready[0], &c, 1));
    int fd = (int)OK(open("f", O_RDWR));
    OK(flock(fd, LOCK_EX));
    TRUE(file_has("f", "done"));
    OK(close(fd));
    wait_children();
}

static struct flock lock_of(short type, off_t start, off_t len)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
}

CASE(fcntl_locks_are_by_range)
{
    make_text("f", "0123456789");
    int fd = (int)OK(open("f", O_RDWR));
    struct flock l = lock_of(F_WRLCK, 0, 5);
    OK(fcntl(fd, F_SETLK, &l));
    pid_t holder = getpid();
    IN_CHILD
    {
        int mine = (int)OK(open("f", O_RDWR));
        struct flock in = lock_of(F_WRLCK, 4, 2), beside = lock_of(F_WRLCK, 5, 5), ask = lock_of(F_RDLCK, 0, 0);
        TRUE(fcntl(mine, F_SETLK, &in) == -1 && (errno == EAGAIN || errno == EACCES));
        OK(fcntl(mine, F_SETLK, &beside));
        OK(fcntl(mine, F_GETLK, &ask));
        EQ(F_WRLCK, ask.l_type);
        EQ(holder, ask.l_pid);
        EQ(0, ask.l_start);
        EQ(5, ask.l_len);
    }
    l = lock_of(F_UNLCK, 0, 0);
    OK(fcntl(fd, F_SETLK, &l));
    IN_CHILD
    {
        struct flock all = lock_of(F_WRLCK, 0, 0);
        OK(fcntl((int)OK(open("f", O_RDWR)), F_SETLK, &all));
    }
    OK(close(fd));
}

CASE(fcntl_read_locks_are_shared)
{
    make_text("f", "x");
    int fd = (int)OK(open("f", O_RDWR));
    struct flock rd = lock_of(F_RDLCK, 0, 0);
    OK(fcntl(fd, F_SETLK, &rd));
    IN_CHILD
    {
        int mine = (int)OK(open("f", O_RDWR));
        struct flock a = lock_of(F_RDLCK, 0, 0), b = lock_of(F_WRLCK, 0, 0);
        OK(fcntl(mine, F_SETLK, &a));
        TRUE(fcntl(mine, F_SETLK, &b) == -1 && (errno == EAGAIN || errno == EACCES));
    }
    OK(close(fd));
}

CASE(fcntl_lock_needs_the_right_open_mode)
{
    make_text("f", "x");
    int rd = (int)OK(open("f", O_RDONLY)), wr = (int)OK(open("f", O_WRONLY));
    struct flock w = lock_of(F_WRLCK, 0, 0), r = lock_of(F_RDLCK, 0, 0), bad = lock_of(F_WRLCK, -5, 2);
    FAILS(EBADF, fcntl(rd, F_SETLK, &w));
    FAILS(EBADF, fcntl(wr, F_SETLK, &r));
    FAILS(EINVAL, fcntl(wr, F_SETLK, &bad));
    OK(close(rd));
    OK(close(wr));
}

CASE(fcntl_locks_go_with_the_process)
{
    make_text("f", "x");
    IN_CHILD
    {
        struct flock all = lock_of(F_WRLCK, 0, 0);
        OK(fcntl((int)OK(open("f", O_RDWR)), F_SETLK, &all));
    }
    struct flock all = lock_of(F_WRLCK, 0, 0);
    int fd = (int)OK(open("f", O_RDWR));
    OK(fcntl(fd, F_SETLK, &all));
    OK(close(fd));
}

CASE(fcntl_lock_waits_and_counts_right)
{
    enum { N = 25, WORKERS = 4 };
    char text[16] = {0};
    make_text("f", "0       ");
    for (int w = 0; w < WORKERS; w++)
        BESIDE
        {
            int fd = open("f", O_RDWR);
            for (int i = 0; i < N; i++) {
                char buf[16] = {0};
                struct flock l = lock_of(F_WRLCK, 0, 0), u = lock_of(F_UNLCK, 0, 0);
                if (fcntl(fd, F_SETLKW, &l) || pread(fd, buf, 8, 0) != 8)
                    _exit(1);
                snprintf(buf, sizeof(buf), "%-8d", atoi(buf) + 1);
                if (pwrite(fd, buf, 8, 0) != 8 || fcntl(fd, F_SETLK, &u))
                    _exit(2);
            }
        }
    wait_children();
    EQ(8, slurp("f", text, 8));
    EQ(N * WORKERS, atoi(text));
}

CASE(ofd_locks_conflict_within_one_process)
{
    make_text("f", "x");
    int a = (int)OK(open("f", O_RDWR)), b = (int)OK(open("f", O_RDWR));
    struct flock l = lock_of(F_WRLCK, 0, 0);
    OK(fcntl(a, F_OFD_SETLK, &l));
    TRUE(fcntl(b, F_OFD_SETLK, &l) == -1 && (errno == EAGAIN || errno == EACCES));
    OK(close(a));
    OK(fcntl(b, F_OFD_SETLK, &l));
    OK(close(b));
}

const struct posix_case cases_process[] = {
    ROW(dup_shares_the_offset),
    ROW(dup2_onto_an_open_descriptor),
    ROW(inherited_descriptor_shares_the_offset),
    ROW(child_writes_after_the_parent_closed),
    ROW(shell_redirection_and_append),
    ROW(close_on_exec_is_honoured),
    ROW(descriptor_passed_over_a_socket),
    ROW(flock_excludes_other_processes),
    ROW(flock_belongs_to_the_open_description),
    ROW(flock_waits_until_it_is_free),
    ROW(fcntl_locks_are_by_range),
    ROW(fcntl_read_locks_are_shared),
    ROW(fcntl_lock_needs_the_right_open_mode),
    ROW(fcntl_locks_go_with_the_process),
    ROW(fcntl_lock_waits_and_counts_right),
    ROW(ofd_locks_conflict_within_one_process),
    CASES_END,
};
