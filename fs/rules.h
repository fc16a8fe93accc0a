/*
 * Rules: settings by path. `--rule 'GLOB=KEY[=VALUE],...'`, as often as needed; one rule applies to a path, what it does not say is as the mount's options say.
 *
 * GLOB is a path from the root of the mount. A star and `?` stand for anything within a name, `[a-z]` and `[!a-z]` for one character, two stars for anything and '/' too (as a
 * whole component also for none at all), `\` takes the next character as it is. A GLOB without '/' is met by a name in any directory; one that ends in '/' by all below. A
 * directory is met as its path with '/' at its end, so that "tmp/" and two stars is also about the directory tmp. Of several that match the one with the longest text before its
 * first wildcard applies, then the longer one, then the later one.
 *
 * rules.c is pure: text in, settings out. rules_live.c knows the tree. Settings live until rules_free().
 */
#pragma once
#include "config.h"

#include <jansson.h>

struct fs;
struct inode;

enum rule_hold { RULE_HOLD_NO, RULE_HOLD_YES, RULE_HOLD_BY_NAME };
enum rule_tier { RULE_TIER_DISK, RULE_TIER_MEMORY };

/* What applies to a path. */
struct rule_set {
    enum close_mode close;
    enum fsync_mode fsync;
    enum order_mode order;
    enum rule_hold hold;
    unsigned pin;             /* of the checkpoints that match so many newest ones stay pinned; 0: none */
    enum rule_tier tier;      /* where */
    int local_only;           /* never published */
    uint64_t ttl_ns;          /* local_only: removed so long after the last close; 0: never */
    uint64_t metadata_ttl_ns; /* of listings and attributes */
    const char *rule;         /* text of the rule; NULL: none matches */
};

struct rule {
    char *text, *glob; /* owned; as given */
    char *match;       /* owned; the glob from the root */
    size_t literal;    /* bytes of match before its first wildcard */
    unsigned number;
    uint32_t given;      /* bit i: key i of the table in rules.c */
    struct rule_set set; /* as parsed only what is given counts; in struct rules all of it */
};

/* Fills ret, to be cleared also when it is refused. -EINVAL and a line that names the rule, the key and what is allowed. */
int rule_parse(const char *text, struct rule *ret, char **ret_msg) MUST_CHECK;
void rule_clear(struct rule *rule);
/* Does glob, as struct rule.match, match path? */
bool rule_glob_matches(const char *glob, const char *path);
/* What is given of from replaces what to says: the layers are the options of the mount, then those of a link, then the rule. */
void rule_set_apply(struct rule_set *to, const struct rule_set *from, uint32_t given);
/* Key and value of a set, as --rule takes them, by number; false past the last. The text is owned by the caller. */
bool rule_set_at(const struct rule_set *set, unsigned index, const char **ret_name, char **ret_text);

/* One value of the options rule and on-create: good, or -EINVAL with a line for the user. */
int rules_check_value(const char *option, const char *value, char **ret_msg) MUST_CHECK;

/* All of a mount, the most specific first. */
struct rules {
    struct rule_set base; /* of a path that no rule matches */
    GArray *all;          /* struct rule */
    GPtrArray *on_create; /* owned globs, as struct rule.match, of what is warmed when it appears */
    bool pins, ttls, local_only;
};
/* Also what rules and other options say against each other. */
int rules_new(const struct config *cfg, struct rules **ret, char **ret_msg) MUST_CHECK;
void rules_free(struct rules *r); /* NULL allowed */
/* What applies to path ("a/b", of a directory "a/b/"). Never NULL. Cheap where there are no rules, else one comparison a rule. */
const struct rule_set *rules_match(const struct rules *r, const char *path);
bool rules_warms(const struct rules *r, const char *path);
/* May it be so of something below dir ("a/b/"), by a glob that begins with a folder? Others would have every new directory looked through. */
bool rules_warms_below(const struct rules *r, const char *dir);

/* ---- rules_live.c ---- */

/* As rules_match(). Any lock may be held. */
const struct rule_set *rules_for(struct fs *fs, const char *path);
/* What applies to an inode, by its first name; remembered in it until something is renamed. No ranked lock may be held. */
const struct rule_set *rules_of(struct inode *in);
/* Names took other places: what is remembered is looked up again. */
void rules_note_rename(struct fs *fs);
/* {"close":"buffered",...} */
json_t *rules_json(const struct rule_set *set);
/* All rules of the mount, as given. */
json_t *rules_list_json(struct fs *fs);

/* An object appeared at key, or became another one, by what a listing or an event of the store told: --on-create may want it, or some of a directory ("a/b/"), here. Any lock
 * above ON_CREATE may be held; the work is done behind. False: it does not. */
bool rules_on_create(struct fs *fs, const char *key);
