/* Rules of the fault driver: refused, or taken and met. */
#include "../../s3/drv_fault.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = g_strndup((const char *)data, size);
    GArray *rules = NULL;
    if (parse_rules(text, &rules) < 0) {
        PROMISE(!rules);
        return 0;
    }
    for (guint i = 0; i < rules->len; i++) {
        const struct rule *rule = &g_array_index(rules, struct rule, i);
        PROMISE(rule->op <= FOP_ANY && rule->nth > 0 && rule->count > 0 && rule->prob >= 0 && rule->prob <= 1);
        struct effect e = {0};
        effect_merge(&e, &rule->effect);
        PROMISE(e.error <= 0 && e.lost <= 0);
    }
    g_array_unref(rules);
    return 0;
}
