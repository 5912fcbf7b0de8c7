#!/usr/bin/env python3
"""nghttp and h2load through the proxy: HTTP/2 frame by frame, and thousands of streams at once.

    nghttp_through_retrysafe.py PATH-TO-RETRYSAFE
"""

import collections
import os
import re
import subprocess
import sys
import tempfile

from nginx import LARGE, nginx
from support import call, check, done, retrysafe

STREAMS, CLIENTS = 5000, 20
LOAD = ["-n", str(STREAMS), "-c", str(CLIENTS), "-m", "20"]


class Frames:
    """What one call with nghttp brought: frames as it prints them, fields, the octets of DATA."""

    def __init__(self, port: int, target: str, *arguments: str):
        command = ["nghttp", "-nv", "--no-dep", "-H", ":authority: api.test", *arguments]
        out = subprocess.run([*command, f"http://127.0.0.1:{port}{target}"], check=True, capture_output=True, timeout=30)
        text = re.sub(r"\x1b\[[0-9;]*m", "", out.stdout.decode("latin-1"))
        assert "ERROR" not in text.replace("NO_ERROR", ""), text
        self.kinds = re.findall(r"recv (?:\(stream_id=\d+\) )?([A-Z_]+) frame <length=(\d+), flags=0x(\w+)", text)
        # In the order they came, trailers after the rest.
        fields = re.findall(r"recv \(stream_id=\d+\) (:?[^:\n]+): (.*)", text)
        self.fields = [field for field in fields if field[0] not in ("date", "via")]
        self.octets = sum(int(length) for kind, length, _ in self.kinds if kind == "DATA")

    def of(self, *kinds: str) -> list:
        return [kind for kind, _, _ in self.kinds if kind in kinds]

    def ends(self) -> list:
        """The frames that end the stream: there is one."""
        return [kind for kind, _, flags in self.kinds if kind in ("HEADERS", "DATA") and int(flags, 16) & 1]

    def status(self) -> str:
        return dict(self.fields)[":status"]


def frames(proxy: int, upload: str):
    found = Frames(proxy, "/file.txt")
    check("nghttp, GET", (found.status(), found.octets, len(found.ends())), ("200", 4390, 1))
    check("SETTINGS, and the acknowledgement", len(found.of("SETTINGS")), 2)
    check("nothing that ends the connection", found.of("GOAWAY", "RST_STREAM"), [])
    connection = {"connection", "keep-alive", "transfer-encoding", "upgrade", "proxy-connection"}
    check("no field of a connection", {name for name, _ in found.fields} & connection, set())
    check("field names in lower case", [name for name, _ in found.fields if name != name.lower()], [])
    found = Frames(proxy, "/file.txt", "-H", ":method: HEAD")
    check("nghttp, HEAD", (found.status(), found.of("DATA"), len(found.ends())), ("200", [], 1))
    check("which says the length", dict(found.fields)["content-length"], "4390")
    for target in ("/empty", "/large.bin", "/missing"):
        found = Frames(proxy, target)
        octets = {"/empty": 0, "/large.bin": LARGE}.get(target, found.octets)
        check(f"nghttp, {target}", (found.octets, len(found.ends()), found.of("RST_STREAM")), (octets, 1, []))
    key = ["-H", "idempotency-key: nghttp", "-d", upload]
    first, again = Frames(proxy, "/pay", *key), Frames(proxy, "/pay", *key)
    check("nghttp, POST", (first.status(), first.octets), ("201", 33))
    replay = [field for field in again.fields if field not in first.fields]
    check("its retry", (again.octets, replay), (33, [("idempotent-replayed", "true")]))


def trailers(proxy: int, protocol: str):
    found = Frames(proxy, "/summed/file.txt", "-H", "te: trailers")
    check(f"nghttp, trailers of {protocol}", (found.fields[-1], found.of("HEADERS")), (("x-sum", "9"), ["HEADERS"] * 2))
    check("they end the stream", found.ends(), ["HEADERS"])


def refused(direct: int, proxy: int, folder: str):
    """nginx refuses by the head; over HTTP/2 the rest of the body is then called off."""
    upload = os.path.join(folder, "large")
    with open(upload, "wb") as file:
        file.write(b"x" * (3 << 20))
    expected, found = (Frames(port, "/small/f", "-H", ":method: PUT", "-d", upload) for port in (direct, proxy))
    check("nghttp, an upload refused early", (found.status(), found.fields), ("413", expected.fields))
    check("the whole of the refusal", (found.octets, len(found.ends())), (expected.octets, 1))


def h2load(*arguments: str) -> tuple:
    """The figures of a run, and the octets of all bodies."""
    with tempfile.NamedTemporaryFile("r") as log:
        command = ["h2load", *LOAD, f"--log-file={log.name}", *arguments]
        out = subprocess.run(command, check=True, capture_output=True, timeout=120).stdout.decode()
        statuses = collections.Counter(line.split("\t")[1] for line in log)
    requests = re.search(r"^requests: (.*)$", out, re.M)[1]
    octets = int(re.search(r"\((\d+)\) data", out)[1])
    print(re.search(r"^finished in .*$", out, re.M)[0])
    return requests, dict(statuses), octets


ALL = f"{STREAMS} total, {STREAMS} started, {STREAMS} done, {STREAMS} succeeded, 0 failed, 0 errored, 0 timeout"


def load(binary: str, http2: bool, folder: str, upload: str):
    name = "HTTP/2" if http2 else "HTTP/1.1"
    with nginx(http2=http2) as upstream:
        url = f"{'h2c' if http2 else 'http'}://127.0.0.1:{upstream.port}"
        with retrysafe(binary, url, key='from_query = "key"') as proxy:
            origin = f"http://127.0.0.1:{proxy}"
            found = h2load(origin + "/file.txt")
            check(f"h2load, GET from {name}", found, (ALL, {"200": STREAMS}, 4390 * STREAMS))

            found = h2load("-d", upload, "-H", "idempotency-key: all", origin + "/pay")
            check("h2load, POST with one key for all", found, (ALL, {"201": STREAMS}, 33 * STREAMS))
            same = call(proxy, "POST", "/pay", [("Idempotency-Key", "all")], b"x")
            check("one more is a replay", same.get("idempotent-replayed"), "true")

            # Each client goes through the list from its start: a key comes from all of them.
            targets = os.path.join(folder, "targets")
            with open(targets, "w", encoding="ascii") as file:
                file.writelines(f"{origin}/pay?key={number}\n" for number in range(STREAMS))
            found = h2load("-d", upload, "-i", targets)
            check("h2load, POST with a key for each client's nth", found, (ALL, {"201": STREAMS}, 33 * STREAMS))
        log = [line for line in upstream.ended() if line[1] == "POST"]
    calls = collections.Counter(line[2] for line in log)
    check("executions of the one key", calls.pop("/pay"), 1)
    check("and of the others, each once", (len(calls), set(calls.values())), (STREAMS // CLIENTS, {1}))


def main(binary: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        upload = os.path.join(folder, "upload")
        with open(upload, "wb") as file:
            file.write(b"x")
        with nginx(http2=True) as multiplexed, nginx() as plain:
            for name, url in [
                ("HTTP/1.1", f"http://127.0.0.1:{plain.port}"),
                ("HTTP/2", f"h2c://127.0.0.1:{multiplexed.port}"),
            ]:
                with retrysafe(binary, url) as proxy:
                    frames(proxy, upload)
                    trailers(proxy, name)
                    refused(multiplexed.port, proxy, folder)
        for http2 in (False, True):
            load(binary, http2, folder, upload)
    return done()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(os.path.abspath(sys.argv[1])))
