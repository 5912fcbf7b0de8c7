#!/usr/bin/env python3
"""Clients that nobody here wrote, through Retrysafe: the same call directly and through the proxy.

    clients_through_retrysafe.py PATH-TO-RETRYSAFE

curl over HTTP/1.1 and HTTP/2, httpx over HTTP/2, Node's own http client, and `websockets` as client
and server. Each answer is compared with what the upstream gives directly: status, fields, body.
"""

import asyncio
import contextlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading

import httpx
import websockets.asyncio.client
import websockets.asyncio.server

from support import check, done, retrysafe

# Fields that each hop makes anew.
OWN = {"date", "connection", "keep-alive", "transfer-encoding", "content-length", "via"}


class Echo(http.server.BaseHTTPRequestHandler):
    """Tells what it got, and counts POSTs."""

    protocol_version = "HTTP/1.1"
    posts = 0

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "POST":
            Echo.posts += 1
        seen = {"method": self.command, "target": self.path, "body": body.decode("latin-1")}
        text = json.dumps(seen).encode()
        self.send_response(200 if self.command != "POST" else 201)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Latin", "caf\u00e9")
        self.send_header("Set-Cookie", "a=1")
        self.send_header("Set-Cookie", "b=2")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = answer

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def echo():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()


def curl(port: int, *arguments: str) -> tuple:
    """Status, end-to-end fields and body of one call."""
    url = f"http://127.0.0.1:{port}/p/%7Euser;v=1?q=%2F&x"
    command = ["curl", "-sS", "-D", "-", "--max-time", "20", *arguments, url]
    raw = subprocess.run(command, check=True, capture_output=True).stdout.decode("latin-1")
    head, body = raw.replace("\r\n", "\n").split("\n\n", 1)
    while head.startswith(("HTTP/1.1 100", "HTTP/2 100")):
        head, body = body.split("\n\n", 1)
    status, *lines = head.split("\n")
    fields = [line.split(":", 1) for line in lines]
    kept = [(name.lower(), value.strip()) for name, value in fields if name.lower() not in OWN | {"server"}]
    return int(status.split()[1]), sorted(kept), body


def curls(direct: int, proxy: int):
    calls = {
        "GET": [],
        "HEAD": ["-I", "-o", "/dev/null"],
        "PUT": ["-X", "PUT", "-d", "x=1"],
        "POST": ["-d", "a=b"],
        "POST with Expect": ["-H", "Expect: 100-continue", "-d", "y" * 2000],
        "OPTIONS": ["-X", "OPTIONS"],
    }
    for version in ([], ["--http2-prior-knowledge"]):
        for name, arguments in calls.items():
            key = ["-H", f"Idempotency-Key: {name}{len(version)}".replace(" ", "-").replace("-Key:-", "-Key: ")]
            expected = curl(direct, *arguments)
            check(" ".join(["curl", *version, name]), curl(proxy, *version, *key, *arguments), expected)
    # The length is known once the body was read: only the body is to compare.
    status, _, text = curl(proxy, "-H", "Idempotency-Key: chunked", "-H", "Transfer-Encoding: chunked", "-d", "z")
    check("curl chunked POST", (status, json.loads(text)["body"]), (201, "z"))


def httpx_retries(proxy: int):
    before = Echo.posts

    def pay() -> httpx.Response:
        # A client of its own each time: one that saw the answer has its cookie, and is another caller.
        with httpx.Client(http1=False, http2=True) as client:
            headers = {"Idempotency-Key": "httpx"}
            return client.post(f"http://127.0.0.1:{proxy}/pay", content=b"x", headers=headers)

    first, again = pay(), pay()
    mark = again.headers.get("idempotent-replayed")
    check("httpx speaks", first.http_version, "HTTP/2")
    check("httpx retry", (again.status_code, again.text, mark), (201, first.text, "true"))
    check("POSTs the upstream got for it", Echo.posts - before, 1)


NODE = """
const http = require('http');
const send = () => new Promise((done, fail) => {
  const request = http.request({ port: +process.argv[1], path: '/pay', method: 'POST',
    headers: { 'Idempotency-Key': 'node', 'Content-Type': 'text/plain' } }, (answer) => {
    let body = '';
    answer.on('data', (piece) => body += piece).on('end', () =>
      done([answer.statusCode, answer.headers['idempotent-replayed'] || '', body]));
  });
  request.on('error', fail).end('n');
});
(async () => console.log(JSON.stringify([await send(), await send()])))();
"""


def node(proxy: int):
    out = subprocess.run(["node", "-e", NODE, str(proxy)], check=True, capture_output=True).stdout
    (status, mark, body), (again, replayed, same) = json.loads(out)
    check("node's http client", (status, mark, again, replayed, body == same), (201, "", 201, "true", True))


async def talk(port: int) -> list:
    async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}/chat", max_size=None) as socket:
        said = []
        for message in ["hello", b"\x00\xff" * 500, "x" * 200_000]:
            await socket.send(message)
            said.append(await socket.recv())
        return said


async def chat(binary: str):
    async def back(socket):
        async for message in socket:
            await socket.send(message)

    async with websockets.asyncio.server.serve(back, "127.0.0.1", 0, max_size=None) as server:
        port = server.sockets[0].getsockname()[1]
        expected = await talk(port)
        with retrysafe(binary, port) as proxy:
            found = await talk(proxy)
    check("websockets, text and binary", found == expected, True)


def main(binary: str) -> int:
    with echo() as direct, retrysafe(binary, direct) as proxy:
        curls(direct, proxy)
        httpx_retries(proxy)
        if shutil.which("node"):
            node(proxy)
    asyncio.run(chat(binary))
    return done()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(os.path.abspath(sys.argv[1])))
