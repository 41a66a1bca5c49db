#!/usr/bin/env bash
# Runs the tests `cli` and `integration` of acpx's own repository against `acp-gateway acpx`, and compares the failures with
# failures.tsv. Nothing of that repository is kept here: CHECKOUT is commit 3d452d5a48abac5f024603a94e04eb248850ad20 of
# https://github.com/openclaw/acpx (MIT), and its dist-test and node_modules are written.
#
# Usage: tests/foreign/acpx-suite/run.sh CHECKOUT [own|acpx]; needs `cargo build --workspace --bins` and `make test-foreign`.
# `acpx` runs npm's acpx behind the same shim and prints its failures.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$1" && pwd)
side=${2:-own}
programs=${PROGRAMS:-$here/../../../target/debug}
foreign=${ACP_FOREIGN_DIR:-$here/../../../target/foreign}
export PATH="$foreign/bin:$PATH"

ln -sfn "$foreign/clients/acpx/node_modules" "$checkout/node_modules"
node --disable-warning=ExperimentalWarning "$here/build.mjs" "$checkout"
state=$(mktemp -d)
services=()
finish() {
    for pid in "${services[@]}"; do
        kill "$pid" && wait "$pid" || true
    done
    rm -rf "$state"
}
trap finish EXIT

if [ "$side" = acpx ]; then
    export ACPX_UNDER_TEST=$'node\n'"$foreign/clients/acpx/node_modules/acpx/dist/cli.js"
else
    export ACPX_UNDER_TEST=$'node\n'"$here/own.mjs"
    export SUITE_GATEWAY="$programs/acp-gateway"$'\n--state-dir\n'"$state/gateway"$'\nacpx'
    # The suite's agent with the flags of its tests, as agents of the gateway.
    SUITE_AGENTS=$(node - "$checkout/dist-test/test/mock-agent.js" "$state/gateway.toml" <<'JS'
const [, , agent, toml] = process.argv;
const flags = {
  mock: "",
  flaky: "--load-session-fails-on-empty",
  replay: "--supports-load-session --replay-load-session-updates --load-replay-text replay-load-chunk",
  codex: "--codex-session-id codex-runtime-session",
  claude: "--claude-session-id claude-runtime-session",
};
const words = (text) => text.split(" ").filter(Boolean);
const table = (name) =>
  `[agents.${name}]\ncommand = ${JSON.stringify([process.execPath, agent, ...words(flags[name])])}\ncwd_roots = ["/"]\n`;
require("node:fs").writeFileSync(toml, '[acp]\ndefault_agent = "mock"\n' + Object.keys(flags).map(table).join(""));
const command = (name) => ["node", JSON.stringify(agent), ...words(flags[name])].join(" ");
console.log(JSON.stringify(Object.fromEntries(Object.keys(flags).map((name) => [command(name), name]))));
JS
    )
    export SUITE_AGENTS
    start() {
        "$@" >"$state/log" 2>&1 &
        services+=($!)
        timeout 60 sh -c "until grep -q ready '$state/log'; do sleep 0.1; done" || { cat "$state/log" >&2; exit 1; }
    }
    start "$programs/acp-supervisor" serve --state-dir "$state/supervisor" --json
    start "$programs/acp-gateway" serve --state-dir "$state/gateway" --config "$state/gateway.toml" \
        --supervisor-socket "$state/supervisor/supervisor.sock" --json
fi

for file in cli integration; do
    node --test --test-reporter=tap "$checkout/dist-test/test/$file.test.js" >"$state/$file.tap" || true
    sed -n "s/^not ok \([0-9]*\) .*/$file\t\1/p" "$state/$file.tap"
done | sort >"$state/failures"
echo "$(grep -hc '^ok ' "$state"/*.tap | paste -sd+ | bc) tests passed, $(wc -l <"$state/failures") failed" >&2
if [ "$side" = acpx ]; then
    cat "$state/failures"
else
    grep -v '^#' "$here/failures.tsv" | cut -f 1,2 | sort | diff - "$state/failures"
fi
