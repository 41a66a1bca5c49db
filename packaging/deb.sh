#!/bin/bash
# Makes the Debian package. usage: deb.sh PROGRAMS MAN COMPLETIONS SBOM OUT
# VERSION: version of the package. MAINTAINER: name and address. SOURCE_DATE_EPOCH: time of all files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
programs=$1 man=$2 completions=$3 sbom=$4 out=$5
version=${VERSION:?} maintainer=${MAINTAINER:-acp-host maintainers <acp-host@example.org>}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/tree doc=$stage/tree/usr/share/doc/acp-host
mkdir -m 755 "$root"

DESTDIR=$root PREFIX=/usr ZSHDIR=share/zsh/vendor-completions "$here/install.sh" "$programs" "$man" "$completions"
install -m 644 "$sbom" "$doc/acp-host.cdx.json"
printf 'acp-host (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(date -u -R -d "@${SOURCE_DATE_EPOCH:?}")" | gzip -9n >"$doc/changelog.gz"
gzip -9n <"$here/../CHANGELOG.md" >"$doc/CHANGELOG.md.gz"
install -D -m 644 "$here/debian/lintian-overrides" "$root/usr/share/lintian/overrides/acp-host"

# Libraries that the programs need, as dpkg finds them.
mkdir "$stage/debian"
printf 'Source: acp-host\n\nPackage: acp-host\nArchitecture: any\n' >"$stage/debian/control"
libraries=$(cd "$stage" && dpkg-shlibdeps -O "$root/usr/bin/acp-gateway" "$root/usr/bin/acp-supervisor" 2>/dev/null |
    sed -n 's/^shlibs:Depends=//p')
mkdir -m 755 "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: acp-host
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: $maintainer
Installed-Size: $(du -k -s --apparent-size "$root" | cut -f1)
Depends: $libraries, systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles
Section: net
Priority: optional
Description: run coding agents as a service
 Coding agents that speak the Agent Client Protocol (ACP) run in sessions that
 survive crashes and restarts. People talk to them from a terminal, Discord
 threads, editors or programs. A supervisor owns the processes of all agents and
 leaves none behind.
END
echo /etc/acp-host/supervisor.toml >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "$here/debian/$script" "$root/DEBIAN/$script"
done
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
chmod 644 "$root/DEBIAN/md5sums" "$root/DEBIAN/control" "$root/DEBIAN/conffiles"
find "$root" -type d -exec chmod 755 {} +
mkdir -p "$out"
dpkg-deb --root-owner-group -Zxz --build "$root" "$out" >/dev/null
deb=$out/acp-host_${version}_$(dpkg --print-architecture).deb
echo "$deb: $(du -h "$deb" | cut -f1)"
