#!/usr/bin/env bash
# Runs the walk of docs/manual/discord.md against discord-digital-twin: run.sh TARGET_DIR. Installs the twin, with the versions and
# hashes of package-lock.json and without install scripts, into TARGET_DIR/foreign/discord-twin.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=$(cd "${1:?usage: run.sh TARGET_DIR}" && pwd)
dir=$target/foreign/discord-twin
mkdir -p "$dir"
cp "$here/package.json" "$here/package-lock.json" "$here/walk.mjs" "$dir"
if [ ! -f "$dir/stamp" ] || ! cmp -s "$dir/stamp" "$here/package-lock.json"; then
    (cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=5 --loglevel=error)
    cp "$here/package-lock.json" "$dir/stamp"
fi
node=$target/foreign/bin/node
[ -x "$node" ] || node=node
state=$(mktemp -d "${TMPDIR:-/tmp}/acp-twin-XXXXXX")
trap 'rm -rf "$state"' EXIT
"$node" "$dir/walk.mjs" "$target/debug/acp-gateway" "$state"
