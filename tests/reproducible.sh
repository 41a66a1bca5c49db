#!/usr/bin/env bash
# Builds the checked-out commit twice, in two directories and with two home directories, and compares the programs.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
registry=${CARGO_HOME:-$HOME/.cargo}/registry
config=${CARGO_HOME:-$HOME/.cargo}/config.toml
commit=$(git rev-parse HEAD)

for number in 1 2; do
    place="$scratch/a-home-whose-length-differs-by-$number$(printf "%${number}s" | tr ' ' x)"
    mkdir -p "$place/cargo"
    # Downloads are shared; their path is not.
    [ ! -d "$registry" ] || ln -s "$registry" "$place/cargo/registry"
    [ ! -f "$config" ] || ln -s "$config" "$place/cargo/config.toml"
    git clone --quiet . "$place/source"
    git -C "$place/source" checkout --quiet "$commit"
    (cd "$place/source" && env -u CARGO_TARGET_DIR CARGO_HOME="$place/cargo" make build >"$place/log" 2>&1) ||
        { tail -n 30 "$place/log" >&2; exit 1; }
    (cd "$place/source/target/release" && sha256sum acp-gateway acp-supervisor acp-wrapper) | tee "$scratch/sums-$number"
    rm -rf "$place"
done
if cmp "$scratch/sums-1" "$scratch/sums-2"; then
    echo "the two builds are equal"
else
    echo "the two builds differ" >&2
    exit 1
fi
