#!/bin/bash
# run.sh [--runs N] [--quick] [--rows GLOBS] [--only SIDES] [--out DIR] [--resume] [--ballast GIB] [--list] - the benchmark: the local disk, s3fs,
# rclone and Sluice on one Ceph gateway, alternating, near and behind 30 ms of delay. Leaves bench.md, bench.json and bench.svg in
# --out [bench-results].
#
# Needs root (it mounts and drops the page cache), about 40 GB of disk and a quiet machine. The gateway runs on the CPUs BENCH_SERVER_CPUS
# [0], all clients and daemons on BENCH_CLIENT_CPUS [the last]. What is measured, what is warm and which bar it must meet: rows.py.
# Environment: S3_ENDPOINT and AWS_* of a running gateway to use instead of an own one; BENCH_PORT=8900 of the own one; TMPDIR where
# the data goes (it should be the disk to compare with); SLUICE_SKIP_SETUP=1 installs and builds nothing;
# SLUICE_BUILD=build the build directory; SLUICE_BIN another binary to measure.
set -euo pipefail
cd "$(dirname "$0")/../.."
server=${BENCH_SERVER_CPUS:-0} client=${BENCH_CLIENT_CPUS:-$(($(nproc) - 1))}
port=${BENCH_PORT:-8900}
export PYTHONDONTWRITEBYTECODE=1 no_proxy=127.0.0.1,localhost NO_PROXY=127.0.0.1,localhost BENCH_SERVER_CPUS=$server
scratch=''
own=''
main=''

cleanup() {
    trap '' INT TERM HUP
    if [ -n "$main" ] && kill -TERM "$main" 2>/dev/null; then
        wait "$main" || true
    fi
    if [ -n "$own" ]; then
        tests/ceph/down.sh "$scratch/ceph" --rm
    fi
    if [ -n "$scratch" ]; then
        awk -v d="$scratch/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r m; do
            umount -l "$m"
        done
        rm -rf --one-file-system "$scratch"
    fi
}

if [ "$(id -u)" != 0 ]; then
    echo "run.sh: must be root: it mounts and drops the page cache" >&2
    exit 1
fi
if [ -z "${SLUICE_SKIP_SETUP:-}" ]; then
    tests/setup.sh build test ceph
    [ -f build/build.ninja ] || meson setup build >/dev/null
    ninja -C build >/dev/null
fi
case " $* " in
*" --list "* | *" --help "* | *" -h "*) exec /usr/bin/python3 tests/bench/bench.py --work / --server-cpus "$server" "$@" ;;
esac
scratch=$(mktemp -d "${TMPDIR:-/tmp}/sluice-bench.XXXXXX")
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
mkdir "$scratch/work"
if [ -z "${S3_ENDPOINT:-}" ]; then
    own=1
    SIZE_GB=${SIZE_GB:-32} taskset -c "$server" tests/ceph/up.sh "$scratch/ceph" "$port"
    # shellcheck source=/dev/null
    . "$scratch/ceph/env"
    export BENCH_OWN_GATEWAY=1
fi
taskset -c "$client" /usr/bin/python3 tests/bench/bench.py --work "$scratch/work" --server-cpus "$server" --far-port $((port + 95)) "$@" &
main=$!
wait "$main"
