/*
 * Lists of files as training code keeps them, read as streams: names come one by one, nothing is kept but a JSON document, which is read as a whole.
 *
 *   list         one path a line
 *   safetensors  model.safetensors.index.json: the files its weight_map names, each once
 *   webdataset   shards, one a line, as its users write them: "shard-{000000..000099}.tar", "a.tar::b.tar", "{train,val}.tar", s3://..., "pipe:aws s3 cp s3://... -";
 *                or JSON: a list of them, or an object with a "shardlist" of {"url": ...}
 *   auto         JSON by what it holds; a line with a range in braces, a URL or "pipe:" as webdataset's; other lines as paths
 *
 * Knows nothing of mounts: what a name means is the caller's affair.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum manifest_kind { MANIFEST_AUTO, MANIFEST_LIST, MANIFEST_SAFETENSORS, MANIFEST_WEBDATASET };

#define MANIFEST_MAX_JSON  (256u << 20)
#define MANIFEST_MAX_NAMES 1000000u /* that one pattern may stand for */

/* One name; in_json: it comes from a JSON document, where names are relative to the document. false stops the reading, which then has failed. */
typedef bool manifest_fn(void *ctx, const char *name, bool in_json);

/* The kind of that name; false: there is none. */
bool manifest_kind_of(const char *word, enum manifest_kind *ret);
/* Hands over every name in `in`, in order. False when it cannot be read: *ret_error, owned by the caller, says why (NULL: fn stopped it). */
bool manifest_read(FILE *in, enum manifest_kind kind, manifest_fn *fn, void *ctx, char **ret_error);
/* What a pattern stands for: numbers {000..099}, with a step {0..9..3}, letters {a..c}, words {x,y}, one within the other. As above. */
bool manifest_expand(const char *pattern, manifest_fn *fn, void *ctx, char **ret_error);
