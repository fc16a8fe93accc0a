/*
 * Where the database is, when it is not on the cache disk (--journal-dir DIR), so that the loss of that disk does not take the journal along.
 *
 * CACHE_DIR/meta is then a symlink to DIR/NAME, where NAME comes from the canonical path of the first cache folder: one DIR serves several. The symlink is all that is recorded: a mount without the
 * option and `sluice fsck` follow it. What was made once is never guessed at: a symlink that leads nowhere (the disk of the journal is not mounted), or elsewhere than the option says, is refused,
 * and so is a database that is on the cache disk already. Where a cache folder has no database at all (its disk was replaced) that of DIR/NAME is taken up again.
 *
 * Callers hold the cache folder's instance lock, but for journal_dir_first().
 */
#pragma once
#include "base/err.h"

/* Of several cache folders, none of which has a database: the one whose database is in journal_dir comes first. NULL: nothing to do. */
void journal_dir_first(char **dirs, const char *journal_dir);
/* Before the database is opened; dirs[0] is the first cache folder, prepared. journal_dir NULL: what the folder says. *ret_msg: line for the user on failure. */
int journal_dir_settle(const char *const *dirs, const char *journal_dir, char **ret_msg) MUST_CHECK;
/* The real folder of the database, wherever it is and whether it was made yet. -ENOLINK with a line for the user when the symlink leads nowhere. *ret_path: the caller's. */
int journal_dir_find(const char *cache_dir, char **ret_path, char **ret_msg) MUST_CHECK;
