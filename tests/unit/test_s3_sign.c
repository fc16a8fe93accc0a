/* SigV4 against the vectors that AWS publishes: the general test suite and the examples of the S3 documentation. */
#include "../../s3/objstore.h"
#include "../../s3/s3_cred.h"
#include "../../s3/s3_req.h"
#include "../../s3/s3_sign.h"
#include "../../s3/s3_uri.h"
#include "tests/support/checks.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#endif

struct vector {
    const char *name, *method, *path, *query, *headers, *payload, *signature;
};

static const struct vector suite[] = {
    {"get-vanilla", "GET", "/", "", "", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"get-vanilla-query-order-key-case", "GET", "/", "Param1=value1&Param2=value2", "", "",
     "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
    {"get-vanilla-empty-query-key", "GET", "/", "Param1=value1", "", "",
     "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
    {"get-vanilla-utf8-query", "GET", "/", "%E1%88%B4=bar", "", "",
     "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
    {"get-utf8", "GET", "/%E1%88%B4", "", "", "", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
    {"get-header-value-trim", "GET", "/", "", "My-Header1: value1|My-Header2: \"a   b   c\"", "",
     "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
    {"get-header-key-duplicate", "GET", "/", "", "My-Header1:value2|My-Header1:value2|My-Header1:value1", "",
     "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
    {"post-vanilla", "POST", "/", "", "", "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
    {"post-x-www-form-urlencoded", "POST", "/", "", "Content-Type:application/x-www-form-urlencoded", "Param1=value1",
     "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
};

static const struct vector s3_examples[] = {
    {"GET object", "GET", "/test.txt", "", "Range: bytes=0-9", "",
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
    {"PUT object", "PUT", "/test%24file.text", "",
     "Date: Fri, 24 May 2013 00:00:00 GMT|x-amz-storage-class: REDUCED_REDUNDANCY", "Welcome to Amazon S3.",
     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
    {"GET lifecycle", "GET", "/", "lifecycle=", "", "",
     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
    {"list", "GET", "/", "max-keys=2&prefix=J", "", "",
     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
};

static GPtrArray *lines(const char *text)
{
    GPtrArray *out = g_ptr_array_new_with_free_func(g_free);
    g_auto(GStrv) parts = g_strsplit(text, "|", -1);
    for (char **p = parts; *p && **p; p++)
        g_ptr_array_add(out, g_strdup(*p));
    return out;
}

static void check_vector(const struct vector *v, struct s3_sign_in *in, const char *secret, GPtrArray *headers)
{
    struct s3_sign_key key;
    char sum[65];
    char date[9];
    s3_sha256_hex(v->payload, strlen(v->payload), sum);
    in->method = v->method;
    in->path = v->path;
    in->query = v->query;
    in->headers = headers;
    in->payload_hash = sum;
    g_strlcpy(date, in->amz_date, sizeof date);
    s3_sign_key_derive(secret, date, in->region, in->service, &key);
    g_autofree char *auth = s3_sign_request(in, &key);
    ck_assert_msg(g_str_has_suffix(auth, v->signature), "%s: %s", v->name, auth);
}

START_TEST(general_suite_gives_its_signatures)
{
    for (size_t i = 0; i < G_N_ELEMENTS(suite); i++) {
        struct s3_sign_in in = {
            .amz_date = "20150830T123600Z", .region = "us-east-1", .service = "service", .access_key = "AKIDEXAMPLE"};
        g_autoptr(GPtrArray) headers = lines(suite[i].headers);
        g_ptr_array_add(headers, g_strdup("Host:example.amazonaws.com"));
        g_ptr_array_add(headers, g_strdup("X-Amz-Date:20150830T123600Z"));
        check_vector(&suite[i], &in, "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", headers);
    }
}
END_TEST

START_TEST(examples_of_the_s3_documentation_give_their_signatures)
{
    for (size_t i = 0; i < G_N_ELEMENTS(s3_examples); i++) {
        struct s3_sign_in in = {.amz_date = "20130524T000000Z",
                                .region = "us-east-1",
                                .service = "s3",
                                .access_key = "AKIAIOSFODNN7EXAMPLE"};
        char sum[65];
        s3_sha256_hex(s3_examples[i].payload, strlen(s3_examples[i].payload), sum);
        g_autoptr(GPtrArray) headers = lines(s3_examples[i].headers);
        g_ptr_array_add(headers, g_strdup("Host: examplebucket.s3.amazonaws.com"));
        g_ptr_array_add(headers, g_strdup("x-amz-date: 20130524T000000Z"));
        g_ptr_array_add(headers, g_strconcat("x-amz-content-sha256: ", sum, NULL));
        check_vector(&s3_examples[i], &in, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", headers);
    }
}
END_TEST

START_TEST(canonical_request_is_the_documented_text)
{
    g_autoptr(GPtrArray) headers =
        lines("Host: examplebucket.s3.amazonaws.com|Range: bytes=0-9|x-amz-content-sha256: " S3_HASH_EMPTY
              "|x-amz-date: 20130524T000000Z");
    struct s3_sign_in in = {.method = "GET",
                            .path = "/test.txt",
                            .query = "",
                            .headers = headers,
                            .payload_hash = S3_HASH_EMPTY,
                            .amz_date = "20130524T000000Z",
                            .region = "us-east-1",
                            .service = "s3"};
    g_autofree char *canonical = s3_sign_canonical(&in);
    g_autofree char *to_sign = s3_sign_string(&in, canonical);
    ck_assert_str_eq(canonical,
                     "GET\n/test.txt\n\nhost:examplebucket.s3.amazonaws.com\nrange:bytes=0-9\n"
                     "x-amz-content-sha256:" S3_HASH_EMPTY
                     "\nx-amz-date:20130524T000000Z\n\nhost;range;x-amz-content-sha256;x-amz-date\n" S3_HASH_EMPTY);
    ck_assert_str_eq(to_sign, "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n"
                              "7344ae5b7ee6c3e7e6b0fe0640412a37625d1fbfff95c48bbb2dc43964946972");
}
END_TEST

START_TEST(request_sorts_its_query_by_encoded_name_and_encodes_each_byte)
{
    struct s3_req req;
    struct s3_endpoint ep = {0};
    struct s3_keys keys = {.anonymous = true};
    g_autofree char *msg = NULL;
    g_autofree char *url = NULL;
    g_autoptr(GPtrArray) headers = NULL;
    ck_assert_int_eq(s3_endpoint_parse("http://127.0.0.1:8000/base/", "r", "bkt", false, &ep, &msg), 0);
    s3_req_init(&req, "GET", g_strdup("dt=1/a b+\xc3\xa4/./..//x"));
    s3_req_query(&req, "prefix-x", "1");
    s3_req_query(&req, "prefix", "a/b =&");
    s3_req_query(&req, "uploads", "");
    struct s3_req_site site = {.ep = &ep, .bucket = "bkt", .region = "r", .keys = &keys};
    s3_req_build(&req, &site, &url, &headers);
    ck_assert_str_eq(url, "http://127.0.0.1:8000/base/bkt/dt%3D1/a%20b%2B%C3%A4/./..//x"
                          "?prefix=a%2Fb%20%3D%26&prefix-x=1&uploads=");
    ck_assert_uint_eq(headers->len, 1);
    ck_assert_str_eq(headers->pdata[0], "Host: 127.0.0.1:8000");
    s3_req_fini(&req);
    s3_endpoint_clear(&ep);
}
END_TEST

#if defined(__x86_64__)
#define CPUID_LEN 2

/* The child: what is done for each request, between two stops. */
static void hash_between_stops(void)
{
    char sum[65];
    (void)s3_sha256_is_fast();
    s3_sha256_hex("once", 4, sum);
    (void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    (void)raise(SIGSTOP);
    (void)s3_sha256_is_fast();
    s3_sha256_hex("twice", 5, sum);
    (void)raise(SIGSTOP);
    _exit(0);
}

static bool is_cpuid(pid_t pid)
{
    static const uint8_t cpuid[CPUID_LEN] = {0x0f, 0xa2};
    struct user_regs_struct regs;
    ck_assert_int_eq(ptrace(PTRACE_GETREGS, pid, NULL, &regs), 0);
    errno = 0;
    long word = ptrace(PTRACE_PEEKTEXT, pid, (void *)(uintptr_t)regs.rip, NULL);
    return errno == 0 && memcmp(&word, cpuid, sizeof(cpuid)) == 0;
}

START_TEST(cpu_is_asked_for_its_instructions_once)
{
    int status;
    unsigned n = 0;
    pid_t pid = fork();
    if (pid == 0)
        hash_between_stops();
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    do {
        n += is_cpuid(pid);
        ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    } while (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    ck_assert(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, &status, 0);
    ck_assert_uint_eq(n, 0);
}
END_TEST
#endif

int main(void)
{
    Suite *s = suite_create("s3_sign");
    TCase *t = tcase_create("sign");
    tcase_add_test(t, general_suite_gives_its_signatures);
    tcase_add_test(t, examples_of_the_s3_documentation_give_their_signatures);
    tcase_add_test(t, canonical_request_is_the_documented_text);
    tcase_add_test(t, request_sorts_its_query_by_encoded_name_and_encodes_each_byte);
#if defined(__x86_64__)
    tcase_add_test(t, cpu_is_asked_for_its_instructions_once);
#endif
    suite_add_tcase(s, t);
    return run_suite(s);
}
