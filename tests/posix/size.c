/* Sizes: truncate, fallocate, holes, SEEK_DATA and SEEK_HOLE. */
#include "posix.h"

#include <linux/falloc.h>
#include <signal.h>
#include <sys/resource.h>

static bool all_zero(const char *p, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (p[i])
            return false;
    return true;
}

CASE(truncate_down_and_up_reads_zeros)
{
    char got[5000];
    make_text("f", "0123456789");
    OK(truncate("f", 4));
    EQ(4, stat_of("f").st_size);
    OK(truncate("f", 5000));
    EQ(5000, stat_of("f").st_size);
    EQ(5000, slurp("f", got, sizeof(got)));
    SAME("0123", got, 4);
    TRUE(all_zero(got + 4, 4996));
}

CASE(ftruncate_down_and_up_reads_zeros)
{
    static char data[20000], got[20000];
    fill(data, sizeof(data), 1);
    make_file("f", data, sizeof(data), 0644);
    int fd = (int)OK(open("f", O_RDWR));
    OK(ftruncate(fd, 4097));
    EQ(4097, pread(fd, got, sizeof(got), 0));
    OK(ftruncate(fd, 20000));
    EQ(20000, pread(fd, got, sizeof(got), 0));
    SAME(data, got, 4097);
    TRUE(all_zero(got + 4097, 20000 - 4097));
    OK(close(fd));
    EQ(20000, slurp("f", got, sizeof(got)));
    TRUE(all_zero(got + 4097, 20000 - 4097));
}

CASE(truncate_at_every_kind_of_border)
{
    static const off_t sizes[] = {0, 1, 511, 512, 4095, 4096, 4097, 65536, 131071, 131072, 262143};
    static char data[262144], got[262144];
    fill(data, sizeof(data), 2);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        make_file("f", data, sizeof(data), 0644);
        OK(truncate("f", sizes[i]));
        EQ(sizes[i], slurp("f", got, sizeof(got)));
        SAME(data, got, (size_t)sizes[i]);
        OK(truncate("f", (off_t)sizeof(data)));
        EQ(sizeof(data), slurp("f", got, sizeof(got)));
        TRUE(all_zero(got + sizes[i], sizeof(data) - (size_t)sizes[i]));
    }
}

CASE(truncate_keeps_the_offset)
{
    char c;
    make_text("f", "0123456789");
    int fd = (int)OK(open("f", O_RDWR));
    EQ(8, lseek(fd, 8, SEEK_SET));
    OK(ftruncate(fd, 2));
    EQ(8, lseek(fd, 0, SEEK_CUR));
    EQ(0, read(fd, &c, 1));
    EQ(1, write(fd, "x", 1));
    EQ(9, stat_fd(fd).st_size);
    EQ(1, pread(fd, &c, 1, 5));
    EQ(0, c);
    OK(close(fd));
}

CASE(truncate_to_the_same_size)
{
    make_text("f", "12345");
    OK(truncate("f", 5));
    TRUE(file_has("f", "12345"));
    OK(truncate("f", 0));
    OK(truncate("f", 0));
    TRUE(file_has("f", ""));
}

CASE(truncate_errors)
{
    make_text("f", "x");
    OK(mkdir("d", 0755));
    FAILS(EINVAL, truncate("f", -1));
    FAILS(EISDIR, truncate("d", 0));
    FAILS(ENOENT, truncate("none", 0));
    FAILS(ENOTDIR, truncate("f/x", 0));
    int fd = (int)OK(open("f", O_RDWR));
    FAILS(EINVAL, ftruncate(fd, -1));
    OK(close(fd));
    AS_USER(USER)
    FAILS(EACCES, truncate("f", 0));
}

CASE(truncate_is_seen_through_open_descriptors)
{
    char buf[10];
    make_text("f", "0123456789");
    int a = (int)OK(open("f", O_RDONLY)), b = (int)OK(open("f", O_RDWR));
    OK(truncate("f", 3));
    EQ(3, pread(a, buf, sizeof(buf), 0));
    EQ(3, stat_fd(b).st_size);
    OK(ftruncate(b, 7));
    EQ(7, pread(a, buf, sizeof(buf), 0));
    EQ(7, stat_of("f").st_size);
    OK(close(a));
    OK(close(b));
}

CASE(truncate_while_another_reads)
{
    static char data[1 << 20], got[1 << 20];
    memset(data, 'a', sizeof(data));
    make_file("f", data, sizeof(data), 0644);
    int fd = (int)OK(open("f", O_RDWR)), bad = 0;
    BESIDE
    {
        for (int i = 0; i < 50; i++)
            if (truncate("f", (i % 2) ? (off_t)sizeof(data) : 4096))
                _exit(1);
    }
    for (int i = 0; i < 50; i++) {
        ssize_t n = pread(fd, got, sizeof(got), 0);
        for (ssize_t k = 0; k < n; k++)
            bad += (k < 4096 ? got[k] != 'a' : got[k] != 'a' && got[k] != 0);
    }
    wait_children();
    EQ(0, bad);
    OK(close(fd));
}

CASE(file_size_limit_gives_efbig)
{
    make_text("f", "x");
    IN_CHILD
    {
        struct rlimit lim = {4096, 4096};
        signal(SIGXFSZ, SIG_IGN);
        OK(setrlimit(RLIMIT_FSIZE, &lim));
        int fd = (int)OK(open("f", O_RDWR));
        FAILS(EFBIG, ftruncate(fd, 4097));
        OK(ftruncate(fd, 4096));
        FAILS(EFBIG, pwrite(fd, "y", 1, 4096));
        EQ(4096, stat_fd(fd).st_size);
    }
}

static int open_or_skip(int mode, off_t off, off_t len, const char *what)
{
    static char data[65536];
    fill(data, sizeof(data), 9);
    make_file("f", data, sizeof(data), 0644);
    int fd = (int)OK(open("f", O_RDWR));
    if (fallocate(fd, mode, off, len) && errno == EOPNOTSUPP)
        SKIP("no %s", what);
    return fd;
}

CASE(fallocate_extends_with_zeros)
{
    static char got[100000];
    int fd = open_or_skip(0, 60000, 40000, "fallocate");
    EQ(100000, stat_fd(fd).st_size);
    EQ(100000, pread(fd, got, sizeof(got), 0));
    TRUE(all_zero(got + 65536, 100000 - 65536));
    TRUE(got[0] != 0 || got[1] != 0 || got[2] != 0);
    OK(fallocate(fd, 0, 0, 10));
    EQ(100000, stat_fd(fd).st_size);
    OK(close(fd));
}

CASE(fallocate_keep_size_keeps_it)
{
    int fd = open_or_skip(FALLOC_FL_KEEP_SIZE, 60000, 100000, "FALLOC_FL_KEEP_SIZE");
    EQ(65536, stat_fd(fd).st_size);
    OK(close(fd));
}

CASE(punch_hole_reads_zeros_and_keeps_size)
{
    static char data[65536], got[65536];
    int fd = open_or_skip(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5000, 20000, "FALLOC_FL_PUNCH_HOLE");
    fill(data, sizeof(data), 9);
    EQ(65536, pread(fd, got, sizeof(got), 0));
    SAME(data, got, 5000);
    TRUE(all_zero(got + 5000, 20000));
    SAME(data + 25000, got + 25000, 65536 - 25000);
    EQ(65536, stat_fd(fd).st_size);
    OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 60000, 100000));
    EQ(65536, stat_fd(fd).st_size);
    EQ(65536, pread(fd, got, sizeof(got), 0));
    TRUE(all_zero(got + 60000, 5536));
    FAILS(EOPNOTSUPP, fallocate(fd, FALLOC_FL_PUNCH_HOLE, 0, 4096));
    OK(close(fd));
}

CASE(zero_range_reads_zeros)
{
    static char data[65536], got[131072];
    int fd = open_or_skip(FALLOC_FL_ZERO_RANGE, 100, 9000, "FALLOC_FL_ZERO_RANGE");
    fill(data, sizeof(data), 9);
    EQ(65536, pread(fd, got, sizeof(got), 0));
    SAME(data, got, 100);
    TRUE(all_zero(got + 100, 9000));
    SAME(data + 9100, got + 9100, 65536 - 9100);
    OK(fallocate(fd, FALLOC_FL_ZERO_RANGE, 65000, 2000));
    EQ(67000, stat_fd(fd).st_size);
    OK(fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 66000, 20000));
    EQ(67000, stat_fd(fd).st_size);
    EQ(67000, pread(fd, got, sizeof(got), 0));
    TRUE(all_zero(got + 65000, 2000));
    OK(close(fd));
}

CASE(fallocate_errors)
{
    int fd = open_or_skip(0, 0, 1, "fallocate"), rd = (int)OK(open("f", O_RDONLY));
    FAILS(EINVAL, fallocate(fd, 0, 0, 0));
    FAILS(EINVAL, fallocate(fd, 0, -1, 10));
    FAILS(EINVAL, fallocate(fd, 0, 0, -1));
    FAILS(EBADF, fallocate(rd, 0, 0, 10));
    FAILS(EOPNOTSUPP, fallocate(fd, 0x4000, 0, 10));
    OK(close(fd));
    OK(close(rd));
}

CASE(posix_fallocate_works)
{
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    EQ(0, posix_fallocate(fd, 0, 123456));
    EQ(123456, stat_fd(fd).st_size);
    OK(close(fd));
}

CASE(seek_data_and_hole_hold_the_minimum)
{
    make_text("f", "0123456789");
    int fd = (int)OK(open("f", O_RDWR));
    EQ(0, lseek(fd, 0, SEEK_DATA));
    EQ(4, lseek(fd, 4, SEEK_DATA));
    EQ(10, lseek(fd, 0, SEEK_HOLE));
    EQ(10, lseek(fd, 9, SEEK_HOLE));
    FAILS(ENXIO, lseek(fd, 10, SEEK_DATA));
    FAILS(ENXIO, lseek(fd, 11, SEEK_HOLE));
    FAILS(ENXIO, lseek(fd, -1, SEEK_DATA));
    OK(close(fd));
}

CASE(seek_data_never_skips_data)
{
    const off_t first = 1 << 20, second = 3 << 20;
    char c;
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    EQ(1, pwrite(fd, "a", 1, first));
    EQ(1, pwrite(fd, "b", 1, second));
    OK(ftruncate(fd, 4 << 20));
    TRUE(lseek(fd, 0, SEEK_DATA) <= first);
    EQ(first, lseek(fd, first, SEEK_DATA));
    TRUE(lseek(fd, first + 1, SEEK_DATA) <= second);
    TRUE(lseek(fd, first, SEEK_HOLE) > first);
    TRUE(lseek(fd, second, SEEK_HOLE) > second);
    off_t hole = OK(lseek(fd, 0, SEEK_HOLE));
    if (hole < 4 << 20) {
        EQ(1, pread(fd, &c, 1, hole));
        EQ(0, c);
    }
    OK(close(fd));
}

CASE(block_count_is_plausible)
{
    static char data[1 << 20];
    fill(data, sizeof(data), 4);
    make_file("f", data, sizeof(data), 0644);
    int fd = (int)OK(open("f", O_RDONLY));
    OK(fsync(fd));
    struct stat st = stat_fd(fd);
    TRUE(st.st_blocks >= (1 << 20) / 512);
    TRUE(st.st_blksize >= 512);
    OK(close(fd));
    make_text("empty", "");
    EQ(0, stat_of("empty").st_size);
}

const struct posix_case cases_size[] = {
    ROW(truncate_down_and_up_reads_zeros),
    ROW(ftruncate_down_and_up_reads_zeros),
    ROW(truncate_at_every_kind_of_border),
    ROW(truncate_keeps_the_offset),
    ROW(truncate_to_the_same_size),
    ROW(truncate_errors),
    ROW(truncate_is_seen_through_open_descriptors),
    ROW(truncate_while_another_reads),
    ROW(file_size_limit_gives_efbig),
    ROW(fallocate_extends_with_zeros),
    ROW(fallocate_keep_size_keeps_it),
    ROW(punch_hole_reads_zeros_and_keeps_size),
    ROW(zero_range_reads_zeros),
    ROW(fallocate_errors),
    ROW(posix_fallocate_works),
    ROW(seek_data_and_hole_hold_the_minimum),
    ROW(seek_data_never_skips_data),
    ROW(block_count_is_plausible),
    CASES_END,
};
