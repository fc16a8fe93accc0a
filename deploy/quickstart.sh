#!/bin/bash
# quickstart.sh - from a fresh Debian 12 or 13 to a mounted lake: installs packages, builds, mounts, warms a small dataset, saves and
# reloads a checkpoint with torch, shows the state. Run as root. Running it again goes on from what is there.
#
#   deploy/quickstart.sh [--at DIR]                                  a demo lake in a directory, mounted at /mnt/lake
#   deploy/quickstart.sh --s3 s3://BUCKET [--endpoint-url URL]       the same on a bucket; keys from AWS_* or ~/.aws
#   deploy/quickstart.sh --down [--force]                            unmounts and removes what it made
#
# What it makes: packages, a build folder, /var/lib/sluice-quickstart (lake, cache, log; --state DIR puts them elsewhere), the mount
# point, and on a bucket the objects below sluice-quickstart/. --down keeps everything while something that was written below the mount
# point is not in the store yet; with --force that is lost.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
state=/var/lib/sluice-quickstart
at=/mnt/lake
source=
store=()
down=
force=
lake_dir="sluice-quickstart" # everything the demo writes is below this name
files=48

say() { printf '\n== %s\n' "$*"; }
die() {
    echo "quickstart.sh: $*" >&2
    exit 1
}
usage() {
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit "$1"
}

while [ $# -gt 0 ]; do
    case $1 in
    --at | --s3 | --endpoint-url | --state)
        [ $# -ge 2 ] || usage 2 >&2
        case $1 in
        --at) at=$(realpath -m "$2") ;;
        --s3) source=$2 ;;
        --state) state=$(realpath -m "$2") ;;
        --endpoint-url) store+=(--endpoint-url "$2") ;;
        esac
        shift 2
        ;;
    --down) down=1 && shift ;;
    --force) force=1 && shift ;;
    --help | -h) usage 0 ;;
    *) usage 2 >&2 ;;
    esac
done
[ -z "$force" ] || [ -n "$down" ] || usage 2 >&2
source=${source:-file://$state/lake}
[ "$(id -u)" = 0 ] || die "run it as root: it installs packages and mounts"

build=$here/build-quickstart
[ ! -f "$here/build/build.ninja" ] || build=$here/build
sluice=$build/tools/sluice

mounted() { # whether a sluice mount, living or dead, is at $1
    awk -v d="$1" '$5 == d && / - fuse\.sluice / { found = 1 } END { exit !found }' /proc/self/mountinfo
}

# Everything that the cache holds is in the store too, or this ends here. After a crash or a reboot only the cache knows.
check_published() {
    local report
    [ -e "$state/cache/meta/CURRENT" ] || [ -n "$(find "$state/cache" -path '*/data/*' -type f -print -quit 2>/dev/null)" ] || return 0
    report=$("$sluice" fsck --offline "$state/cache" 2>&1) || true
    [ "$report" != clean ] || return 0
    printf '%s\n' "$report" >&2
    die "that is in $state/cache only, so nothing was removed. Run this again without --down: it is published then;" \
        "or with --down --force, which loses it"
}

take_down() {
    [ -d "$state" ] || { echo "nothing to take down" && return; }
    [ ! -f "$state/at" ] || at=$(cat "$state/at")
    if [ -f "$state/at" ] && mounted "$at"; then
        if "$sluice" status "$at" >/dev/null 2>&1; then
            local kept="something is not in the store yet ('$sluice status $at' tells), so $at stays. Run --down again later;"
            kept+=" or with --force, which loses it"
            [ -n "$force" ] || "$sluice" wait --timeout 60s "$at" || die "$kept"
            rm -rf "${at:?}/$lake_dir" || echo "the demo's files could not be removed from the lake" >&2
            [ -n "$force" ] || "$sluice" umount --drain=60s "$at" || die "$kept"
        fi
        ! mounted "$at" || "$sluice" umount "$at"
    fi
    [ -n "$force" ] || check_published
    [ ! -f "$state/made-mount-point" ] || rmdir "$at" || true
    rm -rf --one-file-system "$state"
    [ ! -d "$here/build-quickstart" ] || rm -rf "$here/build-quickstart"
    echo "unmounted and removed; packages stay"
}

install_packages() {
    local p need=()
    # shellcheck source=deploy/packages.sh
    . "$here/deploy/packages.sh"
    for p in $BUILD_PACKAGES python3 python3-torch; do
        dpkg-query -W -f '${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || need+=("$p")
    done
    if [ ${#need[@]} -gt 0 ]; then
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${need[@]}" </dev/null >/dev/null
    fi
    bash "$here/deploy/fetch-fuse.sh"
}

build_sluice() {
    [ -f "$build/build.ninja" ] || meson setup "$build" "$here" --buildtype=release -Dunit_tests=disabled >/dev/null
    ninja -C "$build" tools/sluice | tail -n 1
}

make_dataset() { # DIR: files of 1 MiB, as many as are missing
    local i
    mkdir -p "$1"
    for ((i = 0; i < files; i++)); do
        [ -s "$1/sample-$i.bin" ] || head -c 1048576 /dev/urandom >"$1/sample-$i.bin"
    done
}

mount_lake() {
    if mounted "$at"; then
        if "$sluice" status "$at" >/dev/null 2>&1; then
            [ "$(cat "$state/source" 2>/dev/null)" = "$source" ] || die "$at holds another mount; run --down first or use --at"
            echo "already mounted"
            return
        fi
        "$sluice" umount "$at"
    fi
    [ -d "$at" ] || { mkdir -p "$at" && touch "$state/made-mount-point"; }
    "$sluice" mount "$source" "$at" "${store[@]}" --cache-dir "$state/cache" --log-file "$state/sluice.log"
    echo "$at" >"$state/at"
    echo "$source" >"$state/source"
}

checkpoint() {
    /usr/bin/python3 - "$at/$lake_dir/checkpoint.pt" <<'PY'
import sys, time, torch
path = sys.argv[1]
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])
started = time.monotonic()
torch.save(model.state_dict(), path)
saved = time.monotonic()
loaded = torch.load(path)
assert all(torch.equal(v, loaded[k]) for k, v in model.state_dict().items()), "the checkpoint reads back differently"
print(f"saved in {saved - started:.2f} s, loaded and compared in {time.monotonic() - saved:.2f} s: {path}")
PY
}

if [ -n "$down" ]; then
    take_down
    exit 0
fi
[ -c /dev/fuse ] || die "there is no /dev/fuse here; in a container start it with --device /dev/fuse --cap-add SYS_ADMIN"
mkdir -p "$state"

say "packages"
install_packages
say "build"
build_sluice
say "mount $source at $at"
[ "$source" != "file://$state/lake" ] || make_dataset "$state/lake/$lake_dir/dataset"
mount_lake
if [ "$source" != "file://$state/lake" ]; then
    make_dataset "$at/$lake_dir/dataset" # through the mount, then dropped from the cache so that there is something to warm
    "$sluice" wait --timeout 10m "$at/$lake_dir"
    "$sluice" evict "$at/$lake_dir/dataset"
fi
say "warm the dataset"
"$sluice" warmup --progress bar "$at/$lake_dir/dataset"
say "save and reload a checkpoint"
checkpoint
"$sluice" wait --timeout 10m "$at/$lake_dir"
"$sluice" info "$at/$lake_dir/checkpoint.pt"
say "status"
"$sluice" status "$at"
cat <<EOF

A real bucket: export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...   (or write them to ~/.aws/credentials)
               $sluice mount s3://BUCKET[/PREFIX] DIR [--endpoint-url URL] [--region NAME]
               $sluice umount --drain DIR        ($sluice mount --help lists every option; take this down: $0 --down)
EOF
