/*
 * The options of a mount: one row per option in config.c gives name, type, default, limits, help; parser, `--help`, -o, the
 * config file reader, man page, completion and the effective-config dump are made from it.
 */
#pragma once
#include "base/err.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum config_switch { SWITCH_OFF, SWITCH_ON };
enum escape_mode { ESCAPE_NONE, ESCAPE_PERCENT };
enum close_mode { CLOSE_BUFFERED, CLOSE_LOCAL, CLOSE_REMOTE };
enum fsync_mode { FSYNC_LOCAL, FSYNC_REMOTE };
enum order_mode { ORDER_ANCESTOR, ORDER_NONE, ORDER_MOUNT };
enum posix_meta_mode { POSIX_META_AUTO, POSIX_META_ON, POSIX_META_OFF };
enum conflict_mode { CONFLICT_KEEP, CONFLICT_OVERWRITE };
enum orphan_mode { ORPHAN_PUBLISH, ORPHAN_HOLD };

enum config_origin { CONFIG_DEFAULT, CONFIG_FROM_FILE, CONFIG_FROM_ARGV };
#define CONFIG_MAX_OPTIONS 96
#define CACHE_DIR_DEFAULT  "/var/cache/sluice" /* holds a folder for each endpoint, bucket and prefix */

struct size_or_percent { /* one of both is set */
    uint64_t bytes;
    unsigned percent;
};

struct config {                /* strings are owned */
    char *source, *mountpoint; /* source NULL: an empty root for bucket links */
    /* store */
    char *endpoint_url, *region, *profile, *ca_bundle, *links;
    bool no_sign_request, force_path_style, allow_plain_http;
    /* cache */
    char *cache_dir;   /* DIR[:DIR...]; NULL: CACHE_DIR_DEFAULT/<hash of endpoint+bucket+prefix> */
    char *journal_dir; /* journal_dir.h; NULL: the database is on the cache disk */
    bool accept_loss;  /* lost_cache.h */
    struct size_or_percent cache_size, free_space;
    enum config_switch passthrough;
    uint64_t open_fill; /* bytes */
    enum config_switch prefetch;
    uint64_t memory_cache; /* bytes, 0: none */
    /* metadata */
    uint64_t metadata_ttl_ns, negative_ttl_ns;
    enum posix_meta_mode posix_meta;
    bool read_only, immutable;
    char *sync;              /* see config_sync() */
    enum escape_mode escape; /* key_names.h */
    char *shadow;            /* shadow.h; NULL: such objects are hidden */
    /* writing */
    enum close_mode close;
    enum fsync_mode fsync;
    enum order_mode order;
    enum conflict_mode conflict;
    enum orphan_mode orphan;
    char *hold;             /* comma-separated globs */
    uint64_t hold_delay_ns; /* held names are published after this long anyway, 10 min */
    uint64_t overdue_ns;    /* a closed file that is not in the store for so long is told of; 0: never */
    enum config_switch delta;
    /* rules (rules.h), one a line; NULL: none */
    char *rule, *on_create;
    /* transfer */
    uint64_t part_size;
    unsigned max_uploads, max_downloads;
    uint64_t upload_limit, download_limit; /* bytes a second, 0 none */
    uint64_t readahead;
    uint64_t op_timeout_ns;
    uint64_t late_requests_ns; /* publish_late.h */
    /* who may see it */
    bool allow_other, noexec;
    unsigned uid, gid, file_mode, dir_mode; /* uid/gid default: who mounts; modes from umask unless given */
    unsigned umask;
    /* service */
    char *http;                                  /* ADDR:PORT or NULL */
    char *http_cert, *http_key, *http_client_ca; /* PEM files; cert and key are both given, or none is */
    char *events_secret_file;
    bool foreground;
    char *log_level, *log_file;
    char *fault;                  /* tests: rules of the fault driver, hidden option */
    bool debug_fuse, disk_faults; /* hidden */
    unsigned backing_ids;         /* hidden: at most, not counting those in use */
    uint64_t settle_ns;           /* hidden: a worker that served for this long counts as sound */
    uint64_t watchdog_ns;         /* hidden: a worker without a sign of life for this long is ended, 0: never */
    /* where each option of the table got its value, and what config_set() notes down next */
    uint8_t origin[CONFIG_MAX_OPTIONS], origin_now;
};

/* Defaults from the table. */
void config_init(struct config *cfg);
void config_clear(struct config *cfg);
/* Sets one option by its name without dashes ("cache-size", also '_' for '-'); value NULL for a flag. -EINVAL with a line naming option, value and what is allowed; -ENOENT unknown option (nearest name suggested). */
int config_set(struct config *cfg, const char *name, const char *value, char **ret_msg) MUST_CHECK;
/* Reads "name = value" files (/etc/sluice/NAME.conf, --config FILE). */
int config_read_file(struct config *cfg, const char *path, char **ret_msg) MUST_CHECK;
/* Command line of mount: SOURCE DIR, long options "--a=b" or "--a b", -o opt,opt=val, -f. */
int config_parse_argv(struct config *cfg, int argc, char **argv, char **ret_msg) MUST_CHECK;
/* All of it as bytes for another process, which reads them back with config_restore(). */
void config_save(const struct config *cfg, GString *out);
/* What was not saved, by a version that did not know it, gets its default. Not checked again. -EINVAL: not ours, or of a version that knows more. */
int config_restore(struct config *cfg, const char *bytes, size_t len, char **ret_msg) MUST_CHECK;
/* Checks across fields (after everything was set). */
int config_validate(struct config *cfg, char **ret_msg) MUST_CHECK;
/* What --sync says: nothing by itself (lazy), everything at mount, or every so often (0: not). -EINVAL: neither. */
int config_sync(const struct config *cfg, bool *ret_full, uint64_t *ret_every_ns) MUST_CHECK;
/* Help text of all options; names only (completion); "name = value  # origin" of the effective ones, with the folder chosen where no cache-dir was given. */
void config_print_help(FILE *out);
void config_print_names(FILE *out);
void config_dump(const struct config *cfg, const char *cache_dir, GString *out);

/* One row of the table for the man page and completion; false past the last. Hidden options are left out. Static storage. */
struct config_option {
    const char *section, *name, *arg, *def, *help; /* arg NULL: a flag; def "" : none */
    const char *const *choices;                    /* NULL-terminated or NULL */
};
bool config_option_at(unsigned index, struct config_option *ret_option);

/* "64M", "80%", "30s", "1.5G" readers used by verbs too. */
int parse_size(const char *text, uint64_t *ret_bytes) MUST_CHECK;
int parse_duration(const char *text, uint64_t *ret_ns) MUST_CHECK;
