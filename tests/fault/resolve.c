/* Preloaded by a test: "lake.test" stands for the address in the file that SLUICE_TEST_NAMES names; for none while that is empty. */
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **ret)
{
    lookup *next = (lookup *)dlsym(RTLD_NEXT, "getaddrinfo");
    char address[64] = "";
    if (!node || strcmp(node, "lake.test") != 0)
        return next(node, service, hints, ret);
    FILE *f = fopen(getenv("SLUICE_TEST_NAMES"), "re");
    if (f && !fgets(address, sizeof address, f))
        address[0] = '\0';
    if (f)
        fclose(f);
    return address[0] ? next(address, service, hints, ret) : EAI_NONAME;
}
