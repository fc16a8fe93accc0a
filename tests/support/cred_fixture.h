/*
 * What the credential tests share.
 *
 * cred_setup() clears the AWS environment and points it at a private folder with a log at debug level; cred_teardown() fails the test
 * when the word CANARY, which every secret here carries, stands in that log. A fake service answers HTTP on a loopback port from
 * a thread of its own. Time passes by clock_fake_advance().
 */
#pragma once
#include "base/clock.h"
#include "base/metric.h"
#include "objstore.h"
#include "s3_cred.h"

#include <glib.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

#define CRED_SECRET "CANARYsecretCANARYsecret"

struct fake_service {
    /* set before the first request */
    unsigned delay_ms;   /* before each answer */
    unsigned lifetime_s; /* of the keys it gives; 3600 */
    int64_t ahead_s;     /* its clock's lead; what is signed by another one is refused */

    int fd;
    uint16_t port;
    pthread_t thread;
    char *(*reply)(struct fake_service *sv, const char *request);

    pthread_mutex_t mu;
    /* guarded by mu */
    unsigned n_requests;
    unsigned fail;         /* answer this status to all */
    const char *fail_body; /* with that; "no" */
    char last[8192];       /* last request */
};

/* reply gives the body of a 200 (freed after), NULL for a 404. */
void fake_service_start(struct fake_service *sv, char *(*reply)(struct fake_service *sv, const char *request));
void fake_service_stop(struct fake_service *sv);
unsigned fake_service_requests(struct fake_service *sv);
void fake_service_fail(struct fake_service *sv, unsigned status);
void fake_service_fail_with(struct fake_service *sv, unsigned status, const char *body);
/* Whether the last request holds part, in any case of letters. */
bool fake_service_saw(struct fake_service *sv, const char *part);
/* Sets an environment variable to the service's URL + path. */
void fake_service_env(struct fake_service *sv, const char *name, const char *path);
/* Keys AKJSON<n>, CANARYtoken (container, instance metadata); AKSTS<n>, CANARYsts; n is the number of requests so far. */
char *fake_reply_json(struct fake_service *sv, const char *request);
char *fake_reply_imds(struct fake_service *sv, const char *request);
char *fake_reply_sts(struct fake_service *sv, const char *request);

extern struct objstore_config cred_cfg; /* cleared by cred_setup */
void cred_setup(void);
void cred_teardown(void);
char *cred_path(const char *name);
void cred_put(const char *name, mode_t mode, const char *text);
char *cred_log_text(void);
/* Which source was chosen: "environment", "profile x", "instance metadata"... */
void cred_expect_origin(const char *origin);
/* How often the log warned of credentials that cannot be renewed. */
unsigned cred_n_warnings(void);

struct s3_cred *cred_open_ok(void);
/* The message of an open that fails with -EACCES. */
char *cred_open_fails(void);
#define CRED_PATIENCE_NS (20 * NS_PER_S) /* so long whatever has to come is waited for */
#define CRED_AWAIT(condition)                                                                                          \
    do {                                                                                                               \
        uint64_t end_ns = clock_mono_ns() + CRED_PATIENCE_NS;                                                          \
        while (!(condition)) {                                                                                         \
            ck_assert_msg(clock_mono_ns() < end_ns, "waited in vain: %s", #condition);                                 \
            g_usleep(5000);                                                                                            \
        }                                                                                                              \
    } while (0)
/* Gets keys and compares the access key (NULL: any) and the session token (NULL: none). */
void cred_expect_keys(struct s3_cred *c, const char *access_key, const char *token);
/* Those that are renewed while the ones before serve: gets keys until they are there. */
void cred_await_keys(struct s3_cred *c, const char *access_key, const char *token);
void cred_expect_error(struct s3_cred *c, int error, const char *part_of_why);
/* They are waited for in vain, until the reason is known. */
void cred_expect_none(struct s3_cred *c, const char *part_of_why);
/* Why the last renewal failed, once that is known. These two ask for keys meanwhile, and wait for none. */
void cred_await_why(struct s3_cred *c, const char *part_of_why);
/* n renewals ended since metric_get(M_credential_refreshes) was `since`. */
void cred_await_renewals(struct s3_cred *c, int64_t since, int64_t n);
/* Threads of credentials that look at files or ask a source. */
unsigned cred_n_threads(void);
void cred_await_idle(void); /* there is none, before files are changed that it might be at */
/* The log has n warnings of credentials that cannot be renewed. */
void cred_await_warnings(unsigned n);
/* Thread: one s3_cred_get(), its result as pointer. */
void *cred_get_thread(void *arg);
