/*
 * Percent coding, sources and endpoints; see s3_uri.h. No state, no locks.
 *
 * Buckets go into the host for AWS (path style is on its way out there and absent in newer regions) and stay in the path for everybody
 * else, where wildcard DNS is rare. A bucket with a dot stays in the path on TLS: the wildcard certificate does not cover it.
 */
#include "s3_uri.h"

#include <arpa/inet.h>
#include <string.h>

static bool unreserved(unsigned char c)
{
    return g_ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '~';
}

void s3_uri_encode(GString *out, const char *s, size_t len, bool keep_slash)
{
    static const char hex[] = "0123456789ABCDEF";
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (unreserved(c) || (c == '/' && keep_slash)) {
            g_string_append_c(out, (char)c);
        } else {
            char esc[3] = {'%', hex[c >> 4], hex[c & 15]};
            g_string_append_len(out, esc, 3);
        }
    }
}

int s3_uri_decode(GString *out, const char *s, size_t len, bool plus_is_space)
{
    size_t start = out->len;
    for (size_t i = 0; i < len; i++) {
        if (s[i] != '%') {
            g_string_append_c(out, s[i] == '+' && plus_is_space ? ' ' : s[i]);
            continue;
        }
        if (i + 2 >= len || !g_ascii_isxdigit(s[i + 1]) || !g_ascii_isxdigit(s[i + 2])) {
            g_string_truncate(out, start);
            return -EBADMSG;
        }
        g_string_append_c(out, (char)(g_ascii_xdigit_value(s[i + 1]) * 16 + g_ascii_xdigit_value(s[i + 2])));
        i += 2;
    }
    return 0;
}

static bool bucket_valid(const char *s)
{
    size_t n = strlen(s);
    if (n < 3 || n > 255 || s[0] == '.' || s[0] == '-')
        return false;
    for (const char *p = s; *p; p++) {
        if (!g_ascii_isalnum(*p) && *p != '-' && *p != '.' && *p != '_')
            return false;
    }
    return true;
}

static int source_s3(const char *rest, struct s3_source *ret, char **ret_msg)
{
    const char *slash = strchr(rest, '/');
    g_autofree char *bucket = slash ? g_strndup(rest, (gsize)(slash - rest)) : g_strdup(rest);
    if (!bucket_valid(bucket)) {
        *ret_msg = g_strdup_printf("'%s' is not a bucket name; write s3://bucket or s3://bucket/prefix", bucket);
        return -EINVAL;
    }
    const char *prefix = slash ? slash + 1 : "";
    size_t len = strlen(prefix);
    if (len && prefix[len - 1] == '/')
        len--;
    g_autofree char *clean = g_strndup(prefix, len);
    g_auto(GStrv) parts = g_strsplit(clean, "/", -1);
    for (char **p = parts; *p; p++) {
        if (**p == '\0' || strcmp(*p, ".") == 0 || strcmp(*p, "..") == 0) {
            *ret_msg = g_strdup_printf("prefix '%s' has an empty, '.' or '..' component", prefix);
            return -EINVAL;
        }
    }
    if (len > 900) {
        *ret_msg = g_strdup("the prefix is longer than 900 bytes, which leaves no room for names (a key holds 1024)");
        return -EINVAL;
    }
    ret->scheme = g_strdup("s3");
    ret->bucket = g_steal_pointer(&bucket);
    ret->prefix = len ? g_strconcat(clean, "/", NULL) : g_strdup("");
    return 0;
}

int s3_source_parse(const char *source, struct s3_source *ret, char **ret_msg)
{
    if (g_str_has_prefix(source, "s3://"))
        return source_s3(source + 5, ret, ret_msg);
    if (g_str_has_prefix(source, "file:///")) {
        char *dir = g_strdup(source + 7);
        for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/'; n--)
            dir[n - 1] = '\0';
        ret->scheme = g_strdup("file");
        ret->bucket = g_strdup("");
        ret->prefix = dir;
        return 0;
    }
    *ret_msg = g_strdup_printf("'%s' is not a source; write s3://bucket[/prefix] or file:///absolute/dir", source);
    return -EINVAL;
}

void s3_source_clear(struct s3_source *src)
{
    g_free(src->scheme);
    g_free(src->bucket);
    g_free(src->prefix);
    memset(src, 0, sizeof *src);
}

char *s3_source_format(const struct s3_source *src)
{
    g_autofree char *prefix = g_strdup(src->prefix);
    size_t n = strlen(prefix);
    if (n > 1 && prefix[n - 1] == '/')
        prefix[n - 1] = '\0';
    if (strcmp(src->scheme, "file") == 0)
        return g_strconcat("file://", prefix, NULL);
    return g_strconcat("s3://", src->bucket, *prefix ? "/" : "", prefix, NULL);
}

static bool host_is_loopback(const char *name)
{
    struct in_addr v4;
    if (g_ascii_strcasecmp(name, "localhost") == 0 || g_str_has_suffix(name, ".localhost"))
        return true;
    if (strcmp(name, "[::1]") == 0)
        return true;
    return inet_pton(AF_INET, name, &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

static bool host_is_address(const char *name)
{
    struct in_addr v4;
    return name[0] == '[' || inet_pton(AF_INET, name, &v4) == 1;
}

/* Splits "host:port"; drops the scheme's own port, as clients do in the Host header. */
static int authority_parse(const char *authority, bool tls, char **ret_name, char **ret_host, char **ret_msg)
{
    const char *end = authority[0] == '[' ? strchr(authority, ']') : NULL;
    const char *colon = strchr(end ? end : authority, ':');
    g_autofree char *name = colon ? g_strndup(authority, (gsize)(colon - authority)) : g_strdup(authority);
    guint64 port = 0;
    if (name[0] == '\0' || strpbrk(name, " @?#\\\r\n\t\"'<>%") || (name[0] == '[' && !end)) {
        *ret_msg = g_strdup_printf("endpoint host '%s' is not a host name", name);
        return -EINVAL;
    }
    if (colon && !g_ascii_string_to_unsigned(colon + 1, 10, 1, 65535, &port, NULL)) {
        *ret_msg = g_strdup_printf("endpoint port '%s' is not a port number", colon + 1);
        return -EINVAL;
    }
    if (port == 0 || port == (tls ? 443 : 80))
        *ret_host = g_strdup(name);
    else
        *ret_host = g_strdup_printf("%s:%u", name, (unsigned)port);
    *ret_name = g_steal_pointer(&name);
    return 0;
}

int s3_endpoint_parse(const char *url, const char *region, const char *bucket, bool force_path_style,
                      struct s3_endpoint *ret, char **ret_msg)
{
    g_autofree char *aws_url = NULL;
    if (!url || !*url) {
        const char *r = region && *region ? region : "us-east-1";
        const char *tail = g_str_has_prefix(r, "cn-") ? ".cn" : "";
        aws_url = g_strdup_printf("https://s3.%s.amazonaws.com%s", r, tail);
        url = aws_url;
    }
    bool tls = g_ascii_strncasecmp(url, "https://", 8) == 0;
    if (!tls && g_ascii_strncasecmp(url, "http://", 7) != 0) {
        *ret_msg = g_strdup_printf("endpoint '%s' begins with neither https:// nor http://", url);
        return -EINVAL;
    }
    const char *authority = url + (tls ? 8 : 7);
    size_t n = strcspn(authority, "/");
    g_autofree char *hostport = g_strndup(authority, n);
    g_autofree char *name = NULL;
    g_autofree char *host = NULL;
    if (strpbrk(authority, "?# \r\n")) {
        *ret_msg = g_strdup_printf("endpoint '%s' may hold scheme, host, port and path only", url);
        return -EINVAL;
    }
    int r = authority_parse(hostport, tls, &name, &host, ret_msg);
    if (r < 0)
        return r;
    g_autofree char *base = g_strdup(authority + n);
    for (size_t len = strlen(base); len && base[len - 1] == '/'; len--)
        base[len - 1] = '\0';
    g_autofree char *dotted = g_strconcat(bucket, ".", NULL);
    bool named = *bucket && g_ascii_strncasecmp(name, dotted, strlen(dotted)) == 0 && !host_is_address(name);
    ret->tls = tls;
    ret->loopback = host_is_loopback(name);
    ret->aws = g_str_has_suffix(name, ".amazonaws.com") || g_str_has_suffix(name, ".amazonaws.com.cn");
    ret->virtual_host = named || (*bucket && ret->aws && !force_path_style && !(tls && strchr(bucket, '.')));
    ret->host = ret->virtual_host && !named ? g_strconcat(dotted, host, NULL) : g_strdup(host);
    ret->base_path = g_steal_pointer(&base);
    return 0;
}

void s3_endpoint_clear(struct s3_endpoint *ep)
{
    g_free(ep->host);
    g_free(ep->base_path);
    memset(ep, 0, sizeof *ep);
}

char *s3_endpoint_path(const struct s3_endpoint *ep, const char *bucket, const char *key)
{
    GString *out = g_string_new(NULL);
    s3_uri_encode(out, ep->base_path, strlen(ep->base_path), true);
    if (!ep->virtual_host && *bucket) {
        g_string_append_c(out, '/');
        s3_uri_encode(out, bucket, strlen(bucket), false);
    }
    if (key || out->len == 0)
        g_string_append_c(out, '/');
    if (key)
        s3_uri_encode(out, key, strlen(key), true);
    return g_string_free(out, FALSE);
}
