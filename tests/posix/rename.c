/* Renaming: over files and directories, with flags, under open descriptors. */
#include "posix.h"

#include <linux/fs.h>

CASE(rename_moves_a_file)
{
    make_text("a", "x");
    ino_t ino = stat_of("a").st_ino;
    OK(rename("a", "b"));
    TRUE(!exists("a"));
    TRUE(file_has("b", "x"));
    EQ(ino, stat_of("b").st_ino);
    FAILS(ENOENT, rename("a", "c"));
}

CASE(rename_replaces_a_file)
{
    make_text("a", "new");
    make_text("b", "old");
    ino_t ino = stat_of("a").st_ino;
    OK(rename("a", "b"));
    TRUE(file_has("b", "new"));
    EQ(ino, stat_of("b").st_ino);
    TRUE(!exists("a"));
}

CASE(replaced_file_lives_on_for_its_readers)
{
    char buf[8];
    make_text("a", "new");
    make_text("b", "old");
    int fd = (int)OK(open("b", O_RDONLY));
    OK(rename("a", "b"));
    EQ(3, pread(fd, buf, sizeof(buf), 0));
    SAME("old", buf, 3);
    EQ(0, stat_fd(fd).st_nlink);
    OK(close(fd));
    TRUE(file_has("b", "new"));
}

CASE(rename_under_an_open_writer)
{
    int fd = (int)OK(open("a", O_CREAT | O_RDWR, 0644));
    EQ(5, write(fd, "first", 5));
    OK(rename("a", "b"));
    EQ(6, write(fd, "second", 6));
    OK(close(fd));
    TRUE(file_has("b", "firstsecond"));
    TRUE(!exists("a"));
}

CASE(name_is_free_again_after_rename)
{
    make_text("a", "one");
    OK(rename("a", "b"));
    make_text("a", "two");
    TRUE(file_has("a", "two"));
    TRUE(file_has("b", "one"));
    TRUE(stat_of("a").st_ino != stat_of("b").st_ino);
}

CASE(save_by_temporary_and_rename_always_shows_a_whole_file)
{
    char text[64], got[64];
    int bad = 0;
    make_text("f", "version 00");
    BESIDE
    {
        for (int i = 1; i < 60; i++) {
            snprintf(text, sizeof(text), "version %02d", i);
            int fd = open("f.tmp", O_CREAT | O_WRONLY | O_TRUNC, 0644);
            if (write(fd, text, 10) != 10 || close(fd) || rename("f.tmp", "f"))
                _exit(1);
        }
    }
    for (int i = 0; i < 200; i++)
        bad += slurp("f", got, sizeof(got)) != 10 || memcmp(got, "version ", 8) != 0;
    wait_children();
    EQ(0, bad);
    TRUE(file_has("f", "version 59"));
}

CASE(rename_to_itself_does_nothing)
{
    make_text("a", "x");
    OK(rename("a", "a"));
    TRUE(file_has("a", "x"));
    OK(mkdir("d", 0755));
    OK(rename("d", "d"));
    TRUE(exists("d"));
}

CASE(rename_between_hard_links_does_nothing)
{
    make_text("a", "x");
    OK(link("a", "b"));
    OK(rename("a", "b"));
    TRUE(exists("a"));
    TRUE(exists("b"));
    EQ(2, stat_of("a").st_nlink);
}

CASE(rename_moves_a_directory_with_its_content)
{
    OK(mkdir("d", 0755));
    OK(mkdir("d/sub", 0755));
    make_text("d/sub/f", "deep");
    ino_t ino = stat_of("d/sub/f").st_ino;
    OK(rename("d", "e"));
    TRUE(!exists("d"));
    TRUE(file_has("e/sub/f", "deep"));
    EQ(ino, stat_of("e/sub/f").st_ino);
    FAILS(ENOENT, open("d/sub/f", O_RDONLY));
}

CASE(rename_moves_between_directories)
{
    OK(mkdir("d", 0755));
    OK(mkdir("e", 0755));
    make_text("d/f", "x");
    OK(rename("d/f", "e/g"));
    TRUE(file_has("e/g", "x"));
    OK(rename("e", "d/e"));
    TRUE(file_has("d/e/g", "x"));
    TRUE(rmdir("d") == -1);
    struct stat up = {0}, d = stat_of("d");
    OK(stat("d/e/..", &up));
    EQ(d.st_ino, up.st_ino);
}

CASE(rename_over_an_empty_directory)
{
    OK(mkdir("d", 0755));
    OK(mkdir("e", 0755));
    make_text("d/f", "x");
    OK(rename("d", "e"));
    TRUE(file_has("e/f", "x"));
    TRUE(!exists("d"));
}

CASE(rename_refusals)
{
    make_text("f", "x");
    OK(mkdir("d", 0755));
    OK(mkdir("d/sub", 0755));
    OK(mkdir("full", 0755));
    make_text("full/f", "y");
    FAILS(EINVAL, rename("d", "d/sub/x"));
    FAILS(EINVAL, rename("d", "d/x"));
    TRUE(rename("d", "full") == -1 && (errno == ENOTEMPTY || errno == EEXIST));
    FAILS(EISDIR, rename("f", "d"));
    FAILS(ENOTDIR, rename("d", "f"));
    FAILS(ENOTDIR, rename("f", "f/x"));
    FAILS(ENOENT, rename("f", "none/x"));
    FAILS(ENOENT, rename("none", "x"));
    FAILS(ENOENT, rename("", "x"));
    FAILS(ENOTDIR, rename("f/", "x"));
    TRUE(rename("d", "d/.") == -1);
    TRUE(rename(".", "x") == -1 && (errno == EBUSY || errno == EINVAL));
    TRUE(rename("d/..", "x") == -1);
    TRUE(file_has("f", "x"));
    TRUE(file_has("full/f", "y"));
    TRUE(exists("d/sub"));
}

CASE(rename_of_symlinks_moves_the_link)
{
    char buf[16];
    make_text("f", "x");
    OK(symlink("f", "l"));
    OK(rename("l", "m"));
    EQ(1, readlink("m", buf, sizeof(buf)));
    TRUE(file_has("f", "x"));
    make_text("g", "y");
    OK(rename("g", "m"));
    TRUE(S_ISREG(stat_of("m").st_mode));
    TRUE(file_has("f", "x"));
}

CASE(noreplace_refuses_an_existing_target)
{
    make_text("a", "1");
    make_text("b", "2");
    OK(mkdir("d", 0755));
    if (renameat2(AT_FDCWD, "a", AT_FDCWD, "c", RENAME_NOREPLACE) && errno == EINVAL)
        SKIP("no RENAME_NOREPLACE");
    TRUE(file_has("c", "1"));
    FAILS(EEXIST, renameat2(AT_FDCWD, "c", AT_FDCWD, "b", RENAME_NOREPLACE));
    FAILS(EEXIST, renameat2(AT_FDCWD, "c", AT_FDCWD, "d", RENAME_NOREPLACE));
    FAILS(ENOENT, renameat2(AT_FDCWD, "a", AT_FDCWD, "z", RENAME_NOREPLACE));
    TRUE(file_has("b", "2"));
    TRUE(file_has("c", "1"));
}

CASE(exchange_swaps_names)
{
    make_text("a", "1");
    make_text("b", "2");
    OK(mkdir("d", 0755));
    make_text("d/f", "in d");
    if (renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_EXCHANGE) && errno == EINVAL)
        SKIP("no RENAME_EXCHANGE");
    TRUE(file_has("a", "2"));
    TRUE(file_has("b", "1"));
    OK(renameat2(AT_FDCWD, "a", AT_FDCWD, "d", RENAME_EXCHANGE));
    TRUE(file_has("d", "2"));
    TRUE(file_has("a/f", "in d"));
    FAILS(ENOENT, renameat2(AT_FDCWD, "b", AT_FDCWD, "none", RENAME_EXCHANGE));
    FAILS(EINVAL, renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_EXCHANGE | RENAME_NOREPLACE));
    TRUE(file_has("b", "1"));
}

CASE(rename_updates_times)
{
    OK(mkdir("d", 0755));
    OK(mkdir("e", 0755));
    make_text("d/f", "x");
    struct stat d = stat_of("d"), e = stat_of("e"), f = stat_of("d/f");
    usleep(20000);
    OK(rename("d/f", "e/f"));
    struct stat d2 = stat_of("d"), e2 = stat_of("e"), f2 = stat_of("e/f");
    TRUE(d2.st_mtim.tv_sec > d.st_mtim.tv_sec || d2.st_mtim.tv_nsec != d.st_mtim.tv_nsec);
    TRUE(e2.st_mtim.tv_sec > e.st_mtim.tv_sec || e2.st_mtim.tv_nsec != e.st_mtim.tv_nsec);
    EQ(f.st_mtim.tv_sec, f2.st_mtim.tv_sec);
    EQ(f.st_mtim.tv_nsec, f2.st_mtim.tv_nsec);
}

CASE(rename_of_directories_by_many_processes)
{
    OK(mkdir("a", 0755));
    make_text("a/f", "here");
    for (int i = 0; i < 4; i++)
        BESIDE
        {
            for (int k = 0; k < 50; k++) {
                (void)rename("a", "b");
                (void)rename("b", "a");
            }
        }
    wait_children();
    EQ(1, exists("a") + exists("b"));
    TRUE(file_has(exists("a") ? "a/f" : "b/f", "here"));
}

const struct posix_case cases_rename[] = {
    ROW(rename_moves_a_file),
    ROW(rename_replaces_a_file),
    ROW(replaced_file_lives_on_for_its_readers),
    ROW(rename_under_an_open_writer),
    ROW(name_is_free_again_after_rename),
    ROW(save_by_temporary_and_rename_always_shows_a_whole_file),
    ROW(rename_to_itself_does_nothing),
    ROW(rename_between_hard_links_does_nothing),
    ROW(rename_moves_a_directory_with_its_content),
    ROW(rename_moves_between_directories),
    ROW(rename_over_an_empty_directory),
    ROW(rename_refusals),
    ROW(rename_of_symlinks_moves_the_link),
    ROW(noreplace_refuses_an_existing_target),
    ROW(exchange_swaps_names),
    ROW(rename_updates_times),
    ROW(rename_of_directories_by_many_processes),
    CASES_END,
};
