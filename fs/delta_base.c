/* See delta_base.h. */
#include "delta_base.h"

#include <glib.h>
#include <string.h>

#define DIGITS   "0123456789"
#define PER_KIND 2u /* of the same kind of name */

bool delta_kin(const char *key, const char *other, struct delta_kin *ret)
{
    struct delta_kin k = {0};
    const char *slash = strrchr(key, '/');
    for (unsigned number = 0; *key || *other;) {
        size_t n = strspn(key, DIGITS), m = strspn(other, DIGITS);
        if (n == 0 && m == 0 && *key == *other) {
            key++;
            other++;
            continue;
        }
        if (n == 0 || m == 0)
            return false;
        if (n != m || strncmp(key, other, n) != 0) {
            k.first = k.n_differ == 0 ? number : k.first;
            k.n_differ++;
            k.in_name = !slash || key > slash;
        }
        number++;
        key += n;
        other += m;
    }
    *ret = k;
    return true;
}

struct choice {
    struct delta_kin kin;
    uint64_t stamp;
    unsigned index;
};

static gint by_likeliness(gconstpointer a, gconstpointer b)
{
    const struct choice *x = a, *y = b;
    if (x->kin.n_differ != y->kin.n_differ)
        return x->kin.n_differ < y->kin.n_differ ? -1 : 1;
    if (x->kin.in_name != y->kin.in_name)
        return x->kin.in_name ? 1 : -1;
    return x->stamp > y->stamp ? -1 : x->stamp < y->stamp;
}

/* With one other number it matters which, with several it does not. */
static bool same_kind(const struct choice *a, const struct choice *b)
{
    return MIN(a->kin.n_differ, 2u) == MIN(b->kin.n_differ, 2u) &&
           (a->kin.n_differ != 1 || a->kin.first == b->kin.first);
}

unsigned delta_choose(const char *key, const struct delta_name *names, unsigned n, unsigned *ret, unsigned max)
{
    g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(struct choice));
    unsigned n_chosen = 0;
    for (unsigned i = 0; i < n; i++) {
        struct choice c = {.stamp = names[i].stamp, .index = i};
        if (delta_kin(key, names[i].key, &c.kin))
            g_array_append_val(all, c);
    }
    g_array_sort(all, by_likeliness);
    for (unsigned i = 0; i < all->len && n_chosen < max; i++) {
        const struct choice *c = &g_array_index(all, struct choice, i);
        unsigned before = 0;
        for (unsigned k = 0; k < i; k++)
            before += same_kind(c, &g_array_index(all, struct choice, k));
        if (before < PER_KIND)
            ret[n_chosen++] = c->index;
    }
    return n_chosen;
}
