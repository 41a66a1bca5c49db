#!/usr/bin/env bash
# Makes a small Debian machine in DIRECTORY: kernel, initramfs and a root file system, of packages from the archive
# of this machine's own release. Nothing is installed on the host, no script of a package is run, and nothing is
# mounted: the packages are unpacked, and mke2fs copies the directory. The supervisor has to be root in there, so the
# files are made to belong to root. A second run finds its stamp and does nothing. usage: image.sh DIRECTORY
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: image.sh DIRECTORY}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

# gcc: the wrapper's tests build a small C program. systemd: the units are run by it. The rest is what a shell needs.
packages="linux-image-cloud-amd64 busybox-static base-files base-passwd bash coreutils dash diffutils findutils grep
    gzip hostname libc-bin login mount passwd procps sed tar util-linux mawk systemd systemd-sysv udev dbus kmod
    gcc libc6-dev"
modules="virtio_pci virtio_blk ext4 crc32c_generic virtio_rng"

fail() {
    echo "image.sh: $*" >&2
    exit 1
}

[ "$(uname -sm)" = "Linux x86_64" ] || fail "there is no image for $(uname -sm)"
command -v apt-get >/dev/null || fail "the packages come from Debian's archive, and there is no apt-get here"
want=$(cat "$here/image.sh" "$here/initramfs.sh" /etc/os-release | sha256sum)
if [ -f "$dir/stamp" ] && [ "$(cat "$dir/stamp")" = "$want" ]; then
    exit 0
fi
rm -rf "$dir/stamp" "$dir/root" "$dir/early" "$dir/archives"
mkdir -p "$dir/archives/partial" "$dir/root" "$dir/early/modules"

# As if nothing were installed, so that all that they depend on comes with them.
: >"$dir/status"
apt=(apt-get -qq -y -o "Dir::State::status=$dir/status" -o "Dir::Cache::archives=$dir/archives"
    -o Debug::NoLocking=1 --no-install-recommends)
# shellcheck disable=SC2086
timeout 600 "${apt[@]}" --download-only install $packages ||
    fail "the packages cannot be had (does \`apt-get update\` help?)"

root=$dir/root
for name in bin sbin lib lib32 lib64 libx32; do
    mkdir -p "$root/usr/$name"
    ln -s "usr/$name" "$root/$name"
done
for package in "$dir"/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"
done
kernel=$(basename "$root"/boot/vmlinuz-*)
version=${kernel#vmlinuz-}
cp "$root/boot/$kernel" "$dir/vmlinuz"
rm -rf "$root"/boot/* "$root"/usr/share/{doc,man,locale,info}

# What the packages' own scripts would have done.
busybox=$root/bin/busybox
"$busybox" depmod -b "$root" "$version"
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
ln -sf mawk "$root/usr/bin/awk"
ln -sf gcc "$root/usr/bin/cc"
[ -e "$root/usr/bin/sh" ] || ln -s dash "$root/usr/bin/sh"
echo acp-vm >"$root/etc/hostname"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
mkdir -p "$root/acp" "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp"
chmod 1777 "$root/tmp"

# The modules that find the root, each after those that it needs.
for module in $modules; do
    awk -v want="$module.ko" -F '[: ]+' '
        { n = split($1, path, "/") }
        path[n] == want { for (i = NF; i > 1; i--) if ($i != "") print $i; print $1 }
    ' "$root/lib/modules/$version/modules.dep"
done | awk '!seen[$0]++' >"$dir/early/modules.list"
while read -r module; do
    cp "$root/lib/modules/$version/$module" "$dir/early/modules/"
done <"$dir/early/modules.list"
cp "$busybox" "$here/initramfs.sh" "$dir/early/"
ln -s initramfs.sh "$dir/early/init"
chmod 755 "$dir/early/initramfs.sh"
(cd "$dir/early" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$dir/initramfs.gz"

rm -f "$dir/root.ext4"
PATH=$PATH:/usr/sbin:/sbin mke2fs -q -F -t ext4 -E root_owner=0:0 -d "$root" "$dir/root.ext4" 3G
rm -rf "$root" "$dir/early"
echo "$version" >"$dir/version"
echo "$want" >"$dir/stamp"
echo "image.sh: kernel $version, $(du -h "$dir/root.ext4" | cut -f1) of packages in $dir"
