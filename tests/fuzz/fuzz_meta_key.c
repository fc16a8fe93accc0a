/* Keys of the database: one that parses is made again from its parts, byte for byte. */
#include "fuzz.h"
#include "meta_key.h"

static GString *again(const struct meta_key *k, size_t len)
{
    g_autofree char *name = k->name ? g_strndup(k->name, k->name_len) : NULL;
    size_t numbers = (len - 1 - k->name_len) / 8;
    return numbers == 0   ? meta_key0(k->tag, name)
           : numbers == 1 ? meta_key1(k->tag, k->n[0], name)
           : numbers == 2 ? meta_key2(k->tag, k->n[0], k->n[1])
                          : meta_key3(k->tag, k->n[0], k->n[1], k->n[2]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct meta_key k = {0};
    if (meta_key_parse(data, size, &k) < 0)
        return 0;
    PROMISE(meta_tag_name((uint8_t)k.tag) && (!k.name || !memchr(k.name, '\0', k.name_len)));
    g_autoptr(GString) made = again(&k, size);
    PROMISE(made->len == size && memcmp(made->str, data, size) == 0);
    return 0;
}
