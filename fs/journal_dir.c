/* See journal_dir.h. */
#include "journal_dir.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "cache_folder.h"

#include <fcntl.h>
#include <glib.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_READABLE 32

static const struct folder_words words = {"journal folder", "--journal-dir"};

static int fail_msg(int r, char **ret_msg, char *msg)
{
    *ret_msg = msg;
    return r;
}

/* ---- names ---- */

/* Without symlinks, as far as it exists. Owned. */
static char *canonical(const char *path)
{
    g_autofree char *head = g_canonicalize_filename(path, NULL);
    g_autofree char *tail = g_strdup("");
    char *real = NULL;
    while (!(real = realpath(head, NULL)) && strcmp(head, "/") != 0) {
        g_autofree char *last = g_path_get_basename(head), *rest = g_steal_pointer(&tail),
                        *below = g_steal_pointer(&head);
        tail = g_strconcat("/", last, rest, NULL);
        head = g_path_get_dirname(below);
    }
    char *whole = g_strconcat(real && strcmp(real, "/") != 0 ? real : "", *tail ? tail : "/", NULL);
    free(real);
    size_t len = strlen(whole);
    if (len > 1 && whole[len - 1] == '/')
        whole[len - 1] = '\0';
    return whole;
}

static bool lies_in(const char *path, const char *dir)
{
    size_t len = strcmp(dir, "/") == 0 ? 0 : strlen(dir);
    return strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

static char *link_of(const char *cache_dir)
{
    return g_build_filename(cache_dir, "meta", NULL);
}

/* Where in journal_dir the database of cache_dir is: a part that people can read, and one that tells it from all others. */
static char *place_of(const char *cache_dir, const char *journal_dir)
{
    g_autofree char *dir = canonical(cache_dir), *in = canonical(journal_dir);
    g_autofree char *sum = g_compute_checksum_for_string(G_CHECKSUM_SHA256, dir, -1);
    g_autofree char *last = g_path_get_basename(dir);
    for (char *p = last; *p; p++)
        if (!g_ascii_isalnum(*p) && !strchr("-_", *p))
            *p = '_';
    g_autofree char *name = g_strdup_printf("%.*s-%.16s", NAME_READABLE, last, sum);
    return g_build_filename(in, name, NULL);
}

/* ---- a symlink that is there ---- */

int journal_dir_find(const char *cache_dir, char **ret_path, char **ret_msg)
{
    g_autofree char *link = link_of(cache_dir), *target = g_file_read_link(link, NULL);
    if (!target) {
        *ret_path = g_steal_pointer(&link);
        return 0;
    }
    struct stat st;
    char *real = stat(link, &st) == 0 && S_ISDIR(st.st_mode) ? realpath(link, NULL) : NULL;
    if (real) {
        *ret_path = real;
        return 0;
    }
    g_autofree char *quoted = g_shell_quote(link);
    return fail_msg(
        -ENOLINK, ret_msg,
        g_strdup_printf("the database of '%s' is in '%s', which is not there: mount the disk of the journal "
                        "(--journal-dir) first; if that is lost for good, `rm %s`, and the next mount "
                        "brings unpublished files back from what stands beside their data",
                        cache_dir, target, quoted));
}

static int follow(const char *cache_dir, const char *journal_dir, char **ret_msg)
{
    g_autofree char *real = NULL;
    CLEANUP_FD int fd = -1;
    int r = journal_dir_find(cache_dir, &real, ret_msg);
    if (r < 0)
        return r;
    g_autofree char *in = g_path_get_dirname(real), *wanted = journal_dir ? canonical(journal_dir) : NULL;
    if (wanted && !g_str_equal(in, wanted))
        return fail_msg(-EEXIST, ret_msg,
                        g_strdup_printf("the database of '%s' is in '%s', not in --journal-dir '%s': leave the option "
                                        "away, or move the database there and '%s/meta' with it",
                                        cache_dir, in, journal_dir, cache_dir));
    if (journal_dir)
        r = cache_folder_make(journal_dir, &words, &fd, ret_msg);
    if (r < 0)
        return r;
    g_autofree char *reserve = g_build_filename(cache_dir, "reserve", NULL);
    (void)unlink(reserve); /* of a killed daemon that had the database here: its space is the cache's again */
    return 0;
}

/* ---- making it ---- */

static int sync_folder(const char *dir)
{
    CLEANUP_FD int fd = RET_ERRNO(open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return fd < 0 ? fd : RET_ERRNO(fsync(fd));
}

/* Neither the cache folder, nor in any of them: it would go with that disk. */
static int check_apart(const char *const *dirs, const char *journal_dir, char **ret_msg)
{
    g_autofree char *journal = canonical(journal_dir);
    for (unsigned i = 0; dirs[i]; i++) {
        g_autofree char *dir = canonical(dirs[i]);
        if (lies_in(journal, dir))
            return fail_msg(-EINVAL, ret_msg,
                            g_strdup_printf("--journal-dir '%s' lies in the cache folder '%s': give a folder on "
                                            "another disk",
                                            journal_dir, dirs[i]));
    }
    return 0;
}

/* The folder is there, and nobody else's. */
static int make_folder(const char *cache_dir, const char *journal_dir, char **ret_msg)
{
    struct stat here, there;
    CLEANUP_FD int fd = -1;
    int r = cache_folder_make(journal_dir, &words, &fd, ret_msg);
    if (r < 0)
        return r;
    g_autofree char *above = g_path_get_dirname(journal_dir);
    r = sync_folder(above);
    if (r < 0 && r != -EACCES)
        return fail_msg(r, ret_msg,
                        g_strdup_printf("cannot make journal folder '%s' last: %s", journal_dir, err_text(r)));
    if (fstat(fd, &there) == 0 && stat(cache_dir, &here) == 0 && here.st_dev == there.st_dev)
        log_warn("mount", "the journal folder is on the disk of the cache, and goes with it path='%s'", journal_dir);
    return 0;
}

static int refuse_move(const char *cache_dir, const char *journal_dir, char **ret_msg)
{
    g_autofree char *from = link_of(cache_dir), *to = place_of(cache_dir, journal_dir);
    g_autofree char *from_quoted = g_shell_quote(from), *to_quoted = g_shell_quote(to);
    return fail_msg(-EEXIST, ret_msg,
                    g_strdup_printf("the database is in '%s' already, not in --journal-dir '%s': move it with `mv -T "
                                    "%s %s && ln -s %s %s`, or leave the option away",
                                    from, journal_dir, from_quoted, to_quoted, to_quoted, from_quoted));
}

/* The folder first, so that a power loss leaves no symlink to nothing. */
static int make_link(const char *cache_dir, const char *journal_dir, char **ret_msg)
{
    g_autofree char *to = place_of(cache_dir, journal_dir), *link = link_of(cache_dir);
    g_autofree char *current = g_build_filename(to, "CURRENT", NULL);
    bool known = access(current, F_OK) == 0;
    int r = RET_ERRNO(mkdir(to, 0700));
    if (r == 0 || r == -EEXIST)
        r = sync_folder(journal_dir);
    if (r == 0)
        r = RET_ERRNO(symlink(to, link));
    if (r == 0)
        r = sync_folder(cache_dir);
    if (r < 0)
        return fail_msg(r, ret_msg, g_strdup_printf("cannot make '%s' lead to '%s': %s", link, to, err_text(r)));
    if (known)
        log_warn("mount", "the cache folder has no database; the one it had before is used on path='%s' database='%s'",
                 cache_dir, to);
    return 0;
}

int journal_dir_settle(const char *const *dirs, const char *journal_dir, char **ret_msg)
{
    g_autofree char *link = link_of(dirs[0]);
    struct stat st;
    int r = RET_ERRNO(lstat(link, &st));
    if (r == 0 && S_ISLNK(st.st_mode))
        return follow(dirs[0], journal_dir, ret_msg);
    if (!journal_dir)
        return 0;
    if (r < 0 && r != -ENOENT)
        return fail_msg(r, ret_msg, g_strdup_printf("cannot look at '%s': %s", link, err_text(r)));
    bool here = r == 0;
    r = check_apart(dirs, journal_dir, ret_msg);
    if (r == 0)
        r = make_folder(dirs[0], journal_dir, ret_msg);
    if (r < 0)
        return r;
    return here ? refuse_move(dirs[0], journal_dir, ret_msg) : make_link(dirs[0], journal_dir, ret_msg);
}

void journal_dir_first(char **dirs, const char *journal_dir)
{
    unsigned known = 0;
    bool found = false;
    for (unsigned i = 0; journal_dir && dirs[i]; i++) {
        struct stat st;
        g_autofree char *link = link_of(dirs[i]), *place = place_of(dirs[i], journal_dir);
        g_autofree char *current = g_build_filename(place, "CURRENT", NULL);
        if (lstat(link, &st) == 0)
            return; /* cache_dirs_sort() finds it */
        if (!found && access(current, F_OK) == 0) {
            found = true;
            known = i;
        }
    }
    char *dir = dirs[known];
    memmove(dirs + 1, dirs, known * sizeof(*dirs));
    dirs[0] = dir;
}
