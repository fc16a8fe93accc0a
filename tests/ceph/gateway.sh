#!/bin/bash
# gateway.sh stop|start DIR - ends or starts only the S3 gateway of a Ceph that up.sh made in DIR (outage tests). start returns
# when the gateway answers.
set -euo pipefail
verb=${1:?usage: gateway.sh stop|start DIR}
dir=$(realpath "${2:?usage: gateway.sh stop|start DIR}")
export PATH=/usr/sbin:/usr/bin:/sbin:/bin CEPH_ARGS=--no-mon-config
unset PYENV_ROOT PYTHONPATH PYTHONHOME || true
port=$(sed -n 's/^rgw frontends = .*endpoint=127.0.0.1:\([0-9]*\).*/\1/p' "$dir/ceph.conf")

pid_of() { awk '$1 == "rgw" { p = $2 } END { print p }' "$dir/pids"; }
answers() { curl -s -o /dev/null --max-time 5 "http://127.0.0.1:$port/"; }

stop() {
    local pid i
    pid=$(pid_of)
    [ -n "$pid" ] || return 0
    kill -KILL "$pid" 2>/dev/null || true
    for ((i = 0; i < 100; i++)); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    sed -i '/^rgw /d' "$dir/pids"
}

start() {
    local i pid
    pid=$(pid_of)
    if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then
        return 0
    fi
    sed -i '/^rgw /d' "$dir/pids"
    setsid radosgw -c "$dir/ceph.conf" -f -n client.rgw </dev/null >>"$dir/log/rgw.out" 2>&1 &
    echo "rgw $!" >>"$dir/pids"
    for ((i = 0; i < 600; i++)); do
        answers && return 0
        sleep 0.1
    done
    echo "gateway.sh: no answer on port $port (logs in $dir/log)" >&2
    return 1
}

case $verb in
stop) stop ;;
start) start ;;
*) echo "usage: gateway.sh stop|start DIR" >&2; exit 2 ;;
esac
