/* Names: hard links, unlink, symlinks, fifos, sockets, devices. */
#include "posix.h"

#include <limits.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

CASE(link_adds_a_name)
{
    make_text("a", "x");
    OK(link("a", "b"));
    EQ(2, stat_of("a").st_nlink);
    EQ(stat_of("a").st_ino, stat_of("b").st_ino);
    int fd = (int)OK(open("b", O_WRONLY | O_APPEND));
    EQ(1, write(fd, "y", 1));
    OK(close(fd));
    TRUE(file_has("a", "xy"));
    OK(chmod("b", 0600));
    EQ(0600, stat_of("a").st_mode & 07777);
    OK(unlink("a"));
    EQ(1, stat_of("b").st_nlink);
    TRUE(file_has("b", "xy"));
}

CASE(link_changes_ctime)
{
    make_text("a", "x");
    struct stat before = stat_of("a");
    usleep(20000);
    OK(link("a", "b"));
    struct stat after = stat_of("a");
    TRUE(after.st_ctim.tv_sec != before.st_ctim.tv_sec || after.st_ctim.tv_nsec != before.st_ctim.tv_nsec);
    EQ(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    usleep(20000);
    OK(unlink("b"));
    struct stat last = stat_of("a");
    TRUE(last.st_ctim.tv_sec != after.st_ctim.tv_sec || last.st_ctim.tv_nsec != after.st_ctim.tv_nsec);
}

CASE(link_refusals)
{
    make_text("a", "x");
    make_text("b", "y");
    OK(mkdir("d", 0755));
    FAILS(EEXIST, link("a", "b"));
    FAILS(EEXIST, link("a", "d"));
    FAILS(EPERM, link("d", "e"));
    FAILS(ENOENT, link("none", "c"));
    FAILS(ENOENT, link("a", "none/c"));
    FAILS(ENOTDIR, link("a", "b/c"));
    FAILS(ENOTDIR, link("a/x", "c"));
    EQ(1, stat_of("a").st_nlink);
}

CASE(link_to_a_symlink_itself)
{
    make_text("f", "x");
    OK(symlink("f", "l"));
    OK(link("l", "m"));
    TRUE(S_ISLNK(stat_of("m").st_mode));
    OK(linkat(AT_FDCWD, "l", AT_FDCWD, "n", AT_SYMLINK_FOLLOW));
    TRUE(S_ISREG(stat_of("n").st_mode));
    EQ(2, stat_of("f").st_nlink);
}

CASE(twenty_links_of_one_file)
{
    char name[16];
    make_text("f", "x");
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "l%d", i);
        OK(link("f", name));
    }
    EQ(21, stat_of("f").st_nlink);
    OK(unlink("f"));
    EQ(20, stat_of("l7").st_nlink);
    TRUE(file_has("l19", "x"));
}

CASE(unlink_removes)
{
    make_text("f", "x");
    OK(unlink("f"));
    TRUE(!exists("f"));
    FAILS(ENOENT, unlink("f"));
    OK(mkdir("d", 0755));
    FAILS(EISDIR, unlink("d"));
    make_text("g", "x");
    FAILS(ENOTDIR, unlink("g/x"));
    FAILS(ENOTDIR, unlink("g/"));
    FAILS(ENOTDIR, rmdir("g"));
}

CASE(unlinked_file_works_while_open)
{
    char buf[16];
    make_text("f", "0123");
    int fd = (int)OK(open("f", O_RDWR));
    OK(unlink("f"));
    TRUE(!exists("f"));
    EQ(0, stat_fd(fd).st_nlink);
    EQ(4, pread(fd, buf, sizeof(buf), 0));
    SAME("0123", buf, 4);
    EQ(4, pwrite(fd, "more", 4, 4));
    EQ(8, stat_fd(fd).st_size);
    OK(ftruncate(fd, 6));
    EQ(6, pread(fd, buf, sizeof(buf), 0));
    SAME("0123mo", buf, 6);
    OK(fchmod(fd, 0600));
    EQ(0600, stat_fd(fd).st_mode & 07777);
    OK(fsync(fd));
    OK(close(fd));
}

CASE(new_file_under_an_unlinked_name_is_another)
{
    char buf[8];
    make_text("f", "old");
    int fd = (int)OK(open("f", O_RDONLY));
    ino_t ino = stat_fd(fd).st_ino;
    OK(unlink("f"));
    make_text("f", "new");
    TRUE(stat_of("f").st_ino != ino);
    EQ(3, pread(fd, buf, sizeof(buf), 0));
    SAME("old", buf, 3);
    TRUE(file_has("f", "new"));
    OK(close(fd));
}

CASE(unlinked_file_in_a_removed_directory)
{
    char buf[8];
    OK(mkdir("d", 0755));
    make_text("d/f", "still");
    int fd = (int)OK(open("d/f", O_RDWR));
    OK(unlink("d/f"));
    OK(rmdir("d"));
    EQ(5, pread(fd, buf, sizeof(buf), 0));
    EQ(1, write(fd, "S", 1));
    OK(close(fd));
    TRUE(!exists("d"));
}

CASE(symlink_keeps_its_target_text)
{
    static const char *const targets[] = {"f", "/absolute/path", "../..", "none", " spaces ", "a//b/", "\xff\xfe", "ü"};
    char buf[64];
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        OK(symlink(targets[i], "l"));
        EQ(strlen(targets[i]), readlink("l", buf, sizeof(buf)));
        SAME(targets[i], buf, strlen(targets[i]));
        EQ(strlen(targets[i]), stat_of("l").st_size);
        TRUE(S_ISLNK(stat_of("l").st_mode));
        OK(unlink("l"));
    }
}

CASE(long_symlink_targets)
{
    static char target[4096], buf[4096];
    static const size_t lengths[] = {59, 60, 61, 255, 256, 1000, 1814, 1815, 4095};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        memset(target, 'a', lengths[i]);
        target[lengths[i]] = 0;
        if (symlink(target, "l") && errno == ENAMETOOLONG && lengths[i] > 1814) {
            TRUE(!exists("l"));
            continue;
        }
        EQ(lengths[i], readlink("l", buf, sizeof(buf)));
        SAME(target, buf, lengths[i]);
        OK(unlink("l"));
    }
}

CASE(symlink_refusals)
{
    char buf[8];
    make_text("f", "x");
    FAILS(EEXIST, symlink("a", "f"));
    FAILS(ENOENT, symlink("a", "none/l"));
    FAILS(ENOTDIR, symlink("a", "f/l"));
    FAILS(ENOENT, symlink("", "l"));
    FAILS(EINVAL, readlink("f", buf, sizeof(buf)));
    FAILS(EINVAL, readlink(".", buf, sizeof(buf)));
    FAILS(ENOENT, readlink("none", buf, sizeof(buf)));
    OK(symlink("0123456789", "l"));
    EQ(4, readlink("l", buf, 4));
    FAILS(EINVAL, readlink("l", buf, 0));
}

CASE(symlinks_are_followed)
{
    struct stat st;
    OK(mkdir("d", 0755));
    make_text("d/f", "x");
    OK(symlink("d", "dl"));
    OK(symlink("d/f", "fl"));
    OK(symlink("fl", "fll"));
    TRUE(file_has("dl/f", "x"));
    TRUE(file_has("fll", "x"));
    OK(stat("dl", &st));
    TRUE(S_ISDIR(st.st_mode));
    OK(stat("fll", &st));
    EQ(1, st.st_size);
    OK(symlink("none", "dangling"));
    FAILS(ENOENT, stat("dangling", &st));
    FAILS(ENOENT, open("dangling", O_RDONLY));
    OK(lstat("dangling", &st));
    OK(unlink("dangling"));
    FAILS(ENOTDIR, rmdir("dl"));
    OK(unlink("dl"));
    TRUE(exists("d/f"));
}

CASE(symlink_loops_are_eloop)
{
    struct stat st;
    OK(symlink("b", "a"));
    OK(symlink("a", "b"));
    OK(symlink("self", "self"));
    FAILS(ELOOP, stat("a", &st));
    FAILS(ELOOP, open("self", O_RDONLY));
    FAILS(ELOOP, open("self", O_CREAT | O_WRONLY, 0644));
    FAILS(ELOOP, truncate("a", 0));
    FAILS(ELOOP, stat("self/x", &st));
    OK(lstat("self", &st));
}

CASE(chain_of_forty_symlinks_works_and_fortyone_does_not)
{
    char from[16], to[16] = "f";
    struct stat st;
    make_text("f", "x");
    for (int i = 0; i < 41; i++) {
        snprintf(from, sizeof(from), "l%d", i);
        OK(symlink(to, from));
        snprintf(to, sizeof(to), "l%d", i);
    }
    OK(stat("l39", &st));
    FAILS(ELOOP, stat("l40", &st));
}

CASE(chmod_through_a_symlink_reaches_the_target)
{
    make_text("f", "x");
    OK(symlink("f", "l"));
    OK(chmod("l", 0600));
    EQ(0600, stat_of("f").st_mode & 07777);
    OK(lchown("l", 7, 8));
    EQ(7, stat_of("l").st_uid);
    EQ(0, stat_of("f").st_uid);
    OK(chown("l", 9, 10));
    EQ(9, stat_of("f").st_uid);
    EQ(10, stat_of("f").st_gid);
}

CASE(fifo_passes_data)
{
    char buf[8];
    OK(mkfifo("p", 0640));
    struct stat st = stat_of("p");
    TRUE(S_ISFIFO(st.st_mode));
    EQ(0640, st.st_mode & 07777);
    FAILS(EEXIST, mkfifo("p", 0640));
    FAILS(ENXIO, open("p", O_WRONLY | O_NONBLOCK));
    int rd = (int)OK(open("p", O_RDONLY | O_NONBLOCK)), wr = (int)OK(open("p", O_WRONLY));
    EQ(3, write(wr, "abc", 3));
    EQ(3, read(rd, buf, sizeof(buf)));
    SAME("abc", buf, 3);
    FAILS(ESPIPE, lseek(rd, 0, SEEK_SET));
    OK(close(rd));
    OK(close(wr));
    OK(rename("p", "q"));
    OK(unlink("q"));
}

CASE(socket_accepts_a_connection)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX, .sun_path = "s"};
    int listener = (int)OK(socket(AF_UNIX, SOCK_STREAM, 0)), client = (int)OK(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(bind(listener, (struct sockaddr *)&addr, sizeof(addr)));
    TRUE(S_ISSOCK(stat_of("s").st_mode));
    OK(listen(listener, 1));
    OK(connect(client, (struct sockaddr *)&addr, sizeof(addr)));
    FAILS(ENXIO, open("s", O_RDONLY));
    OK(close(client));
    OK(close(listener));
    client = (int)OK(socket(AF_UNIX, SOCK_STREAM, 0));
    FAILS(ECONNREFUSED, connect(client, (struct sockaddr *)&addr, sizeof(addr)));
    FAILS(EADDRINUSE, bind(client, (struct sockaddr *)&addr, sizeof(addr)));
    OK(unlink("s"));
}

CASE(mknod_makes_files_and_fifos)
{
    OK(mknod("f", S_IFREG | 0640, 0));
    TRUE(S_ISREG(stat_of("f").st_mode));
    EQ(0640, stat_of("f").st_mode & 07777);
    OK(mknod("p", S_IFIFO | 0600, 0));
    TRUE(S_ISFIFO(stat_of("p").st_mode));
    OK(mknod("s", S_IFSOCK | 0600, 0));
    TRUE(S_ISSOCK(stat_of("s").st_mode));
    FAILS(EEXIST, mknod("f", S_IFREG | 0600, 0));
    FAILS(ENOENT, mknod("none/f", S_IFREG | 0600, 0));
}

const struct posix_case cases_link[] = {
    ROW(link_adds_a_name),
    ROW(link_changes_ctime),
    ROW(link_refusals),
    ROW(link_to_a_symlink_itself),
    ROW(twenty_links_of_one_file),
    ROW(unlink_removes),
    ROW(unlinked_file_works_while_open),
    ROW(new_file_under_an_unlinked_name_is_another),
    ROW(unlinked_file_in_a_removed_directory),
    ROW(symlink_keeps_its_target_text),
    ROW(long_symlink_targets),
    ROW(symlink_refusals),
    ROW(symlinks_are_followed),
    ROW(symlink_loops_are_eloop),
    ROW(chain_of_forty_symlinks_works_and_fortyone_does_not),
    ROW(chmod_through_a_symlink_reaches_the_target),
    ROW(fifo_passes_data),
    ROW(socket_accepts_a_connection),
    ROW(mknod_makes_files_and_fifos),
    CASES_END,
};
