#!/usr/bin/env python3
"""One key per operation, kept over all retries. Standard library only. Exits with 0 only when the
operation succeeded.

    ./pay.py http://127.0.0.1:8080/charges '{"amount": 10}'
"""

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
import uuid


def pay(url: str, body: bytes, key: str, tries: int = 5) -> tuple[int, bytes]:
    """Sends the operation until its outcome is known. The key never changes."""
    for attempt in range(tries):
        request = urllib.request.Request(url, data=body, method="POST")
        request.add_header("Content-Type", "application/json")
        request.add_header("Idempotency-Key", f'"{key}"')
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
            if not may_retry(error, text):
                return error.code, text
            wait = error.headers.get("Retry-After", "")
            time.sleep(int(wait) if wait.isdigit() else 2**attempt)
        except (OSError, http.client.HTTPException):
            # The answer was lost; the payment may have been made. The same key makes this safe.
            time.sleep(2**attempt)
    raise SystemExit(f"no outcome after {tries} tries; try again later with the key {key}")


def may_retry(error: urllib.error.HTTPError, text: bytes) -> bool:
    """Retrysafe says so itself; other answers are final unless their status says "not now"."""
    if error.headers.get_content_type() == "application/problem+json":
        return bool(json.loads(text).get("retryable", error.code in (429, 503)))
    return error.code in (409, 425, 429, 503)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    # Made once. Where the operation has an id of its own, use that instead.
    operation = str(uuid.uuid4())
    status, answer = pay(sys.argv[1], sys.argv[2].encode(), operation)
    print(status, answer.decode())
    sys.exit(status >= 400)
