/*
 * The kernel's side of backing ids, made up: takes the place of the C library's ioctl(). For one file of a test program that uses takeover.h.
 */
#pragma once
#include "takeover.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BACKING_OPEN  0x4010e501ul
#define BACKING_CLOSE 0x4004e502ul

static inline bool backing_is_closed(int id)
{
    return __atomic_load_n(&shared->closed[id], __ATOMIC_SEQ_CST);
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list ap;
    va_start(ap, request);
    void *arg = va_arg(ap, void *);
    va_end(ap);
    if (request == BACKING_OPEN) {
        int made = __atomic_add_fetch(&shared->last_id, 1, __ATOMIC_SEQ_CST);
        __atomic_store_n(&shared->closed[made], false, __ATOMIC_SEQ_CST);
        return made;
    }
    if (request != BACKING_CLOSE)
        return (int)syscall(SYS_ioctl, fd, request, arg);
    int id = *(const int *)arg;
    if (id > __atomic_load_n(&shared->last_id, __ATOMIC_SEQ_CST) || backing_is_closed(id)) {
        errno = ENOENT;
        return -1;
    }
    __atomic_store_n(&shared->closed[id], true, __ATOMIC_SEQ_CST);
    return 0;
}
