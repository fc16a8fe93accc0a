/* Taking a mount away, as root or through libfuse's helper. */
#pragma once
#include "base/err.h"

#include <stdbool.h>

/* lazy: also where somebody uses it. 0 also when it is not there any more; -EBUSY; -EPERM: neither we nor the helper may. */
int fs_unmount(char *mountpoint, bool lazy) MUST_CHECK;
