/* Directories: making, removing, reading them whole, while they change, and by position. */
#include "posix.h"

#include <dirent.h>

/* Reads DIR; counts entries other than "." and "..", and how often each "fNUMBER" was seen. */
static int scan(const char *path, unsigned char *seen, size_t n, bool *ret_dots)
{
    int count = 0, dots = 0;
    DIR *d = opendir(path);
    TRUE(d != NULL);
    if (!d)
        return -1;
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            dots++;
            continue;
        }
        count++;
        unsigned long k = strtoul(e->d_name + 1, NULL, 10);
        if (seen && e->d_name[0] == 'f' && k < n)
            seen[k]++;
    }
    closedir(d);
    if (ret_dots)
        *ret_dots = dots == 2;
    return count;
}

static void make_many(const char *dir, int n)
{
    char name[64];
    int bad = 0;
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s/f%d", dir, i);
        int fd = open(name, O_CREAT | O_WRONLY, 0644);
        bad += fd < 0 || close(fd) != 0;
    }
    EQ(0, bad);
}

CASE(mkdir_and_rmdir)
{
    OK(mkdir("d", 0751));
    struct stat st = stat_of("d");
    TRUE(S_ISDIR(st.st_mode));
    EQ(0751, st.st_mode & 07777);
    OK(mkdir("d/e", 0755));
    TRUE(rmdir("d") == -1 && (errno == ENOTEMPTY || errno == EEXIST));
    OK(rmdir("d/e"));
    OK(rmdir("d"));
    FAILS(ENOENT, rmdir("d"));
    OK(mkdir("slash/", 0755));
    OK(rmdir("slash/"));
}

CASE(mkdir_and_rmdir_refusals)
{
    make_text("f", "x");
    OK(mkdir("d", 0755));
    OK(symlink("none", "l"));
    FAILS(EEXIST, mkdir("f", 0755));
    FAILS(EEXIST, mkdir("d", 0755));
    FAILS(EEXIST, mkdir("l", 0755));
    FAILS(EEXIST, mkdir(".", 0755));
    FAILS(EEXIST, mkdir("..", 0755));
    FAILS(EEXIST, mkdir("/", 0755));
    FAILS(EEXIST, mkdir("d/..", 0755));
    FAILS(ENOENT, mkdir("none/d", 0755));
    FAILS(ENOTDIR, mkdir("f/d", 0755));
    FAILS(EINVAL, rmdir("d/."));
    FAILS(ENOTEMPTY, rmdir("d/.."));
    FAILS(ENOTDIR, rmdir("f"));
    FAILS(ENOTDIR, rmdir("l"));
    TRUE(exists("d"));
}

CASE(empty_directory_lists_dots_only)
{
    bool dots = false;
    OK(mkdir("d", 0755));
    EQ(0, scan("d", NULL, 0, &dots));
    TRUE(dots);
}

CASE(dot_entries_name_the_right_inodes)
{
    struct stat here = {0}, up = {0}, d, e;
    OK(mkdir("d", 0755));
    OK(mkdir("d/e", 0755));
    d = stat_of("d");
    e = stat_of("d/e");
    OK(stat("d/e/.", &here));
    OK(stat("d/e/..", &up));
    EQ(e.st_ino, here.st_ino);
    EQ(d.st_ino, up.st_ino);
}

CASE(two_thousand_entries_are_listed_once_each)
{
    static unsigned char seen[2000];
    int wrong = 0;
    bool dots = false;
    OK(mkdir("d", 0755));
    make_many("d", 2000);
    EQ(2000, scan("d", seen, 2000, &dots));
    TRUE(dots);
    for (int i = 0; i < 2000; i++)
        wrong += seen[i] != 1;
    EQ(0, wrong);
    EQ(2000, scan("d", NULL, 0, NULL));
}

CASE(listing_reports_types_and_inodes)
{
    int checked = 0;
    OK(mkdir("d", 0755));
    make_text("d/file", "x");
    OK(mkdir("d/dir", 0755));
    OK(symlink("x", "d/link"));
    OK(mkfifo("d/fifo", 0644));
    DIR *d = opendir("d");
    TRUE(d != NULL);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[300];
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "d/%s", e->d_name);
        struct stat st = stat_of(path);
        EQ(st.st_ino, e->d_ino);
        TRUE(e->d_type == DT_UNKNOWN || e->d_type == IFTODT(st.st_mode));
        checked++;
    }
    EQ(4, checked);
    OK(closedir(d));
}

CASE(changes_show_in_the_next_listing)
{
    OK(mkdir("d", 0755));
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof(name), "d/f%d", i);
        make_text(name, "");
        EQ(i + 1, scan("d", NULL, 0, NULL));
    }
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof(name), "d/f%d", i);
        OK(unlink(name));
        EQ(9 - i, scan("d", NULL, 0, NULL));
    }
    make_text("d/a", "");
    OK(rename("d/a", "d/b"));
    EQ(1, scan("d", NULL, 0, NULL));
}

CASE(rewinddir_sees_what_is_new)
{
    OK(mkdir("d", 0755));
    make_many("d", 3);
    DIR *d = opendir("d");
    int n = 0;
    while (readdir(d))
        n++;
    EQ(5, n);
    make_text("d/new", "");
    rewinddir(d);
    for (n = 0; readdir(d);)
        n++;
    EQ(6, n);
    OK(closedir(d));
}

CASE(telldir_and_seekdir_come_back_to_the_place)
{
    enum { N = 300 };
    static long where[N + 2];
    static char names[N + 2][32];
    int n = 0, wrong = 0;
    OK(mkdir("d", 0755));
    make_many("d", N);
    DIR *d = opendir("d");
    for (;;) {
        long at = telldir(d);
        struct dirent *e = readdir(d);
        if (!e || n >= N + 2)
            break;
        where[n] = at;
        snprintf(names[n++], 32, "%.31s", e->d_name);
    }
    EQ(N + 2, n);
    for (int i = n - 1; i >= 0; i -= 7) {
        seekdir(d, where[i]);
        struct dirent *e = readdir(d);
        wrong += !e || strcmp(e->d_name, names[i]) != 0;
    }
    EQ(0, wrong);
    seekdir(d, where[0]);
    int again = 0;
    while (readdir(d))
        again++;
    EQ(n, again);
    OK(closedir(d));
}

CASE(deleting_while_scanning_misses_nothing)
{
    char path[300];
    int deleted = 0, bad = 0;
    OK(mkdir("d", 0755));
    make_many("d", 1500);
    DIR *d = opendir("d");
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "d/%s", e->d_name);
        bad += unlink(path) != 0;
        deleted++;
    }
    OK(closedir(d));
    EQ(0, bad);
    EQ(1500, deleted);
    OK(rmdir("d"));
}

CASE(creating_while_scanning_keeps_the_old_entries_single)
{
    static unsigned char seen[1000];
    char path[64];
    int wrong = 0, k = 0;
    OK(mkdir("d", 0755));
    make_many("d", 1000);
    DIR *d = opendir("d");
    for (struct dirent *e; (e = readdir(d)) && k < 20000; k++) {
        if (e->d_name[0] == 'f')
            seen[strtoul(e->d_name + 1, NULL, 10) % 1000]++;
        if (k % 10 == 0) {
            snprintf(path, sizeof(path), "d/new%d", k);
            int fd = open(path, O_CREAT | O_WRONLY, 0644);
            wrong += fd < 0 || close(fd) != 0;
        }
    }
    OK(closedir(d));
    for (int i = 0; i < 1000; i++)
        wrong += seen[i] != 1;
    EQ(0, wrong);
}

CASE(open_directory_outlives_its_removal)
{
    OK(mkdir("d", 0755));
    int fd = (int)OK(open("d", O_RDONLY | O_DIRECTORY));
    OK(rmdir("d"));
    TRUE(S_ISDIR(stat_fd(fd).st_mode));
    FAILS(ENOENT, openat(fd, "f", O_CREAT | O_WRONLY, 0644));
    FAILS(ENOENT, mkdirat(fd, "sub", 0755));
    OK(close(fd));
}

CASE(directory_descriptor_lists_from_the_start)
{
    OK(mkdir("d", 0755));
    make_many("d", 5);
    for (int i = 0; i < 3; i++) {
        int n = 0, fd = (int)OK(open("d", O_RDONLY | O_DIRECTORY));
        DIR *d = fdopendir(fd);
        while (readdir(d))
            n++;
        EQ(7, n);
        OK(closedir(d));
    }
}

CASE(opendir_errors)
{
    make_text("f", "x");
    errno = 0;
    TRUE(opendir("none") == NULL && errno == ENOENT);
    errno = 0;
    TRUE(opendir("f") == NULL && errno == ENOTDIR);
}

CASE(deep_trees_work)
{
    int depth = 0, up = 0;
    for (; depth < 100; depth++)
        if (mkdir("deep", 0755) || chdir("deep"))
            break;
    EQ(100, depth);
    make_text("f", "bottom");
    TRUE(file_has("f", "bottom"));
    OK(unlink("f"));
    for (; up < 100; up++)
        if (chdir("..") || rmdir("deep"))
            break;
    EQ(100, up);
}

CASE(getcwd_follows_renames)
{
    char a[4096], b[4096];
    OK(mkdir("d", 0755));
    OK(chdir("d"));
    TRUE(getcwd(a, sizeof(a)) != NULL);
    OK(rename("../d", "../renamed"));
    TRUE(getcwd(b, sizeof(b)) != NULL);
    TRUE(strcmp(strrchr(a, '/'), "/d") == 0);
    TRUE(strcmp(strrchr(b, '/'), "/renamed") == 0);
}

CASE(parallel_creation_in_one_directory)
{
    static unsigned char seen[400];
    int wrong = 0;
    OK(mkdir("d", 0755));
    for (int w = 0; w < 4; w++)
        BESIDE
        {
            for (int i = w; i < 400; i += 4) {
                char name[32];
                snprintf(name, sizeof(name), "d/f%d", i);
                int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
                if (fd < 0 || close(fd))
                    _exit(1);
            }
        }
    wait_children();
    EQ(400, scan("d", seen, 400, NULL));
    for (int i = 0; i < 400; i++)
        wrong += seen[i] != 1;
    EQ(0, wrong);
}

const struct posix_case cases_dir[] = {
    ROW(mkdir_and_rmdir),
    ROW(mkdir_and_rmdir_refusals),
    ROW(empty_directory_lists_dots_only),
    ROW(dot_entries_name_the_right_inodes),
    ROW(two_thousand_entries_are_listed_once_each),
    ROW(listing_reports_types_and_inodes),
    ROW(changes_show_in_the_next_listing),
    ROW(rewinddir_sees_what_is_new),
    ROW(telldir_and_seekdir_come_back_to_the_place),
    ROW(deleting_while_scanning_misses_nothing),
    ROW(creating_while_scanning_keeps_the_old_entries_single),
    ROW(open_directory_outlives_its_removal),
    ROW(directory_descriptor_lists_from_the_start),
    ROW(opendir_errors),
    ROW(deep_trees_work),
    ROW(getcwd_follows_renames),
    ROW(parallel_creation_in_one_directory),
    CASES_END,
};
