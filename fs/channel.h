/*
 * What a worker and its supervisor say to each other: messages of one kind, a text and up to CHANNEL_FDS descriptors over a pair of sockets that keeps
 * messages apart. The other end's death reads as -EPIPE.
 */
#pragma once
#include "base/err.h"

#include <stdbool.h>

#define CHANNEL_TEXT 8192u /* longer texts are cut */
#define CHANNEL_FDS  3u
/* Variable of a worker's environment: what the one before said of the store. */
#define CHANNEL_STORE_ENV "SLUICE_STORE_RESUME"

enum channel_kind {
    /* worker to supervisor */
    CHANNEL_PROGRESS = 'p', /* a line for whoever waits for the mount */
    CHANNEL_CONNECT = 'c',  /* mount options: it wants the connection */
    CHANNEL_MEMORY = 'm',   /* with the descriptor of the memory tier, to be kept for the next worker */
    CHANNEL_STORE = 's',    /* objstore_resume() of the mount's store, for the next worker */
    CHANNEL_READY = 'r',    /* it serves */
    CHANNEL_ENDING = 'e',   /* it serves no more: the mount is to be taken away */
    CHANNEL_FAILED = 'x',   /* why it ends: a line for the user */
    CHANNEL_UPGRADE = 'u',  /* path of a program that is to take over */
    /* supervisor to worker */
    CHANNEL_CONNECTION =
        'f', /* with the descriptors of the kernel's connection, of the control socket and of the notifier */
    CHANNEL_HANDOVER = 'h', /* end without an answer to what was not answered: the program is ready */
    CHANNEL_REFUSED = 'n',  /* no connection, or no upgrade: a line for the user */
};

struct channel_message {
    enum channel_kind kind;
    char text[CHANNEL_TEXT];
    int fds[CHANNEL_FDS]; /* the receiver's own, close-on-exec; -1 where there is none */
};

/* Both ends, close-on-exec. */
int channel_pair(int ret_ends[2]) MUST_CHECK;
/* fds: n_fds descriptors, at most CHANNEL_FDS, which stay the caller's. */
int channel_send_fds(int end, enum channel_kind kind, const int *fds, unsigned n_fds) MUST_CHECK;
int channel_send(int end, enum channel_kind kind, const char *text) MUST_CHECK;
/* The next message; waits for it if wait, else -EAGAIN. -EPIPE: the other end is gone. */
int channel_receive(int end, bool wait, struct channel_message *ret) MUST_CHECK;
void channel_message_close(struct channel_message *m); /* the descriptors that nobody took out */
