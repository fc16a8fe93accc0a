/* The vocabulary that all layers share. No functions but trivial helpers, no library types. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ETAG_MAX  127
#define TOKEN_MAX 79

/* An entity tag without its quotes; "" means "no object" or "not known". */
struct etag {
    char s[ETAG_MAX + 1];
};

static inline bool etag_is_set(const struct etag *e)
{
    return e->s[0] != '\0';
}
static inline bool etag_equal(const struct etag *a, const struct etag *b)
{
    return strcmp(a->s, b->s) == 0;
}

/* What POSIX knows of a file and an object does not, carried in user metadata. A set bit says the field is there. */
enum posix_field {
    POSIX_MODE = 1 << 0,
    POSIX_UID = 1 << 1,
    POSIX_GID = 1 << 2,
    POSIX_MTIME = 1 << 3,
};
struct posix_attr {
    uint32_t fields; /* enum posix_field bits */
    uint32_t mode;   /* S_IFMT bits and permissions */
    uint32_t uid, gid;
    int64_t mtime_ns;
};
