/* The rest: statfs, O_TMPFILE, statx, file handles of /proc, many small files, ioctl, poll. */
#include "posix.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

CASE(statfs_answers_plausibly)
{
    struct statfs fs;
    struct statvfs vfs;
    make_text("f", "x");
    OK(statfs(".", &fs));
    TRUE(fs.f_bsize >= 512);
    TRUE(fs.f_blocks >= fs.f_bfree);
    TRUE(fs.f_bfree >= fs.f_bavail);
    TRUE(fs.f_bavail > 0);
    TRUE(fs.f_namelen >= 255);
    OK(statvfs("f", &vfs));
    EQ(fs.f_blocks, vfs.f_blocks);
    int fd = (int)OK(open("f", O_RDONLY));
    OK(fstatfs(fd, &fs));
    OK(fstatvfs(fd, &vfs));
    TRUE(vfs.f_namemax >= 255);
    OK(close(fd));
    FAILS(ENOENT, statfs("none", &fs));
    EQ(255, pathconf(".", _PC_NAME_MAX));
}

CASE(tmpfile_has_no_name)
{
    char buf[8];
    int fd = open(".", O_TMPFILE | O_RDWR, 0640);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOSYS))
        SKIP("no O_TMPFILE");
    OK(fd);
    EQ(0, stat_fd(fd).st_nlink);
    EQ(0640, stat_fd(fd).st_mode & 07777);
    EQ(4, write(fd, "temp", 4));
    EQ(4, pread(fd, buf, sizeof(buf), 0));
    SAME("temp", buf, 4);
    OK(close(fd));
}

CASE(tmpfile_gets_a_name_by_linkat)
{
    char path[64];
    int fd = open(".", O_TMPFILE | O_RDWR, 0640);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOSYS))
        SKIP("no O_TMPFILE");
    EQ(4, write(fd, "temp", 4));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    OK(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    EQ(1, stat_fd(fd).st_nlink);
    TRUE(file_has("named", "temp"));
    OK(linkat(fd, "", AT_FDCWD, "second", AT_EMPTY_PATH));
    EQ(2, stat_of("second").st_nlink);
    EQ(4, write(fd, "more", 4));
    OK(close(fd));
    TRUE(file_has("second", "tempmore"));
}

CASE(tmpfile_excl_stays_nameless)
{
    char path[64];
    int fd = open(".", O_TMPFILE | O_RDWR | O_EXCL, 0640);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOSYS))
        SKIP("no O_TMPFILE");
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    FAILS(ENOENT, linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    FAILS(EINVAL, open(".", O_TMPFILE | O_RDONLY, 0640));
    OK(close(fd));
}

CASE(statx_agrees_with_stat)
{
    struct statx sx;
    make_text("f", "12345");
    struct stat st = stat_of("f");
    OK(statx(AT_FDCWD, "f", 0, STATX_BASIC_STATS, &sx));
    EQ(st.st_ino, sx.stx_ino);
    EQ(st.st_size, sx.stx_size);
    EQ(st.st_mode, sx.stx_mode);
    EQ(st.st_nlink, sx.stx_nlink);
    EQ(st.st_mtim.tv_nsec, sx.stx_mtime.tv_nsec);
    OK(statx(AT_FDCWD, "f", AT_STATX_FORCE_SYNC, STATX_SIZE, &sx));
    EQ(5, sx.stx_size);
    FAILS(ENOENT, statx(AT_FDCWD, "none", 0, STATX_BASIC_STATS, &sx));
}

CASE(proc_fd_reopens_the_same_file)
{
    char path[64];
    make_text("f", "x");
    int fd = (int)OK(open("f", O_RDONLY));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = (int)OK(open(path, O_RDWR));
    EQ(stat_fd(fd).st_ino, stat_fd(again).st_ino);
    EQ(1, write(again, "y", 1));
    TRUE(file_has("f", "y"));
    OK(close(again));
    OK(close(fd));
}

CASE(regular_files_are_always_ready)
{
    make_text("f", "x");
    struct pollfd p = {.fd = (int)OK(open("f", O_RDWR)), .events = POLLIN | POLLOUT};
    EQ(1, poll(&p, 1, 1000));
    EQ(POLLIN | POLLOUT, p.revents);
    OK(close(p.fd));
}

CASE(unknown_ioctl_is_enotty)
{
    char arg[64] = {0};
    make_text("f", "x");
    int fd = (int)OK(open("f", O_RDWR));
    FAILS(ENOTTY, ioctl(fd, _IOR('z', 77, int), arg));
    EQ(0, isatty(fd));
    OK(close(fd));
}

CASE(five_hundred_small_files)
{
    char name[32], text[32], got[64];
    int bad = 0;
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof(name), "f%d", i);
        snprintf(text, sizeof(text), "content %d", i);
        int fd = open(name, O_CREAT | O_WRONLY, 0644);
        bad += fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) || close(fd) != 0;
    }
    EQ(0, bad);
    for (int i = 499; i >= 0; i--) {
        snprintf(name, sizeof(name), "f%d", i);
        snprintf(text, sizeof(text), "content %d", i);
        size_t n = slurp(name, got, sizeof(got));
        bad += n != strlen(text) || memcmp(got, text, n) != 0;
    }
    EQ(0, bad);
}

CASE(inodes_are_distinct_and_stable)
{
    enum { N = 100 };
    ino_t inos[N];
    char name[32];
    int same = 0, moved = 0;
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "f%d", i);
        make_text(name, "");
        inos[i] = stat_of(name).st_ino;
    }
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "f%d", i);
        moved += stat_of(name).st_ino != inos[i];
        for (int k = 0; k < i; k++)
            same += inos[i] == inos[k];
    }
    EQ(0, same);
    EQ(0, moved);
}

CASE(all_names_share_one_device)
{
    OK(mkdir("d", 0755));
    make_text("d/f", "x");
    struct stat here = stat_of("."), d = stat_of("d"), f = stat_of("d/f");
    EQ(here.st_dev, d.st_dev);
    EQ(here.st_dev, f.st_dev);
    FAILS(EXDEV, rename("/proc/self/status", "x"));
    FAILS(EXDEV, link("/proc/self/status", "x"));
}

CASE(mixed_operations_match_a_model)
{
    static char model[300000], got[300000];
    size_t size = 0;
    unsigned x = 12345, bad = 0;
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    for (int i = 0; i < 600; i++) {
        x = x * 1103515245u + 12345u;
        size_t off = (x >> 8) % 200000, len = 1 + (x >> 4) % 60000;
        if (i % 7 == 3) {
            bad += ftruncate(fd, (off_t)off) != 0;
            memset(model + off, 0, sizeof(model) - off);
            size = off;
        } else if (i % 3) {
            fill(got, len, x);
            memcpy(model + off, got, len);
            bad += pwrite(fd, got, len, (off_t)off) != (ssize_t)len;
            size = off + len > size ? off + len : size;
        } else {
            ssize_t n = pread(fd, got, len, (off_t)off),
                    want = off >= size ? 0 : (ssize_t)(size - off < len ? size - off : len);
            bad += n != want || memcmp(got, model + off, (size_t)want) != 0;
        }
    }
    EQ(0, bad);
    EQ(size, stat_fd(fd).st_size);
    OK(close(fd));
    EQ(size, slurp("f", got, sizeof(got)));
    SAME(model, got, size);
}

const struct posix_case cases_misc[] = {
    ROW(statfs_answers_plausibly),
    ROW(tmpfile_has_no_name),
    ROW(tmpfile_gets_a_name_by_linkat),
    ROW(tmpfile_excl_stays_nameless),
    ROW(statx_agrees_with_stat),
    ROW(proc_fd_reopens_the_same_file),
    ROW(regular_files_are_always_ready),
    ROW(unknown_ioctl_is_enotty),
    ROW(five_hundred_small_files),
    ROW(inodes_are_distinct_and_stable),
    ROW(all_names_share_one_device),
    ROW(mixed_operations_match_a_model),
    CASES_END,
};
