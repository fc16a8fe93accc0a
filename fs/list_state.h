/* What is remembered of a directory's last listing by this worker, while its inode is in memory. */
#pragma once
#include "list_load.h"

#include <stdbool.h>
#include <stdint.h>

struct list_state {
    uint64_t cost_ns; /* what it took */
    uint64_t
        begin; /* inode of the directory that a page began with which showed this one too (tree_near.c), 0: none did */
    unsigned keys; /* that it showed */
    char **hidden; /* some of the keys that cannot be shown as names; owned, NULL: not listed, or none */
    bool flat;     /* there was one, and none of the keys led further down */
    bool asked;    /* somebody looked into it since */
};
