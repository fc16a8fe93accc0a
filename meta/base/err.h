/* Error convention: every fallible function returns 0 or a count, else -errno. */
#pragma once
#include <errno.h>

#define MUST_CHECK __attribute__((warn_unused_result))

/* Turns the -1/errno convention of a system call into -errno on the spot: `r = RET_ERRNO(pread(...))`. */
#define RET_ERRNO(call)                                                                                                \
    ({                                                                                                                 \
        __typeof__(call) ret_errno_ = (call);                                                                          \
        ret_errno_ < 0 ? (__typeof__(call))-errno : ret_errno_;                                                        \
    })

/* "ENOENT" for 2 or -2; "E123" for what has no name. Static storage, any thread. */
const char *err_name(int err);
/* "No such file or directory" for 2 or -2. Static or thread-local storage. */
const char *err_text(int err);
