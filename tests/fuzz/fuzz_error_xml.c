/* Error documents and single texts of other replies (an upload's id, an etag, the keys of STS). */
#include "../../s3/s3_err.h"
#include "../../s3/s3_xml.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"UploadId", "ETag", "AccessKeyId"};
    const char *text = (const char *)data;
    struct s3_xml_error e = {0};
    s3_xml_init();
    if (s3_xml_error_parse(text, size, &e) == 0) {
        PROMISE(strlen(e.code) < sizeof e.code && strlen(e.message) < sizeof e.message);
        for (long status = 200; status < 600; status += 1)
            (void)s3_err_classify(HTTP_FAIL_NONE, true, status, e.code);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(names); i++) {
        g_autofree char *found = NULL;
        if (s3_xml_text(text, size, names[i], &found) == 0)
            PROMISE(found != NULL);
    }
    return 0;
}
