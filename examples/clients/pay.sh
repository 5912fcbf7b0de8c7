#!/usr/bin/env bash
# One key per operation, kept over all retries. Exits with 0 only when the operation succeeded.
#
#   ./pay.sh http://127.0.0.1:8080/charges 'amount=10'
set -euo pipefail
url=${1:?usage: pay.sh URL BODY}
body=${2:?usage: pay.sh URL BODY}
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

# Made once, before the first try. Where the operation has an id of its own, use that instead: then
# even a restart of this script is a retry.
key=$(cat /proc/sys/kernel/random/uuid)

# Retrysafe says itself whether to try again; else the status does. 000: no whole answer came, and
# the payment may have been made; the same key makes another try safe.
may_retry() {
  if grep -Eq '"retryable": ?(true|false)' "$answer"; then
    grep -Eq '"retryable": ?true' "$answer"
  else
    case $status in 000 | 409 | 425 | 429 | 503) return 0 ;; *) return 1 ;; esac
  fi
}

for try in 1 2 3 4 5; do
  : >"$answer"
  status=$(curl -sS --max-time 40 -o "$answer" -w '%{http_code}' \
    -H "Idempotency-Key: \"$key\"" -d "$body" "$url") || status=000
  may_retry || break
  [ "$try" = 5 ] || sleep 1
done
if [ "$status" = 000 ]; then
  printf 'no outcome; try again later with the key %s\n' "$key" >&2
  exit 1
fi
cat "$answer"
[ "$status" -lt 400 ]
