/*
 * io.c - the program whose reads and writes the benchmark times, so that no interpreter is in the way.
 *
 * Prints one JSON object: wall-clock and CPU seconds of the timed part, bytes and files. Exit 1 and a message if a call fails or a byte is
 * not what it should be. What files hold and how it is checked: content.h.
 */
#include "content.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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
    uint64_t block = number(a[1]);
    uint8_t *buf = need(block);
    begin(&r);
    r.bytes = read_range(a[0], buf, block, 0, UINT64_MAX);
    free(buf);
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

static uint64_t rand_off(uint64_t rng, uint64_t size, uint64_t block)
{
    return mix(rng) % (size / block) * block;
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
    for (uint64_t i = 0; i < n; i++) {
        uint64_t off = rand_off(rng + i, (uint64_t)st.st_size, block);
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

/* One buffer a thread: what a new one for each file costs depends on the order in which threads take and free them, which differs from side to side. */
static void *read_files(void *arg)
{
    struct crew *c = arg;
    uint8_t *buf = need(MIB);
    for (uint64_t i; (i = c->next++) < c->list->n;)
        c->bytes += read_range(c->list->path[i], buf, MIB, 0, UINT64_MAX);
    free(buf);
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
    uint8_t *buf = i % 2 ? need(MIB) : NULL;
    if (buf)
        c->bytes += read_range(c->source, buf, MIB, i / 2 * c->size, (i / 2 + 1) * c->size);
    else
        c->bytes += write_file(path, c->size, MIB);
    free(buf);
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

static int cmd_check_rand(char **a) /* every byte of the blocks that `rand` reads */
{
    const char *path = a[0];
    uint64_t block = number(a[1]), n = number(a[2]), rng = number(a[3]);
    struct result r = {.files = 1, .bytes = n * block};
    struct stat st;
    begin(&r);
    int fd = open_or_die(path, O_RDONLY);
    if (fstat(fd, &st) < 0 || (uint64_t)st.st_size < block)
        die("%s: no block of that size", path);
    for (uint64_t i = 0; i < n; i++)
        check_block(path, fd, block, rand_off(rng + i, (uint64_t)st.st_size, block));
    close_or_die(path, fd);
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
    {"check-rand", "PATH BLOCK COUNT SEED", 4, cmd_check_rand},
};

int main(int argc, char **argv)
{
    content_init();
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (argc > 1 && strcmp(argv[1], commands[i].name) == 0 && argc == commands[i].n_args + 2)
            return commands[i].run(argv + 2);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(stderr, "usage: bench_io %s %s\n", commands[i].name, commands[i].usage);
    return 2;
}
