/*
 * Places at which a test lets this process die. Only in a build for tests (-Dtest_points=true); nothing is left of them in others.
 *
 * The environment's SLUICE_DIE_IN names a directory. Who comes to a point NAME finds a file NAME there, removes it, puts NAME.again in its place if there is one,
 * and is killed.
 */
#pragma once

#ifdef SLUICE_TEST_POINTS
void testpoint(const char *name);
#define TEST_POINT(name) testpoint(name)
#else
#define TEST_POINT(name) ((void)0)
#endif
