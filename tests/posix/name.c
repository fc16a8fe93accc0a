/* Names: lengths, every byte, odd spellings. */
#include "posix.h"

#include <dirent.h>
#include <limits.h>

static bool is_listed(const char *name)
{
    bool found = false;
    DIR *d = opendir(".");
    for (struct dirent *e; d && (e = readdir(d));)
        found = found || strcmp(e->d_name, name) == 0;
    if (d)
        closedir(d);
    return found;
}

static void round_trip(const char *name)
{
    make_text(name, "content");
    TRUE(is_listed(name));
    TRUE(file_has(name, "content"));
    OK(rename(name, "plain"));
    TRUE(!exists(name));
    OK(rename("plain", name));
    OK(unlink(name));
    TRUE(!is_listed(name));
}

CASE(name_of_255_bytes_works_and_256_is_too_long)
{
    char name[300] = {0};
    memset(name, 'n', 255);
    round_trip(name);
    OK(mkdir(name, 0755));
    OK(rmdir(name));
    OK(symlink("x", name));
    OK(unlink(name));
    struct stat st;
    name[255] = 'n';
    make_text("f", "x");
    FAILS(ENAMETOOLONG, open(name, O_CREAT | O_WRONLY, 0644));
    FAILS(ENAMETOOLONG, mkdir(name, 0755));
    FAILS(ENAMETOOLONG, rename("f", name));
    FAILS(ENAMETOOLONG, link("f", name));
    FAILS(ENAMETOOLONG, symlink("f", name));
    FAILS(ENAMETOOLONG, stat(name, &st));
    FAILS(ENAMETOOLONG, unlink(name));
    FAILS(ENAMETOOLONG, mkfifo(name, 0600));
}

CASE(name_of_255_bytes_in_multibyte_letters)
{
    char name[256] = {0};
    for (int i = 0; i < 85; i++)
        memcpy(name + 3 * i, "\xe6\x97\xa5", 3);
    round_trip(name);
}

CASE(path_of_path_max_is_too_long)
{
    static char path[PATH_MAX + 10];
    struct stat st;
    make_text("f", "x");
    memset(path, 0, sizeof(path));
    for (size_t i = 0; i + 2 < PATH_MAX; i += 2)
        memcpy(path + i, "./", 2);
    strcat(path, "f");
    TRUE(strlen(path) < PATH_MAX);
    OK(stat(path, &st));
    memset(path, 0, sizeof(path));
    for (size_t i = 0; i < PATH_MAX; i += 2)
        memcpy(path + i, "./", 2);
    strcat(path, "f");
    FAILS(ENAMETOOLONG, stat(path, &st));
    FAILS(ENAMETOOLONG, open(path, O_RDONLY));
}

CASE(every_byte_may_be_in_a_name)
{
    char name[4] = "a?b";
    for (int c = 1; c < 256; c++) {
        if (c == '/')
            continue;
        name[1] = (char)c;
        make_text(name, name);
        if (!is_listed(name) || !file_has(name, name))
            EQ(c, -1);
    }
    int n = 0;
    DIR *d = opendir(".");
    while (d && readdir(d))
        n++;
    EQ(254 + 2, n);
    closedir(d);
}

CASE(odd_names_survive_a_round_trip)
{
    static const char *const names[] = {
        " ",
        "  two  ",
        "\n",
        "a\nb",
        "\t",
        "\"quoted\"",
        "'single'",
        "back\\slash",
        "per%20cent",
        "100%",
        "a+b",
        "a&b=c",
        "a?b#c",
        "<xml/ ",
        "*",
        "[a-z]",
        "...",
        "..a",
        ".hidden",
        "-rf",
        "~",
        "$HOME",
        "\x01\x02\x7f",
        "\xff\xfe",
        "\xc3\x28",
        "\xed\xa0\x80",
        "ü",
        "u\xcc\x88",
        "日本語",
        "😀",
        "con",
        "a:b",
        "a|b",
        "a;b",
        "`x`",
        "{a,b}",
        "!",
        "^",
        "@",
        "trailing.",
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strchr(names[i], '/'))
            round_trip(names[i]);
}

CASE(names_are_case_and_form_sensitive)
{
    make_text("Name", "upper");
    make_text("name", "lower");
    TRUE(file_has("Name", "upper"));
    TRUE(file_has("name", "lower"));
    make_text("\xc3\xbc", "composed");
    make_text("u\xcc\x88", "decomposed");
    TRUE(file_has("\xc3\xbc", "composed"));
    TRUE(file_has("u\xcc\x88", "decomposed"));
}

CASE(names_sorting_around_the_slash)
{
    OK(mkdir("a", 0755));
    make_text("a/x", "1");
    make_text("a-b", "2");
    make_text("a.b", "3");
    make_text("a0", "4");
    make_text("a b", "5");
    TRUE(file_has("a/x", "1"));
    TRUE(is_listed("a"));
    TRUE(is_listed("a-b"));
    TRUE(is_listed("a.b"));
    TRUE(is_listed("a0"));
    TRUE(is_listed("a b"));
}

CASE(slashes_collapse)
{
    struct stat st;
    OK(mkdir("d", 0755));
    make_text("d/f", "x");
    OK(stat("d//f", &st));
    OK(stat(".//d/./f", &st));
    OK(stat("d/../d/f", &st));
    OK(stat("d/", &st));
    OK(stat("d/.", &st));
    FAILS(ENOTDIR, stat("d/f/", &st));
    FAILS(ENOTDIR, stat("d/f/.", &st));
    FAILS(ENOTDIR, stat("d/f/..", &st));
    FAILS(ENOENT, stat("none/../d", &st));
}

CASE(odd_directory_names)
{
    static const char *const names[] = {" ", "a\nb", "\xff", "per%2Fcent", "a+b", "...", "-", "日本"};
    char path[64];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        OK(mkdir(names[i], 0755));
        snprintf(path, sizeof(path), "%s/f", names[i]);
        make_text(path, "in");
        TRUE(file_has(path, "in"));
        OK(rename(names[i], "moved"));
        TRUE(file_has("moved/f", "in"));
        OK(unlink("moved/f"));
        OK(rmdir("moved"));
    }
}

const struct posix_case cases_name[] = {
    ROW(name_of_255_bytes_works_and_256_is_too_long),
    ROW(name_of_255_bytes_in_multibyte_letters),
    ROW(path_of_path_max_is_too_long),
    ROW(every_byte_may_be_in_a_name),
    ROW(odd_names_survive_a_round_trip),
    ROW(names_are_case_and_form_sensitive),
    ROW(names_sorting_around_the_slash),
    ROW(slashes_collapse),
    ROW(odd_directory_names),
    CASES_END,
};
