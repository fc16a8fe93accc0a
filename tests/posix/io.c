/* Reading and writing: offsets, end of file, holes, vectors, concurrent appends. */
#include "posix.h"

#include <limits.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

CASE(write_then_read_back)
{
    static char data[300000], got[300001];
    fill(data, sizeof(data), 1);
    make_file("f", data, sizeof(data), 0644);
    EQ(sizeof(data), slurp("f", got, sizeof(got)));
    SAME(data, got, sizeof(data));
    EQ(sizeof(data), stat_of("f").st_size);
}

CASE(read_past_the_end_is_short_then_zero)
{
    char buf[16];
    make_text("f", "12345");
    int fd = (int)OK(open("f", O_RDONLY));
    EQ(5, read(fd, buf, sizeof(buf)));
    EQ(0, read(fd, buf, sizeof(buf)));
    EQ(2, pread(fd, buf, sizeof(buf), 3));
    SAME("45", buf, 2);
    EQ(0, pread(fd, buf, sizeof(buf), 5));
    EQ(0, pread(fd, buf, sizeof(buf), 1 << 20));
    OK(close(fd));
}

CASE(zero_length_requests)
{
    char buf[1];
    make_text("f", "x");
    int fd = (int)OK(open("f", O_RDWR));
    EQ(0, read(fd, buf, 0));
    EQ(0, write(fd, buf, 0));
    EQ(0, pwrite(fd, buf, 0, 100));
    EQ(1, stat_fd(fd).st_size);
    OK(close(fd));
}

CASE(pread_and_pwrite_leave_the_offset)
{
    char buf[4];
    make_text("f", "0123456789");
    int fd = (int)OK(open("f", O_RDWR));
    EQ(3, OK(lseek(fd, 3, SEEK_SET)));
    EQ(2, pwrite(fd, "ab", 2, 7));
    EQ(2, pread(fd, buf, 2, 7));
    SAME("ab", buf, 2);
    EQ(3, OK(lseek(fd, 0, SEEK_CUR)));
    EQ(1, read(fd, buf, 1));
    EQ('3', buf[0]);
    OK(close(fd));
    TRUE(file_has("f", "0123456ab9"));
}

CASE(negative_offsets_are_refused)
{
    char buf[1] = {0};
    make_text("f", "x");
    int fd = (int)OK(open("f", O_RDWR));
    FAILS(EINVAL, pread(fd, buf, 1, -1));
    FAILS(EINVAL, pwrite(fd, buf, 1, -1));
    FAILS(EINVAL, lseek(fd, -1, SEEK_SET));
    FAILS(EINVAL, lseek(fd, -2, SEEK_END));
    FAILS(EINVAL, lseek(fd, 0, 99));
    const void *volatile nowhere = (const void *)8;
    FAILS(EFAULT, write(fd, nowhere, 1));
    EQ(1, stat_fd(fd).st_size);
    OK(close(fd));
}

CASE(lseek_moves_as_told)
{
    make_text("f", "0123456789");
    int fd = (int)OK(open("f", O_RDONLY));
    EQ(10, lseek(fd, 0, SEEK_END));
    EQ(8, lseek(fd, -2, SEEK_CUR));
    EQ(13, lseek(fd, 3, SEEK_END));
    EQ(1000000, lseek(fd, 1000000, SEEK_SET));
    EQ(10, stat_fd(fd).st_size);
    OK(close(fd));
    int fds[2];
    OK(pipe(fds));
    FAILS(ESPIPE, lseek(fds[0], 0, SEEK_CUR));
}

CASE(write_beyond_the_end_leaves_zeros)
{
    static char got[8192], zeros[8192];
    make_text("f", "abc");
    int fd = (int)OK(open("f", O_RDWR));
    EQ(3, pwrite(fd, "xyz", 3, 8000));
    EQ(8003, stat_fd(fd).st_size);
    EQ(8003, pread(fd, got, sizeof(got), 0));
    SAME("abc", got, 3);
    SAME(zeros, got + 3, 7997);
    SAME("xyz", got + 8000, 3);
    OK(close(fd));
}

CASE(overwrite_in_the_middle_keeps_the_rest)
{
    static char data[100000], got[100000];
    fill(data, sizeof(data), 2);
    make_file("f", data, sizeof(data), 0644);
    int fd = (int)OK(open("f", O_WRONLY));
    for (size_t off = 1; off + 700 < sizeof(data); off += 9973) {
        fill(data + off, 700, (unsigned)off);
        EQ(700, pwrite(fd, data + off, 700, (off_t)off));
    }
    OK(close(fd));
    EQ(sizeof(data), slurp("f", got, sizeof(got)));
    SAME(data, got, sizeof(data));
}

CASE(odd_sizes_around_page_and_block_borders)
{
    static const size_t sizes[] = {1,     511,   512,    513,    4095,   4096,    4097,    65535,
                                   65536, 65537, 131071, 131072, 131073, 1048575, 1048576, 1048577};
    static char data[1048577], got[1048578];
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        fill(data, sizes[i], (unsigned)i);
        make_file("f", data, sizes[i], 0644);
        EQ(sizes[i], slurp("f", got, sizeof(got)));
        SAME(data, got, sizes[i]);
    }
}

CASE(single_byte_writes)
{
    char data[2000], got[2001];
    fill(data, sizeof(data), 3);
    int fd = (int)OK(open("f", O_CREAT | O_WRONLY, 0644)), bad = 0;
    for (size_t i = 0; i < sizeof(data); i++)
        bad += write(fd, data + i, 1) != 1;
    EQ(0, bad);
    OK(close(fd));
    EQ(sizeof(data), slurp("f", got, sizeof(got)));
    SAME(data, got, sizeof(data));
}

CASE(writing_backwards)
{
    static char data[64 * 1024], got[64 * 1024];
    fill(data, sizeof(data), 4);
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    for (int i = 15; i >= 0; i--)
        EQ(4096, pwrite(fd, data + i * 4096, 4096, i * 4096));
    EQ(sizeof(got), pread(fd, got, sizeof(got), 0));
    SAME(data, got, sizeof(data));
    OK(close(fd));
}

CASE(readv_and_writev_gather_and_scatter)
{
    char a[3], b[5], c[4];
    struct iovec out[3] = {{(char[]){"abc"}, 3}, {(char[]){""}, 0}, {(char[]){"defghijk"}, 8}};
    struct iovec in[3] = {{a, 3}, {b, 5}, {c, 4}};
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    EQ(11, writev(fd, out, 3));
    EQ(0, OK(lseek(fd, 0, SEEK_SET)));
    EQ(11, readv(fd, in, 3));
    SAME("abc", a, 3);
    SAME("defgh", b, 5);
    SAME("ijk", c, 3);
    EQ(11, pwritev(fd, out, 3, 11));
    EQ(22, stat_fd(fd).st_size);
    EQ(6, preadv(fd, in, 3, 16));
    volatile int below = -1, above = IOV_MAX + 1;
    FAILS(EINVAL, writev(fd, out, below));
    FAILS(EINVAL, readv(fd, in, above));
    OK(close(fd));
}

CASE(pwritev2_append_flag_when_supported)
{
    struct iovec out = {(char[]){"tail"}, 4};
    make_text("f", "head");
    int fd = (int)OK(open("f", O_WRONLY));
    ssize_t r = pwritev2(fd, &out, 1, 0, RWF_APPEND);
    if (r < 0 && errno == EOPNOTSUPP)
        SKIP("no RWF_APPEND");
    EQ(4, r);
    TRUE(file_has("f", "headtail"));
    OK(close(fd));
}

CASE(writes_are_seen_by_other_descriptors_at_once)
{
    char buf[8];
    int w = (int)OK(open("f", O_CREAT | O_WRONLY, 0644)), r = (int)OK(open("f", O_RDONLY));
    for (int i = 0; i < 10; i++) {
        char c = (char)('a' + i);
        EQ(1, write(w, &c, 1));
        EQ(1, read(r, buf, sizeof(buf)));
        EQ(c, buf[0]);
        EQ(i + 1, stat_of("f").st_size);
    }
    OK(close(w));
    OK(close(r));
}

CASE(writes_are_seen_by_other_processes_at_once)
{
    make_text("f", "old");
    int w = (int)OK(open("f", O_WRONLY));
    EQ(3, write(w, "new", 3));
    IN_CHILD
    {
        TRUE(file_has("f", "new"));
        int mine = (int)OK(open("f", O_WRONLY | O_APPEND));
        EQ(5, write(mine, "child", 5));
        OK(close(mine));
    }
    TRUE(file_has("f", "newchild"));
    OK(close(w));
}

CASE(concurrent_appends_lose_nothing)
{
    enum { WRITERS = 4, LINES = 200, LINE = 32 };
    static char all[WRITERS * LINES * LINE + 1];
    unsigned seen[WRITERS] = {0}, bad = 0;
    make_text("f", "");
    for (int w = 0; w < WRITERS; w++)
        BESIDE
        {
            char line[LINE + 1];
            int fd = open("f", O_WRONLY | O_APPEND);
            for (int i = 0; i < LINES; i++) {
                snprintf(line, sizeof(line), "%d %-29d\n", w, i);
                if (write(fd, line, LINE) != LINE)
                    _exit(1);
            }
            close(fd);
        }
    wait_children();
    EQ(WRITERS * LINES * LINE, slurp("f", all, sizeof(all)));
    for (int i = 0; i < WRITERS * LINES; i++) {
        const char *line = all + i * LINE;
        unsigned w = (unsigned)(line[0] - '0');
        if (w >= WRITERS || line[LINE - 1] != '\n' || (unsigned)atoi(line + 2) != seen[w]++)
            bad++;
    }
    EQ(0, bad);
}

CASE(concurrent_writers_of_different_regions)
{
    enum { REGION = 128 * 1024, WRITERS = 4 };
    static char want[REGION], got[REGION];
    make_text("f", "");
    for (int w = 0; w < WRITERS; w++)
        BESIDE
        {
            fill(want, REGION, (unsigned)w + 10);
            int fd = open("f", O_WRONLY);
            for (int off = 0; off < REGION; off += 1000) {
                int n = REGION - off < 1000 ? REGION - off : 1000;
                if (pwrite(fd, want + off, (size_t)n, w * REGION + off) != n)
                    _exit(1);
            }
            if (close(fd))
                _exit(2);
        }
    wait_children();
    int fd = (int)OK(open("f", O_RDONLY));
    EQ(REGION * WRITERS, stat_fd(fd).st_size);
    for (int w = 0; w < WRITERS; w++) {
        fill(want, REGION, (unsigned)w + 10);
        EQ(REGION, pread(fd, got, REGION, w * REGION));
        SAME(want, got, REGION);
    }
    OK(close(fd));
}

CASE(sparse_file_beyond_four_gib)
{
    const off_t far = 5ll << 30;
    char buf[8], zeros[8] = {0};
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    EQ(4, pwrite(fd, "tail", 4, far));
    EQ(far + 4, stat_fd(fd).st_size);
    EQ(4, pread(fd, buf, 8, far));
    SAME("tail", buf, 4);
    EQ(8, pread(fd, buf, 8, (4ll << 30) - 4));
    SAME(zeros, buf, 8);
    EQ(far + 4, lseek(fd, 0, SEEK_END));
    EQ(4, pwrite(fd, "midd", 4, (4ll << 30) - 2));
    EQ(4, pread(fd, buf, 4, (4ll << 30) - 2));
    SAME("midd", buf, 4);
    OK(ftruncate(fd, 10));
    EQ(10, stat_fd(fd).st_size);
    OK(close(fd));
    OK(unlink("f"));
}

CASE(sendfile_out_of_a_file)
{
    static char data[70000], got[70000];
    off_t off = 100;
    fill(data, sizeof(data), 5);
    make_file("a", data, sizeof(data), 0644);
    int in = (int)OK(open("a", O_RDONLY)), out = (int)OK(open("b", O_CREAT | O_RDWR, 0644));
    ssize_t n, total = 0;
    while ((n = sendfile(out, in, &off, sizeof(data))) > 0)
        total += n;
    EQ(sizeof(data) - 100, total);
    EQ(sizeof(data), off);
    EQ(total, pread(out, got, sizeof(got), 0));
    SAME(data + 100, got, sizeof(data) - 100);
    OK(close(in));
    OK(close(out));
}

CASE(splice_between_pipe_and_file)
{
    char buf[16];
    int p[2];
    OK(pipe(p));
    make_text("a", "spliced data");
    int in = (int)OK(open("a", O_RDONLY)), out = (int)OK(open("b", O_CREAT | O_RDWR, 0644));
    EQ(12, splice(in, NULL, p[1], NULL, 12, 0));
    EQ(12, splice(p[0], NULL, out, NULL, 12, 0));
    EQ(12, pread(out, buf, sizeof(buf), 0));
    SAME("spliced data", buf, 12);
    OK(close(in));
    OK(close(out));
}

CASE(copy_file_range_copies)
{
    static char data[200000], got[200000];
    off_t from = 10, to = 5;
    fill(data, sizeof(data), 6);
    make_file("a", data, sizeof(data), 0644);
    int in = (int)OK(open("a", O_RDONLY)), out = (int)OK(open("b", O_CREAT | O_RDWR, 0644));
    ssize_t n, total = 0;
    while ((n = copy_file_range(in, &from, out, &to, 100000 - (size_t)total, 0)) > 0 && total < 100000)
        total += n;
    EQ(100000, total);
    EQ(100010, from);
    EQ(100005, to);
    EQ(100005, stat_fd(out).st_size);
    EQ(100000, pread(out, got, 100000, 5));
    SAME(data + 10, got, 100000);
    from = (off_t)sizeof(data);
    EQ(0, copy_file_range(in, &from, out, &to, 10, 0));
    FAILS(EBADF, copy_file_range(out, NULL, in, NULL, 10, 0));
    FAILS(EINVAL, copy_file_range(in, NULL, out, NULL, 10, 99));
    OK(close(in));
    OK(close(out));
}

CASE(copy_file_range_within_one_file)
{
    char got[20];
    off_t from = 0, to = 10;
    make_text("f", "0123456789");
    int fd = (int)OK(open("f", O_RDWR));
    EQ(10, copy_file_range(fd, &from, fd, &to, 10, 0));
    EQ(20, pread(fd, got, 20, 0));
    SAME("01234567890123456789", got, 20);
    from = 0, to = 5;
    FAILS(EINVAL, copy_file_range(fd, &from, fd, &to, 10, 0));
    OK(close(fd));
}

CASE(direct_io_when_supported)
{
    char *buf = NULL, *got = NULL;
    EQ(0, posix_memalign((void **)&buf, 4096, 8192));
    EQ(0, posix_memalign((void **)&got, 4096, 8192));
    fill(buf, 8192, 7);
    int fd = open("f", O_CREAT | O_RDWR | O_DIRECT, 0644);
    if (fd < 0 && errno == EINVAL)
        SKIP("no O_DIRECT");
    EQ(8192, pwrite(fd, buf, 8192, 0));
    EQ(8192, pread(fd, got, 8192, 0));
    SAME(buf, got, 8192);
    int plain = (int)OK(open("f", O_RDONLY));
    EQ(8192, read(plain, got, 8192));
    SAME(buf, got, 8192);
    OK(close(fd));
    OK(close(plain));
    free(buf);
    free(got);
}

CASE(fsync_and_friends_work)
{
    make_text("f", "x");
    int fd = (int)OK(open("f", O_RDWR)), rd = (int)OK(open("f", O_RDONLY)),
        dir = (int)OK(open(".", O_RDONLY | O_DIRECTORY));
    EQ(1, write(fd, "y", 1));
    OK(fsync(fd));
    OK(fdatasync(fd));
    OK(fsync(rd));
    OK(fsync(dir));
    OK(fdatasync(dir));
    OK(syncfs(fd));
    OK(close(fd));
    OK(close(rd));
    OK(close(dir));
    int p[2];
    OK(pipe(p));
    FAILS(EINVAL, fsync(p[0]));
}

CASE(o_sync_and_o_dsync_write)
{
    int fd = (int)OK(open("f", O_CREAT | O_WRONLY | O_SYNC, 0644));
    EQ(4, write(fd, "sync", 4));
    OK(close(fd));
    fd = (int)OK(open("f", O_WRONLY | O_DSYNC | O_APPEND));
    EQ(4, write(fd, "data", 4));
    OK(close(fd));
    TRUE(file_has("f", "syncdata"));
}

const struct posix_case cases_io[] = {
    ROW(write_then_read_back),
    ROW(read_past_the_end_is_short_then_zero),
    ROW(zero_length_requests),
    ROW(pread_and_pwrite_leave_the_offset),
    ROW(negative_offsets_are_refused),
    ROW(lseek_moves_as_told),
    ROW(write_beyond_the_end_leaves_zeros),
    ROW(overwrite_in_the_middle_keeps_the_rest),
    ROW(odd_sizes_around_page_and_block_borders),
    ROW(single_byte_writes),
    ROW(writing_backwards),
    ROW(readv_and_writev_gather_and_scatter),
    ROW(pwritev2_append_flag_when_supported),
    ROW(writes_are_seen_by_other_descriptors_at_once),
    ROW(writes_are_seen_by_other_processes_at_once),
    ROW(concurrent_appends_lose_nothing),
    ROW(concurrent_writers_of_different_regions),
    ROW(sparse_file_beyond_four_gib),
    ROW(sendfile_out_of_a_file),
    ROW(splice_between_pipe_and_file),
    ROW(copy_file_range_copies),
    ROW(copy_file_range_within_one_file),
    ROW(direct_io_when_supported),
    ROW(fsync_and_friends_work),
    ROW(o_sync_and_o_dsync_write),
    CASES_END,
};
