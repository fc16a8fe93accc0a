/*
 * Background warm-ups that outlive their worker: a record "warmup/ID" of the database for each, with what was asked for, its state and, once it ended, its counts.
 *
 * Two rules:
 *  1. The list is in the cache folder before the record is, and goes after the record says that the job has ended: a record that says "running" has its list.
 *  2. A record says "running" until the job has ended by itself or was cancelled. So whatever ends the worker, the next one goes on with the job.
 * But for one that worker after worker did not survive for a minute: the fourth leaves it stopped.
 * What was fetched is not in the record: the cache knows it, and the job looks at every file again.
 */
#pragma once
#include "warm.h"

#include <jansson.h>

/* The counts as members of o. */
void warm_counts_put(json_t *o, const struct warm_progress *p);

/* Stores the record of a kept job in the given state, `first`: together with its number as the last one given. */
int warm_job_save(struct warm *w, enum warm_state state, bool first) MUST_CHECK;
/* The record and the list. */
void warm_job_forget(struct fs *fs, uint64_t id);
/* Highest id given to a kept job so far. */
uint64_t warm_job_last_id(struct fs *fs);
/* What ended is known again, what did not goes on. Once, when cache and publisher are up. */
void warm_jobs_resume(struct fs *fs);
/* Waits until that was done, or the daemon stops: commands are answered before. False: the deadline (monotonic) has passed. */
bool warm_jobs_known(struct fs *fs, uint64_t deadline_ns);
