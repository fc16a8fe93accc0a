/*
 * Program files that can serve a mount: the supervisor keeps the one it was started from open, so that a file replaced on the disk takes nobody by surprise, and
 * opens another one when it is told to.
 */
#pragma once
#include "base/err.h"

/* What a program must agree on with the workers before and after it; `sluice --worker-formats` prints it. Owned by the caller. */
char *program_formats(void);
/* The program at path, which said that its formats are ours. -EINVAL with a line for the user otherwise. */
int program_open(const char *path, int *ret_fd, char **ret_msg) MUST_CHECK;
/* Becomes it. Safe after a fork; returns only on failure. */
void program_exec(int fd, char *const argv[]);
