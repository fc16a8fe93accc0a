/* The vocabulary that all layers share. No functions but trivial helpers, no library types. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ETAG_MAX  127
#define TOKEN_MAX 79

/*
 * An entity tag without its quotes; "" means "no object" or "not known". Where it is made from the bytes alone all empty objects have the same one, so that of an
 * empty object is followed by a space and the object's token. A listing cannot tell the token: its tags are bare.
 */
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

static inline size_t etag_bare_len(const struct etag *e)
{
    return strcspn(e->s, " ");
}
static inline bool etag_is_bare(const struct etag *e)
{
    return e->s[etag_bare_len(e)] == '\0';
}
/* Is `have` what is wanted? A bare tag wants no token in particular. */
static inline bool etag_fits(const struct etag *want, const struct etag *have)
{
    size_t n = etag_bare_len(want);
    bool same = n == etag_bare_len(have) && strncmp(want->s, have->s, n) == 0;
    return etag_is_bare(want) ? same : etag_equal(want, have);
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
