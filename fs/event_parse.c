#include "event_parse.h"

#include "base/log.h"
#include "s3_uri.h"

#include <jansson.h>
#include <string.h>

#define KEY_MAX_BYTES 4096u /* no store takes longer ones */
#define ENVELOPES_MAX 2u    /* SNS in SNS makes no sense, but is harmless */
#define REPLACEMENT   "\xef\xbf\xbd"

enum verdict { V_OTHER, V_CREATED, V_TOUCHED, V_REMOVED };

/* Beginnings of event names (less a leading "s3:"), and EventBridge's kinds. V_TOUCHED: the object may be the same, what can be done with it is not. */
static const struct {
    const char *begin;
    enum verdict verdict;
} kinds[] = {
    {"ObjectCreated:", V_CREATED},
    {"ObjectSynced:Create", V_CREATED},
    {"Object Created", V_CREATED},
    {"ObjectRestore:Completed", V_TOUCHED},
    {"Object Restore Completed", V_TOUCHED},
    {"LifecycleTransition", V_TOUCHED},
    {"ObjectLifecycle:Transition", V_TOUCHED},
    {"ObjectTransition:", V_TOUCHED},
    {"Object Storage Class Changed", V_TOUCHED},
    {"ObjectRemoved:", V_REMOVED},
    {"ObjectSynced:Delete", V_REMOVED},
    {"ObjectSynced:DeletionMarkerCreated", V_REMOVED},
    {"LifecycleExpiration:", V_REMOVED},
    {"ObjectLifecycle:Expiration", V_REMOVED},
    {"ObjectExpiration:", V_REMOVED},
    {"Object Deleted", V_REMOVED},
};

static enum verdict kind_of(const char *name)
{
    const char *bare = g_str_has_prefix(name, "s3:") ? name + 3 : name;
    for (unsigned i = 0; i < G_N_ELEMENTS(kinds); i++)
        if (g_str_has_prefix(bare, kinds[i].begin))
            return kinds[i].verdict;
    return V_OTHER;
}

static void record_free(void *arg)
{
    struct event_record *rec = arg;
    g_free(rec->bucket);
    g_free(rec->keys[0]);
    g_free(rec->keys[1]);
    g_free(rec);
}

void event_list_clear(struct event_list *list)
{
    g_clear_pointer(&list->records, g_ptr_array_unref);
    g_clear_pointer(&list->subscribe_url, g_free);
    list->n_others = 0;
}

/* NULL: no such text. Borrowed. */
static const char *text_at(const json_t *obj, const char *name)
{
    return json_string_value(json_object_get(obj, name));
}

/* NULL: the text is not encoded in this way, or is what it stands for. Owned. */
static char *decoded(const char *key)
{
    g_autoptr(GString) out = g_string_new(NULL);
    bool ok = s3_uri_decode(out, key, strlen(key), true) == 0 && !memchr(out->str, '\0', out->len);
    return ok && strcmp(out->str, key) != 0 ? g_string_free(g_steal_pointer(&out), FALSE) : NULL;
}

static void set_keys(struct event_record *rec, const char *source, const char *key)
{
    bool encoded = g_str_has_prefix(source, "aws:") || g_str_has_prefix(source, "minio:");
    char *other = decoded(key);
    rec->keys[0] = encoded && other ? other : g_strdup(key);
    rec->keys[1] = encoded ? NULL : other;
}

/* Bytes that JSON cannot carry were replaced before it was read: what is left of the key is its directory, up to there. */
static void set_vague(struct event_record *rec)
{
    char *key = rec->keys[0], *bad = strstr(key, REPLACEMENT);
    if (!bad)
        return;
    *bad = '\0';
    char *slash = strrchr(key, '/');
    *(slash ? slash + 1 : key) = '\0';
    rec->vague = true;
    g_clear_pointer(&rec->keys[1], g_free);
}

static void set_etag(struct event_record *rec, const char *tag)
{
    size_t len = tag ? strlen(tag) : 0;
    if (len >= 2 && tag[0] == '"' && tag[len - 1] == '"') {
        tag++;
        len -= 2;
    }
    if (len > 0 && len <= ETAG_MAX && !memchr(tag, ' ', len))
        memcpy(rec->etag.s, tag, len); /* zeroed before */
}

struct parse {
    struct event_list *list;
    bool lossy; /* bytes were replaced */
};

/* One event: its kind, who sent it, and the objects that hold bucket and key. */
static int take_event(struct parse *p, const char *name, const char *source, const json_t *bucket, const json_t *object)
{
    enum verdict verdict = name ? kind_of(name) : V_OTHER;
    if (!name)
        return -EBADMSG;
    if (verdict == V_OTHER) {
        p->list->n_others++;
        return 0;
    }
    const char *where = text_at(bucket, "name"), *key = text_at(object, "key");
    if (!where || !key)
        return -EBADMSG;
    if (!*key || strlen(key) > KEY_MAX_BYTES) {
        p->list->n_others++;
        return 0;
    }
    struct event_record *rec = g_new0(struct event_record, 1);
    rec->created = verdict != V_REMOVED;
    rec->bucket = g_strdup(where);
    set_keys(rec, source ? source : "", key);
    if (p->lossy)
        set_vague(rec);
    const char *tag = text_at(object, "eTag");
    if (verdict == V_CREATED)
        set_etag(rec, tag ? tag : text_at(object, "etag"));
    g_ptr_array_add(p->list->records, rec);
    return 0;
}

static int take_record(struct parse *p, const json_t *rec)
{
    const json_t *s3 = json_object_get(rec, "s3");
    const char *name = text_at(rec, "eventName");
    return take_event(p, name, text_at(rec, "eventSource"), json_object_get(s3, "bucket"),
                      json_object_get(s3, "object"));
}

static int take_detail(struct parse *p, const json_t *root, const json_t *detail)
{
    return take_event(p, text_at(root, "detail-type"), "", json_object_get(detail, "bucket"),
                      json_object_get(detail, "object"));
}

static int take_text(struct parse *p, const char *text, size_t len, unsigned depth);

static int take_envelope(struct parse *p, const json_t *root, const char *type, unsigned depth)
{
    const char *message = text_at(root, "Message"), *url = text_at(root, "SubscribeURL");
    if (g_str_equal(type, "Notification") && message)
        return depth < ENVELOPES_MAX ? take_text(p, message, strlen(message), depth + 1) : -EBADMSG;
    if (!url)
        return -EBADMSG;
    g_free(p->list->subscribe_url);
    p->list->subscribe_url = g_str_equal(type, "SubscriptionConfirmation") ? g_strdup(url) : NULL;
    p->list->n_others++;
    return 0;
}

static int take_root(struct parse *p, const json_t *root, unsigned depth)
{
    const json_t *records = json_object_get(root, "Records"), *detail = json_object_get(root, "detail");
    const char *type = text_at(root, "Type");
    int r = 0;
    if (json_is_array(records)) {
        for (size_t i = 0; r == 0 && i < json_array_size(records); i++)
            r = take_record(p, json_array_get(records, i));
        return r;
    }
    if (json_is_object(detail))
        return take_detail(p, root, detail);
    if (type)
        return take_envelope(p, root, type, depth);
    if (!text_at(root, "Event")) /* a test of AWS, once a configuration was made */
        return -EBADMSG;
    p->list->n_others++;
    return 0;
}

static int take_text(struct parse *p, const char *text, size_t len, unsigned depth)
{
    json_t *root = json_loadb(text, len, 0, NULL);
    int r = root ? take_root(p, root, depth) : -EBADMSG;
    json_decref(root);
    return r;
}

int event_parse(const char *text, size_t len, struct event_list *ret)
{
    struct event_list list = {.records = g_ptr_array_new_with_free_func(record_free)};
    struct parse p = {.list = &list};
    g_autofree char *valid = NULL;
    if (!g_utf8_validate_len(text, len, NULL)) {
        valid = g_utf8_make_valid(text, (gssize)len);
        text = valid;
        len = strlen(valid);
        p.lossy = true;
    }
    int r = take_text(&p, text, len, 0);
    if (r < 0)
        event_list_clear(&list);
    else
        *ret = list;
    return r;
}
