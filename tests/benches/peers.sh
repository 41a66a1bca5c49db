#!/bin/sh
# Downloads the peers of the wrapper's benchmark from Debian's archive into DIRECTORY/usr/bin. Installs nothing
# and needs no root. Reports missing packages; the benchmark then searches PATH for them.
set -eu
directory=${1:?"usage: peers.sh DIRECTORY"}
mkdir -p "$directory"
cd "$directory"
for package in tini dumb-init catatonit; do
    [ -x "usr/bin/$package" ] && continue
    if apt-get download "$package" >/dev/null 2>&1 && dpkg -x "$package"_*.deb .; then
        echo "$package: fetched"
    else
        echo "$package: not available from Debian's archive"
    fi
    rm -f "$package"_*.deb
done
