/* Times: utimensat, what moves mtime and ctime. atime is relaxed and only asserted where it is set. */
#include "posix.h"

#include <time.h>

static bool later(struct timespec a, struct timespec b)
{
    return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

static void pause_20ms(void)
{
    usleep(20000);
}

CASE(utimensat_sets_nanoseconds)
{
    struct timespec t[2] = {{1000000000, 111111111}, {1500000000, 123456789}};
    make_text("f", "x");
    OK(utimensat(AT_FDCWD, "f", t, 0));
    struct stat st = stat_of("f");
    EQ(1500000000, st.st_mtim.tv_sec);
    EQ(123456789, st.st_mtim.tv_nsec);
    TRUE(later(st.st_ctim, (struct timespec){1500000001, 0}));
}

CASE(utimensat_reaches_far_dates)
{
    static const time_t dates[] = {0, 1, 1234567890, 2147483647, 2147483648, 4294967296, 8999999999};
    make_text("f", "x");
    for (size_t i = 0; i < sizeof(dates) / sizeof(dates[0]); i++) {
        struct timespec t[2] = {{dates[i], 0}, {dates[i], 1}};
        OK(utimensat(AT_FDCWD, "f", t, 0));
        EQ(dates[i], stat_of("f").st_mtim.tv_sec);
    }
}

CASE(utime_omit_leaves_and_utime_now_sets)
{
    struct timespec t[2] = {{1, 0}, {2, 0}}, omit[2] = {{0, UTIME_OMIT}, {0, UTIME_OMIT}},
                    now[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
    make_text("f", "x");
    OK(utimensat(AT_FDCWD, "f", t, 0));
    OK(utimensat(AT_FDCWD, "f", omit, 0));
    EQ(2, stat_of("f").st_mtim.tv_sec);
    OK(utimensat(AT_FDCWD, "f", now, 0));
    TRUE(llabs((long long)stat_of("f").st_mtim.tv_sec - (long long)time(NULL)) <= 2);
    OK(utimensat(AT_FDCWD, "f", t, 0));
    OK(utimensat(AT_FDCWD, "f", NULL, 0));
    TRUE(llabs((long long)stat_of("f").st_mtim.tv_sec - (long long)time(NULL)) <= 2);
}

CASE(futimens_and_directories_and_links)
{
    struct timespec t[2] = {{10, 5}, {20, 7}};
    make_text("f", "x");
    OK(mkdir("d", 0755));
    OK(symlink("f", "l"));
    int fd = (int)OK(open("f", O_RDONLY));
    OK(futimens(fd, t));
    EQ(20, stat_fd(fd).st_mtim.tv_sec);
    EQ(7, stat_fd(fd).st_mtim.tv_nsec);
    OK(utimensat(AT_FDCWD, "d", t, 0));
    EQ(20, stat_of("d").st_mtim.tv_sec);
    t[1].tv_sec = 30;
    OK(utimensat(AT_FDCWD, "l", t, AT_SYMLINK_NOFOLLOW));
    EQ(30, stat_of("l").st_mtim.tv_sec);
    EQ(20, stat_of("f").st_mtim.tv_sec);
    OK(close(fd));
}

CASE(utimensat_permissions)
{
    struct timespec t[2] = {{1, 0}, {2, 0}}, now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}},
                    bad[2] = {{0, 0}, {0, 2000000000}};
    make_text("f", "x");
    OK(chmod("f", 0666));
    AS_USER(USER)
    {
        FAILS(EPERM, utimensat(AT_FDCWD, "f", t, 0));
        OK(utimensat(AT_FDCWD, "f", NULL, 0));
        OK(utimensat(AT_FDCWD, "f", now, 0));
    }
    OK(chmod("f", 0644));
    AS_USER(USER)
    FAILS(EACCES, utimensat(AT_FDCWD, "f", NULL, 0));
    FAILS(EINVAL, utimensat(AT_FDCWD, "f", bad, 0));
    FAILS(ENOENT, utimensat(AT_FDCWD, "none", t, 0));
}

CASE(write_moves_mtime_and_ctime)
{
    make_text("f", "x");
    struct stat a = stat_of("f");
    pause_20ms();
    int fd = (int)OK(open("f", O_WRONLY));
    EQ(1, write(fd, "y", 1));
    OK(close(fd));
    struct stat b = stat_of("f");
    TRUE(later(b.st_mtim, a.st_mtim));
    TRUE(later(b.st_ctim, a.st_ctim));
}

CASE(mtime_set_before_close_stays)
{
    struct timespec t[2] = {{1, 0}, {1234567890, 5}};
    int fd = (int)OK(open("f", O_CREAT | O_WRONLY, 0644));
    EQ(4, write(fd, "data", 4));
    OK(futimens(fd, t));
    OK(close(fd));
    EQ(1234567890, stat_of("f").st_mtim.tv_sec);
    pause_20ms();
    EQ(1234567890, stat_of("f").st_mtim.tv_sec);
    EQ(5, stat_of("f").st_mtim.tv_nsec);
}

CASE(truncate_moves_mtime)
{
    make_text("f", "xyz");
    struct stat a = stat_of("f");
    pause_20ms();
    OK(truncate("f", 1));
    struct stat b = stat_of("f");
    TRUE(later(b.st_mtim, a.st_mtim));
    pause_20ms();
    int fd = (int)OK(open("f", O_WRONLY));
    OK(ftruncate(fd, 100));
    OK(close(fd));
    TRUE(later(stat_of("f").st_mtim, b.st_mtim));
}

CASE(chmod_and_chown_move_ctime_only)
{
    make_text("f", "x");
    struct stat a = stat_of("f");
    pause_20ms();
    OK(chmod("f", 0600));
    struct stat b = stat_of("f");
    EQ(a.st_mtim.tv_nsec, b.st_mtim.tv_nsec);
    TRUE(later(b.st_ctim, a.st_ctim));
    pause_20ms();
    OK(chown("f", 1, 1));
    struct stat c = stat_of("f");
    EQ(a.st_mtim.tv_nsec, c.st_mtim.tv_nsec);
    TRUE(later(c.st_ctim, b.st_ctim));
}

CASE(reading_moves_no_mtime)
{
    char buf[8];
    make_text("f", "x");
    struct stat a = stat_of("f");
    pause_20ms();
    EQ(1, slurp("f", buf, sizeof(buf)));
    EQ(a.st_mtim.tv_nsec, stat_of("f").st_mtim.tv_nsec);
    EQ(a.st_ctim.tv_nsec, stat_of("f").st_ctim.tv_nsec);
}

CASE(directory_mtime_moves_with_its_entries)
{
    OK(mkdir("d", 0755));
    struct timespec last = stat_of("d").st_mtim;
    for (int i = 0; i < 7; i++) {
        pause_20ms();
        switch (i) {
        case 0:
            make_text("d/f", "x");
            break;
        case 1:
            OK(link("d/f", "d/g"));
            break;
        case 2:
            OK(rename("d/g", "d/h"));
            break;
        case 3:
            OK(unlink("d/h"));
            break;
        case 4:
            OK(mkdir("d/s", 0755));
            break;
        case 5:
            OK(rmdir("d/s"));
            break;
        default:
            OK(symlink("x", "d/l"));
            break;
        }
        struct stat st = stat_of("d");
        TRUE(later(st.st_mtim, last));
        TRUE(!later(st.st_mtim, st.st_ctim));
        last = st.st_mtim;
    }
    pause_20ms();
    OK(chmod("d/f", 0600));
    EQ(last.tv_nsec, stat_of("d").st_mtim.tv_nsec);
}

CASE(new_files_carry_the_present_time)
{
    struct timespec now;
    make_text("f", "x");
    clock_gettime(CLOCK_REALTIME, &now);
    TRUE(llabs((long long)now.tv_sec - (long long)stat_of("f").st_mtim.tv_sec) <= 2);
    TRUE(llabs((long long)now.tv_sec - (long long)stat_of("f").st_ctim.tv_sec) <= 2);
}

const struct posix_case cases_time[] = {
    ROW(utimensat_sets_nanoseconds),
    ROW(utimensat_reaches_far_dates),
    ROW(utime_omit_leaves_and_utime_now_sets),
    ROW(futimens_and_directories_and_links),
    ROW(utimensat_permissions),
    ROW(write_moves_mtime_and_ctime),
    ROW(mtime_set_before_close_stays),
    ROW(truncate_moves_mtime),
    ROW(chmod_and_chown_move_ctime_only),
    ROW(reading_moves_no_mtime),
    ROW(directory_mtime_moves_with_its_entries),
    ROW(new_files_carry_the_present_time),
    CASES_END,
};
