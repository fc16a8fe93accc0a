/*
 * Where to cut a range of names in two, so that a second chain of pages lists what lies behind the cut. Private to s3/wide_list.c.
 *
 * What names there will be is guessed from those that came: they are taken for numbers whose digits are the bytes seen so far, and a range is cut in the middle. A cut
 * behind the last name costs one empty page, and makes the range shorter for the next one.
 *
 * Pure: neither lock nor clock.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that names were seen to hold, and all digits once there was one: printable ASCII without '/', which any store takes in a request. Zeroed: none. */
struct wide_alphabet {
    bool has[128];
    uint8_t below[128]; /* how many of it come before the byte */
    unsigned n;
};

void wide_alphabet_note(struct wide_alphabet *a, const char *name, size_t len);

struct wide_range {
    const char *first, *last; /* names of the latest page: its first and its last one */
    const char *until;        /* the last name that may be in the range; NULL: there is no end */
};

/*
 * A text behind r->last and before r->until, to be freed; NULL: there is none, or too little is left. *ret_pages: as many pages as the latest one are estimated to be left.
 */
char *wide_split(const struct wide_alphabet *a, const struct wide_range *r, double *ret_pages);

/*
 * A text behind all names that begin as the first and the last one do, digits that follow left out; to be freed. NULL: they begin with different letters, or with what no request should hold.
 * Names that begin with many letters of no meaning would else cost a few empty pages for each of them.
 */
char *wide_split_off(const struct wide_range *r);
