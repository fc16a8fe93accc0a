/*
 * In which order the files of one directory are opened, and so which come next. Pure: knows numbers only; the caller locks.
 *
 * A file has a place on two lines: that of the listing (the id of its name), and that of the last pass (when it was first opened then, if it was). On each line
 * up to ORDER_STREAMS readers are followed, since the workers of one job open files each in an order of its own. A reader that made short (or equal) steps
 * forward, ORDER_STEPS opens in a row, and had to wait for a file gets its next files fetched ahead: `window` of them, doubled when it has to wait for one
 * that was asked for with this window, halved when some are passed over. Longer steps and files passed over take its standing away again.
 *
 * A pass ends when a file is opened again that was not opened just before.
 *
 * A reader that comes to the end of the directory is expected at the beginning of the next one: with a first window, and with the one that it has if it came into
 * this one like that. It is sure to come then, as far as that can be known.
 */
#pragma once
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#define ORDER_STREAMS    16
#define ORDER_STEPS      3u  /* opens in order before anything is fetched ahead */
#define ORDER_NEAR       4u  /* a short step on a line; a name takes one or two ids */
#define ORDER_GAP        32u /* longest step of a reader that is followed */
#define ORDER_WINDOW     4u  /* files ahead at first */
#define ORDER_WINDOW_MAX 512u
#define ORDER_FILES_MAX  131072u /* remembered of one pass */

/* Sums over all directories; borrowed by each. */
struct order_counts {
    uint64_t used_files, used_bytes;       /* fetched ahead, then opened */
    uint64_t wasted_files, wasted_bytes;   /* fetched ahead, then passed over or forgotten */
    uint64_t waiting_files, waiting_bytes; /* fetched ahead, not yet opened */
    uint64_t remembered;                   /* entries of all passes */
};

enum order_line { ORDER_LISTED, ORDER_LEARNED, N_ORDER_LINES };

/* The files to fetch next: `want` of them that come after place `from` of the line. Answered by order_asked(). */
struct order_next {
    enum order_line line;
    unsigned stream, want;
    uint64_t serial, from;
};

/* What to do in the next directory: for order_expect(), or else order_invite(). */
struct order_beyond {
    unsigned want, window; /* files */
    bool sure;
};

struct order_item {
    uint64_t ino, place;
    uint64_t bytes; /* 0: nothing to fetch (here already, too large) */
};

struct order;
struct order *order_new(struct order_counts *counts);
/* What waits counts as wasted. NULL allowed. */
void order_free(struct order *o);
/* Notes an open of file ino whose name has this id. waited: it was not here yet. True when files are to be fetched. */
bool order_note(struct order *o, uint64_t ino, uint64_t id, bool waited, struct order_next *ret_next);
/* What is to be fetched for `next`, in order. n 0: there is nothing more; full: or no room at the moment. bytes become 0 where others asked before, or opened the file since. False: the reader
 * is gone, nothing is to be fetched. */
bool order_asked(struct order *o, const struct order_next *next, struct order_item *items, unsigned n, bool full);
/* After that answer, of n files, none of which was left out for want of room: whether the reader comes to the end here; told once. */
bool order_ends(struct order *o, const struct order_next *next, unsigned n, struct order_beyond *ret);
/* Whoever is next to begin here comes from another directory. */
void order_invite(struct order *o);
/* A reader that comes from another directory is expected at these n > 0 files, the first of the listing. False: it is already, nothing is to be fetched. bytes become 0 as in
 * order_asked(). */
bool order_expect(struct order *o, struct order_item *items, unsigned n, unsigned window);
/* Follows nobody any more, what waits counts as wasted; the last pass stays known. */
void order_give_up(struct order *o);
/* The files that come after place `from` on the learned line; at most `max`. Returns how many. */
unsigned order_learned(const struct order *o, uint64_t from, struct order_item *ret_items, unsigned max);
