/*
 * Credentials: finds the keys where AWS tools look for them and keeps them fresh.
 *
 * Order (the first that has something wins and stays for the life of the object):
 *   1 no_sign_request                     anonymous
 *   2 AWS_ACCESS_KEY_ID ...               not when a profile was named in the options
 *   3 AWS_WEB_IDENTITY_TOKEN_FILE         with AWS_ROLE_ARN; the token file is read anew for each refresh; not with a named profile
 *   4 shared files, profile               options, AWS_PROFILE or "default": keys, role_arn + source_profile | credential_source,
 *                                         role_arn + web_identity_token_file, credential_process
 *   5 AWS_CONTAINER_CREDENTIALS_*         ECS and EKS Pod Identity
 *   6 instance metadata (IMDSv2)          one second per request; AWS_EC2_METADATA_DISABLED=true turns it off
 *
 * Keys that expire are renewed 5 minutes before (halfway, when they live less than 10 minutes). When that fails the old ones serve until
 * they expire, and the next try waits 1 s, 2 s, ... 60 s (5 s while somebody waits for keys); the log warns of each new reason. Changed files are noticed within a second.
 * Files, network and programs are left to a thread of its own, which is started by s3_cred_get() when something is due: whom the old keys serve gets them at once, whatever hangs.
 *
 * A file with keys that group or others may read or write, or that belongs to neither us nor root, is refused, and so is one that anybody may
 * write, and one with a credential_process that its group may write or that belongs to neither: it would run as us.
 */
#pragma once
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct objstore_config;
struct s3_cred;

struct s3_keys {
    char access_key[256];
    char secret_key[256];
    char *session_token; /* owned; NULL if none */
    int64_t expires_ns;  /* wall clock; 0: never */
    bool anonymous;      /* do not sign; the rest is empty */
};

/* Chooses the source, or goes on with the one of cfg->resume, whatever stands in its way now. Asks no server except the instance metadata service, that one when nothing else is there. *ret_msg (owned by the
 * caller) says on failure what was looked at and what to do next. -EACCES no credentials or unusable ones. */
int s3_cred_open(const struct objstore_config *cfg, struct s3_cred **ret, char **ret_msg) MUST_CHECK;
/* What was chosen, for objstore_config.resume; no secrets. NULL: it cannot be told. Owned by the caller. */
char *s3_cred_choice(const struct s3_cred *c);
/* NULL allowed. No other call may be running. Takes 3 s at most: a thread that a file or a program keeps is left behind, and holds nothing of the caller's. */
void s3_cred_close(struct s3_cred *c);
/* Calls in flight and to come end with -ECANCELED soon. */
void s3_cred_shutdown(struct s3_cred *c);

/* Makes the secrets in this process's environment, which /proc shows, empty; what was opened keeps its copies, and what is opened later finds them where those are kept. */
void s3_cred_forget_env(void);
/* After a fork, for the program that this process becomes next: they are in its environment again. Safe after a fork. */
void s3_cred_recall_env(void);
/* After a fork: this process needs them no more. */
void s3_cred_drop_env(void);

/* Keys that are valid now; s3_keys_clear() them. Where there are none it waits for the source until deadline_ns (clock_mono_ns()) and as long as the caller's program does
 * (base/patience.h). -ETIMEDOUT the source does not answer, or not with keys, and refuses nothing; -EKEYEXPIRED expired and not renewable, -EACCES refused by the source,
 * both at once; -EINTR, -ECANCELED. ret is untouched on failure. With no ranked lock held. */
int s3_cred_get(struct s3_cred *c, uint64_t deadline_ns, struct s3_keys *ret) MUST_CHECK;
/* The store called the keys expired or unknown: the next get asks the source again, and goes on with the old ones when that takes 10 s. Ignored within 5 s of a renewal, so that
 * many requests signed with the same old keys cause one. */
void s3_cred_invalidate(struct s3_cred *c);
/* Wipes. NULL allowed. */
void s3_keys_clear(struct s3_keys *keys);

const char *s3_cred_region(const struct s3_cred *c);    /* options, environment, profile, else "us-east-1" */
const char *s3_cred_endpoint(const struct s3_cred *c);  /* options, environment, profile; NULL: AWS */
const char *s3_cred_ca_bundle(const struct s3_cred *c); /* options, AWS_CA_BUNDLE, profile; NULL: the system's */
/* Why the last refresh failed, free of secrets; NULL after a success. Owned by the caller. */
char *s3_cred_error(struct s3_cred *c);
