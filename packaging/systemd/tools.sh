#!/usr/bin/env bash
# Prints the path of a systemd tool (for example systemd-analyze): the installed one, or else that of the Debian
# package, unpacked into a directory without installation. usage: tools.sh TOOL DIRECTORY
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
# The libraries of the packages are outside of the loader's search path.
printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$dir/usr/bin/$tool" > "$dir/$tool"
chmod 755 "$dir/$tool"
echo "$dir/$tool"
