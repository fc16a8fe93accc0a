/*
 * What the fuzz targets share. A target is one file, fuzz_NAME.c, with LLVMFuzzerTestOneInput(): it feeds one input to code that reads what
 * others wrote, and aborts when a promise of that code does not hold. Inputs worth keeping are in corpus/NAME; they run as the unit test
 * fuzz_NAME in every build (fuzz_main.c), and are what `tests/run.sh fuzz` starts from.
 */
#pragma once
#include "base/log.h"

#include <glib.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A failed promise: aborts in every build. */
#define PROMISE(x) g_assert_true(x)

/* Up to n pieces of the input, cut at newlines, the last one with the rest; those that are not there are "". Owned by the caller. */
static inline GStrv fuzz_lines(const uint8_t *data, size_t size, unsigned n)
{
    g_autofree char *text = g_strndup((const char *)data, size);
    g_auto(GStrv) parts = g_strsplit(text, "\n", (int)n);
    GStrv all = g_new0(char *, n + 1);
    guint have = g_strv_length(parts);
    for (guint i = 0; i < n; i++)
        all[i] = i < have ? g_steal_pointer(&parts[i]) : g_strdup("");
    return all;
}

/* The input as a file that only we may read; path gets its name, good until the descriptor returned is closed. */
static inline int fuzz_file(const uint8_t *data, size_t size, char path[32])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    PROMISE(fd >= 0 && fchmod(fd, 0600) == 0 && write(fd, data, size) == (ssize_t)size);
    g_snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}
