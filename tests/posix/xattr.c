/* Extended attributes of the user namespace. */
#include "posix.h"

#include <sys/xattr.h>

static void need_xattr(void)
{
    make_text("f", "x");
    if (setxattr("f", "user.probe", "1", 1, 0) && errno == EOPNOTSUPP)
        SKIP("no user xattrs");
    OK(removexattr("f", "user.probe"));
}

CASE(xattr_set_get_and_remove)
{
    char buf[64];
    need_xattr();
    OK(setxattr("f", "user.a", "value", 5, 0));
    EQ(5, getxattr("f", "user.a", buf, sizeof(buf)));
    SAME("value", buf, 5);
    EQ(5, getxattr("f", "user.a", NULL, 0));
    OK(setxattr("f", "user.a", "longer value", 12, 0));
    EQ(12, getxattr("f", "user.a", buf, sizeof(buf)));
    OK(removexattr("f", "user.a"));
    FAILS(ENODATA, getxattr("f", "user.a", buf, sizeof(buf)));
    FAILS(ENODATA, removexattr("f", "user.a"));
}

CASE(xattr_empty_and_binary_values)
{
    char buf[256], all[256];
    need_xattr();
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    OK(setxattr("f", "user.empty", "", 0, 0));
    EQ(0, getxattr("f", "user.empty", buf, sizeof(buf)));
    OK(setxattr("f", "user.bin", all, 256, 0));
    EQ(256, getxattr("f", "user.bin", buf, sizeof(buf)));
    SAME(all, buf, 256);
}

CASE(xattr_create_and_replace_flags)
{
    char buf[8];
    need_xattr();
    FAILS(ENODATA, setxattr("f", "user.a", "1", 1, XATTR_REPLACE));
    OK(setxattr("f", "user.a", "1", 1, XATTR_CREATE));
    FAILS(EEXIST, setxattr("f", "user.a", "2", 1, XATTR_CREATE));
    OK(setxattr("f", "user.a", "3", 1, XATTR_REPLACE));
    EQ(1, getxattr("f", "user.a", buf, sizeof(buf)));
    EQ('3', buf[0]);
    FAILS(EINVAL, setxattr("f", "user.a", "3", 1, 99));
}

CASE(xattr_buffer_too_small_is_erange)
{
    char buf[4];
    need_xattr();
    OK(setxattr("f", "user.abc", "12345", 5, 0));
    FAILS(ERANGE, getxattr("f", "user.abc", buf, 4));
    FAILS(ERANGE, listxattr("f", buf, 4));
}

static bool listed(const char *list, ssize_t len, const char *name)
{
    for (ssize_t i = 0; i < len; i += (ssize_t)strlen(list + i) + 1)
        if (strcmp(list + i, name) == 0)
            return true;
    return false;
}

CASE(xattr_list_holds_every_name)
{
    char list[8192], name[32];
    need_xattr();
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "user.name%d", i);
        OK(setxattr("f", name, name, strlen(name), 0));
    }
    ssize_t want = OK(listxattr("f", NULL, 0)), n = OK(listxattr("f", list, sizeof(list)));
    EQ(want, n);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof(name), "user.name%d", i);
        TRUE(listed(list, n, name));
    }
    OK(removexattr("f", "user.name7"));
    n = OK(listxattr("f", list, sizeof(list)));
    TRUE(!listed(list, n, "user.name7"));
    TRUE(listed(list, n, "user.name8"));
}

CASE(xattr_of_directories_and_descriptors)
{
    char buf[8];
    need_xattr();
    OK(mkdir("d", 0755));
    OK(setxattr("d", "user.a", "dir", 3, 0));
    EQ(3, getxattr("d", "user.a", buf, sizeof(buf)));
    int fd = (int)OK(open("f", O_RDWR));
    OK(fsetxattr(fd, "user.b", "fd", 2, 0));
    EQ(2, fgetxattr(fd, "user.b", buf, sizeof(buf)));
    EQ(2, getxattr("f", "user.b", buf, sizeof(buf)));
    TRUE(OK(flistxattr(fd, NULL, 0)) > 0);
    OK(fremovexattr(fd, "user.b"));
    FAILS(ENODATA, fgetxattr(fd, "user.b", buf, sizeof(buf)));
    OK(close(fd));
}

CASE(xattr_follows_the_file_not_the_name)
{
    char buf[8];
    need_xattr();
    OK(setxattr("f", "user.a", "v", 1, 0));
    OK(rename("f", "g"));
    EQ(1, getxattr("g", "user.a", buf, sizeof(buf)));
    OK(link("g", "h"));
    EQ(1, getxattr("h", "user.a", buf, sizeof(buf)));
    make_text("f", "other");
    FAILS(ENODATA, getxattr("f", "user.a", buf, sizeof(buf)));
}

CASE(xattr_errors)
{
    char buf[8], name[300] = "user.";
    need_xattr();
    memset(name + 5, 'n', 255);
    FAILS(ENOENT, setxattr("none", "user.a", "v", 1, 0));
    FAILS(ENOENT, getxattr("none", "user.a", buf, sizeof(buf)));
    FAILS(ERANGE, setxattr("f", name, "v", 1, 0));
    FAILS(EOPNOTSUPP, setxattr("f", "nonamespace", "v", 1, 0));
    FAILS(EOPNOTSUPP, setxattr("f", "wrong.a", "v", 1, 0));
    FAILS(EOPNOTSUPP, getxattr("f", "wrong.a", buf, sizeof(buf)));
    OK(symlink("f", "l"));
    FAILS(EPERM, lsetxattr("l", "user.a", "v", 1, 0));
    OK(chmod("f", 0644));
    AS_USER(USER)
    {
        FAILS(EACCES, setxattr("f", "user.a", "v", 1, 0));
        FAILS(ENODATA, getxattr("f", "user.a", buf, sizeof(buf)));
    }
}

CASE(xattr_values_of_a_kilobyte)
{
    char value[1024], buf[1024];
    need_xattr();
    fill(value, sizeof(value), 1);
    OK(setxattr("f", "user.big", value, sizeof(value), 0));
    EQ(sizeof(value), getxattr("f", "user.big", buf, sizeof(buf)));
    SAME(value, buf, sizeof(value));
    TRUE(file_has("f", "x"));
}

CASE(setxattr_changes_ctime_only)
{
    need_xattr();
    struct stat before = stat_of("f");
    usleep(20000);
    OK(setxattr("f", "user.a", "v", 1, 0));
    struct stat after = stat_of("f");
    EQ(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    TRUE(before.st_ctim.tv_nsec != after.st_ctim.tv_nsec || before.st_ctim.tv_sec != after.st_ctim.tv_sec);
}

const struct posix_case cases_xattr[] = {
    ROW(xattr_set_get_and_remove),
    ROW(xattr_empty_and_binary_values),
    ROW(xattr_create_and_replace_flags),
    ROW(xattr_buffer_too_small_is_erange),
    ROW(xattr_list_holds_every_name),
    ROW(xattr_of_directories_and_descriptors),
    ROW(xattr_follows_the_file_not_the_name),
    ROW(xattr_errors),
    ROW(xattr_values_of_a_kilobyte),
    ROW(setxattr_changes_ctime_only),
    CASES_END,
};
