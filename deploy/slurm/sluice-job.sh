#!/bin/bash
# shellcheck disable=SC2034  # settings and what was asked for are read by whoever sources this
# sluice-job.sh - what prolog.sh and epilog.sh share: settings, what the job asks for, messages. Sourced by them, next to which it stands.
#
# Settings, lines NAME=VALUE of /etc/sluice/slurm.env (another file: SLUICE_SLURM_ENV):
#   sluice=/usr/bin/sluice   the command
#   mount=/mnt/lake          the mount
#   config=                  name of a file in /etc/sluice (or a path): a mount that is not there is made from it; empty: it is an error
#   warm_wait=0              seconds that a job waits for its data before it starts; what is left comes while it runs
#   warm_limit=              bytes a second that the warm-up of one job fetches at most, e.g. 1G
#   save_wait=300            seconds that the end of a job waits until what it saved is in the store; 0: it does not wait
#   state=/run/sluice/slurm  where the numbers of warm-ups are noted
#   scontrol=scontrol        Slurm's command, for the names of a job's nodes
#
# What a job asks for, words of `sbatch --comment`, of which PATHs are below the mount:
#   sluice=PATH[,PATH...]        fetch these before or while the job runs
#   sluice-list=PATH             fetch what this list, index of safetensors or shard list names, relative to its directory; read as the job's user
#   sluice-split                 each node fetches a share of it
#   sluice-save=PATH[,PATH...]   at the end wait until these are in the store
#   sluice-evict                 at the end drop from the cache what was fetched
PATH=/usr/sbin:/usr/bin:/sbin:/bin${PATH:+:$PATH} # Slurm gives none
export PATH

say() {
    echo "sluice ${0##*/} job=${SLURM_JOB_ID:-?}: $*" >&2
}

read_settings() {
    local file=${SLUICE_SLURM_ENV:-/etc/sluice/slurm.env} name value
    sluice=/usr/bin/sluice mount=/mnt/lake config='' warm_wait=0 warm_limit='' save_wait=300 state=/run/sluice/slurm scontrol=scontrol
    [ -r "$file" ] || return 0
    while IFS='=' read -r name value || [ -n "$name" ]; do # the last line may have no end
        case $name in
        '' | '#'*) ;;
        sluice | mount | config | warm_wait | warm_limit | save_wait | state | scontrol) printf -v "$name" %s "$value" ;;
        *) say "$file: unknown setting '$name'" ;;
        esac
    done <"$file"
}

# PATH[,PATH...] as paths of the mount into the array $1. What leads out of it is left out.
take_paths() { # ARRAY TEXT
    local -n into=$1
    local parts part
    IFS=, read -r -a parts <<<"$2"
    for part in "${parts[@]}"; do
        case $part in
        "$mount" | "$mount"/*) part=${part#"$mount"} && part=${part#/} ;;
        esac
        case /$part/ in
        // | */./* | //* | */../*) say "'$part' is left out: it is not a path below $mount" ;;
        *) into+=("$mount/$part") ;;
        esac
    done
}

# What the job asks for: paths, list, save (arrays but for list), split, evict.
read_job() {
    local words word
    paths=() save=() lists=() split='' evict=''
    read -r -a words <<<"${SLURM_JOB_COMMENT:-}"
    for word in "${words[@]}"; do
        case $word in
        sluice=*) take_paths paths "${word#*=}" ;;
        sluice-list=*) take_paths lists "${word#*=}" ;;
        sluice-save=*) take_paths save "${word#*=}" ;;
        sluice-split) split=1 ;;
        sluice-evict) evict=1 ;;
        sluice*) say "'$word' of the job's comment is not understood" ;;
        esac
    done
}

# "I/N" of this node among the job's, nothing if that cannot be told.
share_of_node() {
    local names i
    mapfile -t names < <("$scontrol" show hostnames "${SLURM_JOB_NODELIST:-}" 2>/dev/null)
    for i in "${!names[@]}"; do
        [ "${names[i]}" != "${SLURMD_NODENAME:-}" ] || echo "$i/${#names[@]}"
    done
}

# As the job's user, who may read it or not.
read_list() { # PATH
    if [ "${SLURM_JOB_USER:-root}" = root ]; then cat -- "$1"; else runuser -u "$SLURM_JOB_USER" -- cat -- "$1"; fi
}

noted() { # the file with the numbers of this job's warm-ups
    echo "$state/${SLURM_JOB_ID:?}"
}
