#!/bin/bash
# fetch-fuse.sh [DIR] - puts libfuse's release tarball 3.17.2 into DIR (default: subprojects/packagecache), where meson looks
# for it before it asks the network. Debian 13's source package holds the very same tarball, so the machine's own Debian
# mirror serves it on Debian 12 too: a private apt configuration names the newer suite and nothing of the system's changes.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$here/subprojects/packagecache}
name=fuse-3.17.2.tar.gz
sum=3d932431ad94e86179e5265cddde1d67aa3bb2fb09a5bd35c641f86f2b5ed06f
check() { echo "$sum  $1" | sha256sum --check --status; }

pkg-config --atleast-version=3.17 fuse3 2>/dev/null && exit 0
[ -f "$dir/$name" ] && check "$dir/$name" && exit 0
mkdir -p "$dir"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/lists/partial"
# The mirror and its keyring are copied from the machine's own entries.
uri=$(awk '/^URIs:/ { print $2; exit }' /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
[ -n "$uri" ] || uri=$(awk '$1 == "deb" && /debian/ { for (i = 2; i <= NF; i++) if ($i ~ /^http/) { print $i; exit } }' /etc/apt/sources.list)
printf 'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s trixie main\n' "${uri:?no Debian mirror found in the apt sources}" >"$tmp/list"
opt=(-o Dir::Etc::sourcelist="$tmp/list" -o Dir::Etc::sourceparts=- -o Dir::State::Lists="$tmp/lists" -o APT::Sandbox::User=root -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache=)
apt-get "${opt[@]}" -qq update
(cd "$tmp" && apt-get "${opt[@]}" -qq --download-only source fuse3)
for f in "$tmp"/fuse3_*.orig.tar.*; do
    case $f in *.asc) continue ;; esac
    if check "$f"; then
        cp "$f" "$dir/$name"
        exit 0
    fi
done
echo "fetch-fuse.sh: the mirror's fuse3 source does not hold the expected tarball (sha256 $sum)." >&2
echo "Put $name from libfuse's release page into $dir and run again." >&2
exit 1
