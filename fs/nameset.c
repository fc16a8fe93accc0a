/* Open addressing over the hashes themselves; 0 is a free place. At most three quarters are taken. */
#include "nameset.h"

#include <glib.h>
#include <string.h>

#define FIRST_ROOM 64

struct nameset {
    uint64_t *at; /* owned; room of them, a power of two */
    size_t room, n;
    uint64_t seed;
};

struct nameset *nameset_new(void)
{
    struct nameset *s = g_new0(struct nameset, 1);
    s->seed = (uint64_t)g_random_int() << 32 | g_random_int();
    return s;
}

void nameset_clear(struct nameset *s)
{
    g_clear_pointer(&s->at, g_free);
    s->room = s->n = 0;
}

void nameset_free(struct nameset *s)
{
    if (!s)
        return;
    g_free(s->at);
    g_free(s);
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    return h ^ h >> 32;
}

static uint64_t hash(const struct nameset *s, const char *name, size_t len, bool kind)
{
    uint64_t h = mix(s->seed ^ (len * 2 + kind)); /* apart from the first bytes, or two kinds meet */
    for (; len >= 8; name += 8, len -= 8) {
        uint64_t word;
        memcpy(&word, name, 8);
        h = mix(h ^ word);
    }
    uint64_t word = 0;
    memcpy(&word, name, len);
    h = mix(h ^ word ^ s->seed >> 7);
    return h ? h : 1;
}

/* Where h is, or would be. */
static size_t place(const struct nameset *s, uint64_t h)
{
    size_t i = h & (s->room - 1);
    while (s->at[i] && s->at[i] != h)
        i = (i + 1) & (s->room - 1);
    return i;
}

static void grow(struct nameset *s)
{
    struct nameset old = *s;
    s->room = old.room ? 2 * old.room : FIRST_ROOM;
    s->at = g_new0(uint64_t, s->room);
    for (size_t i = 0; i < old.room; i++)
        if (old.at[i])
            s->at[place(s, old.at[i])] = old.at[i];
    g_free(old.at);
}

void nameset_add(struct nameset *s, const char *name, size_t len, bool kind)
{
    if (4 * s->n >= 3 * s->room)
        grow(s);
    uint64_t h = hash(s, name, len, kind);
    size_t i = place(s, h);
    s->n += s->at[i] == 0;
    s->at[i] = h;
}

bool nameset_has(const struct nameset *s, const char *name, size_t len, bool kind)
{
    return s->n > 0 && s->at[place(s, hash(s, name, len, kind))] != 0;
}

size_t nameset_size(const struct nameset *s)
{
    return s->n;
}
