/*
 * The shared files of the AWS tools: ~/.aws/credentials and ~/.aws/config.
 *
 * cred_files_load() reads both into tables of sections; cred_profile_fetch() follows one profile to keys, through source_profile to
 * others where needed. Both files are small and read anew at each refresh, so nothing is kept between calls and no lock is needed.
 *
 * The syntax is what botocore accepts: [section], key = value, '#' and ';' comments (at the end of a value after a space), indented
 * lines below a key without value as its sub-keys (stored as "key.subkey"). In the config file a profile is [profile x] or
 * [default], in the credentials file [x].
 */
#include "base/cleanup.h"
#include "s3_cred_int.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_CAP_BYTES   (1u << 20)
#define SOURCE_DEPTH_MAX 8
#define PROFILE_SECTION  "profile "
#define SERVICES_SECTION "services "

struct cred_files {
    GHashTable
        *credentials; /* section name -> (key -> value); config's profile sections are stored without "profile " */
    GHashTable *config;
    const char *credentials_path; /* borrowed from env */
    const char *config_path;
};

void cred_stamp_take(const char *path, struct cred_stamp *ret_stamp)
{
    struct stat st;
    memset(ret_stamp, 0, sizeof(*ret_stamp));
    if (stat(path, &st) != 0)
        return;
    ret_stamp->exists = true;
    ret_stamp->dev = st.st_dev;
    ret_stamp->ino = st.st_ino;
    ret_stamp->size = st.st_size;
    ret_stamp->ctime = st.st_ctim;
}

bool cred_stamp_equal(const struct cred_stamp *a, const struct cred_stamp *b)
{
    return a->exists == b->exists && a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           a->ctime.tv_sec == b->ctime.tv_sec && a->ctime.tv_nsec == b->ctime.tv_nsec;
}

/* ---- reading ---- */

int cred_io_error(int r)
{
    static const int passing[] = {EIO,        ETIMEDOUT, ESTALE,       ENOTCONN,    EREMOTEIO, ECONNREFUSED,
                                  ECONNRESET, ENETDOWN,  EHOSTUNREACH, ENETUNREACH, EHOSTDOWN, EMFILE,
                                  ENFILE,     ENOMEM,    EAGAIN,       EINTR,       ETXTBSY};
    for (size_t i = 0; i < G_N_ELEMENTS(passing); i++) {
        if (r == -passing[i])
            return -EIO;
    }
    return -EACCES;
}

struct openness { /* to users who are neither us nor root, nor of a group that root chose */
    bool readable, writable;
};

static int check_owner(const char *path, const struct stat *st, struct openness *ret_open, GString *why)
{
    if (!S_ISREG(st->st_mode)) {
        g_string_append_printf(why, "%s is not a regular file. ", path);
        return -EACCES;
    }
    if (st->st_mode & S_IWOTH) {
        g_string_append_printf(why, "%s may be written by anybody and is refused: chmod 600 it. ", path);
        return -EACCES;
    }
    ret_open->writable = (st->st_mode & S_IWGRP) || (st->st_uid != geteuid() && st->st_uid != 0);
    bool group_chosen = st->st_uid == 0 || st->st_gid == 0; /* as Kubernetes mounts secrets: root's, 0440 */
    ret_open->readable = ret_open->writable || (st->st_mode & S_IROTH) || ((st->st_mode & S_IRGRP) && !group_chosen);
    return 0;
}

/* In somebody else's home, as HOME says after a change of user: AWS tools see nothing there. */
static bool is_out_of_reach(const char *path)
{
    struct stat st;
    return stat(path, &st) != 0 && errno == EACCES;
}

/* Reads the whole file. An absent one gives an empty string, and so does one out of reach that was not asked for. */
static int read_file(const char *path, bool named, GString *text, struct openness *ret_open, GString *why)
{
    CLEANUP_FD int fd = RET_ERRNO(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (fd == -ENOENT || fd == -ENOTDIR || (fd == -EACCES && !named && is_out_of_reach(path)))
        return 0;
    if (fd < 0) {
        g_string_append_printf(why, "%s cannot be read: %s. ", path, err_text(fd));
        return cred_io_error(fd);
    }
    struct stat st;
    int r = RET_ERRNO(fstat(fd, &st));
    if (r < 0)
        return cred_io_error(r);
    r = check_owner(path, &st, ret_open, why);
    if (r < 0)
        return r;
    if (st.st_size > FILE_CAP_BYTES) {
        g_string_append_printf(why, "%s is larger than 1 MiB. ", path);
        return -EACCES;
    }
    /* One allocation, so that no copy of a secret stays behind in freed memory. */
    g_string_set_size(text, (size_t)st.st_size + 1);
    size_t have = 0;
    while (have < (size_t)st.st_size) {
        ssize_t n = RET_ERRNO(read(fd, text->str + have, (size_t)st.st_size - have));
        if (n == -EINTR)
            continue;
        if (n < 0) {
            g_string_append_printf(why, "%s cannot be read: %s. ", path, err_text((int)n));
            return cred_io_error((int)n);
        }
        if (n == 0)
            break;
        have += (size_t)n;
    }
    g_string_set_size(text, have);
    return 0;
}

/* ---- syntax ---- */

/* "[ profile "a b" ]" -> "profile a b"; NULL if there is no ']'. */
static char *section_name(const char *line)
{
    const char *end = strchr(line, ']');
    if (end == NULL)
        return NULL;
    g_autofree char *name = g_strstrip(g_strndup(line + 1, (size_t)(end - line - 1)));
    g_autofree char *rest = NULL;
    const char *prefix = "";
    if (strncmp(name, PROFILE_SECTION, strlen(PROFILE_SECTION)) == 0) {
        prefix = PROFILE_SECTION;
        rest = g_strstrip(g_strdup(name + strlen(PROFILE_SECTION)));
    } else {
        rest = g_strdup(name);
    }
    size_t len = strlen(rest);
    if (len >= 2 && (rest[0] == '"' || rest[0] == '\'') && rest[len - 1] == rest[0]) {
        rest[len - 1] = '\0';
        return g_strconcat(prefix, rest + 1, NULL);
    }
    return g_strconcat(prefix, rest, NULL);
}

static void strip_comment(char *value)
{
    for (char *p = value; *p != '\0'; p++) {
        if ((*p == '#' || *p == ';') && p > value && g_ascii_isspace(p[-1])) {
            *p = '\0';
            return;
        }
    }
}

/* Adds "key = value" to the section; an indented one belongs to `parent`. Returns false for what is no such line. */
static bool add_line(GHashTable *section, char *line, bool indented, char **parent)
{
    char *eq = strchr(line, '=');
    if (eq == NULL)
        return indented; /* continuation of a value we do not use */
    *eq = '\0';
    strip_comment(eq + 1);
    g_autofree char *key = g_ascii_strdown(g_strstrip(line), -1);
    char *value = g_strdup(g_strstrip(eq + 1));
    if (indented && *parent != NULL) {
        g_hash_table_replace(section, g_strconcat(*parent, ".", key, NULL), value);
        return true;
    }
    g_free(*parent);
    *parent = value[0] == '\0' ? g_strdup(key) : NULL;
    g_hash_table_replace(section, g_steal_pointer(&key), value);
    return true;
}

static GHashTable *section_get(GHashTable *sections, const char *name)
{
    GHashTable *s = g_hash_table_lookup(sections, name);
    if (s == NULL) {
        s = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)cred_wipe_free);
        g_hash_table_insert(sections, g_strdup(name), s);
    }
    return s;
}

/* Cuts text into lines in place. */
static int parse_ini(char *text, const char *path, GHashTable *sections, GString *why)
{
    GHashTable *section = NULL;
    g_autofree char *parent = NULL;
    unsigned n = 0;
    char *next = NULL;
    for (char *line = text; line != NULL; line = next) {
        n++;
        next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        bool indented = g_ascii_isspace(line[0]);
        g_strstrip(line);
        if (line[0] == '\0' || line[0] == '#' || line[0] == ';')
            continue;
        bool good;
        if (line[0] == '[') {
            g_autofree char *name = section_name(line);
            good = name != NULL;
            section = good ? section_get(sections, name) : NULL;
            g_clear_pointer(&parent, g_free);
        } else {
            good = section != NULL && add_line(section, line, indented, &parent);
        }
        if (!good) {
            g_string_append_printf(why, "%s: line %u is neither [section] nor key = value. ", path, n);
            return -EBADMSG;
        }
    }
    return 0;
}

static bool holds(GHashTable *sections, const char *key)
{
    GHashTableIter it;
    gpointer section;
    g_hash_table_iter_init(&it, sections);
    while (g_hash_table_iter_next(&it, NULL, &section)) {
        if (g_hash_table_contains(section, key))
            return true;
    }
    return false;
}

static int load_one(const char *path, bool named, GHashTable *sections, GString *why)
{
    struct openness open = {0};
    GString *text = g_string_new(NULL);
    int r = read_file(path, named, text, &open, why);
    if (r == 0 && strlen(text->str) != text->len) {
        g_string_append_printf(why, "%s holds a NUL byte. ", path);
        r = -EBADMSG;
    }
    size_t len = text->len;
    if (r == 0)
        r = parse_ini(text->str, path, sections, why);
    explicit_bzero(text->str, len);
    g_string_free(text, TRUE);
    if (r == 0 && open.writable && holds(sections, "credential_process")) {
        g_string_append_printf(
            why, "%s holds a credential_process and other users may write it: chmod 600 it and own it. ", path);
        r = -EACCES;
    }
    if (r == 0 && open.readable && holds(sections, "aws_secret_access_key")) {
        g_string_append_printf(
            why,
            "%s holds keys and is open to other users: chmod 600 it and own it, or chmod 440 it and have root own it. ",
            path);
        r = -EACCES;
    }
    return r;
}

/* Renames "profile x" to "x" and drops what is neither a profile nor services. */
static GHashTable *config_sections(GHashTable *raw)
{
    GHashTable *out = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)g_hash_table_unref);
    GHashTableIter it;
    gpointer name, section;
    g_hash_table_iter_init(&it, raw);
    while (g_hash_table_iter_next(&it, &name, &section)) {
        const char *s = name;
        if (strncmp(s, PROFILE_SECTION, strlen(PROFILE_SECTION)) == 0)
            s += strlen(PROFILE_SECTION);
        else if (strcmp(s, "default") == 0 && g_hash_table_contains(raw, PROFILE_SECTION "default"))
            continue; /* [profile default] goes before [default] */
        else if (strcmp(s, "default") != 0 && strncmp(s, SERVICES_SECTION, strlen(SERVICES_SECTION)) != 0)
            continue;
        g_hash_table_replace(out, g_strdup(s), g_hash_table_ref(section));
    }
    return out;
}

static GHashTable *sections_new(void)
{
    return g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)g_hash_table_unref);
}

int cred_files_load(const struct cred_env *env, struct cred_files **ret_files, GString *why)
{
    struct cred_files *f = g_new0(struct cred_files, 1);
    f->credentials_path = env->credentials_file;
    f->config_path = env->config_file;
    f->credentials = sections_new();
    g_autoptr(GHashTable) raw = sections_new();
    int r = load_one(env->credentials_file, env->credentials_file_named, f->credentials, why);
    if (r == 0)
        r = load_one(env->config_file, env->config_file_named, raw, why);
    if (r < 0) {
        cred_files_free(f);
        return r;
    }
    f->config = config_sections(raw);
    *ret_files = f;
    return 0;
}

void cred_files_free(struct cred_files *f)
{
    if (f == NULL)
        return;
    g_clear_pointer(&f->credentials, g_hash_table_unref);
    g_clear_pointer(&f->config, g_hash_table_unref);
    g_free(f);
}

static const char *lookup(GHashTable *sections, const char *section, const char *key)
{
    GHashTable *s = g_hash_table_lookup(sections, section);
    const char *v = s == NULL ? NULL : g_hash_table_lookup(s, key);
    return v == NULL || v[0] == '\0' ? NULL : v;
}

const char *cred_files_get(const struct cred_files *f, const char *profile, const char *key)
{
    const char *v = lookup(f->credentials, profile, key);
    return v != NULL ? v : lookup(f->config, profile, key);
}

bool cred_files_has(const struct cred_files *f, const char *profile)
{
    return g_hash_table_contains(f->credentials, profile) || g_hash_table_contains(f->config, profile);
}

const char *cred_files_endpoint(const struct cred_files *f, const char *profile, const char *service)
{
    const char *services = cred_files_get(f, profile, "services");
    if (services != NULL) {
        g_autofree char *section = g_strconcat(SERVICES_SECTION, services, NULL);
        g_autofree char *key = g_strconcat(service, ".endpoint_url", NULL);
        const char *v = lookup(f->config, section, key);
        if (v != NULL)
            return v;
    }
    return cred_files_get(f, profile, "endpoint_url");
}

/* ---- profiles ---- */

static int check_role(const struct cred_files *f, const char *profile, GString *why)
{
    bool source = cred_files_get(f, profile, "source_profile") != NULL;
    bool cred_source = cred_files_get(f, profile, "credential_source") != NULL;
    if (source == cred_source) {
        g_string_append_printf(
            why, "profile '%s' has role_arn and needs one of source_profile and credential_source with it. ", profile);
        return -EACCES;
    }
    if (cred_files_get(f, profile, "mfa_serial") != NULL) {
        g_string_append_printf(
            why, "profile '%s' asks for an MFA code, which a mount cannot give: use a role without mfa_serial. ",
            profile);
        return -EACCES;
    }
    return 0;
}

int cred_profile_kind(const struct cred_files *f, const char *profile, enum cred_profile_kind *ret_kind, GString *why)
{
    if (!cred_files_has(f, profile)) {
        g_string_append_printf(why, "profile '%s' is neither in %s nor in %s. ", profile, f->credentials_path,
                               f->config_path);
        return -ENOENT;
    }
    bool role = cred_files_get(f, profile, "role_arn") != NULL;
    bool access = cred_files_get(f, profile, "aws_access_key_id") != NULL;
    bool secret = cred_files_get(f, profile, "aws_secret_access_key") != NULL;
    enum cred_profile_kind kind = CRED_PROFILE_NONE;
    if (role && cred_files_get(f, profile, "web_identity_token_file") != NULL) {
        kind = CRED_PROFILE_WEB;
    } else if (role) {
        int r = check_role(f, profile, why);
        if (r < 0)
            return r;
        kind = CRED_PROFILE_ROLE;
    } else if (access != secret) {
        g_string_append_printf(why, "profile '%s' has %s without %s. ", profile,
                               access ? "aws_access_key_id" : "aws_secret_access_key",
                               access ? "aws_secret_access_key" : "aws_access_key_id");
        return -EACCES;
    } else if (access) {
        kind = CRED_PROFILE_KEYS;
    } else if (cred_files_get(f, profile, "credential_process") != NULL) {
        kind = CRED_PROFILE_PROCESS;
    } else if (cred_files_get(f, profile, "sso_session") != NULL ||
               cred_files_get(f, profile, "sso_start_url") != NULL) {
        g_string_append_printf(why,
                               "profile '%s' signs in by SSO: add a profile with credential_process = aws configure "
                               "export-credentials --profile %s, and use that. ",
                               profile, profile);
        return -EACCES;
    }
    *ret_kind = kind;
    return 0;
}

static int profile_keys(const struct cred_files *f, const char *profile, struct s3_keys *ret_keys, GString *why)
{
    return cred_keys_set(ret_keys, cred_files_get(f, profile, "aws_access_key_id"),
                         cred_files_get(f, profile, "aws_secret_access_key"),
                         cred_files_get(f, profile, "aws_session_token"), 0, why);
}

static int named_source(const struct cred_run *run, const char *name, struct s3_keys *ret_keys)
{
    if (g_ascii_strcasecmp(name, "Environment") == 0)
        return cred_env_fetch(run, ret_keys);
    if (g_ascii_strcasecmp(name, "Ec2InstanceMetadata") == 0) {
        int r = cred_imds_fetch(run, ret_keys);
        return r == -ENXIO ? -ECHILD : r; /* it may only have been slow */
    }
    if (g_ascii_strcasecmp(name, "EcsContainer") == 0)
        return cred_container_fetch(run, ret_keys);
    g_string_append_printf(run->why,
                           "credential_source '%s' is none of Environment, Ec2InstanceMetadata, EcsContainer. ", name);
    return -EACCES;
}

static int follow(const struct cred_run *run, const struct cred_files *f, const char *profile, unsigned depth,
                  struct s3_keys *ret_keys);

static int follow_role(const struct cred_run *run, const struct cred_files *f, const char *profile, unsigned depth,
                       struct s3_keys *ret_keys)
{
    struct cred_role role = {
        .arn = cred_files_get(f, profile, "role_arn"),
        .session_name = cred_files_get(f, profile, "role_session_name"),
        .external_id = cred_files_get(f, profile, "external_id"),
        .duration_s = cred_files_get(f, profile, "duration_seconds"),
    };
    const char *source = cred_files_get(f, profile, "source_profile");
    struct s3_keys keys = {0};
    int r;
    if (source == NULL)
        r = named_source(run, cred_files_get(f, profile, "credential_source"), &keys);
    else if (strcmp(source, profile) == 0) /* its own static keys */
        r = profile_keys(f, profile, &keys, run->why);
    else
        r = follow(run, f, source, depth + 1, &keys);
    if (r == 0)
        r = cred_sts_assume_role(run, &role, &keys, ret_keys);
    s3_keys_clear(&keys);
    return r == -ENXIO ? -EACCES : r;
}

static int follow(const struct cred_run *run, const struct cred_files *f, const char *profile, unsigned depth,
                  struct s3_keys *ret_keys)
{
    if (depth >= SOURCE_DEPTH_MAX) {
        g_string_append_printf(run->why, "profile '%s': the chain of source_profile is longer than %d or a circle. ",
                               profile, SOURCE_DEPTH_MAX);
        return -EACCES;
    }
    enum cred_profile_kind kind;
    int r = cred_profile_kind(f, profile, &kind, run->why);
    if (r < 0)
        return r == -ENOENT ? -EACCES : r;
    struct cred_role web = {
        .arn = cred_files_get(f, profile, "role_arn"),
        .session_name = cred_files_get(f, profile, "role_session_name"),
        .token_file = cred_files_get(f, profile, "web_identity_token_file"),
    };
    switch (kind) {
    case CRED_PROFILE_KEYS:
        return profile_keys(f, profile, ret_keys, run->why);
    case CRED_PROFILE_ROLE:
        return follow_role(run, f, profile, depth, ret_keys);
    case CRED_PROFILE_WEB:
        return cred_sts_web_identity(run, &web, ret_keys);
    case CRED_PROFILE_PROCESS:
        return cred_process_fetch(run, cred_files_get(f, profile, "credential_process"), ret_keys);
    case CRED_PROFILE_NONE:
        break;
    }
    g_string_append_printf(run->why, "profile '%s' has no credentials. ", profile);
    return -EACCES;
}

int cred_profile_fetch(const struct cred_run *run, struct s3_keys *ret_keys)
{
    struct cred_files *f = NULL;
    int r = cred_files_load(run->env, &f, run->why);
    if (r < 0)
        return r == -EBADMSG ? -EACCES : r;
    /* The files may have been away for long: no program is started after the end. */
    if (atomic_load_explicit(run->stop, memory_order_relaxed))
        r = -ECANCELED;
    else
        r = follow(run, f, run->env->profile, 0, ret_keys);
    cred_files_free(f);
    return r;
}
