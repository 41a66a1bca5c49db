#!/bin/sh
# Prints the commands of docs/manual/install.md below the marker of this name. usage: commands.sh NAME
set -eu
page=$(dirname "$0")/../../docs/manual/install.md
awk -v marker="<!-- test-install: $1 -->" '
    $0 == marker { found = 1; next }
    found && /^```/ { if (inside) exit; inside = 1; next }
    found && inside { print }
' "$page" | grep . || { echo "commands.sh: $page has no commands for $1" >&2; exit 1; }
