/*
 * Builds one S3 request: encoded path, sorted query, headers, signature. Pure: keys and time are arguments.
 */
#pragma once
#include "s3_sign.h"
#include "s3_uri.h"

#include <glib.h>
#include <stdint.h>

struct s3_keys;

struct s3_req {
    const char *method;
    char *key;          /* owned; full key; NULL: the bucket itself */
    GPtrArray *query;   /* owned; pairs */
    GPtrArray *headers; /* owned; "Name: value" */
};

void s3_req_init(struct s3_req *req, const char *method, char *key_owned);
void s3_req_fini(struct s3_req *req);
void s3_req_query(struct s3_req *req, const char *name, const char *value); /* plain text; encoded here */
void s3_req_header(struct s3_req *req, const char *name, const char *value);
void s3_req_headerf(struct s3_req *req, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

struct s3_req_site { /* where a request goes and who sends it */
    const struct s3_endpoint *ep;
    const char *bucket;
    const char *region;
    const struct s3_keys *keys;
    const struct s3_sign_key *sign_key; /* NULL: anonymous */
    const char *amz_date;
    const char *payload_hash;
};
void s3_req_build(const struct s3_req *req, const struct s3_req_site *site, char **ret_url, GPtrArray **ret_headers);
