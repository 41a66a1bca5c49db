#!/usr/bin/env bash
# An orchestrator on the machine contract of acpx, with bash and jq alone: ensures a session, runs a turn with a time limit,
# tries again with another permission mode where a permission needs a person, queues a turn, follows it over a lost reader, and
# closes the session. The agent must understand `say TEXT`, `permission TITLE` and `wait_cancel`, as the agent of the tests does.
#
# Usage: tests/smoke/acpx.sh AGENT DIRECTORY [COMMAND...]; COMMAND is `acpx` by default
set -euo pipefail
agent=$1 directory=$2
shift 2
[ $# -gt 0 ] || set -- acpx
acpx=("$@" --format json --json-strict --cwd "$directory")
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT

fail() {
    echo "failed: $*" >&2
    cat "$lines" >&2
    exit 1
}

# Runs a turn: [GLOBAL_FLAG...] -- TEXT. Lines go to $lines; prints the exit code.
turn() {
    local flags=() code=0
    while [ "$1" != -- ]; do
        flags+=("$1")
        shift
    done
    "${acpx[@]}" "${flags[@]}" "$agent" prompt -s job "$2" >"$lines" || code=$?
    # Each line is in the envelope, numbered from 1, and the last one is the result or an error.
    jq --exit-status --slurp '[.[].seq] == [range(1; length + 1)] and (.[-1].type | IN("result", "error"))
        and (map(.requestId) | unique | length == 1)' "$lines" >/dev/null || fail "the lines of a turn"
    echo "$code"
}

# Text that the agent said.
said() {
    jq --raw-output --join-output 'select(.type == "text") | .content' "$lines"
}

# Reads events of the session until one fits, and prints it: JQ_CONDITION [WATCH_FLAG...]
watch_until() {
    local condition=$1 line watch
    shift
    exec 3< <(exec "${acpx[@]}" "$agent" sessions watch -s job "$@")
    watch=$!
    while read -r line <&3; do
        if jq --exit-status --arg request "$request" "$condition" <<<"$line" >/dev/null; then
            echo "$line"
            break
        fi
    done
    exec 3<&-
    kill "$watch" 2>/dev/null || true
}

# 1. A session, once: a repeated call returns the same one.
session=$("${acpx[@]}" "$agent" sessions ensure --name job | jq --raw-output 'select(.created) | .sessionId')
[ -n "$session" ] || fail "a new session"
[ "$("${acpx[@]}" "$agent" sessions ensure --name job | jq --raw-output .sessionId)" = "$session" ] || fail "ensure is idempotent"
echo "ok session $session"

# 2. A turn.
[ "$(turn --timeout 60 -- 'say hello')" = 0 ] && [ "$(said)" = hello ] || fail "a turn"
echo "ok turn"

# 3. A permission that needs a person fails the turn; the orchestrator decides, and runs it again.
code=$(turn --non-interactive-permissions fail -- 'permission Deploy')
[ "$code" = 5 ] && [ "$(jq --raw-output 'select(.type == "error") | .code' "$lines")" = PERMISSION_PROMPT_UNAVAILABLE ] ||
    fail "a permission without a person"
[ "$(turn --approve-all -- 'permission Deploy')" = 0 ] && [ "$(said)" = "permission: selected allow_once" ] || fail "an approved turn"
echo "ok permission"

# 4. A time limit cancels the turn, and has its own exit code.
[ "$(turn --timeout 1 -- 'wait_cancel')" = 3 ] && [ "$(jq --raw-output 'select(.type == "error") | .code' "$lines")" = TIMEOUT ] ||
    fail "a time limit"
echo "ok timeout"

# 5. A queued turn, followed by a reader that is lost after its first line and continues after the cursor.
request=$("${acpx[@]}" "$agent" prompt -s job --no-wait 'say queued' | jq --raw-output .requestId)
cursor=$(watch_until '.requestId == $request' | jq --raw-output .cursor)
result=$(watch_until '.requestId == $request and .type == "turn_result"' --cursor "$cursor" | jq --raw-output .result.status)
[ "$result" = completed ] || fail "a queued turn: $result"
echo "ok watch"

# 6. The end.
[ "$("${acpx[@]}" "$agent" sessions close job | jq --raw-output .action)" = session_closed ] || fail "close"
[ "$("${acpx[@]}" "$agent" status -s job | jq --raw-output .status)" = no-session ] || fail "the session is closed"
echo "ok close"
