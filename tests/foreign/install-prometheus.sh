#!/usr/bin/env bash
# Installs Debian's `prometheus` (the server and promtool) for `make test-foreign`, unless both are there. The service of the
# package is not started.
set -euo pipefail

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "install-prometheus.sh: prometheus is missing, and it takes root to install it: run \`apt-get install prometheus\`" >&2
    exit 1
fi
echo "prometheus is missing: installing it with apt-get"
apt-get update -qq
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null
