#!/bin/bash
# on_mount.sh SLUICE DIR [SUITE OPTION...] - runs the POSIX suite on a fresh mount of the file store made under DIR: once with
# kernel passthrough as the machine offers it, once without. The cases of skip.txt are counted as skipped.
set -uo pipefail
sluice=$(realpath "${1:?usage: on_mount.sh SLUICE DIR [OPTION...]}")
dir=$(realpath -m "${2:?usage: on_mount.sh SLUICE DIR [OPTION...]}")
shift 2
here=$(cd "$(dirname "$0")" && pwd)
suite=$(dirname "$sluice")/../tests/posix/posix_suite
pass=0 fail=0 skip=0

run_on() { # NAME MOUNT-OPTION...
    local d=$dir/$1 out sums
    shift
    mkdir -p "$d"/{lake,mnt}
    chmod 755 "$dir" "$d" "$d/lake" "$d/mnt"
    timeout 60 "$sluice" mount "file://$d/lake" "$d/mnt" --cache-dir "$d/cache" --allow-other "$@" || return 1
    out=$(timeout 400 "$suite" "$d/mnt" --skip-file "$here/skip.txt" "${suite_options[@]}")
    echo "$out"
    timeout 60 "$sluice" umount "$d/mnt" || umount -l "$d/mnt"
    sums=$(sed -n 's/^posix: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped.*/\1 \2 \3/p' <<<"$out" | tail -n 1)
    read -r p f s <<<"${sums:-0 1 0}"
    pass=$((pass + p)) fail=$((fail + f)) skip=$((skip + s))
}

suite_options=("$@")
run_on default || fail=$((fail + 1))
run_on through-daemon --passthrough off || fail=$((fail + 1))
echo "posix: $pass passed, $fail failed, $skip skipped"
[ "$fail" -eq 0 ]
