/* Pages of bytes found by a hash table; what does not fit into a byte is in another one. */
#include "lookups.h"

#include <glib.h>

#define PAGE_INOS 256u
#define LARGE     255u /* and above: in `large` */

struct page {
    unsigned n; /* that are not 0 */
    uint8_t kept[PAGE_INOS];
};

struct lookups {
    GHashTable *pages; /* ino / PAGE_INOS -> struct page, owned */
    GHashTable *large; /* ino -> what is kept */
};

struct lookups *lookups_new(void)
{
    struct lookups *l = g_new0(struct lookups, 1);
    l->pages = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    l->large = g_hash_table_new(NULL, NULL);
    return l;
}

void lookups_free(struct lookups *l)
{
    if (!l)
        return;
    g_hash_table_unref(l->pages);
    g_hash_table_unref(l->large);
    g_free(l);
}

static gpointer number(uint64_t n)
{
    return GSIZE_TO_POINTER(n);
}

uint64_t lookups_get(const struct lookups *l, uint64_t ino)
{
    const struct page *p = g_hash_table_lookup(l->pages, number(ino / PAGE_INOS));
    uint8_t kept = p ? p->kept[ino % PAGE_INOS] : 0;
    return kept < LARGE ? kept : GPOINTER_TO_SIZE(g_hash_table_lookup(l->large, number(ino)));
}

static void set_byte(struct lookups *l, uint64_t ino, uint8_t kept)
{
    struct page *p = g_hash_table_lookup(l->pages, number(ino / PAGE_INOS));
    if (!p && kept == 0)
        return;
    if (!p) {
        p = g_new0(struct page, 1);
        g_hash_table_insert(l->pages, number(ino / PAGE_INOS), p);
    }
    uint8_t *at = &p->kept[ino % PAGE_INOS];
    if (*at == LARGE && kept < LARGE)
        (void)g_hash_table_remove(l->large, number(ino));
    p->n += (*at == 0 && kept != 0);
    p->n -= (*at != 0 && kept == 0);
    *at = kept;
    if (p->n == 0)
        (void)g_hash_table_remove(l->pages, number(ino / PAGE_INOS));
}

void lookups_set(struct lookups *l, uint64_t ino, uint64_t kept)
{
    set_byte(l, ino, (uint8_t)MIN(kept, LARGE));
    if (kept >= LARGE)
        g_hash_table_insert(l->large, number(ino), number(kept));
}
