#!/usr/bin/env bash
# Twenty steps over the local API with curl and jq alone: what a program without a library has to do. The agent must ask for
# permissions and understand `say TEXT`, `permission TITLE` and `tool write PATH TEXT`, as the agent of the tests does.
#
# Usage: tests/smoke/rest.sh SOCKET AGENT DIRECTORY
set -euo pipefail
socket=$1 agent=$2 directory=$3
step=0
body=$(mktemp) stream=$(mktemp)
trap 'rm -f "$body" "$stream"' EXIT

# Sends a request: METHOD PATH [JSON]. The body goes to $body, the status to standard output.
ask() {
    local method=$1 path=$2 json=${3-}
    curl --silent --show-error --max-time 60 --unix-socket "$socket" --output "$body" --write-out '%{http_code}' \
        --request "$method" ${json:+--header 'content-type: application/json' --data "$json"} \
        --header "idempotency-key: smoke-$$-$step" "http://gateway$path"
}

# Checks the last answer: NAME STATUS WANTED_STATUS [JQ_CONDITION].
ok() {
    local name=$1 status=$2 want=$3 condition=${4:-true}
    step=$((step + 1))
    if [ "$status" != "$want" ] || ! { [ "$condition" = true ] || jq --exit-status "$condition" "$body" >/dev/null; }; then
        echo "failed at step $step, $name: status $status, wanted $want and $condition" >&2
        cat "$body" >&2
        exit 1
    fi
    echo "ok $step $name"
}

# Waits until a path answers with a condition: PATH JQ_CONDITION.
wait_for() {
    local end=$((SECONDS + 60))
    until [ "$(ask GET "$1")" = 200 ] && jq --exit-status "$2" "$body" >/dev/null; do
        [ "$SECONDS" -lt "$end" ] || { echo "not in time: $1 $2" >&2; cat "$body" >&2; exit 1; }
        read -r -t 0.1 <> <(:) || true
    done
}

ok "liveness" "$(ask GET /health)" 200 '. == {ok: true}'
ok "capabilities" "$(ask GET /v1/capabilities)" 200 '.event_version == 1 and .limits.sessions_max > 0'
ok "OpenAPI document" "$(ask GET /v1/openapi.json)" 200 '.openapi == "3.1.0" and .paths["/v1/stream"].get'
ok "list of agents" "$(ask GET /v1/agents)" 200 "any(.[]; .name == \"$agent\")"
ok "new session" "$(ask POST /v1/sessions "{\"agent\":\"$agent\",\"cwd\":\"$directory\",\"wait_s\":60}")" 200 '.opening == "open"'
key=$(jq --raw-output .session_key "$body")
at=/v1/sessions/$(jq --raw-output '.session_key | @uri' "$body")
ok "label" "$(ask PATCH "$at" '{"label":"smoke"}')" 200 '.state == "idle"'
ok "search by label" "$(ask GET '/v1/sessions?q=SMOKE&state=idle&cursor=')" 200 "length == 1 and .[0].session_key == \"$key\""
ok "prompt" "$(ask POST "$at/prompt" '{"text":"say hello"}')" 200 .run_id
run=$(jq --raw-output .run_id "$body")
curl --silent --show-error --max-time 60 --unix-socket "$socket" --header 'accept: text/event-stream' --output "$stream" \
    "http://gateway$at/events?run=$run&until_done=true"
sed -n 's/^data: //p' "$stream" | jq --slurp . >"$body"
ok "streamed reply" 200 200 'any(.[]; .type == "text_delta" and .text == "hello") and any(.[]; .type == "done")'
ok "prompt that asks" "$(ask POST "$at/prompt" '{"text":"permission May I?","interactive":true}')" 200 .run_id
wait_for /v1/permissions "any(.[]; .session_key == \"$key\")"
ok "permission of any session" 200 200 "[.[] | select(.session_key == \"$key\")] | length == 1"
permission=$(jq --raw-output ".[] | select(.session_key == \"$key\") | .permission_id | @uri" "$body")
option=$(jq --raw-output ".[] | select(.session_key == \"$key\") | .options[0].option_id" "$body")
ok "answer" "$(ask POST "$at/permissions/$permission" "{\"option_id\":\"$option\"}")" 200 .ok
wait_for "$at" '.state == "idle" and (.permissions | length) == 0'
curl --silent --show-error --max-time 60 --unix-socket "$socket" --output "$stream" \
    "http://gateway/v1/stream?after=0&follow=false&kind=permission,permission_settled,done"
sed -n 's/^data: //p' "$stream" | jq --slurp . >"$body"
ok "stream of all sessions" 200 200 "[.[] | select(.session_key == \"$key\") | .type] | sort == [\"done\", \"done\", \"permission\", \"permission_settled\"]"
ok "files of the session" "$(ask GET "$at/files?path=file.txt")" 200 '.file.is_regular and .file.size > 0'
ok "file outside of it" "$(ask GET "$at/files/content?path=/etc/passwd")" 404 '.detail_code == "NO_SUCH_FILE"'
ask POST "$at/prompt" '{"text":"tool write new.txt content"}' >"$stream"
wait_for "$at" '.state == "idle" and .queued_runs == 0 and (.runs | length) == 3'
ok "diff of the runs" "$(ask GET "$at/diff")" 200 '.diff | contains("new.txt")'
ok "export as text" "$(ask GET "$at/export?format=md")" 200
grep --quiet 'hello' "$body"
ok "release" "$(ask POST "$at/release")" 200 '.state == "idle"'
ok "close" "$(ask POST "$at/close" '{}')" 200 '.state == "closed"'
ok "prompt to a closed session" "$(ask POST "$at/prompt" '{"text":"say no"}')" 409 '.code == "ACP_SESSION_CLOSED"'
