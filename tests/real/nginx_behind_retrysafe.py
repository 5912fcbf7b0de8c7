#!/usr/bin/env python3
"""nginx as upstream, over HTTP/1.1 and HTTP/2, plain and over TLS: each call directly and through the proxy.

    nginx_behind_retrysafe.py PATH-TO-RETRYSAFE

Each answer is compared whole, from the octets of the socket. With a key it is sent twice, and the
second answer is compared with the first. nginx that ends each connection after three requests
gets every key once, by its own log.
"""

import collections
import os
import re
import sys
import tempfile
import threading

from nginx import nginx
from support import Answer, call, certificate, check, done, retrysafe, same

MODIFIED = "Tue, 14 Nov 2023 22:13:20 GMT"
EARLIER = "Mon, 13 Nov 2023 22:13:20 GMT"

# What each is called, its method, target and fields.
READS = [
    ("a file", "GET", "/file.txt", []),
    ("an empty file", "GET", "/none.txt", []),
    ("a folder", "GET", "/folder/", []),
    ("a folder without its slash", "GET", "/folder", []),
    ("nothing there", "GET", "/missing", []),
    ("HEAD", "HEAD", "/file.txt", []),
    ("HEAD of nothing", "HEAD", "/missing", []),
    ("a method not allowed", "OPTIONS", "/file.txt", []),
    ("a range", "GET", "/file.txt", [("Range", "bytes=2-5")]),
    ("the last octets", "GET", "/file.txt", [("Range", "bytes=-7")]),
    ("HEAD of a range", "HEAD", "/file.txt", [("Range", "bytes=2-5")]),
    ("two ranges", "GET", "/file.txt", [("Range", "bytes=0-1,10-12")]),
    ("a range past the end", "GET", "/file.txt", [("Range", "bytes=999999-")]),
    ("a range of what has not changed", "GET", "/file.txt", [("Range", "bytes=0-3"), ("If-Range", MODIFIED)]),
    ("a range of what has changed", "GET", "/file.txt", [("Range", "bytes=0-3"), ("If-Range", EARLIER)]),
    ("not modified since", "GET", "/file.txt", [("If-Modified-Since", MODIFIED)]),
    ("modified since", "GET", "/file.txt", [("If-Modified-Since", EARLIER)]),
    ("modified after all", "GET", "/file.txt", [("If-Unmodified-Since", EARLIER)]),
    ("another tag", "GET", "/file.txt", [("If-None-Match", '"other"')]),
    ("no such tag", "GET", "/file.txt", [("If-Match", '"other"')]),
    ("no content", "GET", "/empty", []),
    ("two cookies", "GET", "/teapot", []),
    ("somewhere else", "GET", "/see", []),
    ("octets above 7F in a field", "GET", "/latin", []),
    ("a target as it was written", "GET", "/told/%7Ea;b=1/%2f?q=%2F&&x=[1]", []),
    ("trailers", "GET", "/summed/file.txt", [("TE", "trailers"), ("Connection", "TE, close")]),
    ("compressed and chunked", "GET", "/gzip/file.txt", [("Accept-Encoding", "gzip")]),
    ("HEAD of what would be compressed", "HEAD", "/gzip/file.txt", [("Accept-Encoding", "gzip")]),
    ("not compressed", "GET", "/gzip/file.txt", [("Accept-Encoding", "br")]),
    ("through a proxy of its own", "GET", "/proxied/file.txt", []),
    ("a range through it", "GET", "/proxied/file.txt", [("Range", "bytes=5-")]),
    ("not held back, chunked", "GET", "/unbuffered/file.txt", [("Accept-Encoding", "gzip")]),
    ("an error", "GET", "/fails", []),
    ("a large file", "GET", "/large.bin", []),
    ("the end of it", "GET", "/large.bin", [("Range", "bytes=40000000-")]),
]

WRITES = [
    ("made", "POST", "/pay", b"x", []),
    ("without a body", "POST", "/pay", b"", []),
    ("no content", "POST", "/empty", b"x", []),
    ("two cookies", "POST", "/teapot", b"x", []),
    ("somewhere else", "POST", "/see", b"x", []),
    ("not allowed", "POST", "/file.txt", b"x", []),
    ("an error", "POST", "/fails", b"x", []),
    ("told", "POST", "/told?a=1&a=2", b"x" * 1000, []),
    ("through a proxy of its own", "POST", "/proxied/empty", b"x", []),
    ("too large", "PUT", "/small/f", b"x" * 2000, []),
]


def comparable(answer: Answer, *without: str) -> tuple:
    """nginx numbers the parts of several ranges, and makes an identifier for each call."""
    status, fields, body, trailers = answer.end_to_end(*without)
    kind = answer.get("content-type") or ""
    if boundary := re.search("boundary=(.+)", kind):
        mark = boundary[1]
        fields = [(name, value.replace(mark, "B")) for name, value in fields]
        body = body.replace(mark.encode(), b"B")
    return status, fields, re.sub(b"^[0-9a-f]{32}\n$", b"N\n", body), trailers


def reads(direct: int, proxy: int, http2: bool):
    """HTTP/2 has no chunks, and trailers beside a length, which HTTP/1.1 clients do not get."""
    without = ["transfer-encoding"] if http2 else []
    for name, method, target, fields in READS:
        if http2 and name == "trailers":
            continue
        expected = comparable(call(direct, method, target, fields), *without)
        same(f"nginx, {name}", comparable(call(proxy, method, target, fields), *without), expected)
    tag = call(direct, "GET", "/file.txt").get("etag")
    for method in ("GET", "HEAD"):
        fields = [("If-None-Match", tag)]
        expected = call(direct, method, "/file.txt", fields).end_to_end()
        same(f"nginx, {method} of a known tag", call(proxy, method, "/file.txt", fields).end_to_end(), expected)
        check("which is", expected[0], 304)
    if http2:
        return
    wanted = [("TE", "trailers"), ("Connection", "TE, close")]
    summed = call(proxy, "GET", "/summed/file.txt", wanted)
    check("the trailers were there", summed.trailers, [("x-sum", "9")])
    # HTTP/1.0 has neither trailers to announce nor chunks: there the end of the connection is the end.
    for target, own in [("/file.txt", []), ("/gzip/file.txt", []), ("/summed/file.txt", ["trailer", "content-length"])]:
        old = [call(port, "GET", target, version="1.0").end_to_end(*own) for port in (direct, proxy)]
        same(f"nginx, {target} over HTTP/1.0", old[1], old[0])


def writes(direct: int, proxy: int):
    for name, method, target, body, fields in WRITES:
        expected = comparable(call(direct, method, target, fields, body), "transfer-encoding", "content-length")
        key = [*fields, ("Idempotency-Key", f"{method}-{name}".replace(" ", "-"))]
        first, again = (call(proxy, method, target, key, body) for _ in range(2))
        same(f"nginx, {method}, {name}", comparable(first, "transfer-encoding", "content-length"), expected)
        check("its framing", framed(first), True)
        replay = [field for field in again.fields if field != ("idempotent-replayed", "true")]
        check("its retry bears the marker", len(again.fields) - len(replay), 1)
        same("and is", (again.status, replay, again.body), (first.status, first.fields, first.body))


def framed(answer: Answer) -> bool:
    """A length, unless there is nothing that could have one."""
    length = answer.get("content-length")
    return answer.get("transfer-encoding") is None and (length is None) == (answer.status == 204)


def files(proxy: int, folder: str):
    """A folder that is written over HTTP."""
    body = bytes(range(256)) * 4000
    path = os.path.join(folder, "www", "dav", "deep", "f.bin")
    key = [("Idempotency-Key", "put")]
    check("nginx, PUT makes a file", call(proxy, "PUT", "/dav/deep/f.bin", key, body).status, 201)
    with open(path, "rb") as file:
        check("with its octets", file.read() == body, True)
    again = call(proxy, "PUT", "/dav/deep/f.bin", key, body)
    check("again", (again.status, again.get("idempotent-replayed")), (201, "true"))
    # More than is ever held: without a key it streams.
    large = bytes(range(256)) * 160_000
    check("nginx, PUT of a large file", call(proxy, "PUT", "/dav/large.bin", [], large).status, 201)
    check("whose size is", os.path.getsize(os.path.join(folder, "www", "dav", "large.bin")), len(large))
    moved = [("Destination", "/dav/moved.bin")]
    check("nginx, MOVE", call(proxy, "MOVE", "/dav/large.bin", moved).status, 204)
    key = [("Idempotency-Key", "delete")]
    gone = [call(proxy, "DELETE", "/dav/moved.bin", key).status for _ in range(2)]
    check("nginx, DELETE twice", gone, [204, 204])
    check("nginx, DELETE without a key", call(proxy, "DELETE", "/dav/moved.bin").status, 404)


def cut(proxy: int):
    """nginx closes without an answer: nobody knows what was done."""
    found = [call(proxy, "POST", "/cut", [("Idempotency-Key", "cut")], b"x") for _ in range(2)]
    codes = [re.search(rb'"code":"([a-z_]+)"', answer.body)[1] for answer in found]
    check("nginx hangs up", ([answer.status for answer in found], codes), ([502, 502], [b"upstream_connection_lost"] * 2))


WORKERS, KEYS = 12, 50


def load(proxy: int) -> dict:
    """Every key twice, at once, from many clients; the bodies that came for each."""
    bodies, failures = collections.defaultdict(list), []

    def work(worker: int):
        # Two workers share their keys.
        for number in range(KEYS):
            key = f"{worker // 2}-{number}"
            answer = call(proxy, "POST", "/pay", [("Idempotency-Key", key)], b"x")
            if answer.status != 201:
                failures.append((key, answer.status, answer.body))
            bodies[key].append(answer.body)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("answers other than 201 under load", failures, [])
    return bodies


def short_lived(binary: str, http2: bool, tls: tuple):
    """nginx ends each connection after three requests."""
    name = ("HTTP/2" if http2 else "HTTP/1.1") + (" and TLS" if tls else "")
    with nginx(keepalive=3, http2=http2, tls=tls) as upstream:
        scheme = "https" if tls else "h2c" if http2 else "http"
        with retrysafe(binary, f"{scheme}://127.0.0.1:{upstream.port}", trusts=tls[0] if tls else "") as proxy:
            bodies = load(proxy)
        log = [line for line in upstream.ended() if line[1] == "POST"]
    keys = WORKERS // 2 * KEYS
    check(f"keys answered over {name}", len(bodies), keys)
    equal = all(len(both) == 2 and both[0] == both[1] for both in bodies.values())
    check("both answers to each are the same", equal, True)
    check("POSTs in nginx's log", (len(log), len({line[4] for line in log})), (keys, keys))
    most = collections.Counter(line[0] for line in log).most_common(1)[0][1]
    check("at most on one connection", most <= 3, True)
    check("connections were used again", most > 1, True)


def main(binary: str) -> int:
    with nginx() as upstream, retrysafe(binary, upstream.port) as proxy:
        reads(upstream.port, proxy, False)
        writes(upstream.port, proxy)
        files(proxy, upstream.root)
        cut(proxy)
    with tempfile.TemporaryDirectory() as folder:
        tls = certificate(folder)
        # What nginx answers over plain HTTP/1.1 is what must come, whatever is spoken to it.
        for scheme, http2, pair in [("h2c", True, ()), ("https", True, tls), ("https", False, tls)]:
            with nginx() as plain, nginx(http2=http2, tls=pair) as upstream:
                url = f"{scheme}://127.0.0.1:{upstream.port}"
                with retrysafe(binary, url, trusts=tls[0] if pair else "") as proxy:
                    reads(plain.port, proxy, http2)
                    writes(plain.port, proxy)
                    files(proxy, upstream.root)
        for http2 in (False, True):
            for pair in ((), tls):
                short_lived(binary, http2, pair)
    return done()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(os.path.abspath(sys.argv[1])))
