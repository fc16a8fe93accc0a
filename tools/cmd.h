/*
 * The verbs of the `sluice` command: one file cmd_<verb>.c each, listed in cmds.def.
 *
 * A verb is `int cmd_<verb>(int argc, char **argv)`, argv[0] the verb's name, and returns the exit code. It reads its
 * arguments with args_parse(), which knows the options from cmds.def and answers --help. Single-threaded; memory that a
 * verb holds until the process ends is not hunted down.
 */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

enum exit_code { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_TIME = 3 };

#define CMD(name, usage, help) int cmd_##name(int argc, char **argv);
#define OPT(verb, name, letter, arg, help)
#include "tools/cmds.def"
#undef CMD
#undef OPT

struct cmd_opt {
    const char *verb, *name;
    char letter;
    const char *arg; /* NULL: a flag; "[=X]": an optional value */
    const char *help;
};
struct cmd {
    const char *name, *usage, *help;
    int (*run)(int argc, char **argv);
};
extern const struct cmd cmd_table[]; /* ends with a NULL name */
extern const struct cmd_opt cmd_opt_table[];

/* What serves a mount: not a verb, started by `sluice mount` itself. */
int mount_worker(int argc, char **argv);

const struct cmd *cmd_find(const char *name);
/* The verb whose options this one has (prefetch: warmup). */
const char *cmd_options_of(const char *verb);
void cmd_print_help(const struct cmd *cmd);
void cmd_print_usage(void);

struct args {
    GHashTable *values; /* option name -> text ("" for a flag) */
    GPtrArray *words;   /* NULL-terminated, borrowed from argv */
    unsigned n_words;
};
/* Reads argv by the options of its verb. Returns false with *ret_exit set when there is nothing left to do: --help, or a usage error
 * that was printed. min_words and max_words bound the number of words. */
bool args_parse(struct args *args, int argc, char **argv, unsigned min_words, unsigned max_words, int *ret_exit);
void args_clear(struct args *args);
bool args_has(const struct args *args, const char *name);
const char *args_get(const struct args *args, const char *name); /* NULL if not given */
/* Seconds of a duration option, rounded up, at least 1; 0 if not given. False after printing what is wrong. */
bool args_seconds(const struct args *args, const char *name, uint64_t *ret_s);
bool args_number(const struct args *args, const char *name, uint64_t min, uint64_t max, uint64_t *ret_n);
/* 1 .. max bytes; standard is the text that stands for an option that was not given. */
bool args_size(const struct args *args, const char *name, const char *standard, uint64_t max, uint64_t *ret_bytes);
#define ARGS_MAX_ROWS 16
/* "N,N...": numbers of threads, one set of rows of a benchmark for each. */
bool args_threads(const struct args *args, const char *name, const char *standard, unsigned ret_rows[ARGS_MAX_ROWS],
                  size_t *ret_n);

/* "sluice: ..." on standard error. */
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* "1.5 GiB"; owned by the caller. */
char *human_bytes(uint64_t n);
/* "2 min 3 s"; owned by the caller. */
char *human_seconds(uint64_t s);
