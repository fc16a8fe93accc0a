/* See session.h. Head, handles and files lie one behind the other. */
#include "session.h"

#include <errno.h>
#include <glib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(struct sess_handle) == 48 && sizeof(struct sess_file) == 48, "as in all of this SESSION_FORMAT");

struct layout {
    struct sess_head head;
    struct sess_handle handles[SESSION_HANDLES];
    struct sess_file files[SESSION_FILES];
};

static int map_memory(int memfd, struct layout **ret)
{
    int flags = memfd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    void *at = mmap(NULL, sizeof(struct layout), PROT_READ | PROT_WRITE, flags, memfd, 0);
    if (at == MAP_FAILED)
        return -errno;
    *ret = at;
    return 0;
}

/* A file that is too short would end us at the first look. */
static int check_size(int memfd, bool create)
{
    struct stat st;
    if (create && (ftruncate(memfd, 0) < 0 || ftruncate(memfd, sizeof(struct layout)) < 0))
        return -errno;
    if (fstat(memfd, &st) < 0)
        return -errno;
    return st.st_size == (off_t)sizeof(struct layout) ? 0 : -EPROTO;
}

int session_map(int memfd, bool create, struct session **ret)
{
    struct layout *at = NULL;
    int r = memfd < 0 ? 0 : check_size(memfd, create);
    if (r == 0)
        r = map_memory(memfd, &at);
    if (r < 0)
        return r;
    if (create || memfd < 0)
        at->head.format = SESSION_FORMAT;
    if (at->head.format != SESSION_FORMAT) {
        (void)munmap(at, sizeof(*at));
        return -EPROTO;
    }
    if (!create || memfd < 0)
        at->head.generation++;
    struct session *s = g_new0(struct session, 1);
    *s = (struct session){&at->head, at->handles, at->files, atomic_load(&at->head.started)};
    *ret = s;
    return 0;
}

void session_unmap(struct session *s)
{
    if (!s)
        return;
    (void)munmap(s->head, sizeof(struct layout));
    g_free(s);
}

bool session_is_takeover(const struct session *s)
{
    return s->takeover;
}

void session_started(struct session *s)
{
    atomic_store(&s->head->started, 1);
}
