#!/bin/bash
# Makes the tarball: a tree that runs from any directory, with checksums and a list of all components. The same programs
# give the same bytes. usage: tarball.sh PROGRAMS MAN COMPLETIONS SBOM OUT
# VERSION: version in the name. SOURCE_DATE_EPOCH: time of all files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
programs=$1 man=$2 completions=$3 sbom=$4 out=$5
name=acp-host-${VERSION:?}-$(uname -m)-linux
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

DESTDIR=$stage "$here/install.sh" "$programs" "$man" "$completions"
tree=$stage/$name
mv "$stage/usr/local" "$tree"
install -m 644 "$here/../LICENSE" "$tree/LICENSE"
install -m 644 "$sbom" "$tree/share/doc/acp-host/acp-host.cdx.json"
(cd "$tree" && find . -type f ! -name SHA256SUMS -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) >"$stage/sums"
install -m 644 "$stage/sums" "$tree/SHA256SUMS"
mkdir -p "$out"
tar -C "$stage" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:?}" \
    --mode=go=rX,u+rw,a-s -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz") >"$out/SHA256SUMS"
echo "$out/$name.tar.gz: $(du -h "$out/$name.tar.gz" | cut -f1)"
