#!/usr/bin/env bash
# Unpacks Debian's `prometheus` (the server and promtool) into DIRECTORY/prometheus for `make test-foreign`. Installs nothing and
# needs no root, except to fetch the lists of packages if there are none. usage: install-prometheus.sh DIRECTORY
set -euo pipefail
directory=${1:?"usage: install-prometheus.sh DIRECTORY"}/prometheus
[ ! -x "$directory/usr/bin/promtool" ] || exit 0
mkdir -p "$directory"
cd "$directory"
fetch() { apt-get download prometheus >/dev/null 2>&1; }
if ! fetch; then
    [ "$(id -u)" != 0 ] || apt-get update -qq
    if ! fetch; then
        echo "install-prometheus.sh: cannot fetch prometheus from Debian's archive; as root: apt-get update" >&2
        exit 1
    fi
fi
dpkg -x prometheus_*.deb .
rm -f prometheus_*.deb
