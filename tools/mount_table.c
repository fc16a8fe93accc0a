/* Which path lies in which sluice mount: reads /proc/self/mountinfo, and never looks inside a mount (a dead one would fail, a hung one hang) but by a child. */
#include "base/cleanup.h"
#include "base/err.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ASK_WAIT_MS 5000 /* for a mount to say that it is dead */

void mount_point_clear(struct mount_point *mp)
{
    g_free(mp->path);
    g_free(mp->source);
    g_free(mp->relative);
    *mp = (struct mount_point){0};
}

static void mount_point_free(void *mp)
{
    mount_point_clear(mp);
    g_free(mp);
}

/* "\040" -> ' ' in place. */
static void unescape(char *s)
{
    char *out = s;
    for (; *s; s++) {
        if (s[0] == '\\' && g_ascii_isdigit(s[1]) && g_ascii_isdigit(s[2]) && g_ascii_isdigit(s[3])) {
            *out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 3;
        } else {
            *out++ = *s;
        }
    }
    *out = '\0';
}

/* Rows of the mount table in order. */
struct row {
    char *path, *source;
    char *device; /* "0:52": one of each file system */
    char *root;   /* what of it is shown here: "/" is all */
    bool is_sluice;
    uid_t uid;
};

static void row_free(void *p)
{
    struct row *row = p;
    g_free(row->path);
    g_free(row->source);
    g_free(row->device);
    g_free(row->root);
    g_free(row);
}

/* "36 35 98:0 / /mnt rw shared:1 - fuse.sluice s3://b rw,user_id=0,..." */
static struct row *parse_row(char *line)
{
    char *tail = strstr(line, " - ");
    if (!tail)
        return NULL;
    *tail = '\0';
    g_auto(GStrv) head = g_strsplit(line, " ", 6);
    g_auto(GStrv) rest = g_strsplit(tail + 3, " ", 3);
    if (g_strv_length(head) < 5 || g_strv_length(rest) < 3)
        return NULL;
    struct row *row = g_new0(struct row, 1);
    row->path = g_strdup(head[4]);
    row->source = g_strdup(rest[1]);
    row->device = g_strdup(head[2]);
    row->root = g_strdup(head[3]);
    unescape(row->path);
    unescape(row->root);
    unescape(row->source);
    row->is_sluice = strcmp(rest[0], "fuse.sluice") == 0;
    const char *user = strstr(rest[2], "user_id=");
    row->uid = user ? (uid_t)strtoul(user + 8, NULL, 10) : 0;
    return row;
}

static GPtrArray *read_table(void)
{
    GPtrArray *rows = g_ptr_array_new_with_free_func(row_free);
    g_autofree char *text = NULL;
    if (!g_file_get_contents("/proc/self/mountinfo", &text, NULL, NULL))
        return rows;
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **l = lines; *l; l++) {
        struct row *row = parse_row(*l);
        if (row)
            g_ptr_array_add(rows, row);
    }
    return rows;
}

static bool lies_in(const char *path, const char *dir)
{
    size_t len = strlen(dir);
    if (strcmp(dir, "/") == 0)
        return true;
    return strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* The innermost mount that holds path; of several on one directory the last is on top. */
static const struct row *find_row(const GPtrArray *rows, const char *path)
{
    const struct row *best = NULL;
    for (guint i = 0; i < rows->len; i++) {
        const struct row *row = rows->pdata[i];
        if (lies_in(path, row->path) && (!best || strlen(row->path) >= strlen(best->path)))
            best = row;
    }
    return best;
}

/* Follows the symlinks of path's longest part outside sluice mounts that exists. */
char *path_canonical(const char *path)
{
    g_autoptr(GPtrArray) rows = read_table();
    g_autofree char *plain = g_canonicalize_filename(path, NULL);
    g_auto(GStrv) parts = g_strsplit(plain, "/", -1);
    GString *out = g_string_new("/");
    for (unsigned i = 1; parts[i]; i++) {
        if (parts[i][0] == '\0')
            continue;
        if (out->str[out->len - 1] != '/')
            g_string_append_c(out, '/');
        g_string_append(out, parts[i]);
        const struct row *row = find_row(rows, out->str);
        if (row && row->is_sluice)
            continue;
        char *real = realpath(out->str, NULL);
        if (real)
            g_string_assign(out, real);
        free(real);
    }
    return g_string_free(out, FALSE);
}

/* Where the daemon mounted what this row shows, wholly or in part, at a second place: the first whole one in the table. The row itself where that is not seen from here. */
static const struct row *origin_of(const GPtrArray *rows, const struct row *row)
{
    for (guint i = 0; i < rows->len; i++) {
        const struct row *other = rows->pdata[i];
        if (other->is_sluice && strcmp(other->root, "/") == 0 && strcmp(other->device, row->device) == 0)
            return other;
    }
    return row;
}

static void fill(struct mount_point *mp, const GPtrArray *rows, const struct row *row, const char *path)
{
    const struct row *origin = origin_of(rows, row);
    const char *rest = path + (strcmp(row->path, "/") == 0 ? 0 : strlen(row->path));
    g_autofree char *below = g_build_filename(origin == row ? "/" : row->root, rest, NULL);
    *mp = (struct mount_point){.path = g_strdup(origin->path),
                               .source = g_strdup(row->source),
                               .relative = g_strdup(below + 1),
                               .uid = row->uid};
}

bool mount_holds(const char *path, struct mount_point *ret_mp)
{
    g_autoptr(GPtrArray) rows = read_table();
    g_autofree char *canonical = path_canonical(path);
    const struct row *row = find_row(rows, canonical);
    if (!row || !row->is_sluice)
        return false;
    fill(ret_mp, rows, row, canonical);
    return true;
}

bool mount_find(const char *path, struct mount_point *ret_mp)
{
    if (mount_holds(path, ret_mp))
        return true;
    complain("'%s' is not in a sluice mount", path);
    return false;
}

bool mount_exists(const char *canonical)
{
    g_autoptr(GPtrArray) rows = read_table();
    const struct row *row = find_row(rows, canonical);
    return row && row->is_sluice && strcmp(row->path, canonical) == 0;
}

bool mount_is_dead(const char *canonical)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct statfs st;
        int r = statfs(canonical, &st);
        for (unsigned i = 0; r < 0 && errno == ECONNABORTED && i < 10; i++) /* it died while it was asked */
            r = statfs(canonical, &st);
        _exit(r < 0 && errno == ENOTCONN ? 0 : 1);
    }
    if (pid < 0)
        return false;
    CLEANUP_FD int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    int status = 1;
    if (pidfd < 0 || poll(&p, 1, ASK_WAIT_MS) != 1) {
        (void)kill(pid, SIGKILL); /* it may hang for as long as the daemon does: not waited for */
        return false;
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int mount_clear_dead(const char *canonical)
{
    int r = RET_ERRNO(umount2(canonical, MNT_DETACH | UMOUNT_NOFOLLOW));
    if (r == -EPERM) { /* not root: the helper of libfuse may do it for who mounted */
        g_autofree char *quoted = g_shell_quote(canonical);
        g_autofree char *line = g_strdup_printf("fusermount3 -u -z -- %s", quoted);
        int status = 1;
        r = g_spawn_command_line_sync(line, NULL, NULL, &status, NULL) && status == 0 ? 0 : -EPERM;
    }
    return r;
}

GPtrArray *mount_list(void)
{
    g_autoptr(GPtrArray) rows = read_table();
    GPtrArray *list = g_ptr_array_new_with_free_func(mount_point_free);
    for (guint i = 0; i < rows->len; i++) {
        const struct row *row = rows->pdata[i];
        if (!row->is_sluice || find_row(rows, row->path) != row || origin_of(rows, row) != row)
            continue;
        struct mount_point *mp = g_new0(struct mount_point, 1);
        fill(mp, rows, row, row->path);
        g_ptr_array_add(list, mp);
    }
    return list;
}
