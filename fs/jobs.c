/* Life cycle of background work: what runs is stopped and waited for before the cache goes. */
#include "jobs.h"

#include "warm_job.h"
#include "warm_list.h"

int jobs_open(struct fs *fs)
{
    struct jobs *j = g_new0(struct jobs, 1);
    int r = workq_new("pin", 1, &j->pin_q);
    if (r < 0) {
        g_free(j);
        return r;
    }
    mutex_init(&j->mu, LOCK_CTL);
    cond_init(&j->idle);
    j->last_id = j->left_id = warm_job_last_id(fs);
    warm_list_tidy(fs->cache_dir, j->last_id); /* before anybody can ask for more */
    j->warms = g_ptr_array_new_with_free_func((GDestroyNotify)warm_unref);
    j->pin_paths = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    j->fetching = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    j->to_fetch = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    j->failed = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
    fs->jobs = j;
    return 0;
}

void jobs_close(struct fs *fs)
{
    struct jobs *j = fs->jobs;
    if (!j)
        return;
    mutex_lock(&j->mu);
    j->closing = true;
    cond_broadcast(&j->idle);
    g_autoptr(GPtrArray) running = g_ptr_array_new_with_free_func((GDestroyNotify)warm_unref);
    for (unsigned i = 0; i < j->warms->len; i++)
        g_ptr_array_add(running, warm_ref(j->warms->pdata[i]));
    mutex_unlock(&j->mu);
    for (unsigned i = 0; i < running->len; i++)
        warm_stop(running->pdata[i]);
    workq_stop(j->pin_q);
    mutex_lock(&j->mu);
    while (j->live > 0)
        cond_wait(&j->idle, &j->mu);
    mutex_unlock(&j->mu);
}

void jobs_fini(struct fs *fs)
{
    struct jobs *j = fs->jobs;
    if (!j)
        return;
    workq_free(j->pin_q);
    g_ptr_array_unref(j->warms);
    g_hash_table_unref(j->pin_paths);
    g_hash_table_unref(j->fetching);
    g_hash_table_unref(j->to_fetch);
    g_hash_table_unref(j->failed);
    cond_fini(&j->idle);
    mutex_fini(&j->mu);
    g_free(j);
    fs->jobs = NULL;
}
