/* Options of a mount: each row's default, help, good and bad value; sizes and durations; -o lists, config files, conflicts. */
#include "base/clock.h"
#include "fs/config.h"
#include "fs/config_table.h"
#include "tests/support/checks.h"

#include <check.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config cfg;
static char *msg;

static void setup(void)
{
    config_init(&cfg);
    msg = NULL;
}

static void teardown(void)
{
    config_clear(&cfg);
    g_free(msg);
}

/* Parses "mount" and the words given, up to NULL. */
static int parse_words(const char *word, ...)
{
    g_autoptr(GPtrArray) argv = g_ptr_array_new_with_free_func(g_free);
    g_ptr_array_add(argv, g_strdup("mount"));
    va_list ap;
    va_start(ap, word);
    for (; word; word = va_arg(ap, const char *))
        g_ptr_array_add(argv, g_strdup(word));
    va_end(ap);
    g_clear_pointer(&msg, g_free);
    return config_parse_argv(&cfg, (int)argv->len, (char **)argv->pdata, &msg);
}
#define PARSE(...) parse_words(__VA_ARGS__, NULL)

static char *shown(const char *name)
{
    GString *s = g_string_new(NULL);
    option_print(&cfg, &option_table[option_find(name)], s);
    return g_string_free(s, FALSE);
}

static void expect_shown(const char *name, const char *value)
{
    g_autofree char *s = shown(name);
    ck_assert_msg(strcmp(s, value) == 0, "%s is %s, not %s", name, s, value);
}

#ifdef SLUICE_TEST_POINTS
#define PART_SIZE_BAD "63K"
#else
#define PART_SIZE_BAD "4M"
#endif

/* name, default as shown, a good value, how that is shown, a bad value (NULL: any text will do) */
static const struct {
    const char *name, *def, *good, *good_shown, *bad;
} rows[] = {
    {"endpoint-url", "", "https://s3.example", "https://s3.example", ""},
    {"region", "", "eu-west-1", "eu-west-1", ""},
    {"profile", "", "lake", "lake", ""},
    {"no-sign-request", "false", NULL, "true", "maybe"},
    {"force-path-style", "false", "yes", "true", "2"},
    {"allow-plain-http", "false", "on", "true", ""},
    {"ca-bundle", "", "/etc/ca.pem", "/etc/ca.pem", ""},
    {"links", "", "/etc/links", "/etc/links", ""},
    {"cache-dir", "", "/nvme/c", "/nvme/c", ""},
    {"journal-dir", "", "/ssd/j", "/ssd/j", ""},
    {"accept-loss", "false", NULL, "true", "maybe"},
    {"cache-size", "80%", "200G", "200G", "101%"},
    {"memory-cache", "0", "2G", "2G", "some"},
    {"free-space", "10%", "5%", "5%", "x%"},
    {"passthrough", "on", "off", "off", "auto"},
    {"open-fill", "32M", "0", "0", "2G"},
    {"prefetch", "on", "off", "off", "maybe"},
    {"readahead", "64M", "0", "0", "5G"},
    {"metadata-ttl", "60s", "2h", "2h", "-1"},
    {"negative-ttl", "5s", "0", "0s", "5 s"},
    {"posix-meta", "auto", "off", "off", "maybe"},
    {"sync", "lazy", "30m", "30m", NULL},
    {"escape", "none", "percent", "percent", "yes"},
    {"shadow", "", ".object", ".object", ""},
    {"read-only", "false", "true", "true", "x"},
    {"immutable", "false", "true", "true", "x"},
    {"close", "buffered", "remote", "remote", "upload"},
    {"fsync", "local", "remote", "remote", "none"},
    {"order", "ancestor", "none", "none", "Ancestor"},
    {"conflict", "keep", "overwrite", "overwrite", ""},
    {"hold", "*.tmp,*.part,*.partial,*.incomplete,tmp_obj_*,tmp-*/**,*.orbax-checkpoint-tmp-*/**", "", "", NULL},
    {"hold-delay", "10m", "90s", "90s", "31d"},
    {"orphan", "publish", "hold", "hold", "drop"},
    {"overdue", "60m", "90s", "90s", "366d"},
    {"delta", "on", "off", "off", "auto"},
    {"rule", "", "ckpt/**=pin=2,close=local", "ckpt/**=pin=2,close=local", "ckpt/**=pim=2"},
    {"on-create", "", "models/**=warm", "models/**=warm", "models/**=cool"},
    {"part-size", "8M", "64M", "64M", PART_SIZE_BAD},
    {"max-uploads", "8", "256", "256", "0"},
    {"max-downloads", "16", "1", "1", "257"},
    {"upload-limit", "0", "100M", "100M", "fast"},
    {"download-limit", "0", "1.5G", "1536M", "1.G.5"},
    {"op-timeout", "60s", "1m30s", "90s", "0"},
    {"late-requests", "30s", "0", "0s", "soon"},
    {"allow-other", "false", "1", "true", "11"},
    {"noexec", "false", NULL, "true", "x"},
    {"uid", NULL, "1000", "1000", "root"},
    {"gid", NULL, "1000", "1000", "-5"},
    {"umask", "0022", "077", "0077", "088"},
    {"file-mode", "0644", "600", "0600", "1777"},
    {"dir-mode", "0755", "0700", "0700", "rwx"},
    {"http", "", ":9100", ":9100", ""},
    {"http-cert", "", "/etc/sluice/web.pem", "/etc/sluice/web.pem", ""},
    {"http-key", "", "/etc/sluice/web.key", "/etc/sluice/web.key", ""},
    {"http-client-ca", "", "/etc/sluice/ca.pem", "/etc/sluice/ca.pem", ""},
    {"events-secret-file", "", "/etc/sluice/events", "/etc/sluice/events", ""},
    {"foreground", "false", "off", "false", "x"},
    {"log-level", "info", "debug", "debug", "loud"},
    {"log-file", "", "/tmp/x.log", "/tmp/x.log", ""},
    {"fault", "", "op=get", "op=get", ""},
    {"disk-faults", "false", NULL, "true", "x"},
    {"backing-ids", "65536", "8", "8", "0"},
    {"settle", "10s", "200ms", "200ms", "x"},
    {"watchdog", "30s", "3s", "3s", "x"},
    {"debug-fuse", "false", NULL, "true", "x"},
};

START_TEST(each_option_has_its_row_here)
{
    ck_assert_uint_eq(n_option_rows, G_N_ELEMENTS(rows));
    for (unsigned i = 0; i < n_option_rows; i++)
        ck_assert_str_eq(option_table[i].name, rows[i].name);
}
END_TEST

START_TEST(option_has_default_help_good_and_bad_value)
{
    const char *name = rows[_i].name;
    if (rows[_i].def)
        expect_shown(name, rows[_i].def);
    ck_assert_uint_gt(strlen(option_table[_i].help), 8);
    ck_assert_int_eq(config_set(&cfg, name, rows[_i].good, &msg), 0);
    expect_shown(name, rows[_i].good_shown);
    if (!rows[_i].bad)
        return;
    ck_assert_int_eq(config_set(&cfg, name, rows[_i].bad, &msg), -EINVAL);
    ck_assert_msg(strstr(msg, name) != NULL, "%s", msg);
    ck_assert_msg(strchr(msg, '\n') == NULL, "%s", msg);
    expect_shown(name, rows[_i].good_shown); /* untouched */
}
END_TEST

START_TEST(sizes_have_binary_and_decimal_units)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"1", 1},
                {"4K", 4096},
                {"4k", 4096},
                {"64M", 64 << 20},
                {"64MiB", 64 << 20},
                {"1.5G", 3ull << 29},
                {"2MB", 2000000},
                {"7B", 7},
                {"2T", 2ull << 40},
                {"18446744073709551615", UINT64_MAX}};
    static const char *const bad[] = {
        "", "-1", "M", "1X", "1Mb", "1M ", " 1", "0x10", "1e3", "inf", "99999999P", "1..5", "18446744073709551616"};
    uint64_t n;
    for (unsigned i = 0; i < G_N_ELEMENTS(good); i++) {
        ck_assert_msg(parse_size(good[i].text, &n) == 0, "%s", good[i].text);
        ck_assert_msg(n == good[i].bytes, "%s", good[i].text);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        n = 4711;
        ck_assert_msg(parse_size(bad[i], &n) < 0 && n == 4711, "'%s'", bad[i]);
    }
}
END_TEST

START_TEST(durations_add_up)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } good[] = {{"0", 0},
                {"5", 5 * NS_PER_S},
                {"30s", 30 * NS_PER_S},
                {"1m30s", 90 * NS_PER_S},
                {"1.5h", 5400 * NS_PER_S},
                {"250ms", 250 * NS_PER_MS},
                {"2d", 172800 * NS_PER_S},
                {"7ns", 7}};
    static const char *const bad[] = {"", "s", "-5s", "5 s", "5sec", "1m30", "5S", "999999999d", "1h-5m"};
    uint64_t n;
    for (unsigned i = 0; i < G_N_ELEMENTS(good); i++) {
        ck_assert_msg(parse_duration(good[i].text, &n) == 0, "%s", good[i].text);
        ck_assert_msg(n == good[i].ns, "%s", good[i].text);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++)
        ck_assert_msg(parse_duration(bad[i], &n) < 0, "'%s'", bad[i]);
}
END_TEST

START_TEST(unknown_option_names_the_nearest)
{
    ck_assert_int_eq(config_set(&cfg, "cache-sise", "1G", &msg), -ENOENT);
    ck_assert_msg(strstr(msg, "'cache-size'") != NULL, "%s", msg);
    g_clear_pointer(&msg, g_free);
    ck_assert_int_eq(config_set(&cfg, "frobnicate", "1G", &msg), -ENOENT);
    ck_assert_msg(strstr(msg, "--help") != NULL, "%s", msg);
}
END_TEST

START_TEST(keys_are_refused_and_never_repeated)
{
    static const char *const names[] = {"access-key",    "secret-key",  "passwd",       "aws_secret_access_key",
                                        "session-token", "passwd_file", "access_key_id"};
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *arg = g_strdup_printf("--%s=HUSH", names[i]);
        ck_assert_int_eq(PARSE("s3://bucket", "/mnt", arg), -EINVAL);
        ck_assert_msg(strstr(msg, "AWS_ACCESS_KEY_ID") && strstr(msg, names[i]) && !strstr(msg, "HUSH"), "%s", msg);
    }
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "--secret-key", "HUSH"), -EINVAL);
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "-o", "passwd=HUSH"), -EINVAL);
    ck_assert_int_eq(PARSE("s3://KEY:HUSH@bucket", "/mnt"), 0);
    ck_assert_int_eq(config_validate(&cfg, &msg), -EINVAL);
    ck_assert_msg(!strstr(msg, "HUSH"), "%s", msg);
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "--endpoint-url=https://KEY:HUSH@host"), 0);
    ck_assert_int_eq(config_validate(&cfg, &msg), -EINVAL);
    ck_assert_msg(!strstr(msg, "HUSH"), "%s", msg);
}
END_TEST

START_TEST(long_options_take_both_forms)
{
    ck_assert_int_eq(PARSE("--cache-size=1G", "s3://bucket/p", "--part-size", "16M", "/mnt", "-f", "--read_only"), 0);
    ck_assert_str_eq(cfg.source, "s3://bucket/p");
    ck_assert_str_eq(cfg.mountpoint, "/mnt");
    ck_assert_uint_eq(cfg.cache_size.bytes, 1 << 30);
    ck_assert_uint_eq(cfg.cache_size.percent, 0);
    ck_assert_uint_eq(cfg.part_size, 16 << 20);
    ck_assert(cfg.foreground && cfg.read_only);
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "--part-size"), -EINVAL);
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "third"), -EINVAL);
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "-x"), -ENOENT);
}
END_TEST

START_TEST(o_list_takes_options_and_mount_words)
{
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "-o",
                           "ro,_netdev,nofail,allow_other,x-systemd.automount,metadata_ttl=5m", "-oumask=077"),
                     0);
    ck_assert(cfg.read_only && cfg.allow_other);
    ck_assert_uint_eq(cfg.metadata_ttl_ns, 300 * NS_PER_S);
    ck_assert_uint_eq(cfg.umask, 077);
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "-o", "hold=*.a\\,*.b,close=local"), 0);
    ck_assert_str_eq(cfg.hold, "*.a,*.b");
    ck_assert_int_eq(cfg.close, CLOSE_LOCAL);
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "-o", "alow_other"), -ENOENT);
    ck_assert_msg(strstr(msg, "allow-other") != NULL, "%s", msg);
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "-o"), -EINVAL);
}
END_TEST

START_TEST(of_exec_and_noexec_the_later_counts)
{
    ck_assert_int_eq(PARSE("-o", "rw,noexec,nodev"), 0);
    ck_assert(cfg.noexec);
    ck_assert_int_eq(PARSE("-o", "noexec,exec"), 0);
    ck_assert(!cfg.noexec);
}
END_TEST

static char *temp_file(const char *text)
{
    char *path = NULL;
    int fd = g_file_open_tmp("sluice-config-XXXXXX", &path, NULL);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert(g_file_set_contents(path, text, -1, NULL));
    return path;
}

START_TEST(config_file_is_overridden_by_the_command_line)
{
    g_autofree char *path = temp_file(
        "# a comment\nsource = s3://bucket/data\n\npart-size = 16M\nmax_uploads=4\nread-only\nhold = \"*.x,*.y\"\n");
    ck_assert_int_eq(PARSE("--max-uploads", "6", "--config", path, "/mnt"), 0);
    ck_assert_str_eq(cfg.source, "s3://bucket/data");
    ck_assert_str_eq(cfg.mountpoint, "/mnt");
    ck_assert_uint_eq(cfg.part_size, 16 << 20);
    ck_assert_uint_eq(cfg.max_uploads, 6);
    ck_assert(cfg.read_only);
    ck_assert_str_eq(cfg.hold, "*.x,*.y");
    g_autofree char *list = g_strdup_printf("part_size=32M,config=%s", path);
    ck_assert_int_eq(PARSE("/mnt", "-o", list), 0);
    ck_assert_uint_eq(cfg.part_size, 32 << 20);
    ck_assert_uint_eq(cfg.max_uploads, 4);
    ck_assert_int_eq(PARSE("--max-uploads=6", "--config", path, "/mnt"), 0);
    g_autoptr(GString) dump = g_string_new(NULL);
    config_dump(&cfg, "/chosen", dump);
    ck_assert_ptr_nonnull(strstr(dump->str, "part-size = 16M  # config file\n"));
    ck_assert_ptr_nonnull(strstr(dump->str, "max-uploads = 6  # command line\n"));
    ck_assert_ptr_nonnull(strstr(dump->str, "max-downloads = 16  # default\n"));
    ck_assert_ptr_nonnull(strstr(dump->str, "cache-dir = /chosen  # default\n"));
    g_unlink(path);
}
END_TEST

START_TEST(bad_config_file_names_file_and_line)
{
    g_autofree char *path = temp_file("part-size = 16M\npart-sise = 1\n");
    ck_assert_int_eq(config_read_file(&cfg, path, &msg), -ENOENT);
    ck_assert_msg(strstr(msg, path) && strstr(msg, ":2:"), "%s", msg);
    g_clear_pointer(&msg, g_free);
    ck_assert(g_file_set_contents(path, "secret-key = HUSH\n", -1, NULL));
    ck_assert_int_eq(config_read_file(&cfg, path, &msg), -EINVAL);
    ck_assert_msg(!strstr(msg, "HUSH"), "%s", msg);
    g_clear_pointer(&msg, g_free);
    ck_assert(g_file_set_contents(path, "a\0b", 3, NULL));
    ck_assert_int_eq(config_read_file(&cfg, path, &msg), -EINVAL);
    g_clear_pointer(&msg, g_free);
    g_unlink(path);
    ck_assert_int_eq(config_read_file(&cfg, path, &msg), -EINVAL);
    ck_assert_ptr_nonnull(strstr(msg, path));
}
END_TEST

START_TEST(validate_settles_modes_from_umask)
{
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "--umask=027", "--dir-mode=711"), 0);
    ck_assert_int_eq(config_validate(&cfg, &msg), 0);
    ck_assert_uint_eq(cfg.file_mode, 0640);
    ck_assert_uint_eq(cfg.dir_mode, 0711);
    ck_assert_uint_eq(cfg.uid, getuid());
    ck_assert_uint_eq(cfg.gid, getgid());
}
END_TEST

/* arguments after "mount", a word the message must hold (NULL: accepted) */
static const struct {
    const char *args, *word;
} combos[] = {
    {"s3://bucket /mnt", NULL},
    {"s3://bucket/a/b/ /mnt --endpoint-url http://127.0.0.1:8000", NULL},
    {"file:///srv/lake /mnt", NULL},
    {"file://srv/lake /mnt", "absolute"},
    {"file:/// /mnt", "absolute"},
    {"bucket /mnt", "s3://"},
    {"gs://bucket /mnt", "--endpoint-url"},
    {"s3:// /mnt", "bucket"},
    {"s3://ab /mnt", "bucket"},
    {"s3://a%20b /mnt", "'%'"},
    {"file:///d /mnt --endpoint-url http://h", "conflict"},
    {"s3://bucket /mnt --endpoint-url host:80", "endpoint-url"},
    {"s3://bucket /mnt --endpoint-url http://", "endpoint-url"},
    {"s3://bucket /mnt --no-sign-request --profile x", "profile"},
    {"s3://bucket /mnt --read-only --close remote", "read-only"},
    {"s3://bucket /mnt --read-only --fsync remote", "read-only"},
    {"s3://bucket /mnt --immutable", NULL},
    {"s3://bucket /mnt --immutable --read-only", NULL},
    {"s3://bucket /mnt --immutable --read-only=false", "read-only"},
    {"s3://bucket /mnt --immutable --close remote", "close"},
    {"s3://bucket /mnt --immutable --close buffered", "close"},
    {"s3://bucket /mnt --immutable --conflict keep", "conflict"},
    {"s3://bucket /mnt --immutable --hold *.x", "hold"},
    {"s3://bucket /mnt --immutable --read-only --close remote", "close"},
    {"s3://bucket /mnt --immutable --read-only --hold *.x", "hold"},
    {"s3://bucket /mnt --immutable --metadata-ttl 5s", "metadata-ttl"},
    {"s3://bucket /mnt --shadow .object", NULL},
    {"s3://bucket /mnt --shadow a/b", "shadow"},
    {"s3://bucket /mnt --events-secret-file /f", "--http"},
    {"s3://bucket /mnt --events-secret-file /f --http :1", NULL},
    {"s3://bucket /mnt --immutable --events-secret-file /f --http :1", "immutable"},
    {"s3://bucket /mnt --http-cert /c --http-key /k", "--http"},
    {"s3://bucket /mnt --http-client-ca /a", "--http"},
    {"s3://bucket /mnt --http :1 --http-cert /c", "--http-key"},
    {"s3://bucket /mnt --http :1 --http-key /k", "--http-cert"},
    {"s3://bucket /mnt --http :1 --http-client-ca /a", "--http-cert"},
    {"s3://bucket /mnt --http :1 --http-cert /c --http-key /k", NULL},
    {"s3://bucket /mnt --http :1 --http-cert /c --http-key /k --http-client-ca /a", NULL},
    {"s3://bucket /mnt --immutable --http :1 --http-cert /c --http-key /k --http-client-ca /a", NULL},
    {"s3://bucket /mnt --cache-size 95% --free-space 10%", "free-space"},
    {"s3://bucket /mnt --cache-size 64M --part-size 32M", "part-size"},
    {"s3://bucket /mnt --umask 0 --file-mode 600 --dir-mode 700", "umask"},
    {"file:///srv/lake /mnt --umask 0 --file-mode 600 --dir-mode 700", NULL},
};

START_TEST(combination_is_judged)
{
    g_autofree char *line = g_strdup_printf("mount %s", combos[_i].args);
    g_auto(GStrv) argv = g_strsplit(line, " ", -1);
    ck_assert_int_eq(config_parse_argv(&cfg, (int)g_strv_length(argv), argv, &msg), 0);
    int r = config_validate(&cfg, &msg);
    ck_assert_int_eq(r, combos[_i].word ? -EINVAL : 0);
    if (combos[_i].word)
        ck_assert_msg(strstr(msg, combos[_i].word) != NULL, "%s", msg);
}
END_TEST

START_TEST(immutable_is_read_only_and_never_expires)
{
    ck_assert_int_eq(PARSE("s3://bucket", "/mnt", "--immutable"), 0);
    ck_assert_int_eq(config_validate(&cfg, &msg), 0);
    ck_assert(cfg.read_only);
    ck_assert_uint_ge(cfg.metadata_ttl_ns, 24 * 3600 * NS_PER_S);
    ck_assert_uint_eq(cfg.metadata_ttl_ns, cfg.negative_ttl_ns);
    g_autoptr(GString) dump = g_string_new(NULL);
    config_dump(&cfg, "/chosen", dump);
    ck_assert_ptr_nonnull(strstr(dump->str, "metadata-ttl = 365d  # immutable\n"));
    ck_assert_ptr_nonnull(strstr(dump->str, "immutable = true  # command line\n"));
    ck_assert_ptr_nonnull(strstr(dump->str, "read-only = true  # immutable\n"));
}
END_TEST

/* As it is, defaults and all, whatever was given. */
START_TEST(saved_options_are_restored)
{
    ck_assert_int_eq(PARSE("s3://bucket/a b=c", "/mnt/x", "--immutable", "--ca-bundle", "/etc/a=b\nc"), 0);
    ck_assert_int_eq(config_validate(&cfg, &msg), 0);
    cfg.origin_now = CONFIG_FROM_FILE;
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++)
        if (!strstr("immutable read-only ca-bundle metadata-ttl negative-ttl", rows[i].name))
            ck_assert_int_eq(config_set(&cfg, rows[i].name, rows[i].good, &msg), 0);
    g_autoptr(GString) saved = g_string_new(NULL), before = g_string_new(NULL), after = g_string_new(NULL);
    config_save(&cfg, saved);
    config_dump(&cfg, "/chosen", before);
    struct config other;
    ck_assert_int_eq(config_restore(&other, saved->str, saved->len, &msg), 0);
    config_dump(&other, "/chosen", after);
    ck_assert_str_eq(after->str, before->str);
    ck_assert(other.immutable && other.read_only);
    ck_assert_str_eq(other.source, "s3://bucket/a b=c");
    config_clear(&other);

    struct config strange;
    ck_assert_int_eq(config_restore(&strange, "0no-such-option=1", 18, &msg), -EINVAL);
    ck_assert_ptr_nonnull(strstr(msg, "no-such-option"));
    ck_assert_uint_eq(strange.part_size, 8u << 20);
    config_clear(&strange);
}
END_TEST

START_TEST(no_source_goes_from_process_to_process)
{
    struct config other;
    g_autoptr(GString) saved = g_string_new(NULL);
    ck_assert_int_eq(PARSE("/mnt", "--links", "/etc/l"), 0);
    ck_assert_int_eq(config_validate(&cfg, &msg), 0);
    config_save(&cfg, saved);
    ck_assert_int_eq(config_restore(&other, saved->str, saved->len, &msg), 0);
    ck_assert_ptr_null(other.source);
    ck_assert_str_eq(other.mountpoint, "/mnt");
    ck_assert_str_eq(other.links, "/etc/l");
    config_clear(&other);
}
END_TEST

START_TEST(missing_source_or_dir_is_said)
{
    ck_assert_int_eq(PARSE("s3://bucket"), -EINVAL);
    ck_assert_ptr_nonnull(strstr(msg, "DIR"));
    ck_assert_int_eq(PARSE("--read-only"), 0);
    ck_assert_int_eq(config_validate(&cfg, &msg), -EINVAL);
    ck_assert_ptr_nonnull(strstr(msg, "DIR"));
    ck_assert_int_eq(PARSE("/mnt", "--immutable"), 0);
    ck_assert_int_eq(config_validate(&cfg, &msg), -EINVAL);
    ck_assert_ptr_nonnull(strstr(msg, "SOURCE"));
}
END_TEST

START_TEST(help_and_names_leave_hidden_options_out)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    config_print_help(f);
    config_print_names(f);
    fclose(f);
    struct config_option o;
    unsigned n = 0;
    for (; config_option_at(n, &o); n++) {
        g_autofree char *line = g_strdup_printf("--%s\n", o.name);
        ck_assert_msg(strstr(text, line) && strstr(text, o.help), "%s", o.name);
    }
    ck_assert_uint_eq(n, n_option_rows - 6);
    ck_assert_ptr_null(strstr(text, "--fault"));
    ck_assert_ptr_null(strstr(text, "--debug-fuse"));
    free(text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config");
    TCase *tc = tcase_create("config");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, each_option_has_its_row_here);
    tcase_add_loop_test(tc, option_has_default_help_good_and_bad_value, 0, G_N_ELEMENTS(rows));
    tcase_add_test(tc, sizes_have_binary_and_decimal_units);
    tcase_add_test(tc, durations_add_up);
    tcase_add_test(tc, unknown_option_names_the_nearest);
    tcase_add_test(tc, keys_are_refused_and_never_repeated);
    tcase_add_test(tc, long_options_take_both_forms);
    tcase_add_test(tc, o_list_takes_options_and_mount_words);
    tcase_add_test(tc, of_exec_and_noexec_the_later_counts);
    tcase_add_test(tc, config_file_is_overridden_by_the_command_line);
    tcase_add_test(tc, bad_config_file_names_file_and_line);
    tcase_add_test(tc, validate_settles_modes_from_umask);
    tcase_add_loop_test(tc, combination_is_judged, 0, G_N_ELEMENTS(combos));
    tcase_add_test(tc, immutable_is_read_only_and_never_expires);
    tcase_add_test(tc, saved_options_are_restored);
    tcase_add_test(tc, missing_source_or_dir_is_said);
    tcase_add_test(tc, no_source_goes_from_process_to_process);
    tcase_add_test(tc, help_and_names_leave_hidden_options_out);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
