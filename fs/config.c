/*
 * The option table of a mount, and what is made from it: defaults, help, names, dump, checks across fields.
 *
 * To add an option: a field in struct config and one row here. Parser, --help, -o, config files, man page and completion
 * follow. Values are typed as a user types them, so that a default is read by the same code as a given value.
 * No state of its own: everything is in the caller's struct config, which one thread fills before the daemon starts.
 */
#include "fs/config.h"

#include "base/clock.h"
#include "fs/config_table.h"
#include "fs/rules.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define KIB        1024ull
#define MIB        (1024 * KIB)
#define GIB        (1024 * MIB)
#define TIB        (1024 * GIB)
#define SHADOW_MAX 64 /* bytes of a suffix */
#define DAY_NS     (86400 * NS_PER_S)
#define MEMORY_MIN (16 * MIB)
#define AT(field)  offsetof(struct config, field)
#ifdef SLUICE_TEST_POINTS
#define PART_SIZE_MIN (64 * KIB) /* a test writes many large files in little time */
#else
#define PART_SIZE_MIN (5 * MIB)
#endif

static const char *const close_words[] = {"buffered", "local", "remote", NULL};
static const char *const fsync_words[] = {"local", "remote", NULL};
static const char *const order_words[] = {"ancestor", "none", "mount", NULL};
static const char *const posix_words[] = {"auto", "on", "off", NULL};
static const char *const conflict_words[] = {"keep", "overwrite", NULL};
static const char *const orphan_words[] = {"publish", "hold", NULL};
static const char *const escape_words[] = {"none", "percent", NULL};
static const char *const switch_words[] = {"off", "on", NULL};
static const char *const level_words[] = {"err", "warn", "notice", "info", "debug", NULL};

#define HOLD_DEFAULT "*.tmp,*.part,*.partial,*.incomplete,tmp_obj_*,tmp-*/**,*.orbax-checkpoint-tmp-*/**"

/* section, name, type, field, min, max, default, placeholder, choices, help */
const struct option_row option_table[] = {
    {"Store", "endpoint-url", OPT_STRING, AT(endpoint_url), 0, 0, NULL, "URL", NULL,
     "where the S3 service answers; default: AWS of the region"},
    {"Store", "region", OPT_STRING, AT(region), 0, 0, NULL, "NAME", NULL,
     "region that requests are signed for; default: environment, profile, us-east-1"},
    {"Store", "profile", OPT_STRING, AT(profile), 0, 0, NULL, "NAME", NULL,
     "profile of the AWS credentials and config files"},
    {"Store", "no-sign-request", OPT_FLAG, AT(no_sign_request), 0, 0, NULL, NULL, NULL,
     "send requests unsigned (public buckets)"},
    {"Store", "force-path-style", OPT_FLAG, AT(force_path_style), 0, 0, NULL, NULL, NULL,
     "put the bucket into the path, not the host name; automatic for endpoints that are not AWS"},
    {"Store", "allow-plain-http", OPT_FLAG, AT(allow_plain_http), 0, 0, NULL, NULL, NULL,
     "allow http:// to a host that is not this machine"},
    {"Store", "ca-bundle", OPT_STRING, AT(ca_bundle), 0, 0, NULL, "FILE", NULL,
     "certificates to trust instead of the system's"},
    {"Store", "links", OPT_STRING, AT(links), 0, 0, NULL, "FILE", NULL,
     "bucket links to be there, a line each: SOURCE DIR [OPTION=VALUE]... with the options of `sluice link`"},

    {"Cache", "cache-dir", OPT_STRING, AT(cache_dir), 0, 0, NULL, "DIR[:DIR...]", NULL,
     "folder on the local disk, or several on several disks; default: one per endpoint, bucket and prefix under /var/cache/sluice"},
    {"Cache", "journal-dir", OPT_STRING, AT(journal_dir), 0, 0, NULL, "DIR", NULL,
     "folder on another disk for the database, so that the loss of the cache disk leaves the list of what was on it; default: in the cache folder, or where that was told to have it"},
    {"Cache", "accept-loss", OPT_FLAG, AT(accept_loss), 0, 0, NULL, NULL, NULL,
     "mount though a cache disk that held unpublished files is empty: they are named in the log and given up"},
    {"Cache", "cache-size", OPT_SIZE_PERCENT, AT(cache_size), 64 * MIB, 0, "80%", "SIZE|PERCENT", NULL,
     "most that the cache may hold on each disk, in bytes or of the disk"},
    {"Cache", "memory-cache", OPT_SIZE, AT(memory_cache), 0, 0, "0", "SIZE", NULL,
     "memory for copies of published files, in front of the disks: what was pinned there, and small files while there is room; gone at unmount; needs CAP_SYS_ADMIN"},
    {"Cache", "free-space", OPT_SIZE_PERCENT, AT(free_space), 0, 0, "10%", "SIZE|PERCENT", NULL,
     "left free on the cache disk, whoever fills it"},
    {"Cache", "passthrough", OPT_ENUM, AT(passthrough), 0, 0, "on", NULL, switch_words,
     "let the kernel read and write files that are complete in the cache by itself; needs CAP_SYS_ADMIN and Linux 6.9"},
    {"Cache", "open-fill", OPT_SIZE, AT(open_fill), 0, 1 * GIB, "32M", "SIZE", NULL,
     "files of which no more than this is absent are fetched when they are opened, so that the kernel can read them by itself"},
    {"Cache", "prefetch", OPT_ENUM, AT(prefetch), 0, 0, "on", NULL, switch_words,
     "fetch the next files of a directory whose files are opened one after another, up to the size of --open-fill each"},
    {"Cache", "readahead", OPT_SIZE, AT(readahead), 0, 4 * GIB, "64M", "SIZE", NULL,
     "most that is fetched ahead of a sequential reader"},

    {"Metadata", "metadata-ttl", OPT_DURATION, AT(metadata_ttl_ns), 0, 365 * DAY_NS, "60s", "DURATION", NULL,
     "how long a listing counts as fresh"},
    {"Metadata", "negative-ttl", OPT_DURATION, AT(negative_ttl_ns), 0, 365 * DAY_NS, "5s", "DURATION", NULL,
     "how long 'no such file' counts as fresh"},
    {"Metadata", "posix-meta", OPT_ENUM, AT(posix_meta), 0, 0, "auto", NULL, posix_words,
     "take mode, times and links from object metadata"},
    {"Metadata", "sync", OPT_STRING, AT(sync), 0, 0, "lazy", "lazy|full|DURATION", NULL,
     "when names are listed: directory by directory as they are looked into, all at mount, or all again and again after so long"},
    {"Metadata", "escape", OPT_ENUM, AT(escape), 0, 0, "none", NULL, escape_words,
     "keys with empty components, '.' or '..': hide them, or show these as '%2F', '%2E', '%2E%2E'; one cache folder, one choice"},
    {"Metadata", "shadow", OPT_STRING, AT(shadow), 0, 0, NULL, "SUFFIX", NULL,
     "show object 'a' beside a directory 'a' as 'aSUFFIX', for reading, instead of hiding it"},
    {"Metadata", "read-only", OPT_FLAG, AT(read_only), 0, 0, NULL, NULL, NULL, "refuse every change"},
    {"Metadata", "immutable", OPT_FLAG, AT(immutable), 0, 0, NULL, NULL, NULL,
     "read-only, and what is there never changes: listed once a mount, never asked for again, opened without a message"},

    {"Writing", "close", OPT_ENUM, AT(close), 0, 0, "buffered", NULL, close_words,
     "what close() waits for: the intent, the local disk, or the store"},
    {"Writing", "fsync", OPT_ENUM, AT(fsync), 0, 0, "local", NULL, fsync_words,
     "what fsync() waits for: the local disk or the store"},
    {"Writing", "order", OPT_ENUM, AT(order), 0, 0, "ancestor", NULL, order_words,
     "an object becomes visible after what was closed before it in or below its directory, in no order, or in one order for the mount"},
    {"Writing", "conflict", OPT_ENUM, AT(conflict), 0, 0, "keep", NULL, conflict_words,
     "when the object was changed elsewhere: keep both versions, or overwrite"},
    {"Writing", "hold", OPT_STRING, AT(hold), 0, 0, HOLD_DEFAULT, "GLOBS", NULL,
     "names that are published only once renamed, comma-separated globs; empty: none"},
    {"Writing", "hold-delay", OPT_DURATION, AT(hold_delay_ns), 0, 30 * DAY_NS, "10m", "DURATION", NULL,
     "held names are published after this long anyway"},
    {"Writing", "orphan", OPT_ENUM, AT(orphan), 0, 0, "publish", NULL, orphan_words,
     "what a program wrote that a signal ended before it closed the file: publish it, or hold it here until the next close"},
    {"Writing", "overdue", OPT_DURATION, AT(overdue_ns), 0, 365 * DAY_NS, "1h", "DURATION", NULL,
     "a closed file that is not in the store after this long is named in the log, once an hour, and by `sluice status`; 0: never"},
    {"Writing", "delta", OPT_ENUM, AT(delta), 0, 0, "on", NULL, switch_words,
     "parts of a large file that its predecessor in the store (the same name, or one with another number) has at the same place are copied there, not sent"},

    {"Rules", "rule", OPT_RULES, AT(rule), 0, 0, NULL, "GLOB=KEY[=VALUE],...", NULL,
     "what holds for paths that match: close, fsync, order, hold, metadata-ttl as the options say; pin=N [tier=memory]; local-only [ttl=DURATION]; may be given again"},
    {"Rules", "on-create", OPT_RULES, AT(on_create), 0, 0, NULL, "GLOB=warm", NULL,
     "fetch objects that match when they appear in the store; may be given again"},

    {"Transfer", "part-size", OPT_SIZE, AT(part_size), PART_SIZE_MIN, 5 * GIB, "8M", "SIZE", NULL,
     "size of the parts of a multipart upload"},
    {"Transfer", "max-uploads", OPT_UINT, AT(max_uploads), 1, 256, "8", "N", NULL, "parts sent at the same time"},
    {"Transfer", "max-downloads", OPT_UINT, AT(max_downloads), 1, 256, "16", "N", NULL,
     "ranges fetched at the same time"},
    {"Transfer", "upload-limit", OPT_SIZE, AT(upload_limit), 0, 0, "0", "SIZE", NULL, "bytes a second; 0: no limit"},
    {"Transfer", "download-limit", OPT_SIZE, AT(download_limit), 0, 0, "0", "SIZE", NULL,
     "bytes a second; 0: no limit"},
    {"Transfer", "op-timeout", OPT_DURATION, AT(op_timeout_ns), NS_PER_S, DAY_NS, "60s", "DURATION", NULL,
     "a call fails after this long without progress"},
    {"Transfer", "late-requests", OPT_DURATION, AT(late_requests_ns), 0, DAY_NS, "30s", "DURATION", NULL,
     "a delete, copy or write that got no reply may be carried out this much later: nothing else is done at that name meanwhile; 0: do not wait"},

    {"Access", "allow-other", OPT_FLAG, AT(allow_other), 0, 0, NULL, NULL, NULL,
     "let other users see the mount; permissions are checked by the kernel"},
    {"Access", "noexec", OPT_FLAG, AT(noexec), 0, 0, NULL, NULL, NULL, "no program may be started from the mount"},
    {"Access", "uid", OPT_UINT, AT(uid), 0, UINT32_MAX - 1, NULL, "UID", NULL,
     "owner of everything; default: who mounts"},
    {"Access", "gid", OPT_UINT, AT(gid), 0, UINT32_MAX - 1, NULL, "GID", NULL,
     "group of everything; default: that of who mounts"},
    {"Access", "umask", OPT_MODE, AT(umask), 0, 0777, "022", "OCTAL", NULL,
     "permission bits that files and directories do not get, in a store that is a directory too"},
    {"Access", "file-mode", OPT_MODE, AT(file_mode), 0, 0777, NULL, "OCTAL", NULL,
     "mode of files without one of their own; default: 0666 less umask"},
    {"Access", "dir-mode", OPT_MODE, AT(dir_mode), 0, 0777, NULL, "OCTAL", NULL,
     "mode of directories without one of their own; default: 0777 less umask"},

    {"Service", "http", OPT_STRING, AT(http), 0, 0, NULL, "[ADDR:]PORT", NULL,
     "serve /metrics and /healthz; without ADDR on this machine only"},
    {"Service", "http-cert", OPT_STRING, AT(http_cert), 0, 0, NULL, "FILE", NULL,
     "serve --http by TLS (1.2, 1.3) only, with the certificate in this PEM file and those behind it up to its CA; read again when it changes"},
    {"Service", "http-key", OPT_STRING, AT(http_key), 0, 0, NULL, "FILE", NULL,
     "private key of --http-cert, PEM without a password"},
    {"Service", "http-client-ca", OPT_STRING, AT(http_client_ca), 0, 0, NULL, "FILE", NULL,
     "every request but /healthz needs a client certificate that a CA in this PEM file signed; S3 event notifications are taken at /events"},
    {"Service", "events-secret-file", OPT_STRING, AT(events_secret_file), 0, 0, NULL, "FILE", NULL,
     "take S3 event notifications at /events of --http from senders that know the secret in this file"},
    {"Service", "foreground", OPT_FLAG, AT(foreground), 0, 0, NULL, NULL, NULL,
     "stay in the foreground and log to standard error (also -f)"},
    {"Service", "log-level", OPT_WORD, AT(log_level), 0, 0, "info", NULL, level_words, "least level that is logged"},
    {"Service", "log-file", OPT_STRING, AT(log_file), 0, 0, NULL, "FILE", NULL,
     "default: named after DIR under /var/log/sluice, for users ~/.cache/sluice; with -f standard error"},

    {NULL, "fault", OPT_STRING, AT(fault), 0, 0, NULL, "RULES", NULL, "rules of the fault driver (tests)"},
    {NULL, "disk-faults", OPT_FLAG, AT(disk_faults), 0, 0, NULL, NULL, NULL,
     "cache disks fail as their file 'fault' says (tests)"},
    {NULL, "backing-ids", OPT_UINT, AT(backing_ids), 1, 1u << 20, "65536", "N", NULL,
     "cache files that the kernel keeps for passthrough, each pins an inode in its memory (tests)"},
    {NULL, "settle", OPT_DURATION, AT(settle_ns), 0, DAY_NS, "10s", "DURATION", NULL,
     "a daemon that dies after serving for less counts as one in a row (tests)"},
    {NULL, "watchdog", OPT_DURATION, AT(watchdog_ns), 0, DAY_NS, "30s", "DURATION", NULL,
     "a daemon that shows no sign of life for this long is replaced; 0: never (tests)"},
    {NULL, "debug-fuse", OPT_FLAG, AT(debug_fuse), 0, 0, NULL, NULL, NULL, "libfuse's own trace (tests)"},
};
const unsigned n_option_rows = G_N_ELEMENTS(option_table);
_Static_assert(G_N_ELEMENTS(option_table) <= CONFIG_MAX_OPTIONS, "struct config.origin is too small");

int option_find(const char *name)
{
    for (unsigned i = 0; i < n_option_rows; i++) {
        const char *a = option_table[i].name, *b = name;
        while (*a && (*a == *b || (*a == '-' && *b == '_')))
            a++, b++;
        if (!*a && !*b)
            return (int)i;
    }
    return -1;
}

static bool was_given(const struct config *cfg, const char *name)
{
    int i = option_find(name);
    assert(i >= 0);
    return cfg->origin[i] != CONFIG_DEFAULT;
}

void config_init(struct config *cfg)
{
    *cfg = (struct config){.uid = getuid(), .gid = getgid()};
    for (unsigned i = 0; i < n_option_rows; i++) {
        g_autofree char *msg = NULL;
        if (option_table[i].def) {
            int r = option_assign(cfg, &option_table[i], option_table[i].def, &msg);
            if (r < 0)
                g_error("default of --%s: %s", option_table[i].name, msg);
        }
    }
    cfg->file_mode = 0666 & ~cfg->umask;
    cfg->dir_mode = 0777 & ~cfg->umask;
}

void config_clear(struct config *cfg)
{
    for (unsigned i = 0; i < n_option_rows; i++)
        if (option_table[i].type == OPT_STRING || option_table[i].type == OPT_WORD || option_table[i].type == OPT_RULES)
            g_clear_pointer((char **)((char *)cfg + option_table[i].offset), g_free);
    g_clear_pointer(&cfg->source, g_free);
    g_clear_pointer(&cfg->mountpoint, g_free);
}

/* ---- checks across fields ---- */

static int refuse(char **ret_msg, char *msg)
{
    *ret_msg = msg;
    return -EINVAL;
}

static int check_source(const struct config *cfg, char **ret_msg)
{
    const char *s = cfg->source;
    if (!s && cfg->immutable)
        return refuse(ret_msg, g_strdup("immutable needs a SOURCE: s3://BUCKET[/PREFIX] or file:///DIR"));
    if (!s) /* a root for links */
        return 0;
    if (g_str_has_prefix(s, "file://")) {
        if (s[7] != '/' || s[8] == '\0')
            return refuse(
                ret_msg,
                g_strdup_printf("source '%s': a file:// source is an absolute directory, as in file:///srv/lake", s));
        if (cfg->endpoint_url || cfg->profile || cfg->no_sign_request)
            return refuse(
                ret_msg,
                g_strdup(
                    "endpoint-url, profile and no-sign-request conflict with a file:// source: they belong to s3://"));
        return 0;
    }
    if (!g_str_has_prefix(s, "s3://"))
        return refuse(ret_msg,
                      g_strdup_printf(
                          "source '%s': use s3://BUCKET[/PREFIX] (any S3 service, with --endpoint-url) or file:///DIR",
                          strchr(s, '@') ? "..." : s));
    const char *bucket = s + 5;
    size_t len = strcspn(bucket, "/");
    if (memchr(bucket, '@', len))
        return refuse(ret_msg, g_strdup("source: keys do not go into the source; see 'Credentials' in sluice(1)"));
    for (size_t i = 0; i < len; i++)
        if (!g_ascii_isalnum(bucket[i]) && !strchr(".-_:", bucket[i]))
            return refuse(ret_msg, g_strdup_printf("source '%s': a bucket name has no '%c'", s, bucket[i]));
    if (len < 3 || len > 255)
        return refuse(ret_msg, g_strdup_printf("source '%s': a bucket name has 3 to 63 characters", s));
    return 0;
}

static int check_endpoint(const struct config *cfg, char **ret_msg)
{
    const char *url = cfg->endpoint_url;
    if (!url)
        return 0;
    const char *host = g_str_has_prefix(url, "https://") ? url + 8 : g_str_has_prefix(url, "http://") ? url + 7 : NULL;
    if (host && memchr(host, '@', strcspn(host, "/")))
        return refuse(ret_msg, g_strdup("endpoint-url: keys do not go into the URL; see 'Credentials' in sluice(1)"));
    if (!host || !*host || *host == '/')
        return refuse(ret_msg, g_strdup_printf("endpoint-url '%s': http://HOST[:PORT] or https://HOST[:PORT]", url));
    return 0;
}

static int check_cache_dir(const struct config *cfg, char **ret_msg)
{
    g_auto(GStrv) dirs = g_strsplit(cfg->cache_dir ? cfg->cache_dir : "-", ":", -1);
    for (unsigned i = 0; dirs[i]; i++)
        if (!*dirs[i] || g_strv_contains((const char *const *)dirs + i + 1, dirs[i]))
            return refuse(ret_msg,
                          g_strdup_printf("cache-dir '%s': different folders, separated by ':'", cfg->cache_dir));
    return *dirs ? 0 : refuse(ret_msg, g_strdup("cache-dir: a folder is missing"));
}

static int check_space(const struct config *cfg, char **ret_msg)
{
    if (cfg->cache_size.percent + cfg->free_space.percent > 100)
        return refuse(ret_msg,
                      g_strdup_printf("cache-size %u%% and free-space %u%% conflict: together more than the disk",
                                      cfg->cache_size.percent, cfg->free_space.percent));
    if (cfg->memory_cache && cfg->memory_cache < MEMORY_MIN)
        return refuse(ret_msg, g_strdup("memory-cache: at least 16M, or 0 for none"));
    if (cfg->cache_size.bytes && cfg->cache_size.bytes < 4 * cfg->part_size)
        return refuse(ret_msg, g_strdup("cache-size and part-size conflict: the cache must hold at least 4 parts"));
    return 0;
}

int config_sync(const struct config *cfg, bool *ret_full, uint64_t *ret_every_ns)
{
    const char *text = cfg->sync ? cfg->sync : "lazy";
    uint64_t every_ns = 0;
    bool full = strcmp(text, "full") == 0, lazy = strcmp(text, "lazy") == 0;
    if (!full && !lazy && (parse_duration(text, &every_ns) < 0 || every_ns < NS_PER_S || every_ns > 365 * DAY_NS))
        return -EINVAL;
    *ret_full = full;
    *ret_every_ns = every_ns;
    return 0;
}

static int check_sync(const struct config *cfg, char **ret_msg)
{
    bool full;
    uint64_t every_ns;
    if (config_sync(cfg, &full, &every_ns) < 0)
        return refuse(ret_msg,
                      g_strdup_printf("sync '%s': lazy, full, or a duration from 1s to 365d such as 30m", cfg->sync));
    if (cfg->immutable && every_ns)
        return refuse(ret_msg,
                      g_strdup("immutable and sync conflict: nothing is looked at again; --sync full lists all once"));
    return 0;
}

static int check_http_tls(const struct config *cfg, char **ret_msg)
{
    const char *given = cfg->http_cert        ? "http-cert"
                        : cfg->http_key       ? "http-key"
                        : cfg->http_client_ca ? "http-client-ca"
                                              : NULL;
    if (given && !cfg->http)
        return refuse(ret_msg, g_strdup_printf("%s needs --http [ADDR:]PORT, where it is used", given));
    if (cfg->http_cert && !cfg->http_key)
        return refuse(ret_msg,
                      g_strdup_printf("http-cert '%s' needs --http-key FILE, its private key", cfg->http_cert));
    if (cfg->http_key && !cfg->http_cert)
        return refuse(ret_msg,
                      g_strdup_printf("http-key '%s' needs --http-cert FILE, the certificate that it is the key of",
                                      cfg->http_key));
    if (cfg->http_client_ca && !cfg->http_cert)
        return refuse(
            ret_msg,
            g_strdup_printf(
                "http-client-ca '%s' needs --http-cert FILE and --http-key FILE: clients show certificates by TLS only",
                cfg->http_client_ca));
    return 0;
}

static int check_events(const struct config *cfg, char **ret_msg)
{
    if (!cfg->events_secret_file)
        return 0;
    if (!cfg->http)
        return refuse(ret_msg, g_strdup("events-secret-file needs --http [ADDR:]PORT, where events are sent to"));
    if (cfg->immutable)
        return refuse(ret_msg, g_strdup("immutable and events-secret-file conflict: nothing is looked at again"));
    return 0;
}

/* What --immutable sets. */
static const char *const immutable_sets[] = {"metadata-ttl", "negative-ttl", "read-only", NULL};

/* Nothing of it is written, nothing of it is looked at twice: what says otherwise was not meant for this mount. */
static int settle_immutable(struct config *cfg, char **ret_msg)
{
    const char *with = was_given(cfg, "read-only") && !cfg->read_only ? "read-only=false" : NULL;
    for (unsigned i = 0; immutable_sets[i]; i++)
        if (was_given(cfg, immutable_sets[i]) && strcmp(immutable_sets[i], "read-only") != 0)
            with = immutable_sets[i];
    for (unsigned i = 0; i < n_option_rows; i++)
        if (g_strcmp0(option_table[i].section, "Writing") == 0 && cfg->origin[i] != CONFIG_DEFAULT)
            with = option_table[i].name;
    if (with)
        return refuse(
            ret_msg,
            g_strdup_printf("immutable and %s conflict: nothing is written, and nothing is looked at again", with));
    cfg->read_only = true;
    cfg->metadata_ttl_ns = cfg->negative_ttl_ns = 365 * DAY_NS;
    return 0;
}

static int check_shadow(const struct config *cfg, char **ret_msg)
{
    const char *s = cfg->shadow;
    if (!s || (*s && strlen(s) <= SHADOW_MAX && !strchr(s, '/')))
        return 0;
    return refuse(ret_msg, g_strdup_printf("shadow '%s': give the end of a name, such as .object, of up to %d bytes "
                                           "without '/'",
                                           s, SHADOW_MAX));
}

static int check_rules(const struct config *cfg, char **ret_msg)
{
    struct rules *rules = NULL;
    int r = rules_new(cfg, &rules, ret_msg);
    rules_free(rules);
    return r;
}

int config_validate(struct config *cfg, char **ret_msg)
{
    if (!was_given(cfg, "file-mode"))
        cfg->file_mode = 0666 & ~cfg->umask;
    if (!was_given(cfg, "dir-mode"))
        cfg->dir_mode = 0777 & ~cfg->umask;
    int r = check_source(cfg, ret_msg);
    if (r == 0 && cfg->immutable)
        r = settle_immutable(cfg, ret_msg);
    if (r < 0)
        return r;
    if (!cfg->mountpoint || !*cfg->mountpoint)
        return refuse(ret_msg, g_strdup("DIR, where to mount, is missing"));
    r = check_endpoint(cfg, ret_msg);
    if (r < 0)
        return r;
    if (cfg->no_sign_request && cfg->profile)
        return refuse(ret_msg, g_strdup("no-sign-request and profile conflict: unsigned requests use no credentials"));
    if (cfg->no_sign_request && !cfg->read_only && was_given(cfg, "close") && cfg->close == CLOSE_REMOTE)
        return refuse(
            ret_msg,
            g_strdup("no-sign-request and close=remote conflict: unsigned requests rarely may write; add --read-only"));
    if (cfg->read_only && ((was_given(cfg, "close") && cfg->close != CLOSE_BUFFERED) || cfg->fsync == FSYNC_REMOTE))
        return refuse(ret_msg, g_strdup("read-only conflicts with close and fsync settings: nothing is written"));
    bool in_store = cfg->source && g_str_has_prefix(cfg->source, "file:");
    if (was_given(cfg, "umask") && was_given(cfg, "file-mode") && was_given(cfg, "dir-mode") && !in_store)
        return refuse(ret_msg, g_strdup("umask conflicts with file-mode plus dir-mode: it would have no effect"));
    int (*const checks[])(const struct config *, char **) = {check_cache_dir, check_space,  check_rules, check_sync,
                                                             check_http_tls,  check_events, check_shadow};
    for (unsigned i = 0; r == 0 && i < G_N_ELEMENTS(checks); i++)
        r = checks[i](cfg, ret_msg);
    return r;
}

/* ---- from process to process: "name=value", each behind its origin's digit and before a zero byte ---- */

static void save_text(GString *out, char origin, const char *name, const char *value)
{
    g_string_append_printf(out, "%c%s=%s", origin, name, value);
    g_string_append_c(out, '\0');
}

void config_save(const struct config *cfg, GString *out)
{
    if (cfg->source)
        save_text(out, '0', "source", cfg->source);
    save_text(out, '0', "mountpoint", cfg->mountpoint);
    for (unsigned i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_table[i];
        bool is_text = row->type == OPT_STRING || row->type == OPT_WORD || row->type == OPT_RULES;
        if (is_text && !*(char *const *)((const char *)cfg + row->offset))
            continue;
        g_autoptr(GString) value = g_string_new(NULL);
        option_print(cfg, row, value);
        save_text(out, (char)('0' + cfg->origin[i]), row->name, value->str);
    }
}

static int restore_text(struct config *cfg, char *text, char **ret_msg)
{
    char *value = strchr(text, '=');
    if (!value)
        return -EINVAL;
    *value++ = '\0';
    const char *name = text + 1;
    char **place = strcmp(name, "source") == 0       ? &cfg->source
                   : strcmp(name, "mountpoint") == 0 ? &cfg->mountpoint
                                                     : NULL;
    if (place) {
        *place = g_strdup(value);
        return 0;
    }
    int i = option_find(name);
    if (i < 0)
        return -EINVAL;
    cfg->origin[i] = (uint8_t)(text[0] - '0');
    return option_assign(cfg, &option_table[i], value, ret_msg);
}

int config_restore(struct config *cfg, const char *bytes, size_t len, char **ret_msg)
{
    int r = 0;
    config_init(cfg);
    for (const char *p = bytes, *end = bytes + len; r == 0 && p < end; p += strlen(p) + 1) {
        g_autofree char *text = g_strdup(p);
        r = restore_text(cfg, text, ret_msg);
        if (r < 0 && !*ret_msg)
            *ret_msg = g_strdup_printf("option '%s' is unknown", p + 1);
    }
    return r;
}

/* ---- what is shown ---- */

bool config_option_at(unsigned index, struct config_option *ret_option)
{
    for (unsigned i = 0; i < n_option_rows; i++) {
        const struct option_row *o = &option_table[i];
        if (!o->section || index-- > 0)
            continue;
        *ret_option = (struct config_option){.section = o->section,
                                             .name = o->name,
                                             .arg = o->arg,
                                             .help = o->help,
                                             .def = o->def ? o->def : "",
                                             .choices = o->choices};
        if (!o->arg && o->choices)
            ret_option->arg = "WORD";
        return true;
    }
    return false;
}

/* "--close buffered|local|remote" */
static char *option_heading(const struct option_row *o)
{
    if (o->choices) {
        g_autofree char *words = option_words(o, "|");
        return g_strdup_printf("--%s %s", o->name, words);
    }
    return o->arg ? g_strdup_printf("--%s %s", o->name, o->arg) : g_strdup_printf("--%s", o->name);
}

void config_print_help(FILE *out)
{
    const char *section = NULL;
    for (unsigned i = 0; i < n_option_rows; i++) {
        const struct option_row *o = &option_table[i];
        if (!o->section)
            continue;
        if (section != o->section && (!section || strcmp(section, o->section) != 0))
            fprintf(out, "%s%s:\n", section ? "\n" : "", o->section);
        section = o->section;
        g_autofree char *head = option_heading(o);
        fprintf(out, "  %-36s %s", head, o->help);
        if (o->def)
            fprintf(out, " [%s]", o->def);
        fputc('\n', out);
    }
}

void config_print_names(FILE *out)
{
    for (unsigned i = 0; i < n_option_rows; i++)
        if (option_table[i].section)
            fprintf(out, "--%s\n", option_table[i].name);
}

static const char *origin_of(const struct config *cfg, unsigned row)
{
    static const char *const origins[] = {"default", "config file", "command line"};
    bool implied = cfg->immutable && cfg->origin[row] == CONFIG_DEFAULT;
    return implied && g_strv_contains(immutable_sets, option_table[row].name) ? "immutable" : origins[cfg->origin[row]];
}

/* Each value of an option that may be given again is a line as in a file. */
static void dump_rules(const struct config *cfg, unsigned row, GString *out)
{
    const char *text = *(char *const *)((const char *)cfg + option_table[row].offset);
    g_auto(GStrv) lines = g_strsplit(text ? text : "", "\n", -1);
    for (unsigned i = 0; i == 0 || lines[i]; i++) {
        g_string_append_printf(out, "%s = %s  # %s\n", option_table[row].name, lines[i] ? lines[i] : "",
                               origin_of(cfg, row));
        if (!lines[i])
            return;
    }
}

void config_dump(const struct config *cfg, const char *cache_dir, GString *out)
{
    g_string_append_printf(out, "source = %s\nmountpoint = %s\n", cfg->source ? cfg->source : "",
                           cfg->mountpoint ? cfg->mountpoint : "");
    for (unsigned i = 0; i < n_option_rows; i++) {
        if (!option_table[i].section && cfg->origin[i] == CONFIG_DEFAULT)
            continue;
        if (option_table[i].type == OPT_RULES) {
            dump_rules(cfg, i, out);
            continue;
        }
        g_string_append_printf(out, "%s = ", option_table[i].name);
        if (!cfg->cache_dir && strcmp(option_table[i].name, "cache-dir") == 0)
            g_string_append(out, cache_dir);
        option_print(cfg, &option_table[i], out);
        g_string_append_printf(out, "  # %s\n", origin_of(cfg, i));
    }
}
