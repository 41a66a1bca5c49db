#!/usr/bin/env bash
# Boots a Debian with systemd and follows docs/manual/install.md in it: the package, a tenant, restarts and an upgrade in
# mid-turn, the services of one user, purge. usage: services.sh TARGET_DIR, with packages in TARGET_DIR/install
# ACP_VM_SECONDS: how long the machine may run.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=$(cd "${1:?usage: services.sh TARGET_DIR}" && pwd)
dir=$target/vm
seconds=${ACP_VM_SECONDS:-1200}

fail() {
    echo "services.sh: $*" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || fail "the root file system belongs to root"
command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing: apt-get install mmdebstrap"
. "$here/machine.sh"
"$here/image.sh" "$dir"

root=$dir/services-root base=$dir/services.tar
if [ ! -f "$base" ]; then
    mmdebstrap --quiet --variant=minbase --include=systemd-sysv,dbus,libpam-systemd,jq,procps,libgcc-s1 \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$dir/services.new.tar"
    mv "$dir/services.new.tar" "$base"
fi
rm -rf --one-file-system "$root"
mkdir -p "$root"
tar -xf "$base" -C "$root" --exclude='./dev/*'
mkdir -p "$root/acp" "$root/etc/systemd/system/multi-user.target.wants"
cp "$here/services-suite.service" "$root/etc/systemd/system/"
ln -s ../services-suite.service "$root/etc/systemd/system/multi-user.target.wants/"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
root_disk=$dir/services-root.ext4 acp_disk=$dir/services.ext4
rm -f "$root_disk" "$acp_disk"
PATH=$PATH:/usr/sbin:/sbin
mke2fs -q -F -t ext4 -d "$root" "$root_disk" 2G

stage=$dir/services-stage
rm -rf "$stage" "$root"
mkdir -p "$stage"
cp -r "$target/install/packages" "$target/install/upgrade" "$stage/"
rm -f "$stage"/packages/*-image.*
cp "$here/services-suite.sh" "$stage/"
for part in install tenant user purge; do
    "$here/../install/commands.sh" "$part" >"$stage/$part.sh"
done
mke2fs -q -F -t ext4 -E root_owner=0:0 -d "$stage" "$acp_disk" 512M
rm -rf "$stage"

log=$dir/services.log start=$SECONDS
boot /lib/systemd/systemd "$log"
tr -d '\r' <"$log" | grep -aE '^(acp-vm:|    \|)' || true
passed=$(grep -ac '^acp-vm: passed' "$log" || true)
failed=$(grep -ac '^acp-vm: FAILED' "$log" || true)
echo "=== services ($accel): $passed passed, $failed failed, $((SECONDS - start)) s; all of it: $log"
grep -aq '^acp-vm: the end' "$log" || { tail -n 40 "$log"; fail "the machine did not come to its end"; }
[ "$failed" = 0 ] && [ "$passed" != 0 ]
