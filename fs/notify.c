/* Kernel invalidation, through the notifier. Always from the one notify thread: that process may be held up as long as a handler of ours is at work. */

#include "base/crash.h"
#include "fs.h"
#include "notifier.h"
#include "tree.h"

#define DOUBTED_AT_ONCE 256u /* names, while other notes wait */
#define PACE_NOTES      4096u
#define PACE_US         1000u
#define PACE_TRIES      1000u
#define SETTLE_NS       NS_PER_S

struct note {
    struct fs *fs;
    uint64_t number;
    uint64_t ino;
    char *name; /* owned; NULL: the inode itself */
    bool doubt; /* of a name, which is not known to be out of date */
};

/* Who says so under ns has committed then: what the kernel asks is answered by that. Once for all that was said: who drops a million names takes ns again and again. */
static void wait_committed(struct fs *fs, uint64_t number)
{
    if (number <= fs->notes.covered)
        return;
    uint64_t said = atomic_load(&fs->notes.n);
    mutex_lock(&fs->ns);
    mutex_unlock(&fs->ns);
    fs->notes.covered = said;
}

static bool knows_doubt(struct fs *fs)
{
    return atomic_load(&fs->fuse_caps) & FUSE_CAP_EXPIRE_ONLY;
}

static int send_one(const struct note *n)
{
    int fd = n->fs->notify_fd;
    return !n->doubt            ? notifier_send(fd, n->ino, n->name)
           : knows_doubt(n->fs) ? notifier_send_doubt(fd, n->ino, n->name)
                                : 0;
}

/* As the session counts them. */
static void say(struct fs *fs)
{
    (void)atomic_fetch_add(&fs->session->head->notes_said, 1);
}

static void sent(struct fs *fs)
{
    (void)atomic_fetch_add(&fs->session->head->notes_sent, 1);
}

static void notify_run(void *arg)
{
    struct note *n = arg;
    wait_committed(n->fs, n->number);
    CRASH_POINT(note_unsent);
    if (n->fs->se && !atomic_load(&n->fs->stopping)) {
        int r = send_one(n);
        if (r < 0)
            log_debug("notify", "the kernel is not told ino=%" G_GUINT64_FORMAT " r=%s", n->ino, err_name(r));
        sent(n->fs);
    }
    g_free(n->name);
    g_free(n);
}

static void notify_push(struct fs *fs, uint64_t ino, const char *name, bool doubt)
{
    struct note *n = g_new0(struct note, 1);
    *n = (struct note){
        .fs = fs, .number = atomic_fetch_add(&fs->notes.n, 1) + 1, .ino = ino, .name = g_strdup(name), .doubt = doubt};
    say(fs);
    if (!fs->notify_q || !workq_push(fs->notify_q, false, notify_run, n)) {
        g_free(n->name);
        g_free(n);
    }
}

void notify_entry(struct fs *fs, uint64_t parent, const char *name)
{
    notify_push(fs, parent, name, false);
}

void notify_doubt(struct fs *fs, uint64_t parent, const char *name)
{
    notify_push(fs, parent, name, true);
}

void notify_inode(struct fs *fs, uint64_t ino)
{
    notify_push(fs, ino, NULL, false);
}

void notify_pace(struct fs *fs)
{
    for (unsigned i = 0; i < PACE_TRIES && !atomic_load(&fs->stopping); i++) {
        if (!fs->notify_q || workq_load(fs->notify_q) < PACE_NOTES)
            return;
        g_usleep(PACE_US);
    }
}

/* ---- what was said has arrived ---- */

/* Goes behind all notes, then, as a question, through the process that hands them on, which answers in order. */
struct settle {
    struct fs *fs;
    struct mutex mu;
    struct cond arrived;
    atomic_uint refs; /* who waits, and the one that is queued */
    /* guarded by mu */
    bool over;
    int r;
};

static void settle_unref(struct settle *s)
{
    if (atomic_fetch_sub(&s->refs, 1) > 1)
        return;
    cond_fini(&s->arrived);
    mutex_fini(&s->mu);
    g_free(s);
}

static void settle_end(struct settle *s, int r)
{
    mutex_lock(&s->mu);
    s->over = true;
    s->r = r;
    cond_broadcast(&s->arrived);
    mutex_unlock(&s->mu);
    settle_unref(s);
}

static void settle_ask(void *arg)
{
    struct settle *s = arg;
    settle_end(s, MIN(notifier_ask(s->fs->notify_fd, META_ROOT_INO, &s->fs->stopping), 0));
}

static void settle_sent(void *arg)
{
    struct settle *s = arg;
    if (!s->fs->ask_q || s->fs->notify_fd < 0 || !workq_push(s->fs->ask_q, false, settle_ask, s))
        settle_end(s, 0);
}

/* -ETIMEDOUT: it goes on behind. */
static int settle_wait(struct settle *s)
{
    uint64_t until_ns = clock_mono_ns() + SETTLE_NS;
    mutex_lock(&s->mu);
    while (!s->over && cond_wait_until(&s->arrived, &s->mu, until_ns))
        ;
    int r = s->over ? s->r : -ETIMEDOUT;
    mutex_unlock(&s->mu);
    return r;
}

void notify_settle(struct fs *fs)
{
    struct settle *s = g_new0(struct settle, 1);
    *s = (struct settle){.fs = fs, .refs = 2};
    mutex_init(&s->mu, LOCK_NOTIFY);
    cond_init(&s->arrived);
    if (!fs->notify_q || !workq_push(fs->notify_q, false, settle_sent, s))
        settle_end(s, 0);
    int r = settle_wait(s);
    if (r < 0 && !atomic_load(&fs->stopping))
        log_notice("notify",
                   "the kernel is told late what has changed: programs may see names as they were for a while r=%s",
                   err_name(r));
    settle_unref(s);
}

/* ---- what is not trusted any more ---- */

enum reach { OF_DIR, BELOW, ALL };

struct doubt {
    struct fs *fs;
    enum reach reach;
    unsigned asked;      /* ALL: fs->notes.all_doubts as this look began */
    struct inode *one;   /* OF_DIR: a reference until it begins, so that it is known that it waits; else NULL */
    uint64_t dir, after; /* its names up to this id are done */
    GArray *todo;        /* further directories */
};

static int collect_some(void *ctx, const struct meta_dentry *d)
{
    meta_dentry_collect(ctx, d);
    return ((GPtrArray *)ctx)->len >= DOUBTED_AT_ONCE;
}

static int doubt_name(struct fs *fs, const struct meta_dentry *d)
{
    int r = knows_doubt(fs)     ? notifier_send_doubt(fs->notify_fd, d->parent, d->name)
            : !S_ISDIR(d->type) ? notifier_send(fs->notify_fd, d->parent, d->name)
                                : 0;
    return r < 0 ? r : notifier_send_doubt(fs->notify_fd, d->ino, NULL);
}

/* A page of names, one by one: FUSE_NOTIFY_INC_EPOCH, which is all of them at once, takes away what is mounted on directories of ours. 1: there may be more, in this directory or others. */
static int doubt_some(struct doubt *t)
{
    g_autoptr(GPtrArray) names = meta_dentry_array();
    int r = meta_dentry_each(t->fs->meta, t->dir, t->after, collect_some, names);
    for (unsigned i = 0; r >= 0 && i < names->len; i++) {
        const struct meta_dentry *d = names->pdata[i];
        int sent = inode_kernel_may_know(t->fs, d->ino) ? doubt_name(t->fs, d) : 0;
        r = sent < 0 ? sent : r;
        t->after = d->id;
        if (S_ISDIR(d->type) && t->reach != OF_DIR)
            g_array_append_val(t->todo, d->ino);
    }
    if (r != 0 || t->todo->len == 0)
        return r;
    t->dir = g_array_index(t->todo, uint64_t, t->todo->len - 1);
    t->after = 0;
    g_array_set_size(t->todo, t->todo->len - 1);
    return 1;
}

static void doubt_free(struct doubt *t)
{
    g_array_unref(t->todo);
    inode_put(t->one);
    g_free(t);
}

/* Of all: was that doubted again since the look began? Then there is another one. */
static bool begins_again(struct doubt *t)
{
    if (t->reach != ALL || atomic_compare_exchange_strong(&t->fs->notes.all_doubts, &t->asked, 0))
        return false;
    t->dir = META_ROOT_INO;
    t->after = 0;
    return true;
}

/* Who doubts from here on may mean names that this look has passed. */
static void begin_one(struct doubt *t)
{
    INODE_REF in = g_steal_pointer(&t->one);
    if (in)
        atomic_store(&in->doubt_waits, false);
}

static void doubt_run(void *arg)
{
    struct doubt *t = arg;
    struct fs *fs = t->fs;
    bool over = !fs->se || atomic_load(&fs->stopping);
    begin_one(t);
    int r = over ? 0 : doubt_some(t);
    if (r < 0)
        log_warn("notify", "the kernel trusts some names for as long as it was told to r=%s", err_name(r));
    if (over && t->reach == ALL)
        atomic_store(&fs->notes.all_doubts, 0);
    bool more = r > 0 || (!over && begins_again(t));
    if (!more && !over)
        sent(fs);
    if (!more || !workq_push(fs->notify_q, false, doubt_run, t))
        doubt_free(t);
}

/* one: owned. */
static void doubt(struct fs *fs, enum reach reach, uint64_t dir, struct inode *one)
{
    struct doubt *t = g_new0(struct doubt, 1);
    *t = (struct doubt){.fs = fs, .reach = reach, .asked = 1, .dir = dir, .one = one};
    t->todo = g_array_new(FALSE, FALSE, sizeof(uint64_t));
    say(fs);
    if (!fs->notify_q || !workq_push(fs->notify_q, false, doubt_run, t))
        doubt_free(t);
}

void notify_names(struct fs *fs, struct inode *dir)
{
    if (!atomic_exchange(&dir->doubt_waits, true))
        doubt(fs, OF_DIR, dir->ino, inode_ref(dir));
}

void notify_below(struct fs *fs, uint64_t dir)
{
    doubt(fs, BELOW, dir, NULL);
}

void notify_all(struct fs *fs)
{
    if (atomic_fetch_add(&fs->notes.all_doubts, 1) == 0)
        doubt(fs, ALL, META_ROOT_INO, NULL);
}

void notify_take_over(struct fs *fs)
{
    struct sess_head *head = fs->session->head;
    uint64_t said = atomic_load(&head->notes_said), all = atomic_load(&head->notes_sent);
    if (said == all)
        return;
    log_info("notify", "the kernel was not told all: it is to ask for all names anew notes=%" G_GUINT64_FORMAT,
             said - all);
    atomic_store(&head->notes_sent, said);
    if (tree_lost_each(fs, notify_entry) < 0)
        log_warn("notify", "the kernel trusts some names that are gone for as long as it was told to");
    notify_all(fs);
}
