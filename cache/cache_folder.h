/* A folder on a local disk that is ours alone: a cache folder, or one that holds databases (--journal-dir). */
#pragma once
#include "base/err.h"

struct folder_words { /* of messages */
    const char *what, *option;
};
extern const struct folder_words cache_folder_words;

/* Opens dir, made 0700 if it is missing. Refused, with a line for the user, when it is somebody else's or others may enter it. *ret_fd: the caller's. */
int cache_folder_make(const char *dir, const struct folder_words *w, int *ret_fd, char **ret_msg) MUST_CHECK;
