/*
 * Percent coding, sources ("s3://bucket/prefix") and endpoints. Pure: bytes in, bytes out.
 *
 * Coding is that of SigV4: everything but A-Z a-z 0-9 - _ . ~ becomes %XX with capitals, each byte by itself, no normalisation.
 */
#pragma once
#include "base/err.h"

#include <glib.h>
#include <stdbool.h>

void s3_uri_encode(GString *out, const char *s, size_t len, bool keep_slash);
/* Appends the decoded bytes; "+" stays "+" unless plus_is_space. -EBADMSG for a broken escape. */
int s3_uri_decode(GString *out, const char *s, size_t len, bool plus_is_space) MUST_CHECK;

struct s3_source {
    char *scheme; /* owned; "s3" or "file" */
    char *bucket; /* owned; "" for file */
    char *prefix; /* owned; s3: "" or "a/b/" (ends in '/'); file: the absolute directory */
};
/* -EINVAL with a line for the user in *ret_msg (owned by caller). */
int s3_source_parse(const char *source, struct s3_source *ret, char **ret_msg) MUST_CHECK;
void s3_source_clear(struct s3_source *src);
/* "s3://bucket/prefix" without a '/' at the end. */
char *s3_source_format(const struct s3_source *src);

struct s3_endpoint {
    bool tls;
    bool loopback;     /* localhost, 127/8, ::1 */
    bool aws;          /* a host of amazonaws.com */
    bool virtual_host; /* the bucket is part of the host */
    char *host;        /* owned; Host header: name[:port] with the bucket where virtual_host */
    char *base_path;   /* owned; "" or "/x": before the bucket */
};
/* url NULL: AWS of the region. bucket "" gives the service itself. -EINVAL with a line for the user. */
int s3_endpoint_parse(const char *url, const char *region, const char *bucket, bool force_path_style,
                      struct s3_endpoint *ret, char **ret_msg) MUST_CHECK;
void s3_endpoint_clear(struct s3_endpoint *ep);
/* Encoded path of a key (NULL: of the bucket), as signed and as sent. */
char *s3_endpoint_path(const struct s3_endpoint *ep, const char *bucket, const char *key);
