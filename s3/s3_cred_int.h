/*
 * Between the files of s3_cred: the settings read from the environment, and one function per source.
 *
 * A source function asks its source once, blocking, without any lock, and fills ret_keys (untouched on failure) or adds to
 * run->why one sentence without secrets. Its result: -ENXIO the source is not there at all, -EACCES it refuses or makes no sense,
 * -ECHILD a program, or the metadata service that a profile names, failed, which does not say whether it is refused or only not answered, -ECANCELED stopped, else a transport error.
 */
#pragma once
#include "s3_cred.h"

#include <glib.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#define CRED_TOKEN_MAX_BYTES (16u << 10)

struct http_pool;

/* Options and environment, read once. */
struct cred_env {
    char *profile;      /* owned, never NULL */
    bool profile_given; /* by option: environment keys are out */
    bool profile_named; /* by option or environment: it must exist */
    char *credentials_file;
    char *config_file;
    bool credentials_file_named, config_file_named; /* else they are where AWS tools look */
    char *region;                                   /* NULL: see the profile */
    char *endpoint;                                 /* NULL: see the profile */
    char *sts_endpoint;                             /* NULL: see the profile, else AWS */
    char *ca_bundle;
    char *role_arn;
    char *web_token_file;
    char *session_name; /* never NULL */
    char *container_relative;
    char *container_full;
    char *container_token_file;
    char *access_key;
    char *secret_key, *session_token, *container_token; /* cred_secret_dup() */
    char *imds_endpoint;                                /* never NULL */
    bool imds_disabled;
    bool ignore_endpoints; /* AWS_IGNORE_CONFIGURED_ENDPOINT_URLS */
    bool allow_plain_http;
};

struct cred_run {
    const struct cred_env *env;
    const char *region;       /* for STS */
    const char *sts_endpoint; /* NULL: AWS of the region */
    struct http_pool *http;
    const atomic_bool *stop;
    GString *why;
};

/* ---- options and environment ---- */
void cred_env_fill(struct cred_env *e, const struct objstore_config *cfg);
void cred_env_clear(struct cred_env *e);
/* This process's environment as it was before s3_cred_forget_env(), for a program that looks for keys there. */
char **cred_child_env_new(void);
void cred_child_env_free(char **env); /* wipes it */

/* ---- the choice ---- */
enum cred_source {
    CRED_SOURCE_ANONYMOUS,
    CRED_SOURCE_ENV,
    CRED_SOURCE_WEB,
    CRED_SOURCE_PROFILE,
    CRED_SOURCE_CONTAINER,
    CRED_SOURCE_IMDS
};
#define N_CRED_SOURCES (CRED_SOURCE_IMDS + 1)
const char *cred_source_name(enum cred_source source);
struct cred_choice { /* where keys come from, and where requests go */
    enum cred_source source;
    char *region;       /* owned, as all; never NULL once chosen */
    char *endpoint;     /* NULL: AWS */
    char *sts_endpoint; /* NULL: AWS of the region */
    char *ca_bundle;    /* NULL: the system's */
};
/* JSON without secrets; NULL: something in it is not UTF-8. */
char *cred_choice_format(const struct cred_choice *ch);
/* -EBADMSG: it is no such text; *ret is untouched then. */
int cred_choice_parse(const char *text, struct cred_choice *ret) MUST_CHECK;
void cred_choice_clear(struct cred_choice *ch);

/* ---- keys ---- */
void *cred_secret_pages(size_t len); /* zeroed memory that core dumps leave out, NULL if there is none; munmap() it */
char *
cred_secret_dup(const char *secret); /* in such memory; NULL for NULL, or if there is none; cred_secret_free() it */
void cred_secret_free(char *secret); /* NULL allowed */
void cred_wipe_free(char *secret);   /* wipes a string before freeing it; NULL allowed */
void cred_wipe_gstring(GString *s);
/* Checks that the parts are fit for a header. token may be NULL or "". */
int cred_keys_set(struct s3_keys *ret_keys, const char *access_key, const char *secret_key, const char *token,
                  int64_t expires_ns, GString *why) MUST_CHECK;
/* {"AccessKeyId","SecretAccessKey",<token_name>,"Expiration"}; checks "Version": 1 when versioned. */
int cred_keys_from_json(const char *buf, size_t len, const char *token_name, bool versioned, struct s3_keys *ret_keys,
                        GString *why) MUST_CHECK;
/* "2026-11-21T05:00:00Z". */
int cred_parse_time(const char *text, int64_t *ret_ns) MUST_CHECK;

/* ---- shared files ---- */
struct cred_stamp { /* what tells whether a file was replaced or changed */
    bool exists;
    dev_t dev;
    ino_t ino;
    int64_t size;
    struct timespec ctime; /* of rights too */
};
void cred_stamp_take(const char *path, struct cred_stamp *ret_stamp);
bool cred_stamp_equal(const struct cred_stamp *a, const struct cred_stamp *b);

/* What a failed call on a file, or for a program, means: -EIO when file system or machine are out of order just then, else -EACCES. */
int cred_io_error(int r);

struct cred_files; /* both files, parsed */
/* An absent file is empty. -EACCES a file that cannot be read or may be written by whom it should not, -EIO one that cannot be read just then, -EBADMSG no INI syntax. */
int cred_files_load(const struct cred_env *env, struct cred_files **ret_files, GString *why) MUST_CHECK;
void cred_files_free(struct cred_files *f);
/* NULL when the profile has no such key. The credentials file goes first. */
const char *cred_files_get(const struct cred_files *f, const char *profile, const char *key);
bool cred_files_has(const struct cred_files *f, const char *profile);
/* endpoint_url of service "s3" or "sts": [services x], then the profile's own. NULL if none. */
const char *cred_files_endpoint(const struct cred_files *f, const char *profile, const char *service);

/* How a profile gives keys. */
enum cred_profile_kind {
    CRED_PROFILE_NONE,
    CRED_PROFILE_KEYS,
    CRED_PROFILE_ROLE,
    CRED_PROFILE_WEB,
    CRED_PROFILE_PROCESS
};
/* -ENOENT no such profile, -EACCES it asks for what cannot be done (why says it). */
int cred_profile_kind(const struct cred_files *f, const char *profile, enum cred_profile_kind *ret_kind, GString *why)
    MUST_CHECK;
/* Loads the files and follows the profile to keys. */
int cred_profile_fetch(const struct cred_run *run, struct s3_keys *ret_keys) MUST_CHECK;

/* ---- the other sources ---- */
int cred_env_fetch(const struct cred_run *run, struct s3_keys *ret_keys) MUST_CHECK;
int cred_process_fetch(const struct cred_run *run, const char *command, struct s3_keys *ret_keys) MUST_CHECK;
int cred_container_fetch(const struct cred_run *run, struct s3_keys *ret_keys) MUST_CHECK;
int cred_imds_fetch(const struct cred_run *run, struct s3_keys *ret_keys) MUST_CHECK;

struct cred_role { /* borrowed */
    const char *arn;
    const char *session_name; /* NULL: env's */
    const char *external_id;
    const char *duration_s;
    const char *token_file; /* web identity only */
};
int cred_sts_web_identity(const struct cred_run *run, const struct cred_role *role, struct s3_keys *ret_keys)
    MUST_CHECK;
int cred_sts_assume_role(const struct cred_run *run, const struct cred_role *role, const struct s3_keys *source,
                         struct s3_keys *ret_keys) MUST_CHECK;

/* https anywhere; http to loopback, to the container services' addresses when `link_local`, or with `any`. */
int cred_url_allowed(const char *url, bool link_local, bool any) MUST_CHECK;
