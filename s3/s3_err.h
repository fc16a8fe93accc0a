/* What a failed request means: the one table from (transport failure, HTTP status, S3 code) to (errno, what to do). Pure. */
#pragma once
#include "http.h"

enum s3_retry_class {
    S3_RETRY_NO,
    S3_RETRY_TRANSIENT,   /* the same again, after a short while */
    S3_RETRY_THROTTLE,    /* the store asks for less: longer waits, smaller window */
    S3_RETRY_CLOCK,       /* after taking over the server's time, once */
    S3_RETRY_CREDENTIALS, /* after reading the credentials again: once, or while keys that worked are expired */
    S3_RETRY_PROBLEM,     /* the reply makes no sense: a few times, then it is what it is */
};

struct s3_verdict {
    int err; /* 0 or -errno if there is no retry or it does not help */
    enum s3_retry_class retry;
    bool ambiguous; /* the store may have carried the request out */
};

/* status and code ("" if none) of the reply; fail and sent as http_perform() left them. */
struct s3_verdict s3_err_classify(enum http_fail fail, bool sent, long status, const char *code);
/* What the user can do about it; NULL when there is nothing to say. */
const char *s3_err_hint(enum http_fail fail, long status, const char *code);
