#!/usr/bin/env bash
# Prints how to call a tool of systemd (for example systemd-analyze): the one that is installed, or else Debian's,
# unpacked into a directory and not installed. usage: tools.sh TOOL DIRECTORY
set -euo pipefail
tool=$1 dir=$2
if command -v "$tool"; then
    exit 0
fi
if [ ! -x "$dir/usr/bin/$tool" ]; then
    mkdir -p "$dir"
    cd "$dir"
    apt-get download systemd libsystemd-shared >&2
    for package in ./*.deb; do
        dpkg -x "$package" .
    done
fi
libraries=$(dirname "$(find "$dir" -name 'libsystemd-shared-*.so' -print -quit)")
# The packages' libraries are not where the loader looks.
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$dir/usr/bin/$tool" > "$dir/$tool"
chmod 755 "$dir/$tool"
echo "$dir/$tool"
