#!/bin/bash
# lanes.sh - tests/run.sh with suites made up: that it sums up and exits rightly, and ends all that it started when it is ended.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
top=$(mktemp -d "${TMPDIR:-/tmp}/sluice-lanes.XXXXXX")
trap 'rm -rf "$top"' EXIT
unset SLUICE_NIGHT SLUICE_LANES SLUICE_MINUTES RESULTS
export SLUICE_SKIP_SETUP=1 TMPDIR=$top/tmp
mkdir -p "$top/tests/ceph" "$TMPDIR"
cp tests/run.sh "$top/tests/"
cp tests/ceph/down.sh "$top/tests/ceph/"
# What is common to all suites is the real one.
sed '/^# ---- unit tests/,$d' tests/suites.sh >"$top/tests/suites.sh"
cat >>"$top/tests/suites.sh" <<'SUITES'
all_suites=(slow good bad)
named_suites=(gone hangs mute more)
night_suites=(more)
demanded_suites=(mute bad)
needs_ceph() { return 1; }
suite_slow() { sleep 0.5; echo "slow says"; sleep 0.5; echo "two lines"; count 3 0 0; }
suite_good() { sleep 0.7; echo "good says this"; count 2 0 1; }
suite_bad() { count 1 1 0; }
suite_gone() { exit 0; }
suite_more() { count 1 0 0; }
suite_mute() { count; }
suite_hangs() { setsid sleep 611 & echo $! >"$results/pid"; mkdir "$TMPDIR/mnt"; mount -t tmpfs none "$TMPDIR/mnt" 2>/dev/null; sleep 612; }
SUITES
bad=0
out=

expect() { # EXIT-STATUS LAST-LINE ARGUMENT...
    local status=$1 last=$2 got
    shift 2
    out=$("$top/tests/run.sh" "$@" 2>&1)
    got=$?
    if [ "$got" != "$status" ] || [[ ${out##*$'\n'} != "$last"* ]]; then
        printf 'run.sh %s: exit %s instead of %s, or not "%s" at last:\n%s\n' "$*" "$got" "$status" "$last" "$out"
        bad=1
    fi
}

fail() {
    printf '%s:\n%s\n' "$1" "$out"
    bad=1
}

expect 1 "7 passed, 1 failed, 1 skipped" -j 2 night
expect 0 "3 passed, 0 failed, 0 skipped" night slow
expect 1 "6 passed, 1 failed, 1 skipped" -j 2
[[ $out == *$'\nslow says\ntwo lines\n'* && $out == *$'\ngood says this\n'* ]] || fail "what suites say is mixed or missing"
expect 0 "5 passed, 0 failed, 1 skipped" -j2 slow good
[[ $out == *"suite good started"*"suite slow ended"* ]] || fail "two suites do not run side by side"
expect 0 "5 passed, 0 failed, 1 skipped" -j1 slow good
[[ $out == *"suite slow ended"*"suite good started"* ]] || fail "two suites share a lane"
expect 0 "3 passed, 0 failed, 0 skipped" slow
[[ $out == *$'slow says\ntwo lines\n'* ]] || fail "a suite alone is not shown"
expect 1 "0 passed, 1 failed, 0 skipped" gone
expect 1 "0 passed, 1 failed, 0 skipped" mute
expect 2 "run.sh: no suite 'nothing'" nothing
expect 2 "run.sh: '0' is not a number" -j 0
SLUICE_MINUTES=1 expect 0 "5 passed, 0 failed, 1 skipped" slow good
SLUICE_MINUTES=0 expect 0 "0 passed, 0 failed, 2 skipped" slow good
[[ $out == *"suite good skipped: no time left"* ]] || fail "a suite that no time is left for is not named"
SLUICE_MINUTES=0 expect 1 "1 passed, 1 failed, 1 skipped" slow bad
SLUICE_MINUTES=x expect 2 "run.sh: SLUICE_MINUTES='x' is not a number"
expect 0 "By name only:" --help

# Ended, it ends at once, and nothing of it stays: no process, no mount, no file.
for signal in INT TERM; do
    set -m
    env --default-signal=INT "$top/tests/run.sh" -j 2 hangs slow >"$top/out" 2>&1 & # a background job may have it ignored
    set +m
    for ((i = 0; i < 100; i++)); do
        [ -s "$top/build-results/pid" ] && break
        sleep 0.05
    done
    sleep 0.2
    kill "-$signal" $!
    wait $!
    [ $? = 130 ] || fail "after SIG$signal: not exit 130"
    pid=$(cat "$top/build-results/pid" 2>/dev/null)
    rm -f "$top/build-results/pid"
    out=$(cat "$top/out")
    if [ -z "$pid" ] || grep -q . "/proc/$pid/cmdline" 2>/dev/null; then # empty once it has ended
        fail "after SIG$signal: a process stays"
    fi
    [ -z "$(ls "$TMPDIR")" ] || fail "after SIG$signal: files stay"
    ! grep -q " $top/" /proc/self/mountinfo || fail "after SIG$signal: a mount stays"
done
exit $bad
