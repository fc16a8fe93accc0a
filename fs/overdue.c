/* See overdue.h. Ages are of the wall clock, as journal records outlive the machine's uptime; how often is looked and said, of the monotonic one. */
#include "overdue.h"

#include "publish.h"
#include "states.h"

#define LOOK_NS  (60 * NS_PER_S) /* at most: a short --overdue is looked at four times as often as it ends */
#define AGAIN_NS (3600 * NS_PER_S)

struct waiting {
    int64_t since_ns;
    uint64_t seq;
};

struct find {
    int64_t before_ns;
    GArray *list; /* struct waiting */
    uint64_t seq; /* the one that is described */
    struct overdue *found;
};

static void take_op(void *ctx, const struct meta_op *op, const char *path, int err)
{
    struct find *f = ctx;
    struct waiting w = {op->created_ns, op->seq};
    if (op->kind == OP_SYNC && op->created_ns <= f->before_ns)
        g_array_append_val(f->list, w);
}

static void describe(void *ctx, const struct meta_op *op, const char *path, int err)
{
    struct find *f = ctx;
    if (op->seq != f->seq || f->found->path)
        return;
    f->found->path = g_strdup(path);
    f->found->state = op->state;
    f->found->err = err;
}

static int by_age(const void *a, const void *b)
{
    const struct waiting *x = a, *y = b;
    return x->since_ns != y->since_ns ? (x->since_ns > y->since_ns) - (x->since_ns < y->since_ns)
                                      : (x->seq > y->seq) - (x->seq < y->seq);
}

/* False: it is of something else, or done meanwhile. */
static bool is_closed_file(struct fs *fs, uint64_t seq)
{
    struct meta_op op = {0};
    struct meta_dentry d = {0};
    struct meta_inode rec;
    if (meta_op_get(fs->meta, seq, &op) < 0)
        return false;
    bool file = meta_dentry_get(fs->meta, op.parent, op.name, &d) == 0 && S_ISREG(d.type) && d.op_seq == seq;
    bool found = file && meta_inode_get(fs->meta, d.ino, &rec) == 0;
    bool closed = found && rec.content == CONTENT_SEALED;
    if (found)
        meta_inode_clear(&rec);
    meta_dentry_clear(&d);
    meta_op_clear(&op);
    return closed;
}

void overdue_find(struct fs *fs, struct overdue *ret)
{
    int64_t now_ns = clock_wall_ns();
    *ret = (struct overdue){0};
    if (fs->cfg->overdue_ns == 0)
        return;
    g_autoptr(GArray) list = g_array_new(FALSE, FALSE, sizeof(struct waiting));
    struct find f = {.before_ns = now_ns - (int64_t)fs->cfg->overdue_ns, .list = list, .found = ret};
    publish_each(fs->pub, take_op, &f);
    g_array_sort(list, by_age);
    for (unsigned i = 0; i < list->len && !ret->path; i++) {
        const struct waiting *w = &g_array_index(list, struct waiting, i);
        if (!is_closed_file(fs, w->seq))
            continue;
        f.seq = w->seq;
        publish_each(fs->pub, describe, &f);
        if (ret->path)
            ret->age_s = MAX((now_ns - w->since_ns) / (int64_t)NS_PER_S, 1);
    }
}

void overdue_clear(struct overdue *o)
{
    g_clear_pointer(&o->path, g_free);
}

void overdue_watch(struct fs *fs)
{
    struct mapped *m = &fs->mapped;
    uint64_t now = clock_mono_ns();
    if (fs->cfg->overdue_ns == 0 || now < m->overdue_look_ns)
        return;
    m->overdue_look_ns = now + CLAMP(fs->cfg->overdue_ns / 4, NS_PER_S, LOOK_NS);
    struct overdue o;
    overdue_find(fs, &o);
    if (o.age_s > 0 && (m->overdue_said_ns == 0 || now >= m->overdue_said_ns + AGAIN_NS)) {
        log_warn(
            "publish",
            "a closed file is still not in the store, the cache disk has the only copy path='%s' s=%" G_GINT64_FORMAT
            " state=%s r=%s",
            o.path, o.age_s, op_state_name(o.state), err_name(o.err));
        m->overdue_said_ns = now;
    }
    overdue_clear(&o);
}
