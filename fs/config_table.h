/* The row type of the option table (config.c), shared with the parser (config_parse.c). Private to these two. */
#pragma once
#include "fs/config.h"

enum option_type {
    OPT_STRING,       /* char * */
    OPT_FLAG,         /* bool */
    OPT_SIZE,         /* uint64_t bytes */
    OPT_SIZE_PERCENT, /* struct size_or_percent */
    OPT_DURATION,     /* uint64_t ns */
    OPT_ENUM,         /* an enum whose values are the index into choices */
    OPT_WORD,         /* char *, one of choices */
    OPT_UINT,         /* unsigned */
    OPT_MODE,         /* unsigned, octal */
    OPT_RULES,        /* char *, lines; each value given is one more, checked by rules_check_value() */
};

struct option_row {
    const char *section; /* heading of --help; NULL: hidden */
    const char *name;
    enum option_type type;
    size_t offset;
    uint64_t min, max; /* of numbers, both included; max 0: no bound */
    const char *def;   /* text as a user would type it; NULL: unset */
    const char *arg;   /* placeholder in help */
    const char *const *choices;
    const char *help;
};

extern const struct option_row option_table[];
extern const unsigned n_option_rows;

/* Index of a row by its name ('_' counts as '-'), -1 if there is none. */
int option_find(const char *name);
/* Parses value into the row's field. *ret_msg on -EINVAL. */
int option_assign(struct config *cfg, const struct option_row *row, const char *value, char **ret_msg) MUST_CHECK;
/* The value as a user would type it; appended. */
void option_print(const struct config *cfg, const struct option_row *row, GString *out);
/* The row's choices in one string, owned by the caller. */
char *option_words(const struct option_row *row, const char *separator);
