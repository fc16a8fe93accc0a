/*
 * Logging: one line per event, `key=value` tail. Layers below fs log at debug only; the boundary is reply.h, the
 * worker loops and main. A call site that repeats more than 10 times in 10 s is muted and says "suppressed N" afterwards.
 * Never pass credentials, authorization headers, signed URLs or object data.
 *
 *   log_warn("publish", "upload failed, will retry key='%s' r=%s", key, err_name(r));
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERR, LOG_LEVEL_WARN, LOG_LEVEL_NOTICE, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

struct log_site {
    uint64_t window_start_ns;
    uint32_t in_window;
    uint32_t suppressed;
};

/* Opens the sink: path, or NULL for stderr. Lines below level are dropped. 0 or -errno. */
int log_open(const char *path, enum log_level level);
void log_close(void);
void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* "warn" -> LOG_LEVEL_WARN; -EINVAL for anything but err, warn, notice, info, debug. */
int log_level_parse(const char *name, enum log_level *ret_level);
void log_line(struct log_site *site, enum log_level level, const char *subsys, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#define LOG_AT_(level, subsys, ...)                                                                                    \
    do {                                                                                                               \
        static struct log_site log_site_;                                                                              \
        if ((level) <= log_get_level())                                                                                \
            log_line(&log_site_, (level), (subsys), __VA_ARGS__);                                                      \
    } while (0)
#define log_err(subsys, ...)    LOG_AT_(LOG_LEVEL_ERR, subsys, __VA_ARGS__)
#define log_warn(subsys, ...)   LOG_AT_(LOG_LEVEL_WARN, subsys, __VA_ARGS__)
#define log_notice(subsys, ...) LOG_AT_(LOG_LEVEL_NOTICE, subsys, __VA_ARGS__)
#define log_info(subsys, ...)   LOG_AT_(LOG_LEVEL_INFO, subsys, __VA_ARGS__)
#define log_debug(subsys, ...)  LOG_AT_(LOG_LEVEL_DEBUG, subsys, __VA_ARGS__)
