#!/bin/bash
# up.sh DIR [PORT] - a single-node Ceph with its RADOS gateway (S3) on loopback: no systemd, no manager, no keyrings.
#
# Leaves DIR/ceph.conf, DIR/pids ("name pid" lines in start order) and DIR/env, to be sourced: endpoint, keys of the owner (AWS_*)
# and of a second user without rights (OTHER_*). Ports: PORT (gateway), PORT+1, PORT+2 (monitor), PORT+10..90 (storage daemon).
# Environment: SIZE_GB=8 disk size, RGW_EXTRA="key = value;key = value" for the gateway's section.
# End it with down.sh; stop and start only the gateway with gateway.sh. A second up.sh on DIR starts from nothing.
set -euo pipefail
dir=$(realpath -m "${1:?usage: up.sh DIR [PORT]}")
port=${2:-8000}
here=$(cd "$(dirname "$0")" && pwd)
size=$((${SIZE_GB:-8} << 30))
fsid=$(cat /proc/sys/kernel/random/uuid)
mon_v1=127.0.0.1:$((port + 1)) mon_v2=127.0.0.1:$((port + 2))
owner_key=OWNERACCESSKEY000001 owner_secret=ownersecret0000000000000000000000000001
other_key=OTHERACCESSKEY000001 other_secret=othersecret0000000000000000000000000001
# Nothing of the surrounding Python set-up may reach the ceph command.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin CEPH_ARGS=--no-mon-config
unset PYENV_ROOT PYTHONPATH PYTHONHOME || true

write_conf() {
    cat <<CONF
[global]
fsid = $fsid
mon host = [v2:$mon_v2/0,v1:$mon_v1/0]
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
ms mon cluster mode = crc
ms mon service mode = crc
ms mon client mode = crc
ms cluster mode = crc
ms service mode = crc
ms client mode = crc
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind port min = $((port + 10))
ms bind port max = $((port + 90))
ms bind ipv6 = false
run dir = $dir/run
admin socket = $dir/run/\$name.asok
pid file = $dir/run/\$name.pid
log file = $dir/log/\$name.log
mon cluster log file = $dir/log/cluster.log
crash dir =
log max recent = 1000
debug ms = 0/0
debug rgw = 0/0
debug osd = 0/0
debug bluestore = 0/0
debug rocksdb = 0/0
debug bdev = 0/0
debug objclass = 0/0
debug mon = 0/0
debug paxos = 0/0
mon data = $dir/mon
osd data = $dir/osd
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon max pg per osd = 1000
mon warn on pool no redundancy = false
mon data avail crit = 1
mon data avail warn = 1
paxos propose interval = 0.05
paxos min wait = 0.01
osd objectstore = bluestore
osd class load list = *
osd class default list = *
osd op num shards = 2
osd op num threads per shard = 2
osd memory target = 1073741824
bluestore block path =
bluestore block create = true
bluestore block size = $size
bluestore block db size = 0
bluestore block wal size = 0
[client.rgw]
ms mon client mode = crc
rgw frontends = beast endpoint=127.0.0.1:$port tcp_nodelay=1
rgw data = $dir/run
rgw thread pool size = 64
rgw dns name = s3.localhost
rgw enable apis = s3, sts, iam, notifications, admin
rgw crypt require ssl = false
rgw gc obj min wait = 5
rgw gc processor period = 10
rgw gc processor max time = 10
CONF
    [ -z "${RGW_EXTRA:-}" ] || tr ';' '\n' <<<"$RGW_EXTRA"
}

wait_for() { # SECONDS COMMAND...: until the command succeeds
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $until ] || { echo "up.sh: timeout waiting for: $* (logs in $dir/log)" >&2; return 1; }
        sleep 0.1
    done
}

spawn() { # NAME COMMAND...: in the background, recorded in DIR/pids
    local name=$1
    shift
    setsid "$@" </dev/null >>"$dir/log/$name.out" 2>&1 &
    echo "$name $!" >>"$dir/pids"
}

osd_is_up() { timeout 10 ceph -c "$dir/ceph.conf" --connect-timeout 5 osd stat | grep -q '1 up'; }

make_user() { # UID KEY SECRET [CAPS]
    timeout 60 radosgw-admin -c "$dir/ceph.conf" -n client.rgw user create --uid="$1" --display-name="$1" \
        --access-key="$2" --secret-key="$3" ${4:+--caps="$4"} >/dev/null 2>>"$dir/log/admin.out"
}

if [ -f "$dir/pids" ]; then
    "$here/down.sh" "$dir"
fi
rm -rf "$dir"
mkdir -p "$dir"/{mon,osd,run,log}
: >"$dir/pids"
write_conf >"$dir/ceph.conf"
conf="-c $dir/ceph.conf"

# 1. monitor
monmaptool --create --fsid "$fsid" --addv a "[v2:$mon_v2,v1:$mon_v1]" "$dir/monmap" >/dev/null
# shellcheck disable=SC2086  # conf is two words
{
    ceph-mon $conf --mkfs -i a --monmap "$dir/monmap" --mon-data "$dir/mon" 2>>"$dir/log/mon-mkfs.out"
    spawn mon ceph-mon $conf -f -i a --mon-data "$dir/mon"
    # 2. storage daemon
    osd=$(cat /proc/sys/kernel/random/uuid)
    wait_for 60 timeout 10 ceph $conf --connect-timeout 5 osd new "$osd"
    ceph-osd $conf -i 0 --mkfs --osd-uuid "$osd" --osd-data "$dir/osd" </dev/null >>"$dir/log/osd-mkfs.out" 2>&1
    spawn osd ceph-osd $conf -f -i 0 --osd-data "$dir/osd"
    wait_for 60 osd_is_up
}
# 3. gateway and users
"$here/gateway.sh" start "$dir"
make_user owner "$owner_key" "$owner_secret" 'buckets=*;users=*'
make_user other "$other_key" "$other_secret"
cat >"$dir/env" <<ENV
export AWS_ACCESS_KEY_ID=$owner_key AWS_SECRET_ACCESS_KEY=$owner_secret
export AWS_DEFAULT_REGION=us-east-1 AWS_REGION=us-east-1
export OTHER_ACCESS_KEY_ID=$other_key OTHER_SECRET_ACCESS_KEY=$other_secret
export S3_ENDPOINT=http://127.0.0.1:$port SLUICE_CEPH_DIR=$dir
ENV
