/* Small files of a user's that are read again when they change: secrets, keys, certificates. */
#pragma once
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

struct user_file {
    const char *option, *path; /* borrowed; the option's name is for messages */
    size_t bytes_max;
    bool
        secret; /* its owner's alone (ours or root's), or root's and closed to others but for a group; what is none may be read by all, and changed by its owner */
    bool judges; /* it says who is let in: ours or root's, and no group but root's may change it; all may read it */
    const char *wanted; /* what to give, for who gave something else; NULL: that is clear */
};

/*
 * The bytes, and a zero behind them that does not count: *ret_text is the caller's, to be given to user_file_free(). -EINVAL with a line that names option
 * and file: it cannot be read, is too long, or others could have changed it (a secret: read it).
 */
int user_file_read(const struct user_file *file, char **ret_text, size_t *ret_len, char **ret_msg) MUST_CHECK;
/* The bytes are overwritten before. NULL allowed. */
void user_file_free(char *text, size_t len);

/* What tells whether a file is still the one of before; of zeroes when there is none. Taken before the file is read. */
void user_file_stamp(const char *path, struct stat *ret);
bool user_file_same(const struct stat *a, const struct stat *b);
/* "OPTION 'FILE': WHY" as *ret_msg; -EINVAL. */
int user_file_refuse(const struct user_file *file, const char *why, char **ret_msg);
