/*
 * What a warm-up is asked for, as paths of one mount: collects words and names of manifests in a temporary file, so that their number costs no memory, and
 * sends them to the mount's daemon. Names that lie in no mount, or in another one than those before, are named (the first of them), counted and left out. Single-threaded.
 */
#pragma once
#include "tools/ctl_client.h"
#include "tools/manifest.h"
#include "tools/warm_sources.h"

#define WARM_NAMED 20 /* of names that are wrong or not there */

struct warm_names {
    struct mount_point mount; /* of the first name; path NULL: none yet */
    char *base;               /* owned: relative names are below it */
    char *json_base;          /* owned: those of the JSON document that is read */
    bool base_given;
    struct warm_sources sources; /* what URLs lie in */
    FILE *spool;                 /* paths relative to the mount, a NUL behind each */
    uint64_t n, bytes, n_bad;
    int code; /* the worst so far */
};

/* base: NULL: the working directory, and for names in JSON the document's. False after complaining. */
bool warm_names_init(struct warm_names *wn, const char *base);
void warm_names_clear(struct warm_names *wn);
/* A path or URL as the user wrote it. */
void warm_names_add(struct warm_names *wn, const char *name);
/* What the manifest at path ("-": standard input) names. False after complaining. */
bool warm_names_read(struct warm_names *wn, const char *path, enum manifest_kind kind);
/* Sends req (stolen) with all names, in one piece. Asks again when the daemon was replaced meanwhile: what it did by then is not done twice. Exit code, the worst of all. */
int warm_names_send(struct warm_names *wn, json_t *req, unsigned quiet_s, ctl_line_fn *fn, void *ctx);
