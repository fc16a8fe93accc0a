/*
 * `sluice mount SOURCE DIR`: checks what can be checked, then has a child in the background supervise the mount; -f does that in this process.
 *
 * The child gets a session of its own and a pipe to us. On it come lines while it starts (shown when it takes longer than a
 * second), "ok" once the mount is served, or "error ..." with what failed. The mount is looked at by us only: nobody who serves
 * it may. Log of a background daemon: --log-file, else
 * /var/log/sluice/<mount point with '-' for '/'>.log, for users ~/.cache/sluice/.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "fs/daemon.h"
#include "fs/http_tls.h"
#include "fs/supervise.h"
#include "tools/cmd.h"
#include "tools/ctl_client.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_empty(const char *path, int *ret_r)
{
    DIR *d = opendir(path);
    *ret_r = d ? 0 : -errno;
    bool empty = true;
    for (struct dirent *e; d && (e = readdir(d));)
        empty = empty && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0);
    if (d)
        closedir(d);
    return empty;
}

/* What a daemon that was killed left there would be in the way of every new start, of a service or a container, say. */
static int clear_dead_mount(const char *path)
{
    if (!mount_exists(path))
        return EXIT_DONE;
    if (!mount_is_dead(path)) {
        complain("%s is already a sluice mount", path);
        return EXIT_USAGE;
    }
    int r = mount_clear_dead(path);
    if (r == 0 && mount_exists(path))
        r = -EBUSY; /* there was another below it */
    if (r < 0) {
        complain("%s is a dead sluice mount, which cannot be cleared: %s", path, err_text(r));
        return EXIT_FAILED;
    }
    complain("the daemon of %s was not running; the dead mount is cleared", path);
    return EXIT_DONE;
}

/* Makes cfg->mountpoint canonical. Exit code; complains. */
static int check_mountpoint(struct config *cfg)
{
    g_autofree char *path = path_canonical(cfg->mountpoint);
    struct stat st;
    int r;
    int code = clear_dead_mount(path);
    if (code != EXIT_DONE)
        return code;
    if (stat(path, &st) < 0) {
        complain("mount point %s: %s", path, err_text(errno));
        return EXIT_USAGE;
    }
    if (!S_ISDIR(st.st_mode)) {
        complain("mount point %s is not a directory", path);
        return EXIT_USAGE;
    }
    if (!is_empty(path, &r) || r < 0) {
        complain("mount point %s %s", path, r < 0 ? err_text(r) : "is not empty: what is in it would be hidden");
        return EXIT_USAGE;
    }
    g_free(cfg->mountpoint);
    cfg->mountpoint = g_steal_pointer(&path);
    return EXIT_DONE;
}

static void default_log_file(struct config *cfg)
{
    if (cfg->log_file || cfg->foreground)
        return;
    g_autofree char *dir =
        geteuid() == 0 ? g_strdup("/var/log/sluice") : g_build_filename(g_get_user_cache_dir(), "sluice", NULL);
    (void)g_mkdir_with_parents(dir, 0750); /* log_open() tells if it is not there */
    g_autofree char *name = g_strdup(cfg->mountpoint + 1);
    g_strdelimit(name, "/", '-');
    cfg->log_file = g_strdup_printf("%s/%s.log", dir, *name ? name : "root");
}

static int open_log(const struct config *cfg, char **ret_msg)
{
    enum log_level level;
    int r = log_level_parse(cfg->log_level, &level);
    if (r == 0)
        r = log_open(cfg->log_file, level);
    if (r < 0)
        *ret_msg = g_strdup_printf("log file %s: %s", cfg->log_file ? cfg->log_file : "(standard error)", err_text(r));
    return r;
}

static int serve_foreground(struct config *cfg)
{
    g_autofree char *msg = NULL;
    int r = open_log(cfg, &msg);
    if (r == 0)
        r = supervise(cfg, -1, &msg);
    if (r < 0)
        complain("%s", msg ? msg : err_text(r));
    log_close();
    return r < 0 ? EXIT_FAILED : EXIT_DONE;
}

/* A lock or a pipe of whoever calls would be held for as long as the mount lives. */
static void close_inherited(int but)
{
    if (but > 3)
        (void)close_range(3, (unsigned)but - 1, 0);
    (void)close_range((unsigned)but + 1, UINT_MAX, 0);
}

/* The child: never returns. */
static void serve_background(struct config *cfg, int ready_fd)
{
    g_autofree char *msg = NULL;
    close_inherited(ready_fd);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)setsid(); /* cannot fail: a fresh child leads no group */
    if (null >= 0)
        for (int fd = 0; fd <= 2; fd++)
            (void)dup2(null, fd); /* messages go through the pipe and the log */
    int r = open_log(cfg, &msg);
    if (r == 0 &&
        cfg->log_file) { /* what a library or a failed check prints before it aborts must be found somewhere */
        int log = open(cfg->log_file, O_WRONLY | O_APPEND | O_CLOEXEC);
        if (log >= 0)
            (void)dup2(log, 2);
    }
    if (r == 0)
        r = supervise(cfg, ready_fd, &msg);
    if (r < 0) {
        log_err("main", "ended: %s", msg ? msg : err_text(r));
        dprintf(ready_fd, "error %s\n", msg ? msg : err_text(r));
    }
    log_close();
    _exit(r < 0 ? EXIT_FAILED : EXIT_DONE);
}

/* One line of the child. True when the outcome is known. */
static bool take_line(const char *line, uint64_t start_ns, int *ret_exit)
{
    if (strcmp(line, "ok") == 0) {
        *ret_exit = EXIT_DONE;
        return true;
    }
    if (g_str_has_prefix(line, "error ")) {
        complain("%s", line + 6);
        *ret_exit = EXIT_FAILED;
        return true;
    }
    if (*line && clock_mono_ns() - start_ns > NS_PER_S)
        fprintf(stderr, "sluice: %s\n", line);
    return false;
}

/* Whether the mount answers. Exit code; complains. */
static int look_at_mount(pid_t pid, const char *mountpoint)
{
    struct stat st;
    if (stat(mountpoint, &st) == 0)
        return EXIT_DONE;
    complain("cannot serve %s: %s", mountpoint, err_text(errno));
    (void)kill(pid, SIGTERM); /* it may be ending already */
    return EXIT_FAILED;
}

static int wait_for_child(pid_t pid, int fd, const struct config *cfg)
{
    FILE *in = fdopen(fd, "r");
    uint64_t start_ns = clock_mono_ns();
    char *line = NULL;
    size_t size = 0;
    int code = EXIT_FAILED;
    bool known = false;
    while (in && !known && getline(&line, &size, in) > 0)
        known = take_line(g_strchomp(line), start_ns, &code);
    free(line);
    if (in)
        fclose(in);
    if (!known) {
        int status = 0;
        (void)waitpid(pid, &status, 0); /* it closed the pipe: it is ending */
        if (WIFSIGNALED(status))
            complain("the daemon was ended by signal %d while it started; see %s", WTERMSIG(status), cfg->log_file);
        else
            complain("the daemon ended while it started; see %s", cfg->log_file);
    }
    return code == EXIT_DONE ? look_at_mount(pid, cfg->mountpoint) : code;
}

static int start_background(struct config *cfg)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) {
        complain("pipe: %s", err_text(errno));
        return EXIT_FAILED;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        serve_background(cfg, ends[1]);
    }
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        complain("fork: %s", err_text(errno));
        return EXIT_FAILED;
    }
    return wait_for_child(pid, ends[0], cfg);
}

static int check_file_source(const struct config *cfg)
{
    struct stat st;
    if (!cfg->source || !g_str_has_prefix(cfg->source, "file://"))
        return EXIT_DONE;
    if (stat(cfg->source + 7, &st) < 0) {
        complain("source %s: %s", cfg->source, err_text(errno));
        return EXIT_FAILED;
    }
    if (!S_ISDIR(st.st_mode)) {
        complain("source %s is not a directory", cfg->source);
        return EXIT_FAILED;
    }
    return EXIT_DONE;
}

static bool lies_in(const char *path, const char *dir)
{
    g_autofree char *real = path_canonical(path);
    size_t len = strcmp(dir, "/") == 0 ? 0 : strlen(dir);
    return strncmp(real, dir, len) == 0 && (real[len] == '/' || real[len] == '\0');
}

/* The first of the paths, some of which may be NULL, that lies in dir. */
static const char *first_in(const char *const *paths, unsigned n, const char *dir)
{
    for (unsigned i = 0; i < n; i++)
        if (paths[i] && lies_in(paths[i], dir))
            return paths[i];
    return NULL;
}

static const char *first_dir_in(const char *const *dirs, const char *dir)
{
    return first_in(dirs, g_strv_length((char **)(uintptr_t)dirs), dir);
}

/*
 * What the daemon opens must not lead it into the mount: a process that waits for itself could not be ended. Nor is the cache part of what it caches: what is
 * done in the mount would be done to the database, and to files that are nowhere else.
 */
static int check_apart(const struct config *cfg)
{
    bool file = cfg->source && g_str_has_prefix(cfg->source, "file://");
    g_autofree char *lake = file ? path_canonical(cfg->source + 7) : NULL;
    g_auto(GStrv) dirs = g_strsplit(cfg->cache_dir ? cfg->cache_dir : CACHE_DIR_DEFAULT, ":", -1);
    const char *const *caches = (const char *const *)dirs;
    const char *const files[] = {cfg->log_file,  cfg->journal_dir, cfg->events_secret_file, cfg->http_key,
                                 cfg->ca_bundle, cfg->links,       cfg->http_cert,          cfg->http_client_ca};
    const unsigned n_written_or_secret = 4;
    const char *in = cfg->cache_dir ? first_dir_in(caches, cfg->mountpoint) : NULL;
    in = in ? in : first_in(files, G_N_ELEMENTS(files), cfg->mountpoint);
    if (in) {
        complain("%s lies in the mount point %s", in, cfg->mountpoint);
        return EXIT_USAGE;
    }
    if (lake && lies_in(cfg->mountpoint, lake)) {
        complain("the mount point %s lies in the source %s", cfg->mountpoint, lake);
        return EXIT_USAGE;
    }
    in = lake ? first_dir_in(caches, lake) : NULL;
    in = in || !lake ? in : first_in(files, n_written_or_secret, lake);
    if (in) {
        complain(
            "%s lies in the source %s, which would show it: give another place (--cache-dir, --journal-dir, --log-file, --events-secret-file, --http-key); a cache that was used goes there with all that it holds",
            in, lake);
        return EXIT_USAGE;
    }
    return EXIT_DONE;
}

/* Here, where whoever mounts reads what is wrong with them. */
static int check_certificates(const struct config *cfg)
{
    const struct http_tls_files files = {cfg->http_cert, cfg->http_key, cfg->http_client_ca};
    g_autofree char *msg = NULL;
    struct http_tls *tls = NULL;
    if (!files.cert)
        return EXIT_DONE;
    int r = http_tls_open(&files, false, &tls, &msg);
    http_tls_close(tls);
    if (r < 0)
        complain("%s", msg);
    return r < 0 ? EXIT_USAGE : EXIT_DONE;
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* Paths that the daemon opens after it went to "/". */
static void make_absolute(char **path)
{
    if (!*path || **path == '/')
        return;
    char *absolute = g_canonicalize_filename(*path, NULL);
    g_free(*path);
    *path = absolute;
}

static void make_all_absolute(char **paths)
{
    g_auto(GStrv) list = g_strsplit(*paths ? *paths : "", ":", -1);
    for (unsigned i = 0; list[i]; i++)
        make_absolute(&list[i]);
    if (*paths) {
        g_free(*paths);
        *paths = g_strjoinv(":", list);
    }
}

int cmd_mount(int argc, char **argv)
{
    struct config cfg;
    g_autofree char *msg = NULL;
    if (wants_help(argc, argv)) {
        cmd_print_help(cmd_find("mount"));
        return EXIT_DONE;
    }
    config_init(&cfg);
    int r = config_parse_argv(&cfg, argc, argv, &msg);
    if (r == 0)
        r = config_validate(&cfg, &msg);
    int code = r < 0 ? EXIT_USAGE : EXIT_DONE;
    if (r < 0)
        complain("%s", msg);
    if (code == EXIT_DONE)
        code = check_mountpoint(&cfg);
    if (code == EXIT_DONE)
        code = check_file_source(&cfg);
    if (code == EXIT_DONE) {
        make_all_absolute(&cfg.cache_dir);
        make_absolute(&cfg.journal_dir);
        make_absolute(&cfg.ca_bundle);
        make_absolute(&cfg.links);
        make_absolute(&cfg.events_secret_file);
        make_absolute(&cfg.http_cert);
        make_absolute(&cfg.http_key);
        make_absolute(&cfg.http_client_ca);
        make_absolute(&cfg.log_file);
        default_log_file(&cfg);
        code = check_apart(&cfg);
    }
    if (code == EXIT_DONE)
        code = check_certificates(&cfg);
    if (code == EXIT_DONE)
        code = cfg.foreground ? serve_foreground(&cfg) : start_background(&cfg);
    config_clear(&cfg);
    return code;
}

/* ---- the worker: `sluice --worker FDS SOURCE DIR`, started by the supervisor ---- */

static int read_config(int fd, struct config *cfg, char **ret_msg)
{
    struct stat st;
    int r = RET_ERRNO(fstat(fd, &st));
    if (r < 0)
        return r;
    g_autofree char *bytes = g_malloc0((size_t)st.st_size + 1);
    ssize_t n = RET_ERRNO(pread(fd, bytes, (size_t)st.st_size, 0)); /* the offset is every worker's */
    return n < 0 ? (int)n : config_restore(cfg, bytes, (size_t)n, ret_msg);
}

int mount_worker(int argc, char **argv)
{
    struct config cfg = {0};
    g_autofree char *msg = NULL;
    struct worker_fds fds;
    int config_fd;
    if (argc < 2 || sscanf(argv[1], "%d,%d,%d,%d", &fds.channel, &config_fd, &fds.session, &fds.memory) != 4)
        return EXIT_USAGE;
    const int all[] = {fds.channel, config_fd, fds.session, fds.memory};
    for (unsigned i = 0; i < G_N_ELEMENTS(all); i++)
        (void)fcntl(all[i], F_SETFD, FD_CLOEXEC); /* fails where there is none */
    (void)prctl(PR_SET_NAME, "sluice", 0, 0, 0);  /* not the number of a descriptor */
    int r = read_config(config_fd, &cfg, &msg);
    if (r == 0 && open_log(&cfg, &msg) < 0)
        complain("%s", msg); /* what is standard error here is the supervisor's log */
    g_clear_pointer(&msg, g_free);
    r = r < 0 ? r : fs_work(&cfg, &fds, &msg);
    if (!cfg.foreground) /* nothing that libraries do at the end is worth a crash */
        _exit(r < 0 ? EXIT_FAILED : EXIT_DONE);
    log_close();
    config_clear(&cfg);
    return r < 0 ? EXIT_FAILED : EXIT_DONE;
}
