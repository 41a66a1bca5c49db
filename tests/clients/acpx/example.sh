#!/bin/sh
exec acpx --agent "acp-gateway acp" --approve-all exec "$1"
