/*
 * Replies in XML: list pages, errors, multipart, STS. s3_xml.c is the only user of libxml2. Pure: bytes in, structs out.
 *
 * The peer is not trusted: a document type declaration is refused (so no entities and no bombs), depth is limited to 32, one
 * element's text to 64 KiB, a page to S3_XML_ROWS_MAX rows, and callers limit the size. Anything malformed is -EBADMSG; but control characters and references to them, which XML does not have
 * and stores write where they repeat a key, are themselves in listings (NUL is not), and references are spaces in documents of which no key is read.
 */
#pragma once
#include "objstore.h"

#include <glib.h>
#include <stdbool.h>

/* The largest page that S3 has is of about 4 MiB: 1,000 names of 1,024 bytes, each of which takes three, or 10,000 parts. */
#define S3_XML_LIST_CAP  (8u << 20)
#define S3_XML_ROWS_MAX  10000u
#define S3_XML_ERROR_CAP (64u << 10)

/* Prepares the library; before the first thread parses. May be called again. */
void s3_xml_init(void);

struct s3_xml_error {
    char code[64]; /* "NoSuchKey"; "" if the reply is no S3 error */
    char message[256];
    char region[64]; /* of a redirect or AuthorizationHeaderMalformed */
    char request_id[64];
};
/* 0 and filled when the document's root is Error (or ErrorResponse, as STS has it); -ENOMSG when it is something else. */
int s3_xml_error_parse(const char *buf, size_t len, struct s3_xml_error *ret) MUST_CHECK;

/* Text of the first element with this local name; "" if it is empty. -ENOMSG if absent. Also for STS replies ("AccessKeyId"). */
int s3_xml_text(const char *buf, size_t len, const char *name, char **ret_text) MUST_CHECK;

struct s3_list_row {
    char *key; /* owned; decoded, may hold NUL bytes; NUL-terminated besides */
    size_t key_len;
    char *upload_id; /* owned; ListMultipartUploads only */
    bool is_prefix;
    uint64_t size;
    int64_t mtime_ns;
    struct etag etag;
    bool archived;        /* StorageClass is one whose objects have to be restored before a GET */
    uint32_t part_number; /* ListParts only */
};
struct s3_list_page {
    GArray *rows; /* struct s3_list_row, in byte order of the keys for ListObjectsV2 */
    bool truncated;
    bool url;          /* EncodingType was url: the keys are decoded, next is as it came */
    char *next;        /* owned; NextContinuationToken, NextKeyMarker or NextPartNumberMarker; NULL if absent */
    char *next_upload; /* owned; NextUploadIdMarker */
};
/* ListObjectsV2, ListMultipartUploads and ListParts alike; root is what the reply to this call is called. A page that does not say whether it is
 * the last (IsTruncated) is none. */
#define S3_ROOT_OBJECTS "ListBucketResult"
#define S3_ROOT_UPLOADS "ListMultipartUploadsResult"
#define S3_ROOT_PARTS   "ListPartsResult"
int s3_xml_list_parse(const char *buf, size_t len, const char *root, struct s3_list_page *ret) MUST_CHECK;
void s3_list_page_clear(struct s3_list_page *page);

/* "\"abc\"" or "abc" or W/"abc" without quotes; "" when it does not fit. */
void s3_etag_parse(const char *text, struct etag *ret);
/* "2024-01-02T03:04:05.678Z" to wall time; 0 if unreadable. */
int64_t s3_time_parse(const char *text);
