#!/bin/sh
# Fetches the programs that the wrapper is measured beside from Debian's archive into DIRECTORY/usr/bin. Nothing is
# installed and no root is needed. What cannot be had is said; the benchmark then looks for it in PATH.
set -eu
directory=${1:?"usage: peers.sh DIRECTORY"}
mkdir -p "$directory"
cd "$directory"
for package in tini dumb-init catatonit; do
    [ -x "usr/bin/$package" ] && continue
    if apt-get download "$package" >/dev/null 2>&1 && dpkg -x "$package"_*.deb .; then
        echo "$package: fetched"
    else
        echo "$package: not to be had from Debian's archive here"
    fi
    rm -f "$package"_*.deb
done
