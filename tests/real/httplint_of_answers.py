#!/usr/bin/env python3
"""httplint reads what Retrysafe says: its own problems, first answers and replays, from the octets.

    httplint_of_answers.py PATH-TO-RETRYSAFE

A problem is all Retrysafe's own: nothing may be bad about it. Of an answer of the upstream only what
is not said of the direct one too counts.
"""

import json
import os
import sys
import time

from httplint import HttpRequestLinter, HttpResponseLinter, levels

from nginx import nginx
from support import Answer, call, check, done, free_port, parse, retrysafe

# What is said of the status alone, whoever answers with it.
OF_THE_STATUS = {"STATUS_BAD_REQUEST"}


def split(line: bytes) -> tuple:
    name, _, value = line.partition(b":")
    return name, value.strip()


def notes(raw: bytes, method: str, target: str, sent=()) -> set:
    """Names of the notes that are bad or warn, each with the field or part it is about."""
    request = HttpRequestLinter()
    request.process_request_topline(method.encode(), f"http://api.test{target}".encode(), b"1.1")
    request.process_headers([(b"Host", b"api.test"), *((name.encode(), value.encode()) for name, value in sent)])
    request.finish_content(True)
    linter = HttpResponseLinter(start_time=time.time(), _related=request)
    linter.is_head_response = method == "HEAD"
    first, *lines = raw.partition(b"\r\n\r\n")[0].split(b"\r\n")
    version, status, phrase = (first.split(b" ", 2) + [b""])[:3]
    linter.process_response_topline(version.removeprefix(b"HTTP/"), status, phrase)
    linter.process_headers([split(line) for line in lines])
    answer = parse(raw, method)
    linter.feed_content(answer.body)
    linter.finish_content(True, [(name.encode(), value.encode()) for name, value in answer.trailers])
    found = set()
    for note in linter.notes:
        if note.level in (levels.BAD, levels.WARN) and type(note).__name__ not in OF_THE_STATUS:
            found.add((note.subject, type(note).__name__))
    return found


def finds_faults():
    """That httplint sees anything, given what is wrong."""
    wrong = b"HTTP/1.1 200 OK\r\nDate: yesterday\r\nContent-Type: text\r\nContent-Length: 1\r\nRetry-After: soon\r\n\r\nx"
    subjects = {subject for subject, _ in notes(wrong, "GET", "/")}
    check("httplint sees faults", subjects >= {"field-date", "field-content-type", "field-retry-after"}, True)


def problem(code: str, answer: Answer, method: str, target: str, sent=()):
    found = json.loads(answer.body)["code"]
    check(f"httplint, {answer.status} {code}", (found, notes(answer.raw, method, target, sent)), (code, set()))


def key(value: str, *more) -> list:
    return [("Idempotency-Key", value), *more]


def problems(proxy: int):
    for code, method, target, sent, body in [
        ("idempotency_key_missing", "POST", "/pay", [], b"x"),
        ("idempotency_key_invalid", "POST", "/pay", key("a, b"), b"x"),
        ("malformed_request", "POST", "/a/%2e%2e/pay", key("dots"), b"x"),
        ("method_not_supported", "post", "/pay", key("case"), b"x"),
        ("expectation_failed", "POST", "/pay", key("expects", ("Expect", "more")), b"x"),
        ("upstream_connection_lost", "POST", "/cut", key("cut"), b"x"),
        ("upstream_connection_lost", "GET", "/cut", [], b""),
    ]:
        problem(code, call(proxy, method, target, sent, body), method, target, sent)
    # Too large by its head: the body is not sent.
    sent = key("large", ("Expect", "100-continue"))
    answer = call(proxy, "POST", "/pay", [*sent, ("Content-Length", str(2 << 20))])
    problem("request_body_too_large", answer, "POST", "/pay", sent)
    call(proxy, "POST", "/pay", key("reused"), b"x")
    problem("idempotency_key_reused", call(proxy, "POST", "/pay", key("reused"), b"y"), "POST", "/pay")
    other = key("reused", ("Authorization", "Bearer other"))
    answer = call(proxy, "POST", "/pay", other, b"x")
    problem("idempotency_key_other_credentials", answer, "POST", "/pay", other)
    # An answer over the limit is not kept.
    call(proxy, "POST", "/as-get/large.bin", key("not-kept"), b"x")
    answer = call(proxy, "POST", "/as-get/large.bin", key("not-kept"), b"x")
    problem("idempotency_response_not_kept", answer, "POST", "/as-get/large.bin")


def unreachable(binary: str):
    with retrysafe(binary, free_port()) as proxy:
        answer = call(proxy, "POST", "/pay", key("k"), b"x")
        problem("upstream_unreachable", answer, "POST", "/pay")
        check("Retry-After", answer.get("retry-after"), "1")


def upstreams(direct: int, proxy: int):
    """What is said of an answer through Retrysafe and not of the direct one."""
    for method, target, sent, body in [
        ("GET", "/file.txt", [], b""),
        ("HEAD", "/file.txt", [], b""),
        ("GET", "/file.txt", [("Range", "bytes=2-5")], b""),
        ("GET", "/gzip/file.txt", [("Accept-Encoding", "gzip")], b""),
        ("GET", "/summed/file.txt", [("TE", "trailers"), ("Connection", "TE, close")], b""),
        ("GET", "/missing", [], b""),
        ("POST", "/pay", key("pay"), b"x"),
        ("POST", "/empty", key("empty"), b"x"),
        ("POST", "/see", key("see"), b"x"),
        ("POST", "/teapot", key("teapot"), b"x"),
        ("POST", "/fails", key("fails"), b"x"),
        ("POST", "/as-get/file.txt", key("file", ("Accept-Encoding", "gzip")), b"x"),
    ]:
        known = notes(call(direct, method, target, sent, body).raw, method, target, sent)
        for turn in ["", ", again"]:
            answer = call(proxy, method, target, sent, body)
            replayed = answer.get("idempotent-replayed") == "true"
            new = notes(answer.raw, method, target, sent) - known
            expected = (set(), method == "POST" and bool(turn))
            check(f"httplint, {method} {target}{turn}", (new, replayed), expected)


def main(binary: str) -> int:
    finds_faults()
    with nginx() as upstream, retrysafe(binary, upstream.port) as proxy:
        problems(proxy)
        upstreams(upstream.port, proxy)
    unreachable(binary)
    return done()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(os.path.abspath(sys.argv[1])))
