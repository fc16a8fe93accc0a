/*
 * Many small directories of one parent by one listing without a delimiter: a page of a thousand keys then tells of hundreds of them, where each by itself would cost a request. Keys of one directory
 * are neighbours, and directories come in the order of "name/", so each one is complete when a later key shows; it is applied then as if it had been listed by itself.
 *
 * Worth it only while most keys are names of these directories: what lies deeper, or between them, comes along. When that is too much, or one of them turns out to be large, the rest is
 * left to be listed one by one.
 */
#include "key_names.h"
#include "links.h"
#include "sync_internal.h"
#include "tree.h"

#include <string.h>

#define ROWS_OF_ONE 4000 /* more names make a directory a large one */
#define STRAY_KEYS  1000 /* and as many as were of use: so many others are put up with */
#define STOP_EARLY  1
#define STOP_AT_END 2

static void member_clear(void *p)
{
    g_free(((struct sync_member *)p)->name);
}

GArray *sync_group_new(void)
{
    GArray *a = g_array_new(FALSE, FALSE, sizeof(struct sync_member));
    g_array_set_clear_func(a, member_clear);
    return a;
}

struct group_run {
    const struct sync_group *g;
    const GArray *members; /* ascending by "name/" */
    guint at;              /* those before it are done */
    const char *prefix;    /* of their parent */
    struct tree_given given;
    GArray *rows;  /* struct obj_entry of members[at]; names owned */
    GString *last; /* key */
    uint64_t used, stray;
    int result;
};

static void row_clear(void *p)
{
    g_free((char *)(uintptr_t)((struct obj_entry *)p)->name);
}

/* As names with a '/' behind them. */
static int compare_members(const void *a, const void *b)
{
    const struct sync_member *x = a, *y = b;
    g_autofree char *xs = g_strconcat(x->name, "/", NULL), *ys = g_strconcat(y->name, "/", NULL);
    return strcmp(xs, ys);
}

static const struct sync_member *member(const struct group_run *run)
{
    return run->at < run->members->len ? &g_array_index(run->members, struct sync_member, run->at) : NULL;
}

/* All of members[at] was seen. */
static int next_member(struct group_run *run)
{
    const struct sync_member *m = member(run);
    g_autofree char *prefix = g_strconcat(run->prefix, m->name, "/", NULL);
    run->given.prefix = prefix;
    run->given.rows = (const struct obj_entry *)(void *)run->rows->data;
    run->given.n_rows = run->rows->len;
    int r = run->g->apply(run->g->ctx, m->ino, &run->given);
    g_array_set_size(run->rows, 0);
    run->at += r >= 0; /* else it is listed by itself, and that failure counts */
    return r;
}

/* <0, 0 or >0: "name/" comes before the key, is how it begins, or comes behind it. */
static int compare_key(const char *name, const char *key, size_t len)
{
    size_t n = strlen(name);
    int c = memcmp(name, key, MIN(n, len));
    if (c != 0 || len <= n)
        return c != 0 ? c : 1;
    return (uint8_t)'/' - (uint8_t)key[n];
}

static void take_row(struct group_run *run, const struct obj_entry *e, size_t above)
{
    struct obj_entry row = *e;
    const char *name = e->name + above;
    size_t len = e->name_len - above;
    const char *slash = memchr(name, '/', len);
    if (slash) {
        len = (size_t)(slash + 1 - name);
        row.is_prefix = true;
        row.odd = memchr(name, '\0', len) != NULL || (e->odd && len > FS_NAME_MAX + 1);
        const struct obj_entry *last =
            run->rows->len ? &g_array_index(run->rows, struct obj_entry, run->rows->len - 1) : NULL;
        run->stray++;
        if (last && last->name_len == len && memcmp(last->name, name, len) == 0)
            return;
    }
    run->used++;
    char *copy = g_malloc(len + 1);
    memcpy(copy, name, len);
    copy[len] = '\0';
    row.name = copy;
    row.name_len = len;
    g_array_append_val(run->rows, row);
}

static int on_key(void *ctx, const struct obj_entry *e)
{
    struct group_run *run = ctx;
    const struct sync_member *m;
    int c = memcmp(e->name, run->last->str, MIN(e->name_len, run->last->len));
    if (c < 0 || (c == 0 && e->name_len < run->last->len))
        return STOP_EARLY; /* the store has an order of its own, which tells nothing */
    g_string_truncate(run->last, 0);
    g_string_append_len(run->last, e->name, (gssize)e->name_len);
    c = 1;
    while ((m = member(run)) && (c = compare_key(m->name, e->name, e->name_len)) < 0) {
        run->result = next_member(run);
        if (run->result < 0)
            return STOP_EARLY;
    }
    if (!m)
        return STOP_AT_END;
    if (c == 0)
        take_row(run, e, strlen(m->name) + 1);
    else
        run->stray++;
    return run->rows->len > ROWS_OF_ONE || run->stray > run->used + STRAY_KEYS ? STOP_EARLY : 0;
}

bool sync_group_fits(struct fs *fs, uint64_t parent)
{
    g_autofree char *path = NULL;
    if (!links_below(fs, "")) /* there are none */
        return true;
    return tree_path_of(fs, parent, &path) == 0 && !links_below(fs, path);
}

bool sync_group_takes(struct fs *fs, const char *name)
{
    return fs->cfg->escape == ESCAPE_NONE || !key_name_is_escaped(name, strlen(name));
}

int sync_group_list(struct fs *fs, const struct sync_group *g, GArray *members, guint *ret_done)
{
    g_autoptr(GArray) rows = g_array_new(FALSE, FALSE, sizeof(struct obj_entry));
    g_array_set_clear_func(rows, row_clear);
    g_array_sort(members, compare_members);
    g_autoptr(GString) last = g_string_new(NULL);
    struct group_run run = {.g = g, .members = members, .rows = rows, .last = last};
    g_autofree char *prefix = tree_given_begin(fs, g->parent, g->claimed, &run.given);
    run.prefix = prefix;
    const char *first = g_array_index(members, struct sync_member, 0).name;
    g_autofree char *after =
        g_strconcat(prefix, first, ".~", NULL); /* just before "first/": not what is in "first-2/" */
    struct obj_list_req req = {.prefix = prefix, .start_after = after, .max_keys = g->max_keys};
    bool cut_short = false;
    int r = objstore_list(fs->store, &req, on_key, &run, &cut_short);
    while (r == 0 && run.result == 0 && !cut_short && member(&run)) /* nothing comes behind them */
        run.result = next_member(&run);
    tree_given_end(fs, g->claimed);
    *ret_done = run.at;
    return r < 0 ? r : run.result;
}
