#!/usr/bin/env bash
# Sends prompts and asks for answers of many lengths, eight at a time, until it is ended: traffic.sh URL MODEL
set -euo pipefail
url=$1 model=$2

client() {
  local words
  while true; do
    # Random from the first word on, so that no prefix cache has it.
    words=$(for ((i = RANDOM % 300; i >= 0; i--)); do printf '%d ' "$((RANDOM % 100))"; done)
    curl -sS -o /dev/null "$url/v1/completions" -H 'content-type: application/json' \
      -d "{\"model\": \"$model\", \"prompt\": \"$words\", \"max_tokens\": $((RANDOM % 60 + 1))}" || sleep 1
  done
}

trap 'kill $(jobs -p) 2>/dev/null' EXIT
for _ in {1..8}; do client & done
wait
