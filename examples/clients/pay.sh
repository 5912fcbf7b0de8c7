#!/usr/bin/env bash
# One key per operation, kept over all retries. curl repeats the very same request, key included.
#
#   ./pay.sh http://127.0.0.1:8080/charges 'amount=10'
set -euo pipefail
url=${1:?usage: pay.sh URL BODY}
body=${2:?usage: pay.sh URL BODY}

# Made once, before the first try. Where the operation has an id of its own, use that instead: then
# even a restart of this script is a retry.
key=$(cat /proc/sys/kernel/random/uuid)

# --retry covers lost connections, 408, 429, 500, 502, 503 and 504; 409 means "still running".
for _ in 1 2 3 4 5; do
  status=$(curl -sS -o /tmp/answer.$$ -w '%{http_code}' --retry 3 --retry-connrefused \
    -H "Idempotency-Key: \"$key\"" -d "$body" "$url") || status=000
  [ "$status" = 409 ] || [ "$status" = 000 ] || break
  sleep 1
done
cat /tmp/answer.$$
rm -f /tmp/answer.$$
[ "$status" -lt 400 ]
