/* Owners, modes and who may do what. */
#include "posix.h"

CASE(chmod_sets_every_bit)
{
    make_text("f", "x");
    for (mode_t mode = 0; mode <= 07777; mode += 0111) {
        if (chmod("f", mode) || (stat_of("f").st_mode & 07777) != mode)
            EQ(mode, stat_of("f").st_mode & 07777);
    }
    int fd = (int)OK(open("f", O_RDONLY));
    OK(fchmod(fd, 0751));
    EQ(0751, stat_fd(fd).st_mode & 07777);
    OK(close(fd));
    FAILS(ENOENT, chmod("none", 0600));
    FAILS(ENOTDIR, chmod("f/x", 0600));
    TRUE(S_ISREG(stat_of("f").st_mode));
}

CASE(chmod_of_a_directory)
{
    OK(mkdir("d", 0700));
    OK(chmod("d", 01777));
    EQ(01777, stat_of("d").st_mode & 07777);
    TRUE(S_ISDIR(stat_of("d").st_mode));
}

CASE(only_the_owner_may_chmod)
{
    make_text("f", "x");
    AS_USER(USER)
    {
        FAILS(EPERM, chmod("f", 0777));
        make_text("mine", "x");
        OK(chmod("mine", 0600));
    }
    AS_USER(OTHER_USER)
    FAILS(EPERM, chmod("mine", 0777));
    EQ(0600, stat_of("mine").st_mode & 07777);
}

CASE(chown_by_root)
{
    make_text("f", "x");
    OK(chown("f", USER, OTHER_USER));
    EQ(USER, stat_of("f").st_uid);
    EQ(OTHER_USER, stat_of("f").st_gid);
    OK(chown("f", (uid_t)-1, 5));
    EQ(USER, stat_of("f").st_uid);
    EQ(5, stat_of("f").st_gid);
    OK(chown("f", 6, (gid_t)-1));
    EQ(6, stat_of("f").st_uid);
    EQ(5, stat_of("f").st_gid);
    OK(chown("f", 0x7ffffffe, 0x7ffffffe));
    EQ(0x7ffffffe, stat_of("f").st_uid);
    int fd = (int)OK(open("f", O_RDONLY));
    OK(fchown(fd, 1, 2));
    EQ(1, stat_fd(fd).st_uid);
    OK(close(fd));
    FAILS(ENOENT, chown("none", 1, 1));
}

CASE(chown_by_others_is_refused)
{
    make_text("f", "x");
    OK(chown("f", USER, USER));
    AS_USER(USER)
    {
        FAILS(EPERM, chown("f", OTHER_USER, (gid_t)-1));
        FAILS(EPERM, chown("f", (uid_t)-1, OTHER_USER));
        OK(chown("f", USER, USER));
    }
    AS_USER(OTHER_USER)
    FAILS(EPERM, chown("f", OTHER_USER, OTHER_USER));
    EQ(USER, stat_of("f").st_uid);
}

CASE(new_files_belong_to_their_maker)
{
    AS_USER(USER)
    {
        make_text("f", "x");
        OK(mkdir("d", 0755));
        OK(symlink("f", "l"));
        OK(mkfifo("p", 0600));
    }
    EQ(USER, stat_of("f").st_uid);
    EQ(USER, stat_of("f").st_gid);
    EQ(USER, stat_of("d").st_uid);
    EQ(USER, stat_of("l").st_uid);
    EQ(USER, stat_of("p").st_uid);
}

CASE(umask_is_applied)
{
    static const mode_t masks[] = {0, 022, 077, 0777, 027, 0111};
    for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
        (void)umask(masks[i]);
        int fd = (int)OK(open("f", O_CREAT | O_WRONLY, 0777));
        EQ(0777 & ~masks[i], stat_fd(fd).st_mode & 07777);
        OK(close(fd));
        OK(mkdir("d", 0777));
        EQ(0777 & ~masks[i], stat_of("d").st_mode & 07777);
        OK(mkfifo("p", 0666));
        EQ(0666 & ~masks[i], stat_of("p").st_mode & 07777);
        OK(unlink("f"));
        OK(unlink("p"));
        OK(rmdir("d"));
    }
}

static void expect_access(const char *path, mode_t bits)
{
    static const struct {
        int flags;
        mode_t need;
    } ways[] = {{O_RDONLY, 4}, {O_WRONLY, 2}, {O_RDWR, 6}};
    for (size_t i = 0; i < 3; i++) {
        if ((bits & ways[i].need) == ways[i].need) {
            int fd = (int)OK(open(path, ways[i].flags));
            OK(close(fd));
        } else
            FAILS(EACCES, open(path, ways[i].flags));
    }
    if (bits & 4)
        OK(access(path, R_OK));
    else
        FAILS(EACCES, access(path, R_OK));
    if (bits & 2)
        OK(access(path, W_OK));
    else
        FAILS(EACCES, access(path, W_OK));
    if (bits & 1)
        OK(access(path, X_OK));
    else
        FAILS(EACCES, access(path, X_OK));
}

CASE(owner_group_and_other_bits_are_enforced)
{
    make_text("f", "x");
    OK(chown("f", USER, OTHER_USER));
    for (mode_t bits = 0; bits < 8; bits++) {
        OK(chmod("f", bits << 6));
        AS_USER(USER)
        expect_access("f", bits);
        OK(chmod("f", bits << 3));
        AS_USER(OTHER_USER)
        expect_access("f", bits);
        OK(chmod("f", bits));
        AS_USER(777)
        expect_access("f", bits);
    }
}

CASE(owner_bits_win_over_other_bits)
{
    make_text("f", "x");
    OK(chown("f", USER, USER));
    OK(chmod("f", 0077));
    AS_USER(USER)
    FAILS(EACCES, open("f", O_RDONLY));
    AS_USER(OTHER_USER)
    OK(open("f", O_RDONLY));
}

CASE(root_reads_and_writes_whatever)
{
    make_file("f", "x", 1, 0000);
    OK(chmod("f", 0));
    OK(close((int)OK(open("f", O_RDWR))));
    FAILS(EACCES, access("f", X_OK));
}

CASE(directory_search_permission)
{
    OK(mkdir("d", 0755));
    make_text("d/f", "x");
    struct stat st;
    OK(chmod("d", 0744));
    AS_USER(USER)
    {
        FAILS(EACCES, stat("d/f", &st));
        FAILS(EACCES, open("d/f", O_RDONLY));
        FAILS(EACCES, chdir("d"));
        OK(open("d", O_RDONLY | O_DIRECTORY));
    }
    OK(chmod("d", 0711));
    AS_USER(USER)
    {
        OK(stat("d/f", &st));
        TRUE(file_has("d/f", "x"));
        FAILS(EACCES, open("d", O_RDONLY | O_DIRECTORY));
    }
}

CASE(directory_write_permission)
{
    OK(mkdir("d", 0755));
    make_text("d/f", "x");
    OK(chmod("d/f", 0666));
    AS_USER(USER)
    {
        FAILS(EACCES, open("d/new", O_CREAT | O_WRONLY, 0644));
        FAILS(EACCES, unlink("d/f"));
        FAILS(EACCES, mkdir("d/sub", 0755));
        FAILS(EACCES, rename("d/f", "d/g"));
        FAILS(EACCES, rename("d/f", "moved"));
        FAILS(EACCES, symlink("x", "d/l"));
        FAILS(EACCES, link("d/f", "d/g"));
        FAILS(EACCES, mkfifo("d/p", 0600));
        OK(close((int)OK(open("d/f", O_WRONLY))));
    }
    FAILS(ENOENT, rmdir("d/sub"));
    TRUE(exists("d/f"));
}

CASE(sticky_directory_protects_others_files)
{
    OK(mkdir("d", 0755));
    OK(chmod("d", 01777));
    AS_USER(USER)
    {
        make_text("d/mine", "x");
        OK(mkdir("d/sub", 0777));
    }
    AS_USER(OTHER_USER)
    {
        make_text("d/yours", "y");
        FAILS(EPERM, unlink("d/mine"));
        FAILS(EPERM, rename("d/mine", "d/taken"));
        FAILS(EPERM, rename("d/yours", "d/mine"));
        FAILS(EPERM, rmdir("d/sub"));
        OK(unlink("d/yours"));
    }
    AS_USER(USER)
    {
        OK(unlink("d/mine"));
        OK(rmdir("d/sub"));
    }
}

CASE(setgid_directory_gives_its_group)
{
    OK(mkdir("d", 0755));
    OK(chown("d", 0, OTHER_USER));
    OK(chmod("d", 02777));
    AS_USER(USER)
    {
        make_text("d/f", "x");
        OK(mkdir("d/sub", 0755));
    }
    EQ(OTHER_USER, stat_of("d/f").st_gid);
    EQ(USER, stat_of("d/f").st_uid);
    EQ(OTHER_USER, stat_of("d/sub").st_gid);
    EQ(02755, stat_of("d/sub").st_mode & 07777);
    int fd = open("d", O_TMPFILE | O_RDWR, 0640);
    struct stat st;
    if (fd >= 0) {
        OK(fstat(fd, &st));
        EQ(stat_of("d").st_gid, st.st_gid);
        OK(close(fd));
    }
}

CASE(write_by_non_root_clears_setuid)
{
    make_text("f", "x");
    OK(chmod("f", 06777));
    AS_USER(USER)
    {
        int fd = (int)OK(open("f", O_WRONLY));
        EQ(1, write(fd, "y", 1));
        OK(close(fd));
    }
    EQ(0777, stat_of("f").st_mode & 07777);
}

CASE(truncate_by_non_root_clears_setuid)
{
    make_text("f", "xyz");
    OK(chown("f", USER, USER));
    OK(chmod("f", 06777));
    AS_USER(USER)
    OK(truncate("f", 1));
    EQ(0777, stat_of("f").st_mode & 07777);
}

CASE(chown_clears_setuid)
{
    make_text("f", "x");
    OK(chown("f", USER, USER));
    OK(chmod("f", 06755));
    EQ(06755, stat_of("f").st_mode & 07777);
    AS_USER(USER)
    OK(chown("f", USER, USER));
    EQ(0755, stat_of("f").st_mode & 07777);
}

CASE(chmod_by_non_member_clears_setgid)
{
    make_text("f", "x");
    OK(chown("f", USER, OTHER_USER));
    AS_USER(USER)
    OK(chmod("f", 02755));
    EQ(0755, stat_of("f").st_mode & 07777);
}

CASE(permission_is_checked_at_open_only)
{
    char buf[4];
    make_text("f", "abc");
    OK(chmod("f", 0666));
    OK(chown("f", USER, USER));
    AS_USER(USER)
    {
        int fd = (int)OK(open("f", O_RDWR));
        OK(chmod("f", 0));
        EQ(3, pread(fd, buf, sizeof(buf), 0));
        EQ(1, pwrite(fd, "X", 1, 0));
        FAILS(EACCES, open("f", O_RDONLY));
        OK(close(fd));
    }
}

CASE(access_and_faccessat)
{
    make_file("f", "x", 1, 0644);
    FAILS(ENOENT, access("none", F_OK));
    FAILS(ENOTDIR, access("f/x", F_OK));
    FAILS(EINVAL, access("f", 99));
    OK(access("f", F_OK));
    OK(faccessat(AT_FDCWD, "f", R_OK, AT_EACCESS));
    OK(symlink("none", "l"));
    FAILS(ENOENT, access("l", F_OK));
    AS_USER(USER)
    FAILS(EACCES, faccessat(AT_FDCWD, "f", W_OK, AT_EACCESS));
}

const struct posix_case cases_perm[] = {
    ROW(chmod_sets_every_bit),
    ROW(chmod_of_a_directory),
    ROW(only_the_owner_may_chmod),
    ROW(chown_by_root),
    ROW(chown_by_others_is_refused),
    ROW(new_files_belong_to_their_maker),
    ROW(umask_is_applied),
    ROW(owner_group_and_other_bits_are_enforced),
    ROW(owner_bits_win_over_other_bits),
    ROW(root_reads_and_writes_whatever),
    ROW(directory_search_permission),
    ROW(directory_write_permission),
    ROW(sticky_directory_protects_others_files),
    ROW(setgid_directory_gives_its_group),
    ROW(write_by_non_root_clears_setuid),
    ROW(truncate_by_non_root_clears_setuid),
    ROW(chown_clears_setuid),
    ROW(chmod_by_non_member_clears_setgid),
    ROW(permission_is_checked_at_open_only),
    ROW(access_and_faccessat),
    CASES_END,
};
