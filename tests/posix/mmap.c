/* Memory maps: shared and private, seen by and seeing read and write, beyond the end, after close and unlink. */
#include "posix.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#define PAGE 4096

static char *map_file(const char *path, size_t len, int prot, int flags)
{
    int fd = (int)OK(open(path, (prot & PROT_WRITE) && flags == MAP_SHARED ? O_RDWR : O_RDONLY));
    char *p = mmap(NULL, len, prot, flags, fd, 0);
    TRUE(p != MAP_FAILED);
    OK(close(fd));
    if (p == MAP_FAILED)
        _exit(1);
    return p;
}

CASE(shared_map_reads_the_file)
{
    static char data[3 * PAGE + 100];
    fill(data, sizeof(data), 1);
    make_file("f", data, sizeof(data), 0644);
    char *p = map_file("f", sizeof(data), PROT_READ, MAP_SHARED);
    SAME(data, p, sizeof(data));
    OK(munmap(p, sizeof(data)));
}

CASE(private_map_writes_stay_private)
{
    make_text("f", "0123456789");
    char *p = map_file("f", 10, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    memcpy(p, "private", 7);
    SAME("private789", p, 10);
    TRUE(file_has("f", "0123456789"));
    OK(munmap(p, 10));
    TRUE(file_has("f", "0123456789"));
}

CASE(shared_map_writes_reach_the_file)
{
    make_text("f", "0123456789");
    char *p = map_file("f", 10, PROT_READ | PROT_WRITE, MAP_SHARED);
    memcpy(p, "mapped", 6);
    OK(msync(p, 10, MS_SYNC));
    TRUE(file_has("f", "mapped6789"));
    OK(munmap(p, 10));
    TRUE(file_has("f", "mapped6789"));
}

CASE(shared_map_writes_reach_the_file_without_msync)
{
    make_text("f", "0123456789");
    char *p = map_file("f", 10, PROT_READ | PROT_WRITE, MAP_SHARED);
    p[0] = 'X';
    OK(munmap(p, 10));
    TRUE(file_has("f", "X123456789"));
}

CASE(o_dsync_writes_are_seen_by_maps_and_readers)
{
    char got[10];
    make_text("f", "0123456789");
    char *before = map_file("f", 10, PROT_READ, MAP_SHARED);
    int rd = (int)OK(open("f", O_RDONLY)), fd = (int)OK(open("f", O_RDWR | O_DSYNC)),
        wr = (int)OK(open("f", O_WRONLY | O_SYNC));
    char *p = mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    TRUE(p != MAP_FAILED);
    EQ(3, pwrite(fd, "abc", 3, 0));
    EQ(3, pwrite(wr, "xyz", 3, 7));
    p[4] = 'M';
    EQ(10, pread(rd, got, 10, 0));
    SAME("abc3M56xyz", got, 10);
    EQ(10, pread(fd, got, 10, 0));
    SAME("abc3M56xyz", got, 10);
    SAME("abc3M56xyz", p, 10);
    SAME("abc3M56xyz", before, 10);
    OK(munmap(p, 10));
    OK(munmap(before, 10));
    OK(close(fd));
    OK(close(wr));
    OK(close(rd));
    TRUE(file_has("f", "abc3M56xyz"));
}

CASE(map_survives_close_and_unlink)
{
    make_text("f", "0123456789");
    char *p = map_file("f", 10, PROT_READ | PROT_WRITE, MAP_SHARED);
    OK(unlink("f"));
    SAME("0123456789", p, 10);
    p[3] = 'z';
    OK(msync(p, 10, MS_SYNC));
    EQ('z', p[3]);
    OK(munmap(p, 10));
}

CASE(write_is_seen_through_a_shared_map)
{
    make_text("f", "0123456789");
    char *p = map_file("f", 10, PROT_READ, MAP_SHARED);
    EQ('0', p[0]);
    int fd = (int)OK(open("f", O_WRONLY));
    EQ(3, pwrite(fd, "new", 3, 0));
    SAME("new3456789", p, 10);
    OK(close(fd));
    OK(munmap(p, 10));
}

CASE(map_store_is_seen_by_read)
{
    char buf[10];
    make_text("f", "0123456789");
    char *p = map_file("f", 10, PROT_READ | PROT_WRITE, MAP_SHARED);
    int fd = (int)OK(open("f", O_RDONLY));
    p[5] = 'M';
    EQ(10, pread(fd, buf, 10, 0));
    SAME("01234M6789", buf, 10);
    OK(close(fd));
    OK(munmap(p, 10));
}

CASE(two_processes_share_a_map)
{
    static char zeros[PAGE];
    make_file("f", zeros, PAGE, 0644);
    char *p = map_file("f", PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    IN_CHILD
    {
        char *mine = map_file("f", PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
        memcpy(mine + 100, "from the child", 14);
        OK(munmap(mine, PAGE));
    }
    SAME("from the child", p + 100, 14);
    OK(munmap(p, PAGE));
}

CASE(last_page_is_zero_beyond_the_end)
{
    char zeros[PAGE] = {0};
    make_text("f", "0123456789");
    char *p = map_file("f", PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    SAME(zeros, p + 10, PAGE - 10);
    memset(p + 10, 'x', 100);
    OK(msync(p, PAGE, MS_SYNC));
    EQ(10, stat_of("f").st_size);
    OK(munmap(p, PAGE));
    TRUE(file_has("f", "0123456789"));
    OK(truncate("f", 200));
    char got[200];
    EQ(200, slurp("f", got, sizeof(got)));
    SAME(zeros, got + 10, 190);
}

static sigjmp_buf jump;
static void on_fault(int sig)
{
    siglongjmp(jump, sig);
}

CASE(access_beyond_the_last_page_is_sigbus)
{
    make_text("f", "0123456789");
    char *p = map_file("f", 2 * PAGE, PROT_READ, MAP_SHARED);
    signal(SIGBUS, on_fault);
    signal(SIGSEGV, on_fault);
    int sig = sigsetjmp(jump, 1);
    if (sig == 0) {
        volatile char c = p[PAGE];
        (void)c;
    }
    EQ(SIGBUS, sig);
    OK(munmap(p, 2 * PAGE));
}

CASE(map_sees_growth_within_its_range)
{
    make_text("f", "a");
    char *p = map_file("f", 2 * PAGE, PROT_READ, MAP_SHARED);
    EQ('a', p[0]);
    int fd = (int)OK(open("f", O_WRONLY));
    EQ(1, pwrite(fd, "z", 1, PAGE + 5));
    EQ('z', p[PAGE + 5]);
    EQ(0, p[PAGE]);
    OK(close(fd));
    OK(munmap(p, 2 * PAGE));
}

CASE(truncation_under_a_map)
{
    static char data[2 * PAGE];
    memset(data, 'd', sizeof(data));
    make_file("f", data, sizeof(data), 0644);
    char *p = map_file("f", sizeof(data), PROT_READ, MAP_SHARED);
    EQ('d', p[PAGE]);
    OK(truncate("f", 100));
    EQ('d', p[99]);
    EQ(0, p[100]);
    signal(SIGBUS, on_fault);
    int sig = sigsetjmp(jump, 1);
    if (sig == 0) {
        volatile char c = p[PAGE];
        (void)c;
    }
    EQ(SIGBUS, sig);
    OK(munmap(p, sizeof(data)));
}

CASE(map_modes_follow_the_open_mode)
{
    make_text("f", "0123456789");
    int rd = (int)OK(open("f", O_RDONLY)), wr = (int)OK(open("f", O_WRONLY)), dir = (int)OK(open(".", O_RDONLY));
    errno = 0;
    TRUE(mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_SHARED, rd, 0) == MAP_FAILED && errno == EACCES);
    errno = 0;
    TRUE(mmap(NULL, 10, PROT_READ, MAP_SHARED, wr, 0) == MAP_FAILED && errno == EACCES);
    errno = 0;
    TRUE(mmap(NULL, 10, PROT_READ, MAP_SHARED, dir, 0) == MAP_FAILED && errno == ENODEV);
    errno = 0;
    TRUE(mmap(NULL, 0, PROT_READ, MAP_SHARED, rd, 0) == MAP_FAILED && errno == EINVAL);
    errno = 0;
    TRUE(mmap(NULL, 10, PROT_READ, MAP_SHARED, rd, 7) == MAP_FAILED && errno == EINVAL);
    char *p = mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_PRIVATE, rd, 0);
    TRUE(p != MAP_FAILED);
    OK(munmap(p, 10));
}

CASE(map_at_an_offset)
{
    static char data[4 * PAGE];
    fill(data, sizeof(data), 3);
    make_file("f", data, sizeof(data), 0644);
    int fd = (int)OK(open("f", O_RDONLY));
    char *p = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 2 * PAGE);
    TRUE(p != MAP_FAILED);
    SAME(data + 2 * PAGE, p, PAGE);
    OK(munmap(p, PAGE));
    OK(close(fd));
}

CASE(executable_map_and_exec)
{
    static char buf[1 << 20];
    size_t n = slurp("/bin/true", buf, sizeof(buf));
    TRUE(n > 0 && n < sizeof(buf));
    make_file("prog", buf, n, 0755);
    IN_CHILD
    {
        execl("./prog", "prog", (char *)NULL);
        _exit(42);
    }
    EQ(0755, stat_of("prog").st_mode & 07777);
}

CASE(writable_map_of_a_large_sparse_file)
{
    const size_t len = 64 << 20;
    int fd = (int)OK(open("f", O_CREAT | O_RDWR, 0644));
    char c;
    OK(ftruncate(fd, (off_t)len));
    char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    TRUE(p != MAP_FAILED);
    for (size_t off = 0; off < len; off += 8 << 20)
        p[off] = 'k';
    OK(msync(p, len, MS_SYNC));
    OK(munmap(p, len));
    for (size_t off = 0; off < len; off += 8 << 20) {
        EQ(1, pread(fd, &c, 1, (off_t)off));
        EQ('k', c);
    }
    OK(close(fd));
}

const struct posix_case cases_mmap[] = {
    ROW(shared_map_reads_the_file),
    ROW(private_map_writes_stay_private),
    ROW(shared_map_writes_reach_the_file),
    ROW(shared_map_writes_reach_the_file_without_msync),
    ROW(o_dsync_writes_are_seen_by_maps_and_readers),
    ROW(map_survives_close_and_unlink),
    ROW(write_is_seen_through_a_shared_map),
    ROW(map_store_is_seen_by_read),
    ROW(two_processes_share_a_map),
    ROW(last_page_is_zero_beyond_the_end),
    ROW(access_beyond_the_last_page_is_sigbus),
    ROW(map_sees_growth_within_its_range),
    ROW(truncation_under_a_map),
    ROW(map_modes_follow_the_open_mode),
    ROW(map_at_an_offset),
    ROW(executable_map_and_exec),
    ROW(writable_map_of_a_large_sparse_file),
    CASES_END,
};
