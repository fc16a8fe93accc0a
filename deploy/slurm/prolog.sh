#!/bin/bash
# prolog.sh - before a job's first step on a node (Prolog= of slurm.conf, as root): sees to the mount and orders the job's data.
#
# Settings and what a job asks for: sluice-job.sh beside this. Exit 0 for jobs that ask for nothing and for wrong names, which are the user's: Slurm
# drains a node whose prolog fails. Exit 1: the job needs a mount that cannot be made.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
# shellcheck source=deploy/slurm/sluice-job.sh
. "$here/sluice-job.sh"

see_to_mount() {
    local out
    "$sluice" status --json "$mount" >/dev/null 2>&1 && return 0
    if [ -z "$config" ]; then
        say "$mount is not a sluice mount that answers, and the setting 'config' does not say how to make it"
        return 1
    fi
    mkdir -p "$mount" 2>/dev/null
    out=$("$sluice" mount --config "$config" "$mount" 2>&1) && return 0
    "$sluice" status --json "$mount" >/dev/null 2>&1 && return 0 # another job's prolog was quicker
    say "$mount cannot be mounted: $out"
    return 1
}

order() { # WARMUP-ARGUMENT...: its number is noted
    local args=(-b) out share
    [ -z "$warm_limit" ] || args+=(--download-limit "$warm_limit")
    if [ -n "$split" ]; then
        share=$(share_of_node)
        if [ -n "$share" ]; then args+=(--nodes "$share"); else say "which share of the data is this node's cannot be told: it fetches all"; fi
    fi
    if out=$("$sluice" warmup "${args[@]}" "$@" 2>&1); then
        mkdir -p "$state"
        sed -n 's/^job \([0-9]*\)$/\1/p' <<<"$out" >>"$(noted)"
    else
        say "the warm-up was not ordered: $out"
    fi
}

# Until all warm-ups have ended, or warm_wait is over.
wait_for_data() {
    local id code until=$((SECONDS + warm_wait)) out
    [ -r "$(noted)" ] || return
    while read -r id; do
        while :; do
            out=$("$sluice" warmup --status="$id" "$mount" 2>&1)
            code=$?
            if [ $code != 3 ] || [ "$SECONDS" -ge "$until" ] || ! grep -q running <<<"$out"; then break; fi
            sleep 1
        done
        [ $code != 1 ] || say "warm-up $id: $out"
    done <"$(noted)"
}

read_settings
read_job
[ ${#paths[@]} -gt 0 ] || [ ${#lists[@]} -gt 0 ] || [ ${#save[@]} -gt 0 ] || exit 0
see_to_mount || exit 1
[ ${#paths[@]} -eq 0 ] || order "${paths[@]}"
for list in "${lists[@]}"; do
    read_list "$list" | order --base "${list%/*}" -f -
done
[ "$warm_wait" = 0 ] || wait_for_data
exit 0
