/*
 * content.h - the files that the benchmark's programs write and read, and the bytes that belong into them.
 *
 * Page p (4 KiB) of a file is page p % 1024 of one pseudo-random buffer with its first word replaced by a stamp of file name and p. Timed
 * reads check the stamps of all pages they got; check_file() and check_block() compare every byte. All functions end the program with a message
 * when a call fails or a byte is wrong.
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>

#define PAGE       4096u
#define BASE_PAGES 1024u
#define BASE_BYTES ((uint64_t)PAGE * BASE_PAGES)
#define MIB        (1u << 20)

void content_init(void); /* first of all */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *fmt, ...);
void *need(size_t n); /* memory, aligned to a page; free() it */
uint64_t number(const char *s);
uint64_t mix(uint64_t x); /* a number that looks random, the same for the same x */

int open_or_die(const char *path, int flags);
void close_or_die(const char *path, int fd);
uint64_t read_at(const char *path, int fd, uint8_t *buf, uint64_t len,
                 uint64_t off); /* less only at the end of the file */
void make_parents(const char *path);

/* off is a page boundary; seed is that of the file's name. */
uint64_t seed_of(const char *path);
void check_stamps(const char *path, const uint8_t *buf, uint64_t seed, uint64_t off, uint64_t len);

/* Opens, reads to buf, of `block` bytes, again and again, checks stamps, closes. */
uint64_t read_range(const char *path, uint8_t *buf, uint64_t block, uint64_t from, uint64_t to);
uint64_t write_file(const char *path, uint64_t size,
                    uint64_t block); /* opens, writes, closes; block divides BASE_BYTES */
void check_block(const char *path, int fd, uint64_t len, uint64_t off);
void check_file(const char *path, int fd, uint64_t seed, uint64_t size); /* from the file's start */
