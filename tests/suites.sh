#!/bin/bash
# suites.sh - the suites of tests/run.sh, which sources it: a function suite_NAME each, with what builds, runs and counts for them.
#
# A suite runs in a process of its own, beside others: it writes below $TMPDIR (its own) and $results/$suite*, and takes a gateway of its own. It
# calls count for what it counts, broken if it cannot run, and returns.
# shellcheck disable=SC2034,SC2154,SC2317  # $here, $results, $scratch and who reads the lists are run.sh's; suites are called by name

# Those that must run before those that may be left out for want of time (SLUICE_MINUTES). The demanded ones are never: once begun they run to their end.
all_suites=(coverage crash fault power lint e2e-directory model tsan posix fuzz asan bench-smoke e2e-asan e2e-tsan)
demanded_suites=(crash fault power model)
named_suites=(unit unit-quick e2e-quick e2e-file e2e-ceph) # coverage has the tests of unit and e2e-ceph
night_suites=(e2e-file) # `night` without names has these as well
gateways=(coverage e2e-ceph fault bench-smoke) # who takes one
py=/usr/bin/python3
clang=$(command -v ccache >/dev/null && echo "ccache ")clang # for gcc meson looks itself
model_steps=${SLUICE_MODEL_STEPS:-} # in the suite of that name only
export CK_VERBOSITY=normal CK_DEFAULT_TIMEOUT=30 PYTHONDONTWRITEBYTECODE=1
export no_proxy=127.0.0.1,localhost NO_PROXY=127.0.0.1,localhost
unset SLUICE_MODEL_STEPS PYTHONPATH PYTHONHOME AWS_PROFILE AWS_CA_BUNDLE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_CONFIG_FILE || true

run_suite() { # SUITE
    suite=$1
    pass=0 fail=0 skip=0
    export TMPDIR=$scratch/$suite
    case " ${demanded_suites[*]} " in *" $suite "*) deadline='' && unset SLUICE_DEADLINE ;; esac
    trap 'exit 130' INT TERM HUP
    trap 'tests/ceph/down.sh "$TMPDIR/ceph" --rm' EXIT
    "suite_${suite//-/_}"
    echo "$pass $fail $skip" >"$results/$suite.sums"
}

# ---- counting ----

count() { # PASSED FAILED SKIPPED; nothing at all is a failure
    pass=$((pass + ${1:-0})) fail=$((fail + ${2:-1})) skip=$((skip + ${3:-0}))
}

broken() { # a suite that could not run counts as one failure
    echo "FAIL: $suite: $*"
    count 0 1 0
}

skipped() {
    echo "$suite: skipped, $*"
    count 0 0 1
}

count_file() { # meson|pytest|bench|coverage FILE: by tests/sums.py
    local sums
    sums=$($py tests/sums.py "$@") || { broken "no results in $2"; return; }
    # shellcheck disable=SC2086  # three numbers
    count $sums
}

count_line() { # FILE: by its last line "NAME: N passed, N failed, N skipped"
    # shellcheck disable=SC2046  # three numbers
    count $(sed -n 's/^[a-z]*: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped.*/\1 \2 \3/p' "$1" | tail -n 1)
}

# ---- building ----

# One build at a time, since they take all processors, and below the tests of other suites; the second who needs one finds it made.
build() { # DIR MESON-OPTION...: configures once
    local dir=$1
    shift
    (
        flock 9
        if [ ! -f "$dir/build.ninja" ]; then
            meson setup "$dir" "$@" >"$results/$dir-setup.log" 2>&1 || { tail -n 20 "$results/$dir-setup.log"; exit 1; }
        fi
        nice ninja -C "$dir" >"$results/$dir-build.log" 2>&1 9>&- || { grep -E -A6 'error:|FAILED:' "$results/$dir-build.log" | head -n 60; exit 1; }
    ) 9>"$scratch/build.lock" || { broken "$dir is not built"; return 1; }
}

# What is built for tests only: as quick to compile and link as may be, with lines in the reports.
for_tests=(-Doptimization=1 -Dc_args=-g1)
quick_linker=$(command -v ld.lld >/dev/null && echo lld || echo bfd)

# Warnings are errors in the plain builds and clang's only: sanitizers and coverage make gcc guess wrongly.
build_plain() { build build -Dwerror=true -Dunit_tests=disabled; } # as users build it
build_unit() { CC_LD=$quick_linker build build-unit -Dwerror=true "${for_tests[@]}"; }
build_asan() { CC_LD=$quick_linker build build-asan -Db_sanitize=address,undefined -Db_lundef=false -Dtest_points=true "${for_tests[@]}"; }
# Also the build by which clang checks locks and warnings.
build_tsan() { CC=$clang CC_LD=$quick_linker build build-tsan -Dwerror=true -Db_sanitize=thread -Db_lundef=false -Dtest_points=true "${for_tests[@]}"; }
# The plain build, and one whose clock a test can make run fast: tests that need it look for it here.
build_for_e2e() { build_plain && CC_LD=$quick_linker build build-points -Dtest_points=true -Dunit_tests=disabled -Dwerror=true "${for_tests[@]}"; }

# ---- unit tests ----

meson_suite() { # DIR MESON-TEST-ARGS...
    local dir=$1 before=$fail ended
    shift
    rm -f "$dir/meson-logs/$suite".*
    meson test -C "$dir" --no-rebuild --num-processes 2 --logbase "$suite" "$@" 2>&1 | grep -E '^ *[0-9]+/'
    ended=${PIPESTATUS[0]}
    count_file meson "$dir/meson-logs/$suite.json"
    [ "$ended" = 0 ] || [ "$fail" -gt "$before" ] || broken "meson test ended with $ended"
}

suite_lint() {
    tests/lint/run.sh | tee "$results/lint.out"
    count_line "$results/lint.out"
}

suite_unit() { build_unit && meson_suite build-unit --suite unit; }
suite_unit_quick() { build_unit && meson_suite build-unit --suite unit --no-suite slow; }

suite_asan() {
    build_asan || return
    ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 CK_FORK=no \
        meson_suite build-asan --suite unit --timeout-multiplier 4
}

# GLib's slice allocator hides frees from the checker; tests that crash a child on purpose fork with threads about.
tsan_options=second_deadlock_stack=1:die_after_fork=0:suppressions=$here/tests/support/tsan.supp

suite_tsan() {
    build_tsan || return
    TSAN_OPTIONS=halt_on_error=1:$tsan_options G_SLICE=always-malloc CK_FORK=no meson_suite build-tsan --suite unit --timeout-multiplier 6
}

# Each target of tests/fuzz for a few seconds (night: minutes) from its corpus; what broke one is kept in $results.
suite_fuzz() {
    local t name seconds=${SLUICE_FUZZ_SECONDS:-${SLUICE_NIGHT:+600}}
    CC=$clang build build-fuzz -Dfuzz=true -Dunit_tests=disabled -Db_sanitize=address,undefined -Db_lundef=false || return
    for t in build-fuzz/tests/fuzz/fuzz_*; do
        [ -f "$t" ] || continue
        name=${t##*/fuzz_}
        mkdir -p "$TMPDIR/$name"
        if UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$t" -max_total_time="${seconds:-5}" -max_len=8192 -timeout=10 -rss_limit_mb=1024 \
            -artifact_prefix="$results/fuzz-$name-" "$TMPDIR/$name" "tests/fuzz/corpus/$name" >"$results/fuzz-$name.log" 2>&1; then
            count 1 0 0
        else
            tail -n 30 "$results/fuzz-$name.log"
            echo "FAILED fuzz $name"
            count 0 1 0
        fi
    done
}

# ---- mounted ----

# Says so where it is not there: what follows mounts and nothing else.
has_fuse() { [ -w /dev/fuse ] || { skipped "/dev/fuse cannot be written"; return 1; }; }

suite_posix() {
    local log=$results/posix.out
    build_plain || return
    if [ ! -w /dev/fuse ]; then
        timeout 600 build/tests/posix/posix_suite "$TMPDIR" >"$log" 2>&1
    else
        timeout 900 tests/posix/on_mount.sh build/tools/sluice "$TMPDIR/mounts" >"$log" 2>&1
    fi
    grep -v '^ok ' "$log" | tail -n 60
    count_line "$log"
}

# Suites that count what the kernel keeps (-s) do not run beside one that makes it forget (-x).
caches_lock() { # -s|-x
    exec 8>"$scratch/caches.lock"
    flock "$1" 8
}
caches_unlock() { exec 8>&-; }

run_pytest() { # DIR PYTEST-ARGS...
    local dir=$1 seconds=${SLUICE_NIGHT:+7200} ended=0
    shift
    [ "$dir" != tests/e2e ] || { caches_lock -s; set -- -n 2 "$@"; }
    rm -f "$results/$suite.xml"
    $py -m pytest -p no:cacheprovider --timeout="${seconds:-240}" --junitxml="$results/$suite.xml" -ra -W error::pytest.PytestUnhandledThreadExceptionWarning "$@" "$dir" || ended=$?
    [ "$dir" != tests/e2e ] || caches_unlock
    count_file pytest "$results/$suite.xml"
    [ "$ended" -le 1 ] || broken "pytest ended with $ended" # 1: tests failed, which are counted
}

needs_ceph() { # SUITE...: does one of them?
    local s
    for s in "$@"; do
        case " ${gateways[*]} " in *" $s "*) return 0 ;; esac
    done
    return 1
}

# Of its own for each suite: some end it and start it again.
start_ceph() {
    local i port=${SLUICE_CEPH_PORT:-8000}
    for i in "${!gateways[@]}"; do
        [ "${gateways[i]}" != "$suite" ] || port=$((port + 100 * i))
    done
    SIZE_GB=${SIZE_GB:-${SLUICE_NIGHT:+32}} tests/ceph/up.sh "$TMPDIR/ceph" "$port" || { broken "no gateway"; return 1; }
    # shellcheck source=/dev/null
    . "$TMPDIR/ceph/env"
    export BENCH_PORT=$port # of the delays before it
}

suite_e2e_file() { build_for_e2e && SLUICE_STORE="file" run_pytest tests/e2e; }
# The tests that need a directory as store; all others run with a gateway in coverage.
suite_e2e_directory() { build_for_e2e && SLUICE_STORE="file" run_pytest tests/e2e -m directory; }
suite_e2e_ceph() { build_for_e2e && start_ceph && SLUICE_STORE=ceph run_pytest tests/e2e -m "not directory"; }
# One way through everything; the whole of tests/e2e runs in coverage, e2e-ceph and e2e-file.
suite_e2e_quick() { build_plain && SLUICE_STORE="file" SLUICE_QUICK=1 run_pytest tests/e2e -m "not slow" -k "torch or usage or programs"; }

# What a sanitizer finds goes to files: a worker that dies of it is replaced, and no program notices. Everything goes through the daemon here.
# A fifth of the tests, another one with each commit; all of them at night.
run_sanitized() { # BUILD-DIR
    local f share=5
    SLUICE_SHARE=${SLUICE_NIGHT:-$share} SLUICE_BIN=$here/$1/tools/sluice SLUICE_POINTS_BIN=$here/$1/tools/sluice SLUICE_PASSTHROUGH="off" SLUICE_STORE="file" SLUICE_QUICK=1 \
        run_pytest tests/e2e -m "not slow"
    for f in "$TMPDIR"/found.*; do
        [ -s "$f" ] || continue
        cp "$f" "$results/$suite-${f##*/}"
        head -n 60 "$f"
        broken "a sanitizer found something: $results/$suite-${f##*/}"
    done
}

suite_e2e_asan() {
    build_asan || return
    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:log_path=$TMPDIR/found UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:log_path=$TMPDIR/found \
        run_sanitized build-asan
}

suite_e2e_tsan() {
    build_tsan || return
    # A worker that makes room for another one joins no thread.
    TSAN_OPTIONS=report_thread_leaks=0:log_path=$TMPDIR/found:$tsan_options G_SLICE=always-malloc run_sanitized build-tsan
}

# ---- what may go wrong ----

# Between a program and the bucket: tests/fault/README.md.
suite_fault() { build_for_e2e && start_ceph && SLUICE_STORE=ceph run_pytest tests/fault -n 4; } # they mostly wait

# Power cuts, on the file store: hundreds in a few recorded runs, and after every step of thousands of short sequences.
suite_power() {
    has_fuse || return
    build_for_e2e && run_pytest tests/crash -k power -n 2
}

# Two kill loops side by side; a test is a loop.
suite_crash() {
    local i pids=() seed=${SLUICE_SEED:-1} kills=${SLUICE_KILLS:-${SLUICE_NIGHT:+10000}}
    has_fuse || return
    build_for_e2e || return
    for i in 0 1; do
        $py tests/crash/kill_loop.py --cycles $((${kills:-1000} / 2)) --seed $((seed + i)) 2>&1 | tee "$results/crash-$i.log" &
        pids+=($!) # its status is the loop's: pipefail
    done
    for i in 0 1; do
        wait "${pids[i]}"
        case $? in 0) count 1 0 0 ;; 77) skipped "no time left for all kills" ;; *) count 0 1 0 ;; esac
    done
}

# Random steps against a reference, on the file store.
suite_model() {
    local night=${SLUICE_NIGHT:+1000000}
    build_for_e2e && SLUICE_STORE="file" SLUICE_MODEL_STEPS=${model_steps:-${night:-10000}} run_pytest tests/e2e/test_model.py
}

# ---- figures ----

# Every kind of row of the benchmark once, tiny, for all sides: a row passes if it was measured, whatever the figure.
suite_bench_smoke() {
    if [ ! -w /dev/fuse ] || [ ! -w /proc/sys/vm/drop_caches ]; then
        skipped "/dev/fuse or /proc/sys/vm/drop_caches cannot be written"
        return
    fi
    build_plain || return
    caches_lock -x
    start_ceph || return
    run_pytest tests/bench
    local again
    for again in '' --resume; do # the second measures nothing: all is there
        SLUICE_SKIP_SETUP=1 timeout 900 tests/bench/run.sh --quick --out "$results/bench" $again \
            --rows 'write-[cv1]*,read-*,ls-*,small-cold,small-warm,warm-*,publish,preads,mixed,torch-*,epoch,epoch-[im]*,stat,readdir,idle,raw-get' \
            >"$results/bench$again.log" 2>&1 || { tail -n 20 "$results/bench$again.log"; broken "no result"; return; }
    done
    ! grep -q 'data set' "$results/bench--resume.log" || broken "--resume measured again"
    count_file bench "$results/bench/bench.json"
}

# The tests of unit and e2e-ceph, of a build that notes which lines run; then a test per gate on the share of lines.
# Builds with and without test points are one here: what is never armed does nothing. _exit() would not write the counts.
suite_coverage() {
    local dirs=(meta s3 cache fs tools)
    has_fuse || return # its gates count what mounts run
    build_plain || return # some tests install it
    CC_LD=$quick_linker build build-coverage -Db_coverage=true -Dtest_points=true -Doptimization=1 -Dc_args="-g1 -fprofile-update=atomic -D_exit=exit" || return
    start_ceph || return
    find build-coverage -name '*.gcda' -delete
    meson_suite build-coverage --suite unit --timeout-multiplier 2
    SLUICE_BIN=$here/build-coverage/tools/sluice SLUICE_POINTS_BIN=$here/build-coverage/tools/sluice SLUICE_STORE=ceph run_pytest tests/e2e -m "not directory"
    out_of_time && { skipped "no time left for all tests, so for the gates"; return; }
    timeout 600 gcovr -j 2 --root "$here" "${dirs[@]/#/--filter=}" --object-directory build-coverage --txt "$results/coverage.txt" \
        --json-summary "$results/coverage.json" >"$results/coverage-gcovr.log" 2>&1
    count_file coverage "$results/coverage.json"
}
