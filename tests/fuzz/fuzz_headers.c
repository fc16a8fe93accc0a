/* Values of single headers: dates, waits, tags, and the metadata that says what a file is. */
#include "../../s3/s3_meta.h"
#include "../../s3/s3_retry.h"
#include "../../s3/s3_xml.h"
#include "base/clock.h"
#include "fuzz.h"

static void check_meta(const char *text)
{
    static const char *const names[] = {"mode", "uid", "gid", "mtime", "sluice-symlink", "sluice-token", "other"};
    struct obj_info info = {0};
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++)
        s3_meta_take(&info, names[i], text);
    PROMISE(strlen(info.token) <= TOKEN_MAX);
    PROMISE(!info.symlink || (info.symlink[0] && strlen(info.symlink) <= OBJ_SYMLINK_MAX));
    PROMISE(!(info.posix.fields & POSIX_MODE) || info.posix.mode <= 0177777);
    obj_info_clear(&info);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = g_strndup((const char *)data, size);
    struct etag tag;
    PROMISE(s3_retry_server_ns(text, NULL) <= 3600 * NS_PER_S && s3_retry_server_ns(NULL, text) <= 3600 * NS_PER_S);
    PROMISE(http_date_parse(text) >= 0);
    (void)s3_time_parse(text);
    s3_etag_parse(text, &tag);
    PROMISE(strlen(tag.s) <= ETAG_MAX && !strpbrk(tag.s, "\" \r\n"));
    (void)s3_meta_is_archive(text);
    check_meta(text);
    return 0;
}
