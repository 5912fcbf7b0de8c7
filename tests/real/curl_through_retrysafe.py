#!/usr/bin/env python3
"""curl, each call directly to nginx and through the proxy, and uploads that are refused early.

    curl_through_retrysafe.py PATH-TO-RETRYSAFE

HTTP/1.0, HTTP/1.1, HTTP/2 with prior knowledge and over TLS; status, fields and body compared.
httpx speaks HTTP/2 over the same TLS.
"""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading

import httpx

from nginx import nginx
from support import HOP, certificate, check, done, lines_of, retrysafe, same, unchunk

SIZE = 3 << 20


class Curl:
    """curl in a folder of its own."""

    def __init__(self, folder: str):
        self.folder = folder

    def path(self, name: str, octets: bytes | None = None) -> str:
        path = os.path.join(self.folder, name)
        if octets is not None:
            with open(path, "wb") as file:
                file.write(octets)
        return path

    def run(self, origin: str, target: str, *arguments: str, stdin: bytes = b"") -> dict:
        """The call's status, end-to-end fields, body, and what curl says of it."""
        head, body = self.path("head", b""), self.path("body", b"")
        told = '{"code":%{response_code},"up":%{size_upload},"version":"%{http_version}","connects":%{num_connects}}'
        # Every call says the same Host, wherever it goes.
        command = ["curl", "-sS", "--max-time", "30", "--path-as-is", "-H", "Host: api.test"]
        command += ["-D", head, "-o", body, "-w", told]
        out = subprocess.run([*command, *arguments, origin + target], input=stdin, check=True, capture_output=True)
        # Of the last of its calls, where there are several.
        found = json.loads(out.stdout[out.stdout.rindex(b"{") :])
        with open(head, "rb") as file:
            final = file.read().rstrip(b"\r\n").split(b"\r\n\r\n")[-1]
        with open(body, "rb") as file:
            # -I writes the head there.
            found["body"] = b"" if "-I" in arguments else file.read()
        found["fields"] = sorted(lines_of(final.partition(b"\r\n")[2]))
        return found


def comparable(found: dict, *without: str) -> tuple:
    fields = [field for field in found["fields"] if field[0] not in HOP | set(without)]
    return found["code"], fields, found["body"]


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


CALLS = [
    ("GET", "/file.txt", []),
    ("HEAD", "/file.txt", ["-I"]),
    ("range", "/file.txt", ["-r", "2-5"]),
    ("resumed", "/file.txt", ["-r", "100-"]),
    ("range past the end", "/file.txt", ["-r", "999999-"]),
    ("not modified", "/file.txt", ["-z", "2023-11-14 22:13:20 GMT"]),
    ("compressed", "/gzip/file.txt", ["--compressed"]),
    ("large", "/large.bin", []),
    ("target as it stands", "/told/x/../%7Ea/./b;x=1?q=%2F&&z", ["-H", "Accept-Encoding: br"]),
    ("OPTIONS", "/file.txt", ["-X", "OPTIONS"]),
    ("not there", "/missing", []),
    ("POST that is not allowed", "/file.txt", ["-d", "a=b"]),
    ("POST without content", "/empty", ["-d", "a=b"]),
    ("reset content", "/reset", []),
    ("POST and reset content", "/reset", ["-d", "a=b"]),
    ("POST with cookies", "/teapot", ["-F", "field=value"]),
]

# A name, curl's arguments, the version it then speaks through the proxy, and fields of framing.
VERSIONS = [
    ("HTTP/1.1", [], "1.1", []),
    ("HTTP/1.0", ["-0"], "1", ["transfer-encoding"]),
    ("HTTP/2", ["--http2-prior-knowledge"], "2", ["transfer-encoding"]),
    ("an upgrade to h2c", ["--http2"], "1.1", []),
]


def calls(curl: Curl, direct: int, proxy: int):
    for version, arguments, speaks, without in VERSIONS:
        # The proxy asks in HTTP/1.1: what nginx says there is what must come over any version.
        for number, (name, target, options) in enumerate(CALLS):
            key = ["-H", f"Idempotency-Key: {version}-{number}".replace("an upgrade to ", "")] if "POST" in name else []
            # A covered answer is read whole: its framing is the proxy's own (R21).
            own = [*without, "transfer-encoding", "content-length"] if key else without
            expected = comparable(curl.run(url(direct), target, *options), *own)
            found = curl.run(url(proxy), target, *arguments, *key, *options)
            same(f"curl, {version}, {name}", comparable(found, *own), expected)
            if found["version"] != speaks:
                check(f"curl, {version}", found["version"], speaks)
    once = curl.run(url(proxy), "/file.txt", url(proxy) + "/empty", "-o", "/dev/null")
    check("curl uses its connection again", once["connects"], 0)


def raw(curl: Curl, direct: int, proxy: int):
    """Chunks as they come: where they are cut is each hop's own, what is in them is not."""
    for name, options in [("chunks", []), ("chunks with TE: gzip", ["--tr-encoding"])]:
        options = ["--raw", "-H", "Accept-Encoding: gzip", *options]
        found = [curl.run(url(port), "/gzip/file.txt", *options) for port in (direct, proxy)]
        bodies = [unchunk(answer["body"]) for answer in found]
        same(f"curl --raw, {name}", (found[1]["code"], bodies[1]), (200, bodies[0]))


def uploads(curl: Curl, proxy: int, root: str):
    """Larger than what curl sends without asking, so that it expects 100 (Continue)."""
    octets = os.urandom(SIZE)
    file = curl.path("up", octets)
    for version, arguments, _, _ in VERSIONS:
        for name, options, stdin in [
            ("-T", ["-T", file], b""),
            ("-T without Expect", ["-T", file, "-H", "Expect:"], b""),
            ("-T -, length unknown", ["-T", "-"], octets),
        ]:
            if version == "HTTP/1.0" and stdin:
                continue
            target = f"/dav/{abs(hash((version, name)))}"
            found = curl.run(url(proxy), target, *arguments, *options, stdin=stdin)
            check(f"curl, {version}, {name}", (found["code"], found["up"] >= SIZE), (201, True))
            with open(root + "/www" + target, "rb") as made:
                check("the file has its octets", made.read() == octets, True)
    # R12: what the head alone decides is said before the body is asked for.
    found = curl.run(url(proxy), "/dav/over", "-T", file, "-H", "Idempotency-Key: over")
    problem = json.loads(found["body"])["code"]
    check("curl, -T over the limit, with a key", (found["code"], found["up"], problem), (413, 0, "request_body_too_large"))
    under = curl.path("under", octets[: 1 << 20])
    key = ["-H", "Idempotency-Key: under", "-H", "Expect: 100-continue", "-T", under]
    found = [curl.run(url(proxy), "/dav/under", *key) for _ in range(2)]
    replays = [("idempotent-replayed", "true") in answer["fields"] for answer in found]
    check("curl, -T with a key", ([answer["code"] for answer in found], replays), ([201, 201], [False, True]))
    found = curl.run(url(proxy), "/small/f", "-T", file)
    check("curl, -T that nginx refuses by the head", found["code"], 413)


@contextlib.contextmanager
def refuser(status: str):
    """An upstream that answers each head at once, and reads no body until it has; then it lets
    what is still under way arrive, as servers do that want their answer read."""
    listener = socket.create_server(("127.0.0.1", 0))
    heads = []

    def serve(stream: socket.socket):
        with stream:
            octets = b""
            while b"\r\n\r\n" not in octets:
                piece = stream.recv(65536)
                if not piece:
                    return
                octets += piece
            heads.append(octets.split(b"\r\n\r\n")[0].lower())
            answer = f"HTTP/1.1 {status}\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n"
            stream.sendall(answer.encode())
            stream.shutdown(socket.SHUT_WR)
            while stream.recv(1 << 20):
                pass

    def accept():
        with contextlib.suppress(OSError):
            while True:
                stream, _ = listener.accept()
                threading.Thread(target=serve, args=(stream,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1], heads
    finally:
        listener.close()


def refused(curl: Curl, binary: str):
    file = curl.path("up", os.urandom(SIZE))
    for status in ("413 Too Large", "417 Expectation Failed"):
        with refuser(status) as (direct, heads), retrysafe(binary, direct) as proxy:
            # Over HTTP/2 this curl fails at any server: it ends the body short of its length.
            expected = comparable(curl.run(url(direct), "/", "-T", file))
            found = curl.run(url(proxy), "/", "-T", file)
            same(f"curl, refused by {status}", comparable(found), expected)
            # R12: a covered request is read whole first.
            key = ["-H", "Idempotency-Key: k", "-H", "Expect: 100-continue", "-d", "x" * 2000]
            heads.clear()
            found = curl.run(url(proxy), "/", *key)
            check(f"curl, covered, refused by {status}", (found["code"], found["body"]), (int(status[:3]), b"no\n"))
            check("Expect was not passed on", [b"expect:" in head for head in heads], [False])


def over_tls(curl: Curl, binary: str, direct: int):
    cert, private = certificate(curl.folder)
    server = f'tls = {{ cert_file = "{cert}", key_file = "{private}" }}'
    with retrysafe(binary, direct, server=server) as proxy:
        origin = f"https://localhost:{proxy}"
        for name, arguments, speaks in [("HTTP/2", [], "2"), ("HTTP/1.1", ["--http1.1"], "1.1")]:
            arguments = ["--cacert", cert, *arguments]
            for number, (call, target, options) in enumerate(CALLS):
                key = ["-H", f"Idempotency-Key: {name}-{number}"] if "POST" in call else []
                own = ["transfer-encoding", "content-length"] if key else []
                own += ["transfer-encoding"] if speaks == "2" else []
                expected = comparable(curl.run(url(direct), target, *options), *own)
                found = curl.run(origin, target, *arguments, *key, *options)
                same(f"curl, TLS, {name}, {call}", comparable(found, *own), expected)
                if found["version"] != speaks:
                    check(f"curl, TLS, {name}", found["version"], speaks)
        trust = ssl.create_default_context(cafile=cert)
        with httpx.Client(http2=True, verify=trust) as client:
            pays = [client.post(origin + "/pay", content=b"x", headers={"Idempotency-Key": "t"}) for _ in range(2)]
            found = [(answer.http_version, answer.status_code, answer.text) for answer in pays]
            check("httpx over TLS, twice", found, [("HTTP/2", 201, pays[0].text)] * 2)
            check("the second is a replay", pays[1].headers.get("idempotent-replayed"), "true")
            large = httpx.get(url(direct) + "/large.bin").content
            check("httpx over TLS, a large file", client.get(origin + "/large.bin").content == large, True)


def main(binary: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        curl = Curl(folder)
        with nginx() as upstream:
            with retrysafe(binary, upstream.port) as proxy:
                calls(curl, upstream.port, proxy)
                raw(curl, upstream.port, proxy)
                uploads(curl, proxy, upstream.root)
            over_tls(curl, binary, upstream.port)
        refused(curl, binary)
    return done()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(os.path.abspath(sys.argv[1])))
