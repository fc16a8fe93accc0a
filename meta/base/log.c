/*
 * Log sink: a file or stderr, one write(2) per line so that lines of several threads never mix.
 *
 * Concurrency: the level is atomic; the sink and the sites' repeat counters are under one lock.
 */
#include "base/log.h"

#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_NS  (10 * NS_PER_S)
#define WINDOW_MAX 10

static pthread_mutex_t sink_mu = PTHREAD_MUTEX_INITIALIZER; /* not ranked: a line may be logged under any lock */
static int sink_fd = STDERR_FILENO;
static _Atomic int max_level = LOG_LEVEL_INFO;

static const char *const level_names[] = {"err", "warn", "notice", "info", "debug"};

int log_open(const char *path, enum log_level level)
{
    int fd = STDERR_FILENO;
    if (path) {
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0)
            return -errno;
    }
    log_close();
    pthread_mutex_lock(&sink_mu);
    sink_fd = fd;
    pthread_mutex_unlock(&sink_mu);
    log_set_level(level);
    return 0;
}

void log_close(void)
{
    pthread_mutex_lock(&sink_mu);
    if (sink_fd > STDERR_FILENO)
        (void)close(sink_fd); /* nobody left to tell */
    sink_fd = STDERR_FILENO;
    pthread_mutex_unlock(&sink_mu);
}

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&max_level, (int)level, memory_order_relaxed);
}

enum log_level log_get_level(void)
{
    return (enum log_level)atomic_load_explicit(&max_level, memory_order_relaxed);
}

int log_level_parse(const char *name, enum log_level *ret_level)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(level_names); i++)
        if (strcmp(name, level_names[i]) == 0) {
            *ret_level = (enum log_level)i;
            return 0;
        }
    return -EINVAL;
}

/* Counts the line at its site; false when it is to be dropped, *ret_suppressed how many were before this one. */
static bool site_admits(struct log_site *site, enum log_level level, uint32_t *ret_suppressed)
{
    *ret_suppressed = 0;
    if (level == LOG_LEVEL_DEBUG)
        return true;
    uint64_t now = clock_mono_ns();
    if (now - site->window_start_ns > WINDOW_NS) {
        *ret_suppressed = site->suppressed;
        site->window_start_ns = now;
        site->in_window = 0;
        site->suppressed = 0;
    }
    if (++site->in_window <= WINDOW_MAX)
        return true;
    site->suppressed++;
    return false;
}

static void format_head(GString *line, enum log_level level, const char *subsys)
{
    int64_t now = clock_wall_ns();
    time_t sec = (time_t)(now / (int64_t)NS_PER_S);
    struct tm tm;
    gmtime_r(&sec, &tm);
    char stamp[32];
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
    g_string_printf(line, "%s.%03dZ %s %s[%ld]: ", stamp, (int)(now / (int64_t)NS_PER_MS % 1000), level_names[level],
                    subsys, (long)syscall(SYS_gettid));
}

/* Line feeds and control bytes of names must not forge lines. */
static void escape_controls(GString *line, size_t from)
{
    for (size_t i = from; i < line->len; i++)
        if ((unsigned char)line->str[i] < 0x20 || line->str[i] == 0x7f)
            line->str[i] = '?';
}

void log_line(struct log_site *site, enum log_level level, const char *subsys, const char *fmt, ...)
{
    uint32_t suppressed;
    g_autoptr(GString) line = g_string_sized_new(256);
    format_head(line, level, subsys);
    size_t head = line->len;
    va_list ap;
    va_start(ap, fmt);
    g_string_append_vprintf(line, fmt, ap);
    va_end(ap);
    escape_controls(line, head);
    pthread_mutex_lock(&sink_mu);
    if (site_admits(site, level, &suppressed)) {
        if (suppressed > 0)
            g_string_append_printf(line, " (suppressed %u such lines before)", suppressed);
        g_string_append_c(line, '\n');
        (void)!write(sink_fd, line->str, line->len); /* a full disk must not stop the work */
    }
    pthread_mutex_unlock(&sink_mu);
}
