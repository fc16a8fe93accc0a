/*
 * A start that finds a cache disk empty though the database knows of unpublished files on it: the disk was replaced, or is not mounted. Nothing is served then, so that whoever can bring the
 * disk back does; with --accept-loss the files are given up: each is named, and quarantined at once, not when somebody opens it.
 *
 * One data file that is missing among others is none of this (content.h finds it), and so is what a loss of power took from a disk that had not been told to keep it (recover.h).
 */
#pragma once
#include "fs.h"

/* After cache_open(), before anything looks at files. -ENODATA with a line for the user: not accepted. */
int lost_cache_settle(struct fs *fs, char **ret_msg) MUST_CHECK;
