/*
 * The supervisor of a mount: one thread that mounts and holds what must outlive the process that serves (the worker): the kernel's connection, the session's
 * memory, the cache's memory tier, the control socket and the program file. When the worker dies another one takes its place, and programs in the mount only wait
 * a little. It never looks into the mount: a process that waits for itself could not be ended.
 *
 *     sluice mount --fork--> supervisor --fork, exec "sluice --worker"--> worker
 *
 * A worker may ask for another program file to take over from it (channel.h, CHANNEL_UPGRADE). If that one does not serve soon the old one goes on.
 * A worker that serves without a sign of life for cfg->watchdog_ns is ended, which is a death like any other. So is one whose notifier (notifier.h) has ended: the next one gets another.
 * Messages between the two: channel.h. SIGTERM and SIGINT are handed on to the worker, which ends as if the mount had been taken away;
 * where that one is making room for another program, to a further worker.
 */
#pragma once
#include "config.h"

/* Serves the mount that cfg describes until it is unmounted or told to stop. Called before any thread is made. Writes to ready_fd (if >= 0): progress lines while
 * it starts, "ok\n" once the mount is served. Returns 0 after a clean unmount, else -errno with a line for the user in *ret_msg
 * (owned by the caller). */
int supervise(const struct config *cfg, int ready_fd, char **ret_msg) MUST_CHECK;
