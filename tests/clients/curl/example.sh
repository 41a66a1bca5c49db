#!/bin/sh
set -eu
url=${ACP_URL:-http://127.0.0.1:7433/acp}
messages=$(mktemp)
trap 'post -X DELETE -H "acp-connection-id: $connection"; rm -f "$messages"' EXIT

post() {
    curl --silent --show-error --fail -H "authorization: Bearer $ACP_TOKEN" -H 'content-type: application/json' "$@" "$url"
}

# Sends a request, ID METHOD PARAMS, and prints its answer.
call() {
    post -H "acp-connection-id: $connection" -d "{\"jsonrpc\":\"2.0\",\"id\":$1,\"method\":\"$2\",\"params\":$3}"
    until jq --exit-status --slurp ".[] | select(.id == $1 and .method == null)" "$messages"; do
        sleep 0.1
    done
}

connection=$(post -D - -o /dev/null -d '{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}' |
    tr -d '\r' | sed -n 's/^acp-connection-id: //p')
curl --silent --no-buffer -H "authorization: Bearer $ACP_TOKEN" -H 'accept: text/event-stream' \
    -H "acp-connection-id: $connection" "$url" | sed -u -n 's/^data: //p' >"$messages" &

session=$(call 1 session/new "{\"cwd\":\"$PWD\",\"mcpServers\":[]}" |
    jq '.result.sessionId // error(.error.message)')
call 2 session/prompt "{\"sessionId\":$session,\"prompt\":[{\"type\":\"text\",\"text\":\"$1\"}]}" >/dev/null
jq --raw-output --join-output '.params.update | select(.sessionUpdate == "agent_message_chunk").content.text' "$messages"
