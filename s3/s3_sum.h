/* What an ETag tells of an object's content. Pure but for the reader it is given. */
#pragma once
#include "objstore.h"

#define S3_MD5_BYTES 16u

void s3_md5(const void *buf, size_t len, unsigned char ret[S3_MD5_BYTES]);

/* Lower-case hex of 16 bytes: the MD5 of the content, where the store makes them so. */
bool s3_etag_is_md5(const char *etag);
