#!/bin/bash
# run.sh [quick|night|SUITE...] - installs what is missing, builds, runs the suites and sums up.
#
# Without arguments every suite of the list below; `quick` is lint, unit-quick (without the slowest programs) and a short end-to-end run on the
# file store, under two minutes; `night` is all with longer loops. The last line is "N passed, N failed, N skipped" over all counted tests;
# exit 1 if any failed or a suite could not run.
#
# Environment: SLUICE_SKIP_SETUP=1 installs nothing; SLUICE_CEPH_PORT=8000 where the gateway listens; RESULTS=DIR keeps the logs;
# SLUICE_FUZZ_SECONDS=5 per fuzz target; SLUICE_SEED=1 of the first kill loop, SLUICE_KILLS=1000 of all loops together.
# Works as root from a clean clone without a terminal. Ends and unmounts only what it started itself.
set -uo pipefail
exec </dev/null
all_suites=(lint unit asan tsan fuzz posix e2e-ceph coverage e2e-asan bench-smoke)
named_suites=(unit-quick e2e-quick e2e-file crash fault power) # run only when named; coverage has e2e-file's tests
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here" || exit 1
results=${RESULTS:-$here/build-results}
scratch=
ceph_dir=
pass=0 fail=0 skip=0
py="/usr/bin/python3"
export CK_VERBOSITY=normal CK_DEFAULT_TIMEOUT=30 PYTHONDONTWRITEBYTECODE=1
export no_proxy=127.0.0.1,localhost NO_PROXY=127.0.0.1,localhost
unset PYTHONPATH PYTHONHOME AWS_PROFILE AWS_CA_BUNDLE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_CONFIG_FILE || true

say() { printf '== %s %s\n' "$(date +%H:%M:%S)" "$*"; }

count() { # PASSED FAILED SKIPPED
    pass=$((pass + $1)) fail=$((fail + $2)) skip=$((skip + $3))
}

broken() { # a suite that could not run counts as one failure
    say "FAIL: $*"
    count 0 1 0
}

cleanup() {
    local m
    if [ -n "$ceph_dir" ]; then
        tests/ceph/down.sh "$ceph_dir" --rm
    fi
    if [ -n "$scratch" ]; then
        awk -v d="$scratch/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r m; do
            umount -l "$m"
        done
        rm -rf --one-file-system "$scratch"
    fi
}

# Warnings are errors in the plain build only: sanitizers and coverage make gcc guess wrongly.
build() { # DIR OPTION...: configures once, then builds
    local dir=$1
    shift
    [ $# -gt 0 ] || set -- -Dwerror=true
    if [ ! -f "$dir/build.ninja" ]; then
        meson setup "$dir" "$@" >"$results/$dir-setup.log" 2>&1 || {
            tail -n 20 "$results/$dir-setup.log"
            return 1
        }
    fi
    ninja -C "$dir" >"$results/$dir-build.log" 2>&1 || {
        grep -E -A6 'error:|FAILED:' "$results/$dir-build.log" | head -n 60
        return 1
    }
}

# The plain build, and one whose clock a test can make run fast: tests that need it look for it here.
build_for_e2e() { build build && build build-points -Dtest_points=true -Dunit_tests=disabled -Dwerror=true; }

# Sums check's "NN%: Checks: X, Failures: Y, Errors: Z" lines; a program without such a line counts as one test.
count_meson() { # DIR LOGNAME
    local log=$1/meson-logs/$2.txt sums
    sums=$($py - "$1/meson-logs/$2.json" <<'PY'
import json, re, sys
p = f = s = 0
for line in open(sys.argv[1]):
    row = json.loads(line)
    found = re.findall(r"\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", row.get("stdout", ""))
    bad = row["result"] not in ("OK", "EXPECTEDFAIL", "SKIP")
    if row["result"] == "SKIP":
        s += 1
    elif found:
        n, y, z = (sum(int(x[i]) for x in found) for i in range(3))
        wrong = max(y + z, 1 if bad else 0)
        p, f = p + n - min(n, y + z), f + wrong
    else:
        p, f = p + (not bad), f + bad
    if bad:
        print("FAILED", row["name"], row["result"], file=sys.stderr)
        text = row.get("stdout", "") + row.get("stderr", "")
        print("\n".join(text.splitlines()[-25:]), file=sys.stderr)
print(p, f, s)
PY
    ) || {
        broken "no results in $log"
        return 1
    }
    # shellcheck disable=SC2086  # three numbers
    count $sums
    say "$2: $sums (passed failed skipped)"
}

# shellcheck disable=SC2317  # the suites are called by name
suite_lint() {
    local out sums
    out=$(tests/lint/run.sh)
    echo "$out"
    sums=$(sed -n 's/^lint: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped/\1 \2 \3/p' <<<"$out")
    # shellcheck disable=SC2086
    count ${sums:-0 1 0}
}

meson_suite() { # DIR NAME MESON-TEST-ARGS...
    local dir=$1 name=$2
    shift 2
    rm -f "$dir/meson-logs/$name".*
    meson test -C "$dir" --no-rebuild --num-processes 2 --logbase "$name" "$@" 2>&1 | grep -E '^ *[0-9]+/' || true
    count_meson "$dir" "$name"
}

suite_unit() {
    build build || { broken "unit: build"; return; }
    meson_suite build unit --suite unit
}

# shellcheck disable=SC2317
suite_unit_quick() {
    build build || { broken "unit-quick: build"; return; }
    meson_suite build unit-quick --suite unit --no-suite slow
}

suite_asan() {
    build build-asan -Db_sanitize=address,undefined -Db_lundef=false || { broken "asan: build"; return; }
    ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 CK_FORK=no \
        meson_suite build-asan asan --suite unit --timeout-multiplier 4
}

# Also the build by which clang checks locks and warnings.
suite_tsan() {
    CC=clang build build-tsan -Dwerror=true -Db_sanitize=thread -Db_lundef=false || { broken "tsan: build"; return; }
    # GLib's slice allocator hides frees from the checker; tests that crash a child on purpose fork with threads about.
    TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:die_after_fork=0:suppressions=$PWD/tests/support/tsan.supp \
        G_SLICE=always-malloc CK_FORK=no \
        meson_suite build-tsan tsan --suite unit --timeout-multiplier 6
}

# Each target of tests/fuzz for a few seconds (night: minutes) from its corpus; what broke one is kept in $results.
# shellcheck disable=SC2317
suite_fuzz() {
    local t name seconds=${SLUICE_FUZZ_SECONDS:-${SLUICE_NIGHT:+600}}
    CC=clang build build-fuzz -Dfuzz=true -Dunit_tests=disabled -Db_sanitize=address,undefined -Db_lundef=false || { broken "fuzz: build"; return; }
    for t in build-fuzz/tests/fuzz/fuzz_*; do
        [ -f "$t" ] || continue
        name=${t##*/fuzz_}
        mkdir -p "$scratch/fuzz/$name"
        if UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$t" -max_total_time="${seconds:-5}" -max_len=8192 -timeout=10 -rss_limit_mb=1024 \
            -artifact_prefix="$results/fuzz-$name-" "$scratch/fuzz/$name" "tests/fuzz/corpus/$name" >"$results/fuzz-$name.log" 2>&1; then
            count 1 0 0
        else
            tail -n 30 "$results/fuzz-$name.log"
            say "FAILED fuzz $name"
            count 0 1 0
        fi
    done
}

suite_posix() {
    local out sums log=$results/posix.log
    build build || { broken "posix: build"; return; }
    if [ ! -x build/tools/sluice ] || [ ! -w /dev/fuse ]; then
        mkdir -p "$scratch/posix-local"
        timeout 600 build/tests/posix/posix_suite "$scratch/posix-local" >"$log" 2>&1
    else
        timeout 900 tests/posix/on_mount.sh build/tools/sluice "$scratch/posix" >"$log" 2>&1
    fi
    out=$(grep -v '^ok ' "$log" | tail -n 60)
    echo "$out"
    sums=$(sed -n 's/^posix: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped.*/\1 \2 \3/p' "$log" | tail -n 1)
    # shellcheck disable=SC2086
    count ${sums:-0 1 0}
}

run_pytest() { # NAME PYTEST-ARGS...; of $pytest_dir, else of tests/e2e
    local name=$1 sums
    shift
    if [ ! -x "${SLUICE_BIN:-build/tools/sluice}" ]; then
        broken "$name: ${SLUICE_BIN:-build/tools/sluice} is not built"
        return
    fi
    TMPDIR=$scratch $py -m pytest -p no:cacheprovider --timeout=240 --junitxml="$results/$name.xml" -ra -W error::pytest.PytestUnhandledThreadExceptionWarning "$@" "${pytest_dir:-tests/e2e}" |
        tee "$results/$name.log"
    sums=$($py - "$results/$name.xml" <<'PY'
import sys
import xml.etree.ElementTree as tree
t = s = b = 0
for suite in tree.parse(sys.argv[1]).getroot().iter("testsuite"):
    a = suite.attrib
    t, s, b = t + int(a["tests"]), s + int(a["skipped"]), b + int(a["failures"]) + int(a["errors"])
print(max(t - s - b, 0), b, s)
PY
    )
    # shellcheck disable=SC2086
    count ${sums:-0 1 0}
}

start_ceph() {
    [ -z "$ceph_dir" ] || return 0
    ceph_dir=$scratch/ceph
    tests/ceph/up.sh "$ceph_dir" "${SLUICE_CEPH_PORT:-8000}" || return 1
    # shellcheck source=/dev/null
    . "$ceph_dir/env"
}

suite_e2e_file() {
    build_for_e2e || { broken "e2e-file: build"; return; }
    SLUICE_STORE="file" run_pytest e2e-file
}

# Power cuts, on the file store: hundreds in a few recorded runs, and after every step of thousands of short sequences.
suite_power() {
    local pytest_dir=tests/crash
    if [ ! -w /dev/fuse ]; then
        say "power: skipped, /dev/fuse cannot be written"
        count 0 0 1
        return
    fi
    build_for_e2e || { broken "power: build"; return; }
    run_pytest power --timeout=3600 -k power
}

suite_e2e_quick() {
    build build || { broken "e2e-quick: build"; return; }
    # One way through everything; the whole of tests/e2e runs in e2e-file, e2e-ceph and e2e-asan.
    SLUICE_STORE="file" SLUICE_QUICK=1 run_pytest e2e-quick -m "not slow" -k "torch or usage or programs"
}

suite_e2e_ceph() {
    build_for_e2e || { broken "e2e-ceph: build"; return; }
    start_ceph || { broken "e2e-ceph: no gateway"; return; }
    SLUICE_STORE=ceph run_pytest e2e-ceph
}

# Also the run in which everything goes through the daemon.
suite_e2e_asan() {
    build build-asan -Db_sanitize=address,undefined -Db_lundef=false || { broken "e2e-asan: build"; return; }
    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1 SLUICE_BIN=$here/build-asan/tools/sluice \
        SLUICE_PASSTHROUGH="off" SLUICE_STORE="file" SLUICE_QUICK=1 run_pytest e2e-asan -m "not slow"
}

# What may go wrong between a program and the bucket: tests/fault/README.md.
suite_fault() {
    local pytest_dir=tests/fault
    build_for_e2e || { broken "fault: build"; return; }
    start_ceph || { broken "fault: no gateway"; return; }
    SLUICE_STORE=ceph run_pytest fault
}

# Every kind of row of the benchmark once, tiny, for all sides: a row passes if it was measured, whatever the figure.
suite_bench_smoke() {
    local sums pytest_dir=tests/bench
    if [ ! -w /dev/fuse ] || [ ! -w /proc/sys/vm/drop_caches ]; then
        say "bench-smoke: skipped, /dev/fuse or /proc/sys/vm/drop_caches cannot be written"
        count 0 0 1
        return
    fi
    build build || { broken "bench-smoke: build"; return; }
    start_ceph || { broken "bench-smoke: no gateway"; return; }
    run_pytest bench
    SLUICE_SKIP_SETUP=1 TMPDIR=$scratch timeout 300 tests/bench/run.sh --quick --out "$results/bench" \
        --rows 'write-[cv1]*,read-*,ls-*,small-cold,small-warm,warm-*,publish,preads,mixed,torch-*,epoch,epoch-[im]*,stat,readdir,idle,raw-get' \
        >"$results/bench-smoke.log" 2>&1 || { tail -n 20 "$results/bench-smoke.log"; broken "bench-smoke: no result"; return; }
    sums=$($py - "$results/bench/bench.json" <<'PY'
import json, sys
p = f = s = 0
for row in json.load(open(sys.argv[1]))["rows"]:
    samples = [x for side in row["samples"].values() for x in side]
    bad = [x["error"] for x in samples if "error" in x]
    if row["skipped"]:
        s += 1
    elif bad or not samples:
        f += 1
        print("FAILED", row["name"], *bad[:1], file=sys.stderr)
    else:
        p += 1
print(p, f, s)
PY
    )
    # shellcheck disable=SC2086
    count ${sums:-0 1 0}
}

# Two kill loops side by side; a test is a loop.
# shellcheck disable=SC2317
suite_crash() {
    local i pids=() seed=${SLUICE_SEED:-1} kills=${SLUICE_KILLS:-${SLUICE_NIGHT:+10000}}
    build_for_e2e || { broken "crash: build"; return; }
    for i in 0 1; do
        TMPDIR=$scratch $py tests/crash/kill_loop.py --cycles $((${kills:-1000} / 2)) --seed $((seed + i)) >"$results/crash-$i.log" 2>&1 &
        pids+=($!)
    done
    for i in 0 1; do
        if wait "${pids[i]}"; then
            count 1 0 0
        else
            count 0 1 0
        fi
        tail -n 12 "$results/crash-$i.log"
    done
}

# The unit tests, not counted again, and e2e-file's, of a build that notes which lines run; then the share of lines, printed.
# Builds with and without test points are one here: what is never armed does nothing. _exit() would not write the counts.
suite_coverage() {
    build build-coverage -Db_coverage=true -Dtest_points=true -Dc_args="-fprofile-update=atomic -D_exit=exit" || { broken "coverage: build"; return; }
    meson test -C build-coverage --no-rebuild --suite unit --num-processes 2 >"$results/coverage-unit.log" 2>&1
    SLUICE_BIN=$here/build-coverage/tools/sluice SLUICE_POINTS_BIN=$here/build-coverage/tools/sluice SLUICE_STORE="file" run_pytest e2e-file
    timeout 300 gcovr --root "$here" --filter 'meta/' --filter 's3/' --filter 'cache/' --filter 'fs/' --filter 'tools/' \
        --object-directory build-coverage >"$results/coverage.txt" 2>/dev/null
    sed -n 's/^TOTAL */coverage (lines, run, percent): /p' "$results/coverage.txt"
}

main() {
    local suites=() s needs=(build test)
    for s in "$@"; do
        case $s in
        quick) suites+=(lint unit-quick e2e-quick) ;;
        night) export SLUICE_NIGHT=1 ;;
        *)
            case " ${all_suites[*]} ${named_suites[*]} " in
            *" $s "*) suites+=("$s") ;;
            *)
                echo "run.sh: no suite '$s' (quick night ${all_suites[*]} ${named_suites[*]})" >&2
                exit 2
                ;;
            esac
            ;;
        esac
    done
    [ ${#suites[@]} -gt 0 ] || suites=("${all_suites[@]}")
    case " ${suites[*]} " in *" e2e-ceph "* | *" bench-smoke "* | *" fault "*) needs+=(ceph) ;; esac
    mkdir -p "$results"
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/sluice-tests.XXXXXX")
    chmod 755 "$scratch" # tests have other users reach their mounts
    trap cleanup EXIT
    trap 'exit 130' INT TERM HUP
    if [ -z "${SLUICE_SKIP_SETUP:-}" ]; then
        say "setup"
        tests/setup.sh "${needs[@]}" || { echo "run.sh: setup failed" >&2; exit 1; }
    fi
    for s in "${suites[@]}"; do
        say "suite $s"
        "suite_${s//-/_}"
        say "so far: $pass passed, $fail failed, $skip skipped"
    done
    echo "$pass passed, $fail failed, $skip skipped"
    [ "$fail" -eq 0 ]
}

main "$@"
