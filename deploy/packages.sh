#!/bin/bash
# packages.sh - the Debian packages Sluice needs (for tests, as Debian 12 names them), one list per purpose; sourced by tests/setup.sh and deploy/quickstart.sh.
# Run by itself it prints the list named by its argument: deploy/packages.sh build|test|ceph
# shellcheck disable=SC2034  # the lists are used by whoever sources this file
BUILD_PACKAGES="meson ninja-build pkg-config gcc libc6-dev fuse3 librocksdb-dev libcurl4-openssl-dev libssl-dev libxml2-dev
    libglib2.0-dev libjansson-dev libmicrohttpd-dev libgnutls28-dev dpkg-dev ca-certificates"
TEST_PACKAGES="check libsubunit-dev lld clang libclang-rt-14-dev clang-format-14 gcovr codespell shellcheck git sqlite3 curl attr fio
    python3 python3-pytest python3-pytest-timeout python3-pytest-xdist python3-boto3 python3-cryptography python3-yaml python3-kubernetes python3-torch python3-h5py s3fs rclone haproxy e2fsprogs mount procps util-linux"
CEPH_PACKAGES="ceph-mon ceph-osd radosgw ceph-common curl"
case ${BASH_SOURCE[0]}:$0:${1:-} in
"$0:$0:build") echo "$BUILD_PACKAGES" ;;
"$0:$0:test") echo "$TEST_PACKAGES" ;;
"$0:$0:ceph") echo "$CEPH_PACKAGES" ;;
esac
