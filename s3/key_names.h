/*
 * Keys as paths whose components a directory entry can show, for --escape percent. Pure.
 *
 * A key is cut at each '/'; what is behind the last one is a component unless it is empty, as that of "a/" is, the marker of a directory. A component that no directory entry can have is
 * replaced, and so that each path is the one of one key, a component that looks like a replacement gets "25" behind its first '%':
 *
 *   component of a key      of a path
 *   (empty)                 %2F
 *   .                       %2E
 *   ..                      %2E%2E
 *   %2F %2E %2E%2E          %252F %252E %252E%2E
 *   %252F ...               %25252F ...
 *   any other, %2f and %41 too, is itself
 *
 * So "x//f" is "x/%2F/f", "/lead" is "%2F/lead", "tr//" is "tr/%2F/". A path "a/%2F" that ends in the replacement of the empty component is that of no key.
 */
#pragma once
#include <glib.h>
#include <stdbool.h>

/* Is the component of a path one of those on the right, so that it is another one in the key? */
bool key_name_is_escaped(const char *name, size_t len);
/* ... one that stands for the empty component, "." or ".."; is_empty: for the first of these alone. */
bool key_name_is_odd(const char *name);
bool key_name_is_empty(const char *name);
/* Appends the path of a key, or of what is behind a '/' of one. Of any bytes. */
void key_to_path(const char *key, size_t len, GString *ret);
/* The key of a path; owned by the caller. NULL: it is that of none. */
char *key_of_path(const char *path);
