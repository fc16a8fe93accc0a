/* The head of a reply as libcurl hands it over, line by line, and what follows as its body: headers stay below their cap, text stays text. */
#include "../../s3/http.c"
#include "fuzz.h"

static void check_headers(const struct http_response *resp)
{
    GHashTableIter it;
    gpointer name, value;
    g_hash_table_iter_init(&it, resp->headers);
    while (g_hash_table_iter_next(&it, &name, &value)) {
        g_autofree char *lower = g_ascii_strdown(name, -1);
        PROMISE(strcmp(lower, name) == 0 && !strchr(value, '\n'));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct http_request req = {.method = "GET", .body_cap = 4096};
    struct http_response resp = {.headers = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free),
                                 .body = g_string_new(NULL)};
    struct transfer t = {.req = &req, .resp = &resp, .head_done = true};
    struct write_ctx w = {.t = &t};
    bool body = false;
    while (size > 0) {
        const uint8_t *end = memchr(data, '\n', size);
        size_t len = end ? (size_t)(end - data) + 1 : size;
        g_autofree char *piece = g_memdup2(data, len);
        size_t taken = body ? on_write(piece, 1, len, &w) : on_header(piece, 1, len, &t);
        if (taken != len)
            break;
        body |= len <= 2;
        data += len;
        size -= len;
    }
    check_headers(&resp);
    PROMISE(resp.body->len <= req.body_cap);
    http_response_clear(&resp);
    return 0;
}
