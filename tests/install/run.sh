#!/usr/bin/env bash
# Follows docs/manual/install.md in a fresh Debian root file system: runs its commands marked with `test-install` as they
# are written, and checks what they promise. usage: run.sh DIRECTORY, with the packages in DIRECTORY/packages
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(cd "${1:?usage: run.sh DIRECTORY}" && pwd)

skip() {
    echo "not possible here: $*"
    [ -z "${CI:-}" ] || exit 1
    exit 0
}
[ "$(id -u)" = 0 ] || skip "the root file system belongs to root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is missing: apt-get install mmdebstrap"

if command -v lintian >/dev/null; then
    lintian --allow-root --fail-on error,warning "$dir"/packages/acp-host_*.deb
    echo "passed: lintian finds nothing"
else
    echo "not possible here: lintian is missing: apt-get install lintian"
    [ -z "${CI:-}" ] || exit 1
fi

# As few packages as a Debian can have, and those that let acp-host's own be installed without the network.
base=$dir/base.tar
if [ ! -f "$base" ] || [ -n "$(find "$base" -mtime +7)" ]; then
    mmdebstrap --quiet --variant=minbase --include=systemd-standalone-sysusers,systemd-standalone-tmpfiles,procps \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$dir/new.tar"
    mv "$dir/new.tar" "$base"
fi
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
tar -xf "$base" -C "$root" --exclude='./dev/*'
mkdir -p "$root/srv/target"
cp -r "$dir/packages" "$root/srv/target/packages"
for part in install up turn purge; do "$here/commands.sh" "$part" >"$root/srv/$part.sh"; done
cp "$here/suite.sh" "$root/srv/suite.sh"
# A pid namespace of its own: nothing outlives this script.
unshare --mount --pid --fork --kill-child --net --ipc --uts \
    sh -ec 'mount --make-rprivate / && mount --bind "$1" "$1" && mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev" &&
        mknod -m 666 "$1/dev/null" c 1 3 && mknod -m 666 "$1/dev/urandom" c 1 9 && mknod -m 666 "$1/dev/zero" c 1 5 &&
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 bash /srv/suite.sh' sh "$root"
