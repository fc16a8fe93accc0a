/* Rules of `sluice pin --latest N GLOB`. */
#pragma once
#include "fs.h"

/* A file was sealed, renamed or appeared at path: rules whose glob matches pin the newest N, fetch what is absent of them behind, unpin the others. */
void pin_rules_apply(struct fs *fs, const char *path);
