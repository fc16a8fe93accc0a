/* Keys of a listing as names of a directory: a name is never one the kernel gives a meaning to, and leads back to its key alone. The same of keys as paths, for --escape percent. */
#include "../../s3/key_names.h"
#include "../../s3/s3_uri.h"
#include "fs/tree_apply.h"
#include "fuzz.h"

/* Each component of a path can be shown. */
static bool can_be_shown(const char *path)
{
    for (size_t n; *path; path += n + (path[n] == '/')) {
        n = strcspn(path, "/");
        if (n < 4096 && !tree_name_ok(path, n))
            return false;
    }
    return true;
}

/* Any key has a path that can be shown, and that is the one of no other key. */
static void check_key(const char *key)
{
    g_autoptr(GString) path = g_string_new(NULL);
    key_to_path(key, strlen(key), path);
    g_autofree char *back = key_of_path(path->str);
    PROMISE(can_be_shown(path->str) && path->str[0] != '/');
    PROMISE(back && strcmp(back, key) == 0);
    PROMISE(strchr(path->str, '/') || key_name_is_escaped(path->str, path->len) == (strcmp(path->str, key) != 0));
}

/* Any path that can be shown is that of one key, but for a file that would be a directory's marker. */
static void check_path(const char *path)
{
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    g_autofree char *key = key_of_path(path);
    bool shown = can_be_shown(path) && path[0] != '/' && !strstr(path, "//");
    PROMISE((key != NULL) == (shown && !key_name_is_empty(last)));
    if (!key)
        return;
    g_autoptr(GString) back = g_string_new(NULL);
    key_to_path(key, strlen(key), back);
    PROMISE(strcmp(back->str, path) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *text = g_strndup((const char *)data, size);
    check_key(text);
    check_path(text);
    const char *name = (const char *)data;
    bool prefix = size > 0 && name[size - 1] == '/';
    size_t len = prefix ? size - 1 : size;
    if (!tree_name_ok(name, len))
        return 0;
    PROMISE(len > 0 && len < 4096 && !memchr(name, '/', len) && !memchr(name, '\0', len));
    PROMISE(!(len == 1 && name[0] == '.') && !(len == 2 && name[0] == '.' && name[1] == '.'));
    g_autofree char *own = g_strndup(name, len);
    g_autofree char *key = g_strconcat("dir/", own, prefix ? "/" : NULL, NULL);
    PROMISE(strlen(key) == 4 + size && memcmp(key + 4, data, size) == 0);
    g_autoptr(GString) coded = g_string_new(NULL);
    g_autoptr(GString) back = g_string_new(NULL);
    s3_uri_encode(coded, key, strlen(key), true);
    PROMISE(s3_uri_decode(back, coded->str, coded->len, false) == 0 && strcmp(back->str, key) == 0);
    return 0;
}
