"""What the tests with real clients and servers share: processes, free ports, one call as it stands.

An `Answer` is read from the octets of the socket, so that nothing a client library hides is missed:
status, field lines in order, body, trailers.
"""

import contextlib
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field

PATIENCE = 30

# Fields that each hop makes anew, and the clock.
HOP = {"date", "connection", "keep-alive"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(what, holds):
    """Waits for another process; it gives no sign of its own."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what}: never"
        time.sleep(0.05)


def answers(port: int, path: str = "/") -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


passed = 0


def check(name: str, found, expected):
    global passed
    assert found == expected, f"{name}:\n  found    {found!r:.2000}\n  expected {expected!r:.2000}"
    passed += 1
    print(f"ok    {name}: {found!r:.100}")


def same(name: str, found: tuple, expected: tuple):
    """Compares answers part by part; prints none of them unless they differ."""
    global passed
    for part, other in zip(found, expected, strict=True):
        shown = [repr(value[:1000] if isinstance(value, bytes) else value) for value in (part, other)]
        assert part == other, f"{name}:\n  found    {shown[0]}\n  expected {shown[1]}"
    passed += 1
    print(f"ok    {name}: {found[0]}, the same")


def done() -> int:
    """The last line of a suite; its exit code."""
    assert passed > 0
    print(f"{passed} passed, 0 failed")
    return 0


CERTIFICATE = """
[req]
distinguished_name = name
x509_extensions = extensions
prompt = no
[name]
CN = localhost
[extensions]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:localhost, IP:127.0.0.1
"""


def certificate(folder: str) -> tuple:
    """One that vouches for itself, and its key."""
    asked, cert, key = (os.path.join(folder, name) for name in ("cert.cnf", "cert.pem", "key.pem"))
    with open(asked, "w", encoding="ascii") as config:
        config.write(CERTIFICATE)
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-config", asked, "-out", cert, "-keyout", key]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@contextlib.contextmanager
def process(binary: str, upstream: str, policy: str, server: str = "", trusts: str = ""):
    """Retrysafe in front of an upstream url: the ports of clients and of health."""
    port, health = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.toml"), "w", encoding="utf-8") as config:
            config.write(
                f"""
                [server]
                listen = "127.0.0.1:{port}"
                {server}
                [upstream]
                url = "{upstream}"
                {f'tls.ca_file = "{trusts}"' if trusts else ""}
                [health]
                listen = "127.0.0.1:{health}"
                {policy}
                """
            )
        running = subprocess.Popen([binary, "run"], cwd=folder, stderr=subprocess.DEVNULL)
        try:
            until("retrysafe", lambda: answers(health, "/readyz"))
            yield port, health
        finally:
            running.terminate()
            assert running.wait(PATIENCE) == 0


@contextlib.contextmanager
def retrysafe(binary: str, upstream, server: str = "", key: str = "", trusts: str = ""):
    """In front of an upstream: a port on loopback, or a whole URL; over TLS with whom it trusts."""
    url = upstream if isinstance(upstream, str) else f"http://127.0.0.1:{upstream}"
    policy = f'[policy.key]\nrequired_on = ["POST"]\n{key}'
    with process(binary, url, policy, server, trusts) as (port, _):
        yield port


@dataclass
class Answer:
    """One answer as it came over the wire."""

    status: int
    fields: list = field(default_factory=list)
    body: bytes = b""
    trailers: list = field(default_factory=list)
    raw: bytes = b""

    def get(self, name: str):
        return next((value for key, value in self.fields if key == name), None)

    def end_to_end(self, *without: str) -> tuple:
        """What a hop may not change: status, fields in order, body, trailers."""
        kept = [(name, value) for name, value in self.fields if name not in HOP | set(without)]
        return self.status, sorted(kept), self.body, self.trailers


def lines_of(head: bytes) -> list:
    pairs = [line.split(b":", 1) for line in head.split(b"\r\n") if line]
    return [(name.decode("latin-1").lower(), value.strip().decode("latin-1")) for name, value in pairs]


def unchunk(octets: bytes) -> tuple:
    """The body, the trailers; whatever is no whole chunked body is an error."""
    body = bytearray()
    while True:
        line, octets = octets.split(b"\r\n", 1)
        size = int(line.split(b";")[0], 16)
        if size == 0:
            trailers, end, rest = (b"\r\n" + octets).partition(b"\r\n\r\n")
            assert end and not rest, "octets after the body"
            return bytes(body), lines_of(trailers)
        body += octets[:size]
        assert octets[size : size + 2] == b"\r\n", "a chunk of another length"
        octets = octets[size + 2 :]


def parse(raw: bytes, method: str) -> Answer:
    """Reads what came until the connection was closed as one whole answer."""
    head, end, rest = raw.partition(b"\r\n\r\n")
    assert end, f"no answer: {raw[:200]!r}"
    first, _, more = head.partition(b"\r\n")
    status = int(first.split(b" ")[1])
    if status < 200:
        return parse(rest, method)
    answer = Answer(status, lines_of(more), raw=raw)
    if method == "HEAD" or status in (204, 304):
        assert not rest, f"a body to {method} {status}: {rest[:200]!r}"
    elif answer.get("transfer-encoding"):
        answer.body, answer.trailers = unchunk(rest)
    else:
        length = answer.get("content-length")
        assert length is None or int(length) == len(rest), f"{length} octets announced, {len(rest)} came"
        answer.body = rest
    return answer


def call(port: int, method: str, target: str, fields=(), body: bytes = b"", version: str = "1.1") -> Answer:
    """One call on a connection of its own."""
    lines = [f"{method} {target} HTTP/{version}", "Host: api.test"]
    asked = {name.lower() for name, _ in fields}
    lines += [] if "connection" in asked else ["Connection: close"]
    lines += [f"{name}: {value}" for name, value in fields]
    if "content-length" not in asked and (body or method in ("POST", "PUT", "PATCH")):
        lines.append(f"Content-Length: {len(body)}")
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as stream:
        stream.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        raw = bytearray()
        while piece := stream.recv(1 << 20):
            raw += piece
    return parse(bytes(raw), method)
