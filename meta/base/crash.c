/* See crash.h. */
#include "base/crash.h"

#ifdef SLUICE_TEST_POINTS
#include "base/cleanup.h"
#include "base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct crash_file own;
static struct crash_file *state = &own;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint32_t point_by_name(const char *name, size_t len)
{
    static const char *const names[] = {
#define CRASH(name) #name,
#include "crash_points.def"
    };
    for (uint32_t i = 0; i < CRASH_N; i++)
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
            return i + 1;
    return 0;
}

static struct crash_file *map_file(const char *path)
{
    CLEANUP_FD int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct crash_file)) < 0)
        return NULL;
    void *p = mmap(NULL, sizeof(struct crash_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void read_environment(void)
{
    const char *text = getenv("SLUICE_CRASH"), *path = getenv("SLUICE_CRASH_FILE");
    struct crash_file *shared = path ? map_file(path) : NULL;
    if (shared)
        state = shared;
    if (!text || state->fired)
        return;
    size_t len = strcspn(text, ":");
    uint32_t armed = point_by_name(text, len);
    if (armed == 0)
        log_err("crash", "no crash point has this name: '%s'", text);
    state->nth = text[len] ? (uint32_t)strtoul(text + len + 1, NULL, 10) : 1;
    __atomic_store_n(&state->armed, armed, __ATOMIC_SEQ_CST);
}

void crash_pass(enum crash_point point)
{
    pthread_once(&once, read_environment);
    struct crash_file *s = state;
    (void)__atomic_add_fetch(&s->passed[point], 1, __ATOMIC_SEQ_CST);
    uint32_t armed = (uint32_t)point + 1;
    if (__atomic_load_n(&s->armed, __ATOMIC_SEQ_CST) != armed ||
        __atomic_sub_fetch(&s->nth, 1, __ATOMIC_SEQ_CST) != 0 ||
        !__atomic_compare_exchange_n(&s->armed, &armed, 0, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    __atomic_store_n(&s->fired, (uint32_t)point + 1, __ATOMIC_SEQ_CST);
    if (s->again) {
        s->again--;
        s->nth = 1;
        __atomic_store_n(&s->armed, (uint32_t)point + 1, __ATOMIC_SEQ_CST);
    }
    if (s->flags & CRASH_PARENT)
        (void)kill(getppid(), SIGKILL);
    (void)kill(getpid(), SIGKILL);
    for (;;)
        (void)pause();
}
#endif
