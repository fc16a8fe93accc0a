/*
 * The contents of files and the calls on them, for io.c.
 */
#include "content.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint8_t *base_buf; /* constant once content_init has filled it */

void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("bench_io: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(1);
}

void *need(size_t n)
{
    void *p = NULL;
    if (posix_memalign(&p, PAGE, n ? n : 1) != 0)
        die("out of memory");
    return p;
}

uint64_t number(const char *s)
{
    char *end = NULL;
    uint64_t v = strtoull(s, &end, 10);
    if (!*s || *end)
        die("'%s' is not a number", s);
    return v;
}

/* ---- content ---- */

uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t seed_of(const char *path)
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

void check_stamps(const char *path, const uint8_t *buf, uint64_t seed, uint64_t off, uint64_t len)
{
    for (uint64_t at = 0; at + sizeof(uint64_t) <= len; at += PAGE) {
        uint64_t word;
        memcpy(&word, buf + at, sizeof(word));
        if (word != stamp(seed, (off + at) / PAGE))
            die("%s: wrong bytes at %llu", path, (unsigned long long)(off + at));
    }
}

/* ---- files ---- */

int open_or_die(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC, 0644);
    if (fd < 0)
        die("open %s: %s", path, strerror(errno));
    return fd;
}

void close_or_die(const char *path, int fd)
{
    if (close(fd) < 0)
        die("close %s: %s", path, strerror(errno));
}

/* Reads up to len bytes, less only at the end of the file. */
uint64_t read_at(const char *path, int fd, uint8_t *buf, uint64_t len, uint64_t off)
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

uint64_t read_range(const char *path, uint8_t *buf, uint64_t block, uint64_t from, uint64_t to)
{
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
    return off - from;
}

/* Writes straight out of a copy of the base buffer, stamped in place, so that the time is that of the calls; block divides BASE_BYTES. */
uint64_t write_file(const char *path, uint64_t size, uint64_t block)
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

void make_parents(const char *path)
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

void check_file(const char *path, int fd, uint64_t seed, uint64_t size)
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

void check_block(const char *path, int fd, uint64_t len, uint64_t off)
{
    uint8_t *got = need(len), *want = need(len);
    if (read_at(path, fd, got, len, off) != len)
        die("%s: short read at %llu", path, (unsigned long long)off);
    make(want, seed_of(path), off, len);
    if (memcmp(got, want, len) != 0)
        die("%s: wrong bytes in the block at %llu", path, (unsigned long long)off);
    free(got);
    free(want);
}

void content_init(void)
{
    base_buf = need(BASE_BYTES);
    for (uint64_t i = 0; i < BASE_BYTES; i += sizeof(uint64_t)) {
        uint64_t word = mix(i);
        memcpy(base_buf + i, &word, sizeof(word));
    }
}
