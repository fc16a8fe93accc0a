/* Replies in XML: what is read, and what is refused. */
#include "../../s3/http.h"
#include "../../s3/s3_xml.h"
#include "base/clock.h"
#include "tests/support/checks.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const char page_text[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
    "<Name>b</Name><Prefix>p%2F</Prefix><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
    "<NextContinuationToken>tok/+=</NextContinuationToken>"
    "<Contents><Key>p%2Fa%20b%2B%25</Key><LastModified>2024-01-02T03:04:05.678Z</LastModified>"
    "<ETag>&quot;abc-2&quot;</ETag><StorageClass>GLACIER</StorageClass><Size>123</Size><Owner><ID>x</ID><DisplayName>Key</DisplayName></Owner></Contents>"
    "<Contents><Key>p%2Fz%00</Key><LastModified>2024-01-02T03:04:05Z</LastModified><ETag>q</ETag><StorageClass>GLACIER_IR</StorageClass><Size>0</Size></Contents>"
    "<CommonPrefixes><Prefix>p%2Fm%2F</Prefix></CommonPrefixes></ListBucketResult>";

START_TEST(list_page_is_decoded_and_merged_in_byte_order)
{
    struct s3_list_page page = {0};
    ck_assert_int_eq(s3_xml_list_parse(page_text, strlen(page_text), S3_ROOT_OBJECTS, &page), 0);
    ck_assert(page.truncated);
    ck_assert_str_eq(page.next, "tok/+=");
    ck_assert_uint_eq(page.rows->len, 3);
    const struct s3_list_row *rows = (const struct s3_list_row *)(const void *)page.rows->data;
    ck_assert_str_eq(rows[0].key, "p/a b+%");
    ck_assert_uint_eq(rows[0].size, 123);
    ck_assert_str_eq(rows[0].etag.s, "abc-2");
    ck_assert_int_eq(rows[0].mtime_ns, 1704164645678000000);
    ck_assert_str_eq(rows[1].key, "p/m/");
    ck_assert(rows[1].is_prefix && !rows[0].is_prefix);
    ck_assert(rows[0].archived && !rows[1].archived && !rows[2].archived); /* GLACIER_IR is read at once */
    ck_assert_uint_eq(rows[2].key_len, 4);
    ck_assert_int_eq(rows[2].key[3], 0);
    s3_list_page_clear(&page);
}
END_TEST

START_TEST(truncated_document_is_refused_at_every_byte)
{
    for (size_t n = 0; n < strlen(page_text); n++) {
        struct s3_list_page page = {0};
        ck_assert_int_eq(s3_xml_list_parse(page_text, n, S3_ROOT_OBJECTS, &page), -EBADMSG);
    }
}
END_TEST

START_TEST(document_types_are_refused)
{
    const char *bad[] = {
        "<!DOCTYPE r [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]><Error><Code>&b;</Code></Error>",
        "<!DOCTYPE r SYSTEM \"file:///etc/passwd\"><Error><Code>x</Code></Error>",
        "<?xml version=\"1.0\"?><!DOCTYPE Error><Error><Code>x</Code></Error>",
        "<Error><Code>&undefined;</Code></Error>",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct s3_xml_error e = {0};
        ck_assert_int_eq(s3_xml_error_parse(bad[i], strlen(bad[i]), &e), -EBADMSG);
    }
}
END_TEST

START_TEST(depth_size_and_encoding_have_limits)
{
    struct s3_xml_error e = {0};
    struct s3_list_page page = {0};
    GString *deep = g_string_new(NULL);
    for (int i = 0; i < 40; i++)
        g_string_append(deep, "<a>");
    for (int i = 0; i < 40; i++)
        g_string_append(deep, "</a>");
    ck_assert_int_eq(s3_xml_error_parse(deep->str, deep->len, &e), -EBADMSG);
    g_string_assign(deep, "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>");
    for (int i = 0; i < 70000; i++)
        g_string_append_c(deep, 'k');
    g_string_append(deep, "</Key></Contents></ListBucketResult>");
    ck_assert_int_eq(s3_xml_list_parse(deep->str, deep->len, S3_ROOT_OBJECTS, &page), -EBADMSG);
    g_string_set_size(deep, S3_XML_ERROR_CAP + 1);
    ck_assert_int_eq(s3_xml_error_parse(deep->str, deep->len, &e), -EBADMSG);
    const char *latin = "<Error><Code>\xe4\xff</Code></Error>";
    ck_assert_int_eq(s3_xml_error_parse(latin, strlen(latin), &e), -EBADMSG);
    g_string_free(deep, TRUE);
}
END_TEST

#define LAST "<IsTruncated>false</IsTruncated>"

START_TEST(numbers_and_keys_are_checked)
{
    const char *bad[] = {
        "<Contents><Key>a</Key><Size>-1</Size></Contents>",
        "<Contents><Key>a</Key><Size>99999999999999999999</Size></Contents>",
        "<Contents><Size>1</Size></Contents>",
        "<EncodingType>url</EncodingType><Contents><Key>%4</Key></Contents>",
    };
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct s3_list_page page = {0};
        g_autofree char *text = g_strdup_printf("<ListBucketResult>" LAST "%s</ListBucketResult>", bad[i]);
        ck_assert_msg(s3_xml_list_parse(text, strlen(text), S3_ROOT_OBJECTS, &page) == -EBADMSG, "%s", bad[i]);
    }
}
END_TEST

START_TEST(what_is_no_page_of_this_listing_is_no_empty_page)
{
    const char *bad[] = {
        "<html><body>login</body></html>",
        "<ListAllMyBucketsResult>" LAST "<Buckets></Buckets></ListAllMyBucketsResult>",
        "<ListMultipartUploadsResult>" LAST "</ListMultipartUploadsResult>",
        "<ListBucketResult></ListBucketResult>",
        "<ListBucketResult><IsTruncated></IsTruncated></ListBucketResult>",
        "<ListBucketResult><IsTruncated>maybe</IsTruncated></ListBucketResult>",
    };
    struct s3_list_page page = {0};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++)
        ck_assert_msg(s3_xml_list_parse(bad[i], strlen(bad[i]), S3_ROOT_OBJECTS, &page) == -EBADMSG, "%s", bad[i]);
    const char *good = "<ListBucketResult>" LAST "</ListBucketResult>";
    ck_assert_int_eq(s3_xml_list_parse(good, strlen(good), S3_ROOT_OBJECTS, &page), 0);
    ck_assert(!page.truncated);
    s3_list_page_clear(&page);
}
END_TEST

START_TEST(errors_are_read_also_behind_white_space)
{
    struct s3_xml_error e = {0};
    const char *text =
        "  \n \n<?xml version=\"1.0\"?>\n<Error><Code>SlowDown</Code><Message>Reduce &amp; wait</Message>"
        "<RequestId>R1</RequestId></Error>";
    ck_assert_int_eq(s3_xml_error_parse(text, strlen(text), &e), 0);
    ck_assert_str_eq(e.code, "SlowDown");
    ck_assert_str_eq(e.message, "Reduce & wait");
    ck_assert_str_eq(e.request_id, "R1");
    const char *sts = "<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredToken</Code></Error></ErrorResponse>";
    ck_assert_int_eq(s3_xml_error_parse(sts, strlen(sts), &e), 0);
    ck_assert_str_eq(e.code, "ExpiredToken");
    const char *ok = "<CompleteMultipartUploadResult><ETag>\"x\"</ETag></CompleteMultipartUploadResult>";
    ck_assert_int_eq(s3_xml_error_parse(ok, strlen(ok), &e), -ENOMSG);
}
END_TEST

START_TEST(text_of_the_first_element_of_a_name_is_found)
{
    g_autofree char *text = NULL;
    const char *doc = "<R><Result><Credentials><AccessKeyId>AK</AccessKeyId><Empty/></Credentials></Result></R>";
    ck_assert_int_eq(s3_xml_text(doc, strlen(doc), "AccessKeyId", &text), 0);
    ck_assert_str_eq(text, "AK");
    g_clear_pointer(&text, g_free);
    ck_assert_int_eq(s3_xml_text(doc, strlen(doc), "Empty", &text), 0);
    ck_assert_str_eq(text, "");
    g_clear_pointer(&text, g_free);
    ck_assert_int_eq(s3_xml_text(doc, strlen(doc), "Absent", &text), -ENOMSG);
}
END_TEST

START_TEST(uploads_and_parts_are_read)
{
    struct s3_list_page page = {0};
    const char *up =
        "<ListMultipartUploadsResult><NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>i</NextUploadIdMarker>"
        "<IsTruncated>true</IsTruncated><Upload><Key>a%20b</Key><UploadId>U</UploadId></Upload>"
        "<Upload><Key>100% x</Key><UploadId>V</UploadId></Upload></ListMultipartUploadsResult>";
    ck_assert_int_eq(s3_xml_list_parse(up, strlen(up), S3_ROOT_UPLOADS, &page), 0);
    const struct s3_list_row *rows = (const struct s3_list_row *)(const void *)page.rows->data;
    ck_assert_str_eq(rows[0].key, "a b");
    ck_assert_str_eq(rows[0].upload_id, "U");
    ck_assert_str_eq(rows[1].key, "100% x");
    ck_assert_str_eq(page.next_upload, "i");
    s3_list_page_clear(&page);
    const char *parts =
        "<ListPartsResult><IsTruncated>false</IsTruncated><Part><PartNumber>3</PartNumber><ETag>\"e\"</ETag><Size>7</Size></Part></ListPartsResult>";
    ck_assert_int_eq(s3_xml_list_parse(parts, strlen(parts), S3_ROOT_PARTS, &page), 0);
    rows = (const struct s3_list_row *)(const void *)page.rows->data;
    ck_assert_uint_eq(rows[0].part_number, 3);
    ck_assert_uint_eq(rows[0].size, 7);
    s3_list_page_clear(&page);
}
END_TEST

START_TEST(control_characters_of_a_repeated_key_are_no_matter)
{
    g_autofree char *text = NULL;
    struct s3_xml_error e = {0};
    struct s3_list_page page = {0};
    const char *doc =
        "<R><Key>a&#x01;&#x1F;&#1;&#031;&#x00000b;&#x0c;b</Key><UploadId>U&#x41;&#9;&#x0a;</UploadId></R>";
    ck_assert_int_eq(s3_xml_text(doc, strlen(doc), "UploadId", &text), 0);
    ck_assert_str_eq(text, "UA\t\n");
    doc = "<Error><Code>NoSuchUpload</Code><Key>&#x02;</Key></Error>";
    ck_assert_int_eq(s3_xml_error_parse(doc, strlen(doc), &e), 0);
    ck_assert_str_eq(e.code, "NoSuchUpload");
    doc = "<ListPartsResult><Key>&#x01;</Key><IsTruncated>false</IsTruncated></ListPartsResult>";
    ck_assert_int_eq(s3_xml_list_parse(doc, strlen(doc), S3_ROOT_PARTS, &page), 0);
    s3_list_page_clear(&page);
    const char *bad[] = {"<R>&#x1</R>", "<R>&#;</R>", "<R>&#x;</R>", "<R>&#x1g;</R>", "<R>&#x110000;</R>", "<R>&#x1;"};
    for (size_t i = 0; i < G_N_ELEMENTS(bad); i++)
        for (size_t n = 1; n <= strlen(bad[i]); n++) {
            g_autofree char *cut = g_memdup2(bad[i], n); /* nothing behind its end is looked at */
            ck_assert_int_eq(s3_xml_error_parse(cut, n, &e), -EBADMSG);
        }
}
END_TEST

START_TEST(control_characters_of_a_listing_are_themselves)
{
    struct s3_list_page page = {0};
    const char *doc = "<ListBucketResult><Prefix>a&#x01;/</Prefix><IsTruncated>true</IsTruncated>"
                      "<NextContinuationToken>a&#x01;/\x02&#x1f;&#9;&#x7F;&#13;\xee\x80\x80"
                      "01\xee\x80&amp;#x01;</NextContinuationToken>"
                      "<Contents><Key>&#x01;&#001;b\x1f</Key></Contents></ListBucketResult>";
    ck_assert_int_eq(s3_xml_list_parse(doc, strlen(doc), S3_ROOT_OBJECTS, &page), -EBADMSG); /* no UTF-8 */
    g_autofree char *good = g_strdup(doc);
    char *half = strstr(good, "01\xee\x80") + 2;
    memcpy(half, "xy", 2);
    ck_assert_int_eq(s3_xml_list_parse(good, strlen(good), S3_ROOT_OBJECTS, &page), 0);
    ck_assert_str_eq(page.next, "a\x01/\x02\x1f\t\x7f\r\xee\x80\x80"
                                "01xy&#x01;");
    ck_assert_str_eq(g_array_index(page.rows, struct s3_list_row, 0).key, "\x01\x01"
                                                                          "b\x1f");
    s3_list_page_clear(&page);
    doc = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>&#x00;</Key></Contents></ListBucketResult>";
    ck_assert_int_eq(s3_xml_list_parse(doc, strlen(doc), S3_ROOT_OBJECTS, &page), -EBADMSG);
    doc = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>\xee\x80\x80"
          "01</Key></Contents></ListBucketResult>";
    ck_assert_int_eq(s3_xml_list_parse(doc, strlen(doc), S3_ROOT_OBJECTS, &page), 0);
    ck_assert_str_eq(g_array_index(page.rows, struct s3_list_row, 0).key, "\xee\x80\x80"
                                                                          "01");
    s3_list_page_clear(&page);
}
END_TEST

START_TEST(references_to_the_mark_are_that_character)
{
    struct s3_list_page page = {0};
    const char *doc = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>\x01&#xE000;01&#57344;02&#x41;"
                      "</Key></Contents></ListBucketResult>";
    ck_assert_int_eq(s3_xml_list_parse(doc, strlen(doc), S3_ROOT_OBJECTS, &page), 0);
    ck_assert_str_eq(g_array_index(page.rows, struct s3_list_row, 0).key, "\x01\xee\x80\x80"
                                                                          "01\xee\x80\x80"
                                                                          "02A");
    s3_list_page_clear(&page);
}
END_TEST

START_TEST(listing_of_control_characters_has_a_bound)
{
    struct s3_list_page page = {0};
    g_autofree char *fill = g_strnfill(1000, '\x01');
    g_autoptr(GString) doc = g_string_new("<ListBucketResult><IsTruncated>false</IsTruncated>");
    while (doc->len < S3_XML_LIST_CAP / 2)
        g_string_append_printf(doc, "<Other>%s</Other>", fill);
    g_string_append(doc, "</ListBucketResult>");
    ck_assert_int_eq(s3_xml_list_parse(doc->str, doc->len, S3_ROOT_OBJECTS, &page), -EBADMSG);
    s3_list_page_clear(&page);
}
END_TEST

START_TEST(page_has_no_more_rows_than_any_store_gives)
{
    for (unsigned n = S3_XML_ROWS_MAX; n <= S3_XML_ROWS_MAX + 1; n++) {
        struct s3_list_page page = {0};
        g_autoptr(GString) doc = g_string_new("<ListBucketResult><IsTruncated>false</IsTruncated>");
        for (unsigned i = 0; i < n; i++)
            g_string_append_printf(doc, "<Contents><Key>%05u</Key></Contents>", i);
        g_string_append(doc, "</ListBucketResult>");
        int r = s3_xml_list_parse(doc->str, doc->len, S3_ROOT_OBJECTS, &page);
        ck_assert_int_eq(r, n > S3_XML_ROWS_MAX ? -EBADMSG : 0);
        ck_assert_uint_eq(page.rows ? page.rows->len : 0, r == 0 ? n : 0);
        s3_list_page_clear(&page);
    }
}
END_TEST

START_TEST(etags_lose_their_quotes_and_odd_ones_are_dropped)
{
    struct {
        const char *in, *want;
    } rows[] = {{"\"abc\"", "abc"}, {"abc", "abc"}, {"W/\"abc\"", "abc"}, {"", ""}, {"\"a\r\nb\"", ""}, {"a\"b", ""}};
    for (size_t i = 0; i < G_N_ELEMENTS(rows); i++) {
        struct etag e;
        s3_etag_parse(rows[i].in, &e);
        ck_assert_str_eq(e.s, rows[i].want);
    }
}
END_TEST

START_TEST(times_beyond_what_ns_can_say_are_the_end)
{
    ck_assert_int_eq(s3_time_parse("2024-01-02T03:04:05.5Z"), 1704164645500000000ll);
    ck_assert_int_eq(s3_time_parse("9999-12-31T23:59:59.999Z"), INT64_MAX);
    ck_assert_int_eq(s3_time_parse("0001-01-01T00:00:00Z"), INT64_MIN);
    ck_assert_int_eq(http_date_parse("Fri, 31 Dec 9999 23:59:59 GMT"), INT64_MAX);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("s3_xml");
    TCase *t = tcase_create("xml");
    tcase_add_test(t, list_page_is_decoded_and_merged_in_byte_order);
    tcase_add_test(t, truncated_document_is_refused_at_every_byte);
    tcase_add_test(t, document_types_are_refused);
    tcase_add_test(t, depth_size_and_encoding_have_limits);
    tcase_add_test(t, numbers_and_keys_are_checked);
    tcase_add_test(t, what_is_no_page_of_this_listing_is_no_empty_page);
    tcase_add_test(t, errors_are_read_also_behind_white_space);
    tcase_add_test(t, text_of_the_first_element_of_a_name_is_found);
    tcase_add_test(t, uploads_and_parts_are_read);
    tcase_add_test(t, control_characters_of_a_repeated_key_are_no_matter);
    tcase_add_test(t, control_characters_of_a_listing_are_themselves);
    tcase_add_test(t, references_to_the_mark_are_that_character);
    tcase_add_test(t, listing_of_control_characters_has_a_bound);
    tcase_add_test(t, page_has_no_more_rows_than_any_store_gives);
    tcase_add_test(t, etags_lose_their_quotes_and_odd_ones_are_dropped);
    tcase_add_test(t, times_beyond_what_ns_can_say_are_the_end);
    suite_add_tcase(s, t);
    return run_suite(s);
}
