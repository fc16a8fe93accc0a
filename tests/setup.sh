#!/bin/bash
# setup.sh [build|test|ceph ...] - installs what building and testing need, only what is missing, and fetches the libfuse
# tarball. Default: build test ceph. The lists are in deploy/packages.sh. Needs root only when something is missing.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=deploy/packages.sh
. "$here/deploy/packages.sh"

missing() {
    local p
    for p in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || echo "$p"
    done
}

[ $# -gt 0 ] || set -- build test ceph
wanted=
for set in "$@"; do
    case $set in
    build) wanted+=" $BUILD_PACKAGES" ;;
    test) wanted+=" $TEST_PACKAGES" ;;
    ceph) wanted+=" $CEPH_PACKAGES" ;;
    *) echo "usage: setup.sh [build|test|ceph ...]" >&2; exit 2 ;;
    esac
done
# shellcheck disable=SC2086  # the lists are words
mapfile -t need < <(missing $wanted)
if [ ${#need[@]} -gt 0 ]; then
    echo "setup: installing ${need[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    # Packages must not start services: policy-rc.d refuses them while apt runs.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    apt-get -qq install -y --no-install-recommends "${need[@]}" </dev/null >/dev/null
fi
bash "$here/deploy/fetch-fuse.sh"
