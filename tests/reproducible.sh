#!/usr/bin/env bash
# Builds the checked-out commit in two directories and with two home directories, twice in each, and compares the programs,
# the files for debuggers, the tarball and (where dpkg is there) the Debian package. Prints the sizes. With KEEP=DIR, the
# packages of the first build are copied there.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
registry=${CARGO_HOME:-$HOME/.cargo}/registry
config=${CARGO_HOME:-$HOME/.cargo}/config.toml
archives=tarball
! command -v dpkg-deb >/dev/null || archives="tarball deb"
commit=$(git rev-parse HEAD)

for number in 1 2; do
    place="$scratch/a-home-whose-length-differs-by-$number$(printf "%${number}s" | tr ' ' x)"
    mkdir -p "$place/cargo"
    # Downloads are shared; their path is not.
    [ ! -d "$registry" ] || ln -s "$registry" "$place/cargo/registry"
    [ ! -f "$config" ] || ln -s "$config" "$place/cargo/config.toml"
    git clone --quiet . "$place/source"
    git -C "$place/source" checkout --quiet "$commit"
    for build in first second; do
        (cd "$place/source" && env -u CARGO_TARGET_DIR CARGO_HOME="$place/cargo" make $archives >"$place/log" 2>&1) ||
            { tail -n 30 "$place/log" >&2; exit 1; }
        (cd "$place/source/target" && sha256sum release/acp-{gateway,supervisor,wrapper,acpx-bridge}{,.debug} packages/acp-host*) \
            >"$scratch/sums-$number-$build"
    done
    cat "$scratch/sums-$number-second"
    if [ $number = 1 ]; then
        (cd "$place/source/target" && wc -c release/acp-{gateway,supervisor,wrapper,acpx-bridge} packages/acp-host*)
        [ -z "${KEEP:-}" ] || cp "$place"/source/target/packages/* "$KEEP"
    fi
    rm -rf "$place"
done
for other in 1-second 2-first 2-second; do
    cmp "$scratch/sums-1-first" "$scratch/sums-$other" || { echo "build 1-first and build $other differ" >&2; exit 1; }
done
echo "all builds are equal"
