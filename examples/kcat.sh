#!/usr/bin/env bash
# The same from a shell, with kcat (which stands on librdkafka, hence the partitioner):
#     examples/kcat.sh BOOTSTRAP PREFIX SESSION QUESTION      (QUESTION without quotes and backslashes)
set -euo pipefail
bootstrap=$1 prefix=$2 session=$3 question=$4

{
    printf '%s\t%s\n' "$session" '{"type":"session.opened","model":"claude-sonnet-4-5","params":{"max_tokens":1024}}'
    printf '%s\t{"type":"turn.appended","id":"kcat-1","message":{"role":"user","content":"%s"}}\n' "$session" "$question"
} | kcat -P -b "$bootstrap" -t "${prefix}agent.turns.v1" -K $'\t' -z zstd -H producer=kcat-example/1.0 \
    -X partitioner=murmur2_random -X enable.idempotence=true

# The loop leaves once it has what it wants; that kcat then has nobody to write to is no failure.
{ kcat -C -b "$bootstrap" -t "${prefix}provider.requests.v1" -o beginning -u -q -f '%k\t%s\n' \
    -X isolation.level=read_committed 2>/dev/null || true; } | while IFS=$'\t' read -r key body; do
    if [ "$key" = "$session" ]; then
        printf '%s\n' "$body"
        break
    fi
done
