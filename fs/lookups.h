/*
 * A number for each of many inodes: how often the kernel looked up those that memory does not hold. It keeps a byte of each, and 300 bytes of each 256 numbers among which one is
 * known: inodes made by one listing are neighbours, and the kernel may know ten million.
 *
 * One thread at a time.
 */
#pragma once
#include <stdint.h>

struct lookups;

struct lookups *lookups_new(void);
void lookups_free(struct lookups *l);                             /* NULL allowed */
uint64_t lookups_get(const struct lookups *l, uint64_t ino);      /* 0: not known */
void lookups_set(struct lookups *l, uint64_t ino, uint64_t kept); /* 0: no longer known */
