#!/bin/bash
# epilog.sh - after a job's last step on a node (Epilog= of slurm.conf, as root): ends its warm-ups, waits for what it saved, gives space back.
#
# Settings and what a job asks for: sluice-job.sh beside this. Always exit 0: what is not in the store yet is kept on this node and goes on being
# uploaded, which is no reason to drain it.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
# shellcheck source=deploy/slurm/sluice-job.sh
. "$here/sluice-job.sh"

stop_warmups() {
    local id
    [ -r "$(noted)" ] || return
    while read -r id; do
        # one that has ended stays as it is
        "$sluice" warmup --stop "$id" "$mount" >/dev/null 2>&1 || say "warm-up $id is not known any more"
    done <"$(noted)"
    rm -f "$(noted)"
}

wait_for_saved() {
    local out code
    out=$("$sluice" wait --timeout "${save_wait}s" "${save[@]}" 2>&1)
    code=$?
    [ $code = 0 ] || say "not all of ${save[*]} is in the store (it is kept on this node, see 'sluice status $mount'): $out"
}

give_back() {
    local out list
    [ ${#paths[@]} -eq 0 ] || out=$("$sluice" warmup --evict "${paths[@]}" 2>&1) || say "not all was dropped: $out"
    for list in "${lists[@]}"; do
        out=$(read_list "$list" | "$sluice" warmup --evict --base "${list%/*}" -f - 2>&1) || say "not all was dropped: $out"
    done
}

read_settings
read_job
[ ${#paths[@]} -gt 0 ] || [ ${#lists[@]} -gt 0 ] || [ ${#save[@]} -gt 0 ] || exit 0
stop_warmups
[ ${#save[@]} -eq 0 ] || [ "$save_wait" = 0 ] || wait_for_saved
[ -z "$evict" ] || give_back
exit 0
