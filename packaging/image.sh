#!/bin/bash
# Makes a root file system and an OCI archive with the Debian package, without a container daemon. The first process is
# `acp-gateway up` of the user acp. usage: image.sh DEB OUT
# VERSION: version in the names. SOURCE_DATE_EPOCH: time of all files. SUITE: Debian's release (default: this machine's).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
deb=$(realpath "$1") out=$2
name=acp-host-${VERSION:?}-$(uname -m)-image
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:?}
if ! command -v mmdebstrap >/dev/null; then
    echo "image.sh: mmdebstrap is missing: apt-get install mmdebstrap" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The package's dependencies come with --include, so that dpkg needs no network.
mmdebstrap --quiet --variant=minbase \
    --include=libgcc-s1,systemd-standalone-sysusers,systemd-standalone-tmpfiles \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook="copy-in $deb /tmp" \
    --customize-hook='chroot "$1" sh -ec "dpkg -i /tmp/acp-host_*.deb && rm /tmp/acp-host_*.deb"' \
    --customize-hook='chroot "$1" useradd --uid 1000 --create-home --shell /bin/bash acp' \
    --customize-hook='rm -f "$1/etc/hostname" "$1/etc/resolv.conf" "$1"/etc/*-' \
    "${SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}" "$work/root.tar"
mkdir -p "$out"
gzip -6n <"$work/root.tar" >"$out/$name.rootfs.tar.gz"
"$here/oci.py" "$work/root.tar" "$out/$name.rootfs.tar.gz" "$VERSION" "$(dpkg --print-architecture)" >"$out/$name.oci.tar"
du -h "$out/$name.rootfs.tar.gz" "$out/$name.oci.tar"
