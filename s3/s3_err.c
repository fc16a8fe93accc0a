/*
 * The error table; see s3_err.h. The first row that fits decides: codes before bare statuses, since stores agree on codes more than on
 * statuses. That something is not there is believed only with the store's own code: a bare 404 may come from any proxy in between
 * (s3_exec.c asks again so that the store has to give it).
 * Nor is a request taken for a wrong one (-EINVAL), which nobody sends again by himself, but with a code, or a status of that meaning only, that says so: a refusal that is
 * not known here (-EREMOTEIO: another store's quota, a proxy's lock) may pass. No state, no locks.
 */
#include "s3_err.h"

#include <string.h>

#define QUOTA_HINT "the store's quota is used up"

static const struct {
    long status;      /* 0: any */
    const char *code; /* NULL: any */
    int err;
    enum s3_retry_class retry;
    const char *hint;
} rows[] = {
    {0, "NoSuchKey", -ENOENT, S3_RETRY_NO, NULL},
    {0, "NoSuchUpload", -ENOENT, S3_RETRY_NO, NULL},
    {0, "NoSuchVersion", -ENOENT, S3_RETRY_NO, NULL},
    {0, "NoSuchBucket", -ENODEV, S3_RETRY_NO, "check the bucket's name and the endpoint"},
    {0, "PreconditionFailed", -ESTALE, S3_RETRY_NO, NULL},
    {0, "ConditionalRequestConflict", -ESTALE, S3_RETRY_TRANSIENT, NULL},
    {0, "OperationAborted", -EIO, S3_RETRY_TRANSIENT, NULL},
    {0, "SlowDown", -EIO, S3_RETRY_THROTTLE, NULL},
    {0, "SlowDownRead", -EIO, S3_RETRY_THROTTLE, NULL},
    {0, "SlowDownWrite", -EIO, S3_RETRY_THROTTLE, NULL},
    {0, "TooManyRequests", -EIO, S3_RETRY_THROTTLE, NULL},
    {0, "RequestLimitExceeded", -EIO, S3_RETRY_THROTTLE, NULL},
    {0, "ThrottlingException", -EIO, S3_RETRY_THROTTLE, NULL},
    {0, "Throttling", -EIO, S3_RETRY_THROTTLE, NULL},
    {0, "BandwidthLimitExceeded", -EIO, S3_RETRY_THROTTLE, NULL},
    {0, "InternalError", -EIO, S3_RETRY_TRANSIENT, NULL},
    {0, "ServiceUnavailable", -EIO, S3_RETRY_THROTTLE, NULL},
    {0, "RequestTimeout", -EIO, S3_RETRY_TRANSIENT, NULL},
    {0, "IncompleteBody", -EIO, S3_RETRY_TRANSIENT, NULL},
    {0, "BadDigest", -EIO, S3_RETRY_TRANSIENT, NULL},
    {0, "XAmzContentSHA256Mismatch", -EIO, S3_RETRY_TRANSIENT, NULL},
    {0, "XAmzContentChecksumMismatch", -EIO, S3_RETRY_TRANSIENT, NULL},
    {0, "RequestTimeTooSkewed", -EACCES, S3_RETRY_CLOCK, "the clock of this node and the store's differ: set it (NTP)"},
    {0, "RequestExpired", -EACCES, S3_RETRY_CLOCK, "the clock of this node and the store's differ: set it (NTP)"},
    {0, "ExpiredToken", -EKEYEXPIRED, S3_RETRY_CREDENTIALS, "the credentials have expired: renew them"},
    {0, "ExpiredTokenException", -EKEYEXPIRED, S3_RETRY_CREDENTIALS, "the credentials have expired: renew them"},
    {0, "TokenRefreshRequired", -EKEYEXPIRED, S3_RETRY_CREDENTIALS, "the credentials have expired: renew them"},
    {0, "InvalidToken", -EACCES, S3_RETRY_CREDENTIALS, "the session token is not valid: renew the credentials"},
    {0, "InvalidAccessKeyId", -EACCES, S3_RETRY_CREDENTIALS, "the access key is unknown to this store"},
    {0, "SignatureDoesNotMatch", -EACCES, S3_RETRY_NO,
     "the secret key does not belong to the access key, or a proxy changes requests"},
    {0, "AccessDenied", -EACCES, S3_RETRY_NO, "the credentials lack a permission for this bucket and prefix"},
    {0, "AllAccessDisabled", -EACCES, S3_RETRY_NO, NULL},
    {0, "AccountProblem", -EACCES, S3_RETRY_NO, NULL},
    {0, "InvalidObjectState", -ENOMEDIUM, S3_RETRY_NO, "the object is archived: restore it in the store first"},
    {0, "AuthorizationHeaderMalformed", -EACCES, S3_RETRY_NO, "the bucket is in another region: set the region"},
    {0, "PermanentRedirect", -EACCES, S3_RETRY_NO, "the bucket is in another region: set region or endpoint"},
    {0, "TemporaryRedirect", -EIO, S3_RETRY_TRANSIENT, "the bucket is in another region: set region or endpoint"},
    {0, "EntityTooLarge", -EFBIG, S3_RETRY_NO, NULL},
    {0, "EntityTooSmall", -EINVAL, S3_RETRY_NO, NULL},
    {0, "KeyTooLongError", -EINVAL, S3_RETRY_NO, NULL},
    {0, "MetadataTooLarge", -EINVAL, S3_RETRY_NO, NULL},
    {0, "InvalidArgument", -EINVAL, S3_RETRY_NO, NULL},
    {0, "InvalidRequest", -EINVAL, S3_RETRY_NO, NULL},
    {0, "InvalidStorageClass", -EINVAL, S3_RETRY_NO, NULL},
    {0, "InvalidObjectName", -EINVAL, S3_RETRY_NO, NULL},
    {0, "XMinioInvalidObjectName", -EINVAL, S3_RETRY_NO, NULL},
    {0, "XMinioParentIsObject", -ENOTDIR, S3_RETRY_NO, "an object stands where its directory would be"},
    {0, "InvalidURI", -EINVAL, S3_RETRY_NO, NULL},
    {0, "InvalidDigest", -EINVAL, S3_RETRY_NO, NULL},
    {0, "MalformedXML", -EINVAL, S3_RETRY_NO, NULL},
    {0, "MissingContentLength", -EINVAL, S3_RETRY_NO, NULL},
    {0, "QuotaExceeded", -EDQUOT, S3_RETRY_NO, QUOTA_HINT}, /* Ceph and most */
    {0, "XMinioAdminBucketQuotaExceeded", -EDQUOT, S3_RETRY_NO, QUOTA_HINT},
    {0, "ObjectQuotaExceeded", -EDQUOT, S3_RETRY_NO, QUOTA_HINT}, /* NooBaa */
    {0, "QUOTA_EXCEEDED", -EDQUOT, S3_RETRY_NO, QUOTA_HINT},      /* Ozone */
    {0, "InvalidPart", -EBADMSG, S3_RETRY_NO, NULL},
    {0, "InvalidPartOrder", -EINVAL, S3_RETRY_NO, NULL},
    {0, "InvalidRange", -ERANGE, S3_RETRY_NO, NULL},
    {0, "NotImplemented", -EOPNOTSUPP, S3_RETRY_NO, NULL},
    {0, "MethodNotAllowed", -EOPNOTSUPP, S3_RETRY_NO, NULL},
    {301, NULL, -EACCES, S3_RETRY_NO, "the bucket is in another region: set region or endpoint"},
    {302, NULL, -EACCES, S3_RETRY_NO, "the endpoint redirects elsewhere: check it"},
    {307, NULL, -EIO, S3_RETRY_TRANSIENT, "the bucket is in another region: set region or endpoint"},
    {308, NULL, -EACCES, S3_RETRY_NO, "the endpoint redirects elsewhere: check it"},
    {401, NULL, -EACCES, S3_RETRY_NO, "the store wants credentials"},
    {403, NULL, -EACCES, S3_RETRY_NO, "the credentials lack a permission for this bucket and prefix"},
    {404, NULL, -EIO, S3_RETRY_TRANSIENT, "something before the store, or none, answered: check the endpoint"},
    {405, NULL, -EOPNOTSUPP, S3_RETRY_NO, NULL},
    {408, NULL, -EIO, S3_RETRY_TRANSIENT, NULL},
    {409, NULL, -ESTALE, S3_RETRY_NO, NULL},
    {411, NULL, -EINVAL, S3_RETRY_NO, NULL},
    {412, NULL, -ESTALE, S3_RETRY_NO, NULL},
    {413, NULL, -EFBIG, S3_RETRY_NO, NULL},
    {414, NULL, -EINVAL, S3_RETRY_NO, "the key is too long for what stands before the store"},
    {416, NULL, -ERANGE, S3_RETRY_NO, NULL},
    {425, NULL, -EIO, S3_RETRY_TRANSIENT, NULL},
    {429, NULL, -EIO, S3_RETRY_THROTTLE, NULL},
    {431, NULL, -EINVAL, S3_RETRY_NO, "key and metadata are too long for what stands before the store"},
    {500, NULL, -EIO, S3_RETRY_TRANSIENT, NULL},
    {501, NULL, -EOPNOTSUPP, S3_RETRY_NO, NULL},
    {502, NULL, -EIO, S3_RETRY_TRANSIENT, NULL},
    {503, NULL, -EIO, S3_RETRY_THROTTLE, NULL},
    {504, NULL, -EIO, S3_RETRY_TRANSIENT, NULL},
};

static const struct {
    int err;
    enum s3_retry_class retry;
    const char *hint;
} fails[N_HTTP_FAILS] = {
    [HTTP_FAIL_NONE] = {0, S3_RETRY_NO, NULL},
    [HTTP_FAIL_URL] = {-EINVAL, S3_RETRY_NO, "check the endpoint"},
    [HTTP_FAIL_RESOLVE] = {-EIO, S3_RETRY_TRANSIENT, "the endpoint's name does not resolve: check endpoint and DNS"},
    [HTTP_FAIL_CONNECT] = {-EIO, S3_RETRY_TRANSIENT, "nothing answers at the endpoint: check endpoint and network"},
    [HTTP_FAIL_TLS] = {-EIO, S3_RETRY_TRANSIENT, "the TLS handshake failed: does the endpoint speak https?"},
    [HTTP_FAIL_TLS_CERT] = {-EACCES, S3_RETRY_NO, "the certificate is not trusted: give its CA by ca_bundle"},
    [HTTP_FAIL_TIMEOUT] = {-ETIMEDOUT, S3_RETRY_TRANSIENT, "the store is silent or very slow"},
    [HTTP_FAIL_BROKEN] = {-EIO, S3_RETRY_TRANSIENT, NULL},
    [HTTP_FAIL_PROTOCOL] = {-EBADMSG, S3_RETRY_PROBLEM, "what answers is no S3 store"},
    [HTTP_FAIL_TOO_BIG] = {-EBADMSG, S3_RETRY_PROBLEM, NULL},
    [HTTP_FAIL_CALLBACK] = {-EIO, S3_RETRY_NO, NULL},
    [HTTP_FAIL_CANCELED] = {-ECANCELED, S3_RETRY_NO, NULL},
};

static int row_find(long status, const char *code)
{
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        if (rows[i].code ? strcmp(rows[i].code, code) == 0 : rows[i].status == status)
            return (int)i;
    }
    return -1;
}

struct s3_verdict s3_err_classify(enum http_fail fail, bool sent, long status, const char *code)
{
    struct s3_verdict v = {.retry = S3_RETRY_NO};
    if (fail != HTTP_FAIL_NONE) {
        v.err = fails[fail].err;
        v.retry = fails[fail].retry;
        v.ambiguous = sent;
        return v;
    }
    if (status / 100 == 2 && code[0] == '\0')
        return v;
    int i = row_find(status, code);
    if (i >= 0) {
        v.err = rows[i].err;
        v.retry = rows[i].retry;
    } else {
        v.err = status / 100 == 5 || status / 100 == 2 ? -EIO : -EREMOTEIO;
        v.retry = status / 100 == 5 || status / 100 == 2 ? S3_RETRY_TRANSIENT : S3_RETRY_NO;
    }
    v.ambiguous = v.retry == S3_RETRY_TRANSIENT && (status / 100 == 5 || status / 100 == 2);
    return v;
}

const char *s3_err_hint(enum http_fail fail, long status, const char *code)
{
    if (fail != HTTP_FAIL_NONE)
        return fails[fail].hint;
    int i = row_find(status, code);
    return i >= 0 ? rows[i].hint : NULL;
}
