/*
 * io.c - the program whose reads and writes the benchmark times, so that no interpreter is in the way.
 *
 * Prints one JSON object: wall-clock and CPU seconds of the timed part, bytes and files. Exit 1 and a message if a call fails or a byte is
 * not what it should be.
 *
 * Content: page p (4 KiB) of a file is page p % 1024 of one pseudo-random buffer with its first word replaced by a stamp of file name
 * and p. A timed read checks the stamps of all pages it got, the same for every side of a comparison; `check` compares every byte.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE       4096u
#define BASE_PAGES 1024u
#define BASE_BYTES ((uint64_t)PAGE * BASE_PAGES)
#define MIB        (1u << 20)

static uint8_t *base_buf; /* constant once main has filled it */

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("bench_io: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(1);
}

static void *need(size_t n)
{
    void *p = NULL;
    if (posix_memalign(&p, PAGE, n ? n : 1) != 0)
        die("out of memory");
    return p;
}

static uint64_t number(const char *s)
{
    char *end = NULL;
    uint64_t v = strtoull(s, &end, 10);
    if (!*s || *end)
        die("'%s' is not a number", s);
    return v;
}

/* ---- content ---- */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t seed_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *s = slash ? slash + 1 : path; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3u;
    return h;
}

static uint64_t stamp(uint64_t seed, uint64_t page)
{
    return mix(seed ^ mix(page));
}

/* The bytes of the block at off, a page boundary. */
static void make(uint8_t *buf, uint64_t seed, uint64_t off, uint64_t len)
{
    for (uint64_t at = 0; at < len; at += PAGE) {
        uint64_t page = (off + at) / PAGE, n = len - at < PAGE ? len - at : PAGE, word = stamp(seed, page);
        memcpy(buf + at, base_buf + page % BASE_PAGES * PAGE, n);
        memcpy(buf + at, &word, n < sizeof(word) ? n : sizeof(word));
    }
}

static void check_stamps(const char *path, const uint8_t *buf, uint64_t seed, uint64_t off, uint64_t len)
{
    for (uint64_t at = 0; at + sizeof(uint64_t) <= len; at += PAGE) {
        uint64_t word;
        memcpy(&word, buf + at, sizeof(word));
        if (word != stamp(seed, (off + at) / PAGE))
            die("%s: wrong bytes at %llu", path, (unsigned long long)(off + at));
    }
}

/* ---- files ---- */

static int open_or_die(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC, 0644);
    if (fd < 0)
        die("open %s: %s", path, strerror(errno));
    return fd;
}

static void close_or_die(const char *path, int fd)
{
    if (close(fd) < 0)
        die("close %s: %s", path, strerror(errno));
}

/* Reads up to len bytes, less only at the end of the file. */
static uint64_t read_at(const char *path, int fd, uint8_t *buf, uint64_t len, uint64_t off)
{
    uint64_t got = 0;
    while (got < len) {
        ssize_t n = pread(fd, buf + got, len - got, (off_t)(off + got));
        if (n < 0)
            die("read %s: %s", path, strerror(errno));
        if (n == 0)
            break;
        got += (uint64_t)n;
    }
    return got;
}

static void write_all(const char *path, int fd, const uint8_t *buf, uint64_t len)
{
    for (uint64_t at = 0; at < len;) {
        ssize_t n = write(fd, buf + at, len - at);
        if (n < 0)
            die("write %s: %s", path, strerror(errno));
        at += (uint64_t)n;
    }
}

static uint64_t read_range(const char *path, uint64_t block, uint64_t from, uint64_t to)
{
    uint8_t *buf = need(block);
    uint64_t seed = seed_of(path), off = from;
    int fd = open_or_die(path, O_RDONLY);
    while (off < to) {
        uint64_t want = to - off < block ? to - off : block;
        uint64_t n = read_at(path, fd, buf, want, off);
        check_stamps(path, buf, seed, off, n);
        off += n;
        if (n < want)
            break;
    }
    close_or_die(path, fd);
    free(buf);
    return off - from;
}

/* Writes straight out of a copy of the base buffer, stamped in place, so that the time is that of the calls; block divides BASE_BYTES. */
static uint64_t write_file(const char *path, uint64_t size, uint64_t block)
{
    uint64_t room = size < BASE_BYTES ? size : BASE_BYTES, seed = seed_of(path);
    uint8_t *buf = need(room);
    make(buf, seed, 0, room);
    int fd = open_or_die(path, O_WRONLY | O_CREAT | O_TRUNC);
    for (uint64_t off = 0; off < size; off += block) {
        uint64_t len = size - off < block ? size - off : block;
        uint8_t *at = buf + off % BASE_BYTES;
        for (uint64_t page = 0; page < len; page += PAGE) {
            uint64_t word = stamp(seed, (off + page) / PAGE), n = len - page < sizeof(word) ? len - page : sizeof(word);
            memcpy(at + page, &word, n);
        }
        write_all(path, fd, at, len);
    }
    close_or_die(path, fd);
    free(buf);
    return size;
}

static void make_parents(const char *path)
{
    char copy[PAGE];
    if (snprintf(copy, sizeof(copy), "%s", path) >= (int)sizeof(copy))
        die("%s: too long", path);
    for (char *s = strchr(copy + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = '\0';
        if (mkdir(copy, 0755) < 0 && errno != EEXIST)
            die("mkdir %s: %s", copy, strerror(errno));
        *s = '/';
    }
}

/* ---- lists of paths ---- */

struct list {
    char **path; /* below root */
    uint64_t n;
};

static struct list read_list(const char *root, const char *file)
{
    struct list l = {0};
    FILE *f = fopen(file, "re");
    char line[PAGE], full[2 * PAGE];
    uint64_t room = 0;
    if (!f)
        die("open %s: %s", file, strerror(errno));
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = '\0';
        (void)snprintf(full, sizeof(full), "%s/%s", root, line);
        if (l.n == room) {
            room = room ? 2 * room : 1024;
            l.path = realloc(l.path, room * sizeof(*l.path));
        }
        if (!l.path || !(l.path[l.n++] = strdup(full)))
            die("out of memory");
    }
    (void)fclose(f);
    return l;
}

static void shuffle(struct list *l, uint64_t seed)
{
    for (uint64_t i = l->n; i > 1; i--) {
        uint64_t j = mix(seed + i) % i;
        char *t = l->path[i - 1];
        l->path[i - 1] = l->path[j];
        l->path[j] = t;
    }
}

/* ---- the timed work ---- */

struct result {
    double start, cpu; /* at the start */
    uint64_t bytes, files;
};

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_now(void)
{
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void begin(struct result *r)
{
    r->cpu = cpu_now();
    r->start = now();
}

static int end(const struct result *r)
{
    double seconds = now() - r->start;
    printf("{\"seconds\": %.6f, \"client_cpu\": %.6f, \"bytes\": %llu, \"files\": %llu}\n", seconds, cpu_now() - r->cpu,
           (unsigned long long)r->bytes, (unsigned long long)r->files);
    return 0;
}

static int cmd_read(char **a)
{
    struct result r = {.files = 1};
    begin(&r);
    r.bytes = read_range(a[0], number(a[1]), 0, UINT64_MAX);
    return end(&r);
}

static int cmd_write(char **a)
{
    struct result r = {.files = 1};
    begin(&r);
    r.bytes = write_file(a[0], number(a[1]), number(a[2]));
    return end(&r);
}

static int cmd_mmap(char **a)
{
    struct result r = {.files = 1};
    struct stat st;
    volatile uint64_t sum = 0;
    begin(&r);
    int fd = open_or_die(a[0], O_RDONLY);
    if (fstat(fd, &st) < 0)
        die("stat %s: %s", a[0], strerror(errno));
    r.bytes = (uint64_t)st.st_size;
    const uint8_t *map = mmap(NULL, r.bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        die("mmap %s: %s", a[0], strerror(errno));
    uint64_t s = 0, word;
    for (uint64_t at = 0; at + sizeof(word) <= r.bytes; at += 64) { /* a word of every cache line */
        memcpy(&word, map + at, sizeof(word));
        s += word;
    }
    sum = s;
    check_stamps(a[0], map, seed_of(a[0]), 0, r.bytes);
    (void)munmap((void *)(uintptr_t)map, r.bytes);
    close_or_die(a[0], fd);
    (void)sum;
    return end(&r);
}

static int cmd_rand(char **a)
{
    const char *path = a[0];
    uint64_t block = number(a[1]), n = number(a[2]), rng = number(a[3]), seed = seed_of(path);
    struct result r = {.files = 1};
    struct stat st;
    uint8_t *buf = need(block);
    begin(&r);
    int fd = open_or_die(path, O_RDONLY);
    if (fstat(fd, &st) < 0 || (uint64_t)st.st_size < block)
        die("%s: no block of that size", path);
    uint64_t blocks = (uint64_t)st.st_size / block;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t off = mix(rng + i) % blocks * block;
        if (read_at(path, fd, buf, block, off) != block)
            die("%s: short read at %llu", path, (unsigned long long)off);
        check_stamps(path, buf, seed, off, block);
    }
    r.bytes = n * block;
    close_or_die(path, fd);
    free(buf);
    return end(&r);
}

struct crew { /* threads that take numbers from one counter */
    const struct list *list;
    const char *root, *source;
    uint64_t size, n;
    _Atomic uint64_t next, bytes;
};

static void *read_files(void *arg)
{
    struct crew *c = arg;
    for (uint64_t i; (i = c->next++) < c->list->n;)
        c->bytes += read_range(c->list->path[i], MIB, 0, UINT64_MAX);
    return NULL;
}

static void run_crew(struct crew *c, uint64_t threads, void *(*work)(void *))
{
    pthread_t *t = need(threads * sizeof(*t));
    for (uint64_t i = 0; i < threads; i++)
        if (pthread_create(&t[i], NULL, work, c) != 0)
            die("cannot start a thread");
    for (uint64_t i = 0; i < threads; i++)
        (void)pthread_join(t[i], NULL);
    free(t);
}

static int cmd_files(char **a)
{
    struct list l = read_list(a[0], a[1]);
    if (number(a[3]))
        shuffle(&l, number(a[3]));
    struct crew c = {.list = &l};
    struct result r = {.files = l.n};
    begin(&r);
    run_crew(&c, number(a[2]), read_files);
    r.bytes = c.bytes;
    return end(&r);
}

/* Even numbers write a file of their own, odd ones read a range of the source. */
static void *mixed(void *arg)
{
    struct crew *c = arg;
    uint64_t i = c->next++;
    char path[PAGE];
    (void)snprintf(path, sizeof(path), "%s/mixed-%llu", c->root, (unsigned long long)i);
    if (i % 2 == 0)
        c->bytes += write_file(path, c->size, MIB);
    else
        c->bytes += read_range(c->source, MIB, i / 2 * c->size, (i / 2 + 1) * c->size);
    return NULL;
}

static int cmd_mixed(char **a)
{
    struct crew c = {.root = a[0], .source = a[1], .n = number(a[2]), .size = number(a[3])};
    struct result r = {.files = 2 * c.n};
    begin(&r);
    run_crew(&c, 2 * c.n, mixed);
    r.bytes = c.bytes;
    return end(&r);
}

static int cmd_stat(char **a)
{
    struct list l = read_list(a[0], a[1]);
    struct result r = {.files = l.n};
    uint64_t size = number(a[2]);
    struct stat st;
    begin(&r);
    for (uint64_t i = 0; i < l.n; i++)
        if (stat(l.path[i], &st) < 0 || (uint64_t)st.st_size != size)
            die("stat %s: missing or of another size", l.path[i]);
    return end(&r);
}

static uint64_t walk(const char *path)
{
    uint64_t n = 0;
    char below[PAGE];
    DIR *d = opendir(path);
    if (!d)
        die("opendir %s: %s", path, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_type == DT_REG)
            n++;
        else if (e->d_type == DT_DIR && e->d_name[0] != '.' &&
                 snprintf(below, sizeof(below), "%s/%s", path, e->d_name) < (int)sizeof(below))
            n += walk(below);
    }
    (void)closedir(d);
    return n;
}

static int cmd_walk(char **a)
{
    struct result r = {0};
    begin(&r);
    r.files = walk(a[0]);
    return end(&r);
}

/* ---- preparing and checking, not timed ---- */

static int cmd_fill(char **a)
{
    struct list l = read_list(a[0], a[1]);
    struct result r = {.files = l.n};
    begin(&r);
    for (uint64_t i = 0; i < l.n; i++) {
        make_parents(l.path[i]);
        r.bytes += write_file(l.path[i], number(a[2]), MIB);
    }
    return end(&r);
}

static void check_file(const char *path, int fd, uint64_t seed, uint64_t size)
{
    uint8_t *got = need(MIB), *want = need(MIB);
    uint64_t off = 0;
    for (bool more = true; more;) {
        uint64_t n = 0;
        for (ssize_t r = 1; n < MIB && r > 0; n += (uint64_t)r) {
            r = read(fd, got + n, MIB - n);
            if (r < 0)
                die("read %s: %s", path, strerror(errno));
        }
        make(want, seed, off, n);
        if (memcmp(got, want, n) != 0)
            die("%s: wrong bytes in the MiB at %llu", path, (unsigned long long)off);
        off += n;
        more = n == MIB;
    }
    if (off != size)
        die("%s: %llu bytes instead of %llu", path, (unsigned long long)off, (unsigned long long)size);
    free(got);
    free(want);
}

static int cmd_check(char **a) /* every byte of standard input, which should be the file NAME */
{
    struct result r = {.files = 1, .bytes = number(a[1])};
    begin(&r);
    check_file(a[0], STDIN_FILENO, seed_of(a[0]), r.bytes);
    return end(&r);
}

static int cmd_check_files(char **a)
{
    struct list l = read_list(a[0], a[1]);
    struct result r = {.files = l.n, .bytes = l.n * number(a[2])};
    begin(&r);
    for (uint64_t i = 0; i < l.n; i++) {
        int fd = open_or_die(l.path[i], O_RDONLY);
        check_file(l.path[i], fd, seed_of(l.path[i]), number(a[2]));
        close_or_die(l.path[i], fd);
    }
    return end(&r);
}

static const struct command {
    const char *name, *usage;
    int n_args;
    int (*run)(char **args);
} commands[] = {
    {"read", "PATH BLOCK", 2, cmd_read},
    {"write", "PATH SIZE BLOCK", 3, cmd_write},
    {"mmap", "PATH", 1, cmd_mmap},
    {"rand", "PATH BLOCK COUNT SEED", 4, cmd_rand},
    {"files", "ROOT LIST THREADS SEED", 4, cmd_files}, /* SEED 0: in order */
    {"mixed", "ROOT SOURCE WRITERS SIZE", 4, cmd_mixed},
    {"stat", "ROOT LIST SIZE", 3, cmd_stat},
    {"walk", "ROOT", 1, cmd_walk},
    {"fill", "ROOT LIST SIZE", 3, cmd_fill},
    {"check", "NAME SIZE", 2, cmd_check},
    {"check-files", "ROOT LIST SIZE", 3, cmd_check_files},
};

int main(int argc, char **argv)
{
    base_buf = need(BASE_BYTES);
    for (uint64_t i = 0; i < BASE_BYTES; i += sizeof(uint64_t)) {
        uint64_t word = mix(i);
        memcpy(base_buf + i, &word, sizeof(word));
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (argc > 1 && strcmp(argv[1], commands[i].name) == 0 && argc == commands[i].n_args + 2)
            return commands[i].run(argv + 2);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(stderr, "usage: bench_io %s %s\n", commands[i].name, commands[i].usage);
    return 2;
}
