#!/bin/bash
# run.sh - every check of the source itself: layers, sizes, words, modes, registration, format, spelling, shell scripts, the lanes of tests/run.sh.
# Prints each check's findings and "lint: N passed, N failed, N skipped"; exit 1 if one failed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
pass=0 fail=0 skip=0

check() { # NAME COMMAND...
    local name=$1 out
    shift
    if out=$("$@" 2>&1); then
        pass=$((pass + 1))
        echo "ok   $name"
    else
        fail=$((fail + 1))
        printf 'FAIL %s\n%s\n' "$name" "$out"
    fi
}

skip() {
    skip=$((skip + 1))
    echo "skip $1: $2"
}

files() { git ls-files -co --exclude-standard -- "$@" | grep -v '^subprojects/' | while read -r f; do [ -f "$f" ] && echo "$f"; done; }

format() {
    local list found
    mapfile -t list < <(files '*.c' '*.h')
    found=$(clang-format-14 --dry-run -Werror "${list[@]}" 2>&1) && return 0
    grep -E 'error:' <<<"$found" | cut -d: -f1 | sort | uniq -c
    return 1
}

scripts() {
    local list
    mapfile -t list < <(files '*.sh' '.ci/run')
    shellcheck "${list[@]}"
}

spelling() {
    local list
    mapfile -t list < <(files '*.c' '*.h' '*.def' '*.py' '*.sh' '*.md' '*.build' '*.txt')
    codespell --ignore-words-list="ot,inout,crate,fo,te,nd,statics,unparseable,get's" "${list[@]}"
}

check layers tests/lint/layers.py
for c in sizes words modes registered rows points; do
    check "$c" tests/lint/tidy.py "$c"
done
if command -v clang-format-14 >/dev/null; then check format format; else skip format "clang-format-14 is not there"; fi
if command -v codespell >/dev/null; then check spelling spelling; else skip spelling "codespell is not there"; fi
if command -v shellcheck >/dev/null; then check scripts scripts; else skip scripts "shellcheck is not there"; fi
check lanes tests/lint/lanes.sh
echo "lint: $pass passed, $fail failed, $skip skipped"
[ $fail -eq 0 ]
