#!/bin/bash
# run.sh [-j LANES] [quick|night|SUITE...] - installs what is missing, builds, runs the suites side by side and sums up.
#
# Without names: all suites of the default list in tests/suites.sh. `quick`: lint, the unit tests without the slowest and a short end-to-end run on
# the file store, some minutes. `night`: what is named, or all, with longer loops (10,000 kills, a million steps of the model, 30 minutes of
# soak, 10 minutes a fuzz target). The output of a suite appears when it ends, at once if it is the only one. The last line is
# "N passed, N failed, N skipped" over all counted tests; exit 1 if any failed or a suite could not run, 2 for a wrong argument.
#
# -j LANES, SLUICE_LANES=LANES: so many suites at a time; default: as many as processors, at most 4.
# SLUICE_MINUTES=N: nothing begins later than that after the start (never at night); what is left out counts as skipped, and is something else with each
# commit: SLUICE_TURN=N says where the lists begin.
# Environment: SLUICE_SKIP_SETUP=1 installs nothing; SLUICE_CEPH_PORT=8000 first port of the gateways, each suite's 100 apart; RESULTS=DIR keeps
# the logs (build-results); TMPDIR=DIR for what the tests write, which they do on a file system of their own in a file there, where that can be mounted; SLUICE_FUZZ_SECONDS=5 per fuzz target; SLUICE_SEED=1 of the first kill loop,
# SLUICE_KILLS=1000 of all loops together; SLUICE_MODEL_STEPS=10000 of the model.
# Works as root from a clean clone without a terminal. Ends and unmounts only what it started itself, also when it is interrupted.
set -uo pipefail
exec </dev/null
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here" || exit 1
results=${RESULTS:-$here/build-results}
lanes=${SLUICE_LANES:-}
deadline= # seconds since 1970
suites=()
scratch=
pass=0 fail=0 skip=0
failed=() # suites
declare -A running=() began=() # by process, by suite
# shellcheck source=tests/suites.sh
. tests/suites.sh

say() { printf '== %s %s\n' "$(date +%H:%M:%S)" "$*"; }

usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' tests/run.sh
    echo "Default list: ${all_suites[*]}"
    echo "By name only: ${named_suites[*]}, of which \`night\` takes ${night_suites[*]} as well"
}

wrong() {
    echo "run.sh: $* (see tests/run.sh --help)" >&2
    exit 2
}

parse() {
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help) usage && exit 0 ;;
        -j) lanes=${2:-} && shift ;;
        -j*) lanes=${1#-j} ;;
        quick) suites+=(lint unit-quick e2e-quick) ;;
        night) export SLUICE_NIGHT=1 ;;
        *) case " ${all_suites[*]} ${named_suites[*]} " in *" $1 "*) suites+=("$1") ;; *) wrong "no suite '$1'" ;; esac ;;
        esac
        shift || true
    done
    [ ${#suites[@]} -gt 0 ] || suites=("${all_suites[@]}" ${SLUICE_NIGHT:+"${night_suites[@]}"})
    [ -n "$lanes" ] || lanes=$(($(nproc) < 4 ? $(nproc) : 4))
    case $lanes in *[!0-9]* | 0*) wrong "'$lanes' is not a number of lanes" ;; esac
}

# ---- time ----

set_deadline() {
    export SLUICE_TURN=${SLUICE_TURN:-$((0x$(git rev-parse --short=6 HEAD 2>/dev/null || echo 0)))}
    [ -n "${SLUICE_MINUTES:-}" ] && [ -z "${SLUICE_NIGHT:-}" ] || return 0
    case $SLUICE_MINUTES in *[!0-9]*) wrong "SLUICE_MINUTES='$SLUICE_MINUTES' is not a number of minutes" ;; esac
    deadline=$(($(date +%s) - SECONDS + SLUICE_MINUTES * 60))
    export SLUICE_DEADLINE=$deadline
}

out_of_time() { [ -n "$deadline" ] && [ "$(date +%s)" -ge "$deadline" ]; }

# ---- lanes ----

# Each suite is a process group with a directory, a log and a file of sums of its own.
start() { # SUITE
    say "suite $1 started"
    began[$1]=$SECONDS
    rm -f "$results/$1.sums"
    mkdir "$scratch/$1"
    set -m
    if [ ${#suites[@]} -eq 1 ]; then
        { run_suite "$1" 2>&1 | tee "$results/$1.log"; } &
    else
        run_suite "$1" >"$results/$1.log" 2>&1 &
    fi
    set +m
    running[$!]=$1
}

# Waits for one suite to end, shows what it said and adds what it counted.
reap() {
    local pid='' s p f n
    wait -n -p pid "${!running[@]}"
    [ -n "$pid" ] || return 0
    s=${running[$pid]}
    unset "running[$pid]"
    [ ${#suites[@]} -eq 1 ] || cat "$results/$s.log"
    { read -r p f n <"$results/$s.sums"; } 2>/dev/null || { say "FAIL: $s could not run"; p=0 f=1 n=0; }
    pass=$((pass + p)) fail=$((fail + f)) skip=$((skip + n))
    [ "$f" = 0 ] || failed+=("$s")
    say "suite $s ended in $((SECONDS - began[$s])) s: $p passed, $f failed, $n skipped; so far $pass, $fail, $skip"
}

run_lanes() {
    local s
    for s in "${suites[@]}"; do
        while [ ${#running[@]} -ge "$lanes" ]; do
            reap
        done
        if out_of_time && [[ " ${demanded_suites[*]} " != *" $s "* ]]; then
            say "suite $s skipped: no time left"
            skip=$((skip + 1))
            continue
        fi
        start "$s"
    done
    while [ ${#running[@]} -gt 0 ]; do
        reap
    done
}

# What failed once more, below all the logs: some lines of each suite.
failures() {
    local s
    for s in "${failed[@]}"; do
        say "failed in $s ($results/$s.log):"
        grep -E '^E  ' "$results/$s.log" | head -n 30
        grep -E -A 25 '(^|: )(FAILED|FAIL:?|ERROR) |^not ok ' "$results/$s.log" | head -n 60
    done
}

# ---- the end ----

# What a suite started carries its TMPDIR, whatever group and session it went to.
left() { grep -lzs "^TMPDIR=$scratch/" /proc/[0-9]*/environ | cut -d/ -f3; }

signal_groups() { # SIGNAL
    local pid
    for pid in "${!running[@]}"; do
        kill "-$1" -- "-$pid" 2>/dev/null
    done
}

# Interrupted suites have some seconds to clean up themselves.
end_suites() {
    local i
    signal_groups INT
    for ((i = 0; i < 100; i++)); do
        [ -n "$(jobs -pr)" ] || break
        sleep 0.1
    done
    signal_groups KILL
}

cleanup() {
    local m
    trap '' INT TERM HUP
    [ ${#running[@]} -eq 0 ] || end_suites
    [ -n "$scratch" ] || return 0
    awk -v d="$scratch/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r m; do
        umount -l "$m"
    done
    left | xargs -r kill -KILL 2>/dev/null
    ! mountpoint -q "$scratch" || umount "$scratch" 2>/dev/null || umount -l "$scratch"
    rm -rf --one-file-system "$scratch" "$scratch.disk"
}

# What the tests write goes to an ext4 with a journal in a sparse file: without one the kernel looks, for each file that is made, at all that were removed
# in the last minutes. Also nothing of theirs is left on the disk then. Where it cannot be mounted they write to the directory.
make_disk() {
    local free
    free=$(df --output=avail -B1M "$scratch" | tail -n 1)
    [ "$(id -u)" = 0 ] && [ "$free" -gt 40960 ] || return 0
    truncate -s $((free - 10240))M "$scratch.disk" && mkfs.ext4 -q -F -m 0 "$scratch.disk" && mount -o loop,noatime,discard "$scratch.disk" "$scratch" && return 0
    rm -f "$scratch.disk"
} 2>/dev/null

main() {
    parse "$@"
    set_deadline
    mkdir -p "$results"
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/sluice-tests.XXXXXX")
    make_disk
    chmod 755 "$scratch" # tests have other users reach their mounts
    trap cleanup EXIT
    trap 'exit 130' INT TERM HUP
    if [ -z "${SLUICE_SKIP_SETUP:-}" ]; then
        say "setup"
        # shellcheck disable=SC2046  # words
        tests/setup.sh build test $(needs_ceph "${suites[@]}" && echo ceph) || { echo "run.sh: setup failed" >&2; exit 1; }
    fi
    run_lanes
    failures
    echo "$pass passed, $fail failed, $skip skipped"
    [ "$fail" -eq 0 ]
}

main "$@"
