/* What a start has to set right before it serves: files that were open, removed while open, or written in a boot that ended badly. */
#pragma once
#include "fs.h"

/* Needs meta and cache; before publish_open(). */
int fs_recover(struct fs *fs) MUST_CHECK;
