/*
 * AWS Signature Version 4. Pure: no clock, no environment, no I/O.
 *
 *   struct s3_sign_key key;
 *   s3_sign_key_derive(secret, "20130524", "us-east-1", "s3", &key);     (four HMACs: keep it for the day)
 *   struct s3_sign_in in = {.method = "GET", .path = "/k", .query = "", .headers = h, .payload_hash = S3_HASH_EMPTY, ...};
 *   char *auth = s3_sign_request(&in, &key);                             (value of the Authorization header)
 *
 * path is the encoded path as sent; query the encoded query as sent, already sorted (s3_req.c does it). Every header given is signed:
 * pass host, x-amz-* and what else must not be changed on the way.
 */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#define S3_HASH_EMPTY    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define S3_HASH_UNSIGNED "UNSIGNED-PAYLOAD"
#define S3_SKEW_MAX_NS                                                                                                 \
    G_GINT64_CONSTANT(300000000000) /* of clocks; services refuse what is signed by one that is farther off */

struct s3_sign_key {
    char date[9]; /* YYYYMMDD */
    uint8_t key[32];
};

struct s3_sign_in {
    const char *method;
    const char *path;
    const char *query;
    const GPtrArray *headers; /* "Name: value" in any order */
    const char *payload_hash;
    const char *amz_date; /* YYYYMMDDTHHMMSSZ */
    const char *region;
    const char *service;
    const char *access_key;
};

void s3_sign_key_derive(const char *secret, const char *date, const char *region, const char *service,
                        struct s3_sign_key *ret);
/* The three steps by themselves, for tests against published vectors. Caller frees. */
char *s3_sign_canonical(const struct s3_sign_in *in);
char *s3_sign_string(const struct s3_sign_in *in, const char *canonical);
char *s3_sign_request(const struct s3_sign_in *in, const struct s3_sign_key *key);

void s3_digest_hex(const uint8_t md[32], char ret[65]);
/* Lower-case hex SHA-256. */
void s3_sha256_hex(const void *buf, size_t len, char ret[65]);
/* Whether this CPU has instructions for it, which make it faster than MD5. Looked for once in a process. */
bool s3_sha256_is_fast(void);
/* Unix seconds to YYYYMMDDTHHMMSSZ. */
void s3_amz_date(int64_t unix_s, char ret[17]);
