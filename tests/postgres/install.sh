#!/usr/bin/env bash
# Unpacks Debian's PostgreSQL server with its client programs, and the libraries that this machine lacks, into
# DIRECTORY/postgres for `make test-postgres`, unless a server is installed. Installs nothing and needs no root, except to fetch
# the lists of packages if there are none. Where none can be had, the file `missing` says why, and the tests say so and are
# skipped, or fail in CI.
# usage: install.sh DIRECTORY
set -euo pipefail

base=${1:?usage: install.sh DIRECTORY}
! command -v postgres >/dev/null || exit 0
for program in /usr/lib/postgresql/*/bin/postgres; do
    [ ! -x "$program" ] || exit 0
done
mkdir -p "$base/postgres"
dir=$(cd "$base/postgres" && pwd)
rm -f "$dir/missing"

missing() {
    echo "$*" >"$dir/missing"
    echo "tests/postgres/install.sh: no PostgreSQL: $*" >&2
    exit 0
}

# Prints the newest server of the archive, its client programs, and the libraries that their installation would add, without
# those of its compiler.
needed() {
    local server
    server=$(apt-cache pkgnames postgresql- | sed -nE '/^postgresql-[0-9]+$/p' | sort -V | tail -n 1)
    [ -n "$server" ] || return 0
    apt-get install --simulate --no-install-recommends "$server" 2>/dev/null | sed -n 's/^Inst \([^ ]*\).*/\1/p' |
        sed -nE '/^lib(llvm|z3|.*perl)/d; /^(lib|postgresql-(client-)?[0-9]+$)/p' | sort -u
}

command -v apt-get >/dev/null || missing "there is no server, and no apt-get to fetch Debian's"
names=$(needed)
if [ -z "$names" ] && [ "$(id -u)" = 0 ]; then
    apt-get update -qq
    names=$(needed)
fi
[ -n "$names" ] || missing "there is no server, and apt knows none; as root: apt-get update"
if [ "$(cat "$dir/stamp" 2>/dev/null)" != "$names" ]; then
    rm -rf "$dir"
    mkdir -p "$dir/debs"
    # shellcheck disable=SC2086 # A list of names.
    (cd "$dir/debs" && apt-get download $names >/dev/null 2>&1) || missing "Debian's archive does not answer"
    # Programs find the rest beside themselves.
    for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir"; done
    rm -rf "$dir/debs"
    find "$dir" -name 'lib*.so.*' -printf '%h\n' | sort -u | paste -sd : >"$dir/libraries"
    echo "$names" >"$dir/stamp"
fi
