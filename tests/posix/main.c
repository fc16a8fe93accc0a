/*
 * POSIX conformance suite of a directory on any file system.
 *
 * usage: posix_suite DIR [--list] [--only PATTERN] [--skip-file FILE] [--tap]
 *
 * Each case runs in its own process, for at most 120 s, in a fresh directory DIR/posix.PID/NAME that is removed after it. Needs
 * root: permission cases change to other users. --only takes a shell pattern of case names, the skip file one name a line
 * (# comments). Exit 1 if a case failed. The last line: "posix: N passed, N failed, N skipped (N assertions)".
 * Why not an existing suite: none can be shipped with the project, and this one asserts what users of a data lake meet.
 */
#include "posix.h"

#include <fnmatch.h>
#include <ftw.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_SKIPPED  256
#define CASE_SECONDS 120

static const struct posix_case *const themes[] = {
    cases_open,  cases_io,  cases_size,    cases_mmap, cases_rename, cases_link, cases_perm,
    cases_xattr, cases_dir, cases_process, cases_name, cases_misc,   cases_time,
};

/* Shared by all processes of a case. */
static struct tally {
    unsigned assertions, failures; /* atomic */
    bool skipped;
    char why[256];
} * tally;

/* ---- assertions ---- */

static void count_assertion(void)
{
    (void)__atomic_add_fetch(&tally->assertions, 1, __ATOMIC_RELAXED);
}

static void failed(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void failed(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    const char *base = strrchr(file, '/');
    (void)__atomic_add_fetch(&tally->failures, 1, __ATOMIC_RELAXED);
    printf("    %s:%d: ", base ? base + 1 : file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    fflush(stdout);
}

long check_ok(long r, const char *what, const char *file, int line)
{
    int e = errno;
    count_assertion();
    if (r < 0)
        failed(file, line, "%s: expected success, got %s", what, strerrorname_np(e) ? strerrorname_np(e) : "?");
    errno = e;
    return r;
}

void check_fails(int err, long r, const char *err_name, const char *what, const char *file, int line)
{
    int e = errno;
    count_assertion();
    if (r != -1)
        failed(file, line, "%s: expected %s, got success (%ld)", what, err_name, r);
    else if (e != err)
        failed(file, line, "%s: expected %s, got %s", what, err_name, strerrorname_np(e) ? strerrorname_np(e) : "?");
}

void check_eq(long long want, long long got, const char *what, const char *file, int line)
{
    count_assertion();
    if (want != got)
        failed(file, line, "%s: expected %lld, got %lld", what, want, got);
}

void check_true(bool ok, const char *what, const char *file, int line)
{
    count_assertion();
    if (!ok)
        failed(file, line, "expected to hold, does not: %s", what);
}

void check_same(const void *want, const void *got, size_t len, const char *what, const char *file, int line)
{
    const unsigned char *a = want, *b = got;
    count_assertion();
    for (size_t i = 0; i < len; i++)
        if (a[i] != b[i]) {
            failed(file, line, "%s: byte %zu of %zu: expected 0x%02x, got 0x%02x", what, i, len, a[i], b[i]);
            return;
        }
}

void skip_case(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(tally->why, sizeof(tally->why), fmt, ap);
    va_end(ap);
    tally->skipped = true;
    _exit(0);
}

/* ---- helpers of the cases ---- */

bool child_begin(unsigned uid, bool wait)
{
    int status;
    fflush(stdout);
    pid_t pid = (pid_t)check_ok(fork(), "fork", __FILE__, __LINE__);
    if (pid == 0) {
        if (uid && (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid)))
            _exit(99);
        return true;
    }
    if (wait) {
        check_eq(pid, waitpid(pid, &status, 0), "wait for the child", __FILE__, __LINE__);
        check_eq(0, status, "exit status of the child", __FILE__, __LINE__);
    }
    return false;
}

bool child_end(void)
{
    fflush(stdout);
    _exit(0);
}

void wait_children(void)
{
    int status;
    while (wait(&status) > 0)
        check_eq(0, status, "exit status of a child", __FILE__, __LINE__);
}

void make_file(const char *path, const void *data, size_t len, mode_t mode)
{
    int fd = (int)check_ok(open(path, O_CREAT | O_WRONLY | O_TRUNC, mode), path, __FILE__, __LINE__);
    check_eq((long long)len, write(fd, data, len), path, __FILE__, __LINE__);
    check_ok(close(fd), path, __FILE__, __LINE__);
}

void make_text(const char *path, const char *text)
{
    make_file(path, text, strlen(text), 0644);
}

size_t slurp(const char *path, void *buf, size_t size)
{
    size_t done = 0;
    ssize_t n = 1;
    int fd = open(path, O_RDONLY);
    while (fd >= 0 && done < size && (n = read(fd, (char *)buf + done, size - done)) > 0)
        done += (size_t)n;
    if (fd >= 0)
        close(fd);
    return done;
}

bool file_has(const char *path, const char *text)
{
    char buf[4096];
    size_t n = slurp(path, buf, sizeof(buf));
    return n == strlen(text) && memcmp(buf, text, n) == 0;
}

void fill(void *buf, size_t len, unsigned seed)
{
    unsigned char *p = buf;
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < len; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (unsigned char)(x >> 24);
    }
}

struct stat stat_of(const char *path)
{
    struct stat st = {0};
    check_ok(lstat(path, &st), path, __FILE__, __LINE__);
    return st;
}

struct stat stat_fd(int fd)
{
    struct stat st = {0};
    check_ok(fstat(fd, &st), "fstat", __FILE__, __LINE__);
    return st;
}

bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* ---- the runner ---- */

struct options {
    const char *dir, *only;
    bool list, tap;
    char *skipped[MAX_SKIPPED];
    size_t n_skipped;
};

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return remove(path);
}

static void remove_tree(const char *path)
{
    (void)nftw(path, remove_one, 32, FTW_DEPTH | FTW_PHYS);
}

static bool is_skipped(const struct options *opt, const char *name)
{
    for (size_t i = 0; i < opt->n_skipped; i++)
        if (fnmatch(opt->skipped[i], name, 0) == 0)
            return true;
    return false;
}

static int read_skip_file(struct options *opt, const char *path)
{
    char line[512];
    FILE *f = fopen(path, "re");
    if (!f)
        return -errno;
    while (fgets(line, sizeof(line), f) && opt->n_skipped < MAX_SKIPPED) {
        line[strcspn(line, "# \t\r\n")] = 0;
        if (line[0])
            opt->skipped[opt->n_skipped++] = strdup(line);
    }
    fclose(f);
    return 0;
}

/* In the child: works in the fresh directory until the case ends. */
static _Noreturn void run_in_child(const struct posix_case *c, const char *dir)
{
    (void)setpgid(0, 0);
    (void)umask(0);
    if (mkdir(dir, 0777) || chdir(dir)) {
        printf("    cannot make %s: %m\n", dir);
        exit(1);
    }
    (void)umask(022);
    alarm(CASE_SECONDS);
    c->run();
    fflush(stdout);
    _exit(0);
}

enum outcome { PASSED, FAILED, SKIPPED };

static enum outcome run_case(const struct posix_case *c, const char *dir)
{
    int status = 0;
    unsigned before = tally->failures;
    tally->skipped = false;
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        return FAILED;
    if (pid == 0)
        run_in_child(c, dir);
    (void)waitpid(pid, &status, 0);
    (void)kill(-pid, SIGKILL); /* children that the case left behind */
    if (WIFSIGNALED(status))
        printf("    %s: ended by %s\n", c->name, strsignal(WTERMSIG(status)));
    remove_tree(dir);
    if (status != 0 || tally->failures != before)
        return FAILED;
    return tally->skipped ? SKIPPED : PASSED;
}

static void report(const struct options *opt, unsigned number, const char *name, enum outcome outcome)
{
    if (opt->tap)
        printf("%sok %u - %s%s%s\n", outcome == FAILED ? "not " : "", number, name,
               outcome == SKIPPED ? " # SKIP " : "", outcome == SKIPPED ? tally->why : "");
    else if (outcome == SKIPPED)
        printf("skip %s: %s\n", name, tally->why);
    else
        printf("%s %s\n", outcome == FAILED ? "FAIL" : "ok  ", name);
}

static int run_all(const struct options *opt)
{
    char base[3072], dir[4096];
    unsigned counts[3] = {0}, number = 0;
    snprintf(base, sizeof(base), "%s/posix.%d", opt->dir, getpid());
    (void)umask(0);
    if (mkdir(base, 0777)) {
        fprintf(stderr, "posix_suite: cannot make %s: %m\n", base);
        return 2;
    }
    for (size_t t = 0; t < sizeof(themes) / sizeof(themes[0]); t++)
        for (const struct posix_case *c = themes[t]; c->name; c++) {
            enum outcome outcome = SKIPPED;
            if (opt->only && fnmatch(opt->only, c->name, 0))
                continue;
            snprintf(dir, sizeof(dir), "%s/%s", base, c->name);
            snprintf(tally->why, sizeof(tally->why), "named in the skip file");
            if (!is_skipped(opt, c->name))
                outcome = run_case(c, dir);
            counts[outcome]++;
            report(opt, ++number, c->name, outcome);
        }
    remove_tree(base);
    if (opt->tap)
        printf("1..%u\n", number);
    printf("posix: %u passed, %u failed, %u skipped (%u assertions)\n", counts[PASSED], counts[FAILED], counts[SKIPPED],
           tally->assertions);
    return counts[FAILED] || number == 0 ? 1 : 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: posix_suite DIR [--list] [--only PATTERN] [--skip-file FILE] [--tap]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct options opt = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--list") == 0)
            opt.list = true;
        else if (strcmp(argv[i], "--tap") == 0)
            opt.tap = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            opt.only = argv[++i];
        else if (strcmp(argv[i], "--skip-file") == 0 && i + 1 < argc) {
            int r = read_skip_file(&opt, argv[++i]);
            if (r < 0) {
                fprintf(stderr, "posix_suite: cannot read %s: %s\n", argv[i], strerror(-r));
                return 2;
            }
        } else if (argv[i][0] != '-' && !opt.dir)
            opt.dir = argv[i];
        else
            return usage();
    }
    if (opt.list) {
        for (size_t t = 0; t < sizeof(themes) / sizeof(themes[0]); t++)
            for (const struct posix_case *c = themes[t]; c->name; c++)
                printf("%s\n", c->name);
        return 0;
    }
    if (!opt.dir)
        return usage();
    if (geteuid() != 0) {
        fprintf(stderr, "posix_suite: needs root, the permission cases change to other users\n");
        return 2;
    }
    tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (tally == MAP_FAILED)
        return 2;
    return run_all(&opt);
}
