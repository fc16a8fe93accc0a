/* Opening and creating: flags, access modes, error codes. */
#include "posix.h"

CASE(create_makes_an_empty_file)
{
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0640));
    struct stat st = stat_fd(fd);
    TRUE(S_ISREG(st.st_mode));
    EQ(0640, st.st_mode & 07777);
    EQ(0, st.st_size);
    EQ(1, st.st_nlink);
    EQ(0, st.st_uid);
    EQ(st.st_ino, stat_of("f").st_ino);
    OK(close(fd));
}

CASE(create_excl_refuses_whatever_is_there)
{
    make_text("f", "x");
    OK(mkdir("d", 0755));
    OK(symlink("nowhere", "dangling"));
    OK(symlink("f", "link"));
    static const char *const names[] = {"f", "d", "dangling", "link"};
    for (size_t i = 0; i < 4; i++) {
        FAILS(EEXIST, open(names[i], O_CREAT | O_EXCL | O_WRONLY, 0644));
        FAILS(EEXIST, open(names[i], O_CREAT | O_EXCL | O_RDONLY, 0644));
    }
    TRUE(file_has("f", "x"));
    TRUE(!exists("nowhere"));
}

CASE(create_excl_has_one_winner)
{
    int results[2], wins = 0;
    char byte;
    OK(pipe(results));
    for (int i = 0; i < 8; i++)
        BESIDE
        {
            for (int k = 0; k < 50; k++) {
                char name[32];
                snprintf(name, sizeof(name), "lock%d", k);
                int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0600);
                if (fd >= 0 && write(results[1], "w", 1) != 1)
                    _exit(1);
            }
        }
    wait_children();
    OK(close(results[1]));
    while (read(results[0], &byte, 1) == 1)
        wins++;
    EQ(50, wins);
}

CASE(create_through_a_dangling_link_makes_the_target)
{
    OK(symlink("target", "link"));
    int fd = (int)OK(open("link", O_CREAT | O_WRONLY, 0600));
    OK(close(fd));
    TRUE(S_ISREG(stat_of("target").st_mode));
    TRUE(S_ISLNK(stat_of("link").st_mode));
}

CASE(open_errors_are_the_right_ones)
{
    make_text("f", "x");
    OK(mkdir("d", 0755));
    FAILS(ENOENT, open("none", O_RDONLY));
    FAILS(ENOENT, open("none", O_WRONLY));
    FAILS(ENOENT, open("none/f", O_CREAT | O_WRONLY, 0644));
    FAILS(ENOENT, open("", O_RDONLY));
    FAILS(ENOTDIR, open("f/x", O_RDONLY));
    FAILS(ENOTDIR, open("f/x", O_CREAT | O_WRONLY, 0644));
    FAILS(ENOTDIR, open("f/", O_RDONLY));
    FAILS(EISDIR, open("d", O_WRONLY));
    FAILS(EISDIR, open("d", O_RDWR));
    FAILS(EISDIR, open("d", O_WRONLY | O_TRUNC));
    FAILS(EISDIR, open("d", O_CREAT | O_WRONLY, 0644));
    FAILS(EISDIR, open("new/", O_CREAT | O_WRONLY, 0644));
    FAILS(ENOTDIR, open("f", O_DIRECTORY | O_RDONLY));
    FAILS(ENOENT, open("none", O_DIRECTORY | O_RDONLY));
    FAILS(EFAULT, open((const char *)1, O_RDONLY));
}

CASE(open_of_a_directory_reads_nothing)
{
    char buf[16];
    OK(mkdir("d", 0755));
    int fd = (int)OK(open("d", O_RDONLY | O_DIRECTORY));
    FAILS(EISDIR, read(fd, buf, sizeof(buf)));
    FAILS(EBADF, write(fd, buf, sizeof(buf)));
    FAILS(EINVAL, ftruncate(fd, 0));
    OK(fsync(fd));
    OK(close(fd));
}

CASE(access_mode_is_enforced)
{
    char buf[4] = "abc";
    make_text("f", "123");
    int rd = (int)OK(open("f", O_RDONLY)), wr = (int)OK(open("f", O_WRONLY)), rw = (int)OK(open("f", O_RDWR));
    FAILS(EBADF, write(rd, buf, 1));
    FAILS(EBADF, pwrite(rd, buf, 1, 0));
    FAILS(EBADF, read(wr, buf, 1));
    FAILS(EBADF, pread(wr, buf, 1, 0));
    TRUE(ftruncate(rd, 0) == -1 && (errno == EINVAL || errno == EBADF));
    EQ(3, stat_of("f").st_size);
    EQ(1, read(rw, buf, 1));
    EQ('1', buf[0]);
    EQ(1, write(rw, "x", 1));
    TRUE(file_has("f", "1x3"));
    OK(close(rd));
    OK(close(wr));
    OK(close(rw));
}

CASE(o_trunc_empties_and_keeps_inode_and_mode)
{
    make_file("f", "hello", 5, 0604);
    struct stat before = stat_of("f");
    int fd = (int)OK(open("f", O_WRONLY | O_TRUNC));
    struct stat st = stat_fd(fd);
    EQ(0, st.st_size);
    EQ(before.st_ino, st.st_ino);
    EQ(0604, st.st_mode & 07777);
    OK(close(fd));
    EQ(0, stat_of("f").st_size);
}

CASE(o_trunc_of_a_file_another_has_open)
{
    char buf[8];
    make_text("f", "hello");
    int rd = (int)OK(open("f", O_RDONLY));
    int wr = (int)OK(open("f", O_WRONLY | O_TRUNC));
    EQ(0, read(rd, buf, sizeof(buf)));
    EQ(0, stat_fd(rd).st_size);
    EQ(3, write(wr, "new", 3));
    EQ(3, pread(rd, buf, sizeof(buf), 0));
    SAME("new", buf, 3);
    OK(close(rd));
    OK(close(wr));
}

CASE(o_trunc_with_create_keeps_what_exists)
{
    make_file("f", "hello", 5, 0600);
    int fd = (int)OK(open("f", O_CREAT | O_TRUNC | O_WRONLY, 0777));
    EQ(0600, stat_fd(fd).st_mode & 07777);
    OK(close(fd));
}

CASE(o_append_writes_at_the_end_always)
{
    char buf[16];
    make_text("f", "123");
    int fd = (int)OK(open("f", O_RDWR | O_APPEND));
    EQ(0, OK(lseek(fd, 0, SEEK_SET)));
    EQ(2, write(fd, "ab", 2));
    EQ(5, OK(lseek(fd, 0, SEEK_CUR)));
    EQ(0, OK(lseek(fd, 0, SEEK_SET)));
    EQ(1, read(fd, buf, 1));
    EQ('1', buf[0]);
    int other = (int)OK(open("f", O_WRONLY | O_APPEND));
    EQ(2, write(other, "cd", 2));
    EQ(1, write(fd, "e", 1));
    TRUE(file_has("f", "123abcde"));
    OK(close(fd));
    OK(close(other));
}

CASE(o_append_set_later_by_fcntl)
{
    make_text("f", "123");
    int fd = (int)OK(open("f", O_RDWR));
    OK(fcntl(fd, F_SETFL, O_APPEND));
    TRUE(OK(fcntl(fd, F_GETFL)) & O_APPEND);
    EQ(1, write(fd, "4", 1));
    TRUE(file_has("f", "1234"));
    OK(fcntl(fd, F_SETFL, 0));
    EQ(0, OK(lseek(fd, 0, SEEK_SET)));
    EQ(1, write(fd, "0", 1));
    TRUE(file_has("f", "0234"));
    OK(close(fd));
}

CASE(o_append_after_truncation)
{
    make_text("f", "0123456789");
    int fd = (int)OK(open("f", O_WRONLY | O_APPEND));
    OK(truncate("f", 4));
    EQ(1, write(fd, "x", 1));
    TRUE(file_has("f", "0123x"));
    OK(close(fd));
}

CASE(o_nofollow_refuses_a_link)
{
    make_text("f", "x");
    OK(symlink("f", "link"));
    FAILS(ELOOP, open("link", O_RDONLY | O_NOFOLLOW));
    FAILS(ELOOP, open("link", O_WRONLY | O_NOFOLLOW));
    OK(close((int)OK(open("f", O_RDONLY | O_NOFOLLOW))));
    OK(mkdir("d", 0755));
    OK(symlink("d", "dlink"));
    FAILS(ENOTDIR, open("dlink", O_RDONLY | O_NOFOLLOW | O_DIRECTORY));
}

CASE(o_path_gives_no_data)
{
    char buf[4];
    struct stat st;
    make_text("f", "x");
    OK(symlink("f", "link"));
    int fd = (int)OK(open("f", O_PATH));
    FAILS(EBADF, read(fd, buf, 1));
    FAILS(EBADF, write(fd, buf, 1));
    FAILS(EBADF, fchmod(fd, 0600));
    OK(fstat(fd, &st));
    EQ(1, st.st_size);
    OK(close(fd));
    fd = (int)OK(open("link", O_PATH | O_NOFOLLOW));
    TRUE(S_ISLNK(stat_fd(fd).st_mode));
    EQ(1, readlinkat(fd, "", buf, sizeof(buf)));
    OK(close(fd));
}

CASE(o_path_directory_serves_openat)
{
    OK(mkdir("d", 0755));
    make_text("d/f", "in");
    int dir = (int)OK(open("d", O_PATH | O_DIRECTORY));
    int fd = (int)OK(openat(dir, "f", O_RDONLY));
    EQ(2, stat_fd(fd).st_size);
    OK(close(fd));
    OK(mkdirat(dir, "sub", 0700));
    TRUE(exists("d/sub"));
    OK(unlinkat(dir, "sub", AT_REMOVEDIR));
    OK(unlinkat(dir, "f", 0));
    FAILS(ENOENT, openat(dir, "f", O_RDONLY));
    OK(close(dir));
}

CASE(openat_follows_a_renamed_directory)
{
    OK(mkdir("d", 0755));
    int dir = (int)OK(open("d", O_RDONLY | O_DIRECTORY));
    OK(rename("d", "e"));
    int fd = (int)OK(openat(dir, "f", O_CREAT | O_WRONLY, 0644));
    OK(close(fd));
    TRUE(exists("e/f"));
    OK(close(dir));
}

CASE(closed_descriptor_is_ebadf)
{
    char buf[4] = {0};
    struct stat st;
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    OK(close(fd));
    FAILS(EBADF, close(fd));
    FAILS(EBADF, read(fd, buf, 1));
    FAILS(EBADF, write(fd, buf, 1));
    FAILS(EBADF, lseek(fd, 0, SEEK_SET));
    FAILS(EBADF, fstat(fd, &st));
    FAILS(EBADF, fsync(fd));
    FAILS(EBADF, fdatasync(fd));
    FAILS(EBADF, ftruncate(fd, 0));
    FAILS(EBADF, fchmod(fd, 0600));
}

CASE(many_descriptors_of_one_file)
{
    int fds[200];
    char c;
    make_text("f", "q");
    for (int i = 0; i < 200; i++)
        fds[i] = open("f", i % 2 ? O_RDONLY : O_RDWR);
    for (int i = 0; i < 200; i += 20) {
        EQ(1, pread(fds[i], &c, 1, 0));
        EQ('q', c);
    }
    for (int i = 0; i < 200; i++)
        if (close(fds[i]))
            TRUE(!"close");
}

CASE(read_only_file_stays_writable_through_its_creator)
{
    int fd = (int)OK(open("f", O_CREAT | O_WRONLY | O_EXCL, 0444));
    EQ(4, write(fd, "data", 4));
    OK(close(fd));
    TRUE(file_has("f", "data"));
    AS_USER(USER)
    {
        FAILS(EACCES, open("f", O_WRONLY));
        int mine = (int)OK(open("mine", O_CREAT | O_WRONLY | O_EXCL, 0400));
        EQ(4, write(mine, "data", 4));
        OK(close(mine));
        FAILS(EACCES, open("mine", O_WRONLY));
    }
}

const struct posix_case cases_open[] = {
    ROW(create_makes_an_empty_file),
    ROW(create_excl_refuses_whatever_is_there),
    ROW(create_excl_has_one_winner),
    ROW(create_through_a_dangling_link_makes_the_target),
    ROW(open_errors_are_the_right_ones),
    ROW(open_of_a_directory_reads_nothing),
    ROW(access_mode_is_enforced),
    ROW(o_trunc_empties_and_keeps_inode_and_mode),
    ROW(o_trunc_of_a_file_another_has_open),
    ROW(o_trunc_with_create_keeps_what_exists),
    ROW(o_append_writes_at_the_end_always),
    ROW(o_append_set_later_by_fcntl),
    ROW(o_append_after_truncation),
    ROW(o_nofollow_refuses_a_link),
    ROW(o_path_gives_no_data),
    ROW(o_path_directory_serves_openat),
    ROW(openat_follows_a_renamed_directory),
    ROW(closed_descriptor_is_ebadf),
    ROW(many_descriptors_of_one_file),
    ROW(read_only_file_stays_writable_through_its_creator),
    CASES_END,
};
