/* Pages of listings: objects, uploads, parts. Rows come out in order, and no key is shorter than it says. */
#include "../../s3/s3_xml.h"
#include "fuzz.h"

static void check_rows(const struct s3_list_page *page)
{
    for (guint i = 0; i < page->rows->len; i++) {
        const struct s3_list_row *row = &g_array_index(page->rows, struct s3_list_row, i);
        PROMISE(!row->key || row->key[row->key_len] == '\0');
        PROMISE(row->size <= INT64_MAX);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const roots[] = {S3_ROOT_OBJECTS, S3_ROOT_UPLOADS, S3_ROOT_PARTS};
    s3_xml_init();
    for (unsigned i = 0; i < G_N_ELEMENTS(roots); i++) {
        struct s3_list_page page = {0};
        if (s3_xml_list_parse((const char *)data, size, roots[i], &page) < 0)
            continue;
        check_rows(&page);
        s3_list_page_clear(&page);
    }
    return 0;
}
