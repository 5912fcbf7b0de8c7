#!/usr/bin/env python3
"""gRPC's own client and server with Retrysafe between them.

    grpc_through_retrysafe.py PATH-TO-RETRYSAFE

Calls of all four kinds without a key pass and are compared with the same call made directly: status,
details, metadata, messages. Under `grpc = "unary"` a call with a key is executed once, whatever its
client does, and the client's own retries (gRPC's retry policy) execute nothing twice.
"""

import concurrent.futures
import contextlib
import json
import os
import queue
import sys
import threading
import urllib.request

import grpc

from support import PATIENCE, check, process, until

SERVICE = "pkg.Test"
# What a hop may add, as the protocol says (R27).
OWN = {"date"}
WORKERS = 40
# The disk of the machine is no part of this.
MEMORY = '[store]\nurl = "memory:"\n'
UNARY = MEMORY + '[policy]\ngrpc = "unary"'


class Server:
    """Does what the call's metadata asks for, and counts."""

    def __init__(self):
        self.lock = threading.Lock()
        self.runs = {}
        self.entered = queue.Queue()
        self.go = threading.Semaphore(0)

    def count(self, context) -> int:
        key = dict(context.invocation_metadata()).get("idempotency-key", "")
        with self.lock:
            self.runs[key] = self.runs.get(key, 0) + 1
            return self.runs[key]

    def begin(self, context) -> dict:
        asked = dict(context.invocation_metadata())
        if "x-first" not in asked:
            # A client that saw a head does not retry by itself.
            context.send_initial_metadata((("x-initial", "i"), ("x-initial", "j"), ("x-some-bin", b"\0\xff")))
        trailing = [("x-trailing", "t"), ("x-other-bin", b"\xfe\1")]
        if "x-pushback" in asked:
            trailing.append(("grpc-retry-pushback-ms", asked["x-pushback"]))
        context.set_trailing_metadata(trailing)
        return asked

    def end(self, context, asked: dict, run: int):
        """Fails as asked: always, or in the first run alone."""
        code = asked.get("x-status") or (run == 1 and asked.get("x-first"))
        if code:
            context.abort(grpc.StatusCode[code], "no: grüße, 100% sicher")

    def unary(self, request, context):
        asked, run = self.begin(context), self.count(context)
        if "x-gate" in asked:
            self.entered.put(context)
            assert self.go.acquire(timeout=PATIENCE)
        self.end(context, asked, run)
        if "x-deadline" in asked:
            return b"%d" % context.time_remaining()
        return b"%d:" % run + request

    def server_stream(self, request, context):
        asked = self.begin(context)
        for number in range(3):
            yield b"%d:" % number + request
        self.end(context, asked, 1)

    def client_stream(self, requests, context):
        asked = self.begin(context)
        whole = b"+".join(requests)
        self.end(context, asked, 1)
        return whole

    def bidi(self, requests, context):
        asked = self.begin(context)
        for request in requests:
            yield b"echo " + request
        self.end(context, asked, 1)

    @contextlib.contextmanager
    def serve(self):
        handlers = {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "ServerStream": grpc.unary_stream_rpc_method_handler(self.server_stream),
            "ClientStream": grpc.stream_unary_rpc_method_handler(self.client_stream),
            "Bidi": grpc.stream_stream_rpc_method_handler(self.bidi),
        }
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(WORKERS))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


def channel(port: int, retry: dict | None = None) -> grpc.Channel:
    options = [("grpc.enable_http_proxy", 0)]
    if retry:
        config = {"methodConfig": [{"name": [{"service": SERVICE}], "retryPolicy": retry}]}
        options.append(("grpc.service_config", json.dumps(config)))
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=options)


def metadata(fields) -> list:
    return sorted((name, value) for name, value in fields or () if name not in OWN)


def told(call, messages: list) -> dict:
    """All that a client sees of a call that is over."""
    return {
        "code": call.code().name,
        "details": call.details(),
        "initial": metadata(call.initial_metadata()),
        "trailing": metadata(call.trailing_metadata()),
        "messages": messages,
    }


def unary(stub: grpc.Channel, request: bytes = b"x", **asked) -> dict:
    fields = [(name.replace("_", "-"), value) for name, value in asked.items()]
    method = stub.unary_unary(f"/{SERVICE}/Unary")
    call = method.future(request, metadata=fields, timeout=PATIENCE)
    messages = [] if call.exception(PATIENCE) else [call.result()]
    return told(call, messages)


def stream(call) -> dict:
    messages = []
    with contextlib.suppress(grpc.RpcError):
        messages.extend(call)
    return told(call, messages)


def talk(stub: grpc.Channel, fields: list) -> dict:
    """Says the next thing only once the last one was answered."""
    said = queue.Queue()
    call = stub.stream_stream(f"/{SERVICE}/Bidi")(iter(said.get, None), metadata=fields, timeout=PATIENCE)
    messages = []
    with contextlib.suppress(grpc.RpcError):
        for request in [b"a", b"", b"c" * 300_000]:
            said.put(request)
            messages.append(next(call))
        said.put(None)
        messages.extend(call)
    return told(call, messages)


def every_kind(port: int) -> dict:
    """Calls of all kinds, without a key."""
    found = {}
    with channel(port) as stub:
        for status in ["", "NOT_FOUND", "UNAVAILABLE"]:
            fields = [("x-status", status)] if status else []
            named = lambda kind: f"{kind} {status}".strip()
            found[named("unary")] = unary(stub, b"x" * 300_000, **{"x_status": status} if status else {})
            method = stub.unary_stream(f"/{SERVICE}/ServerStream")
            found[named("server streaming")] = stream(method(b"s", metadata=fields, timeout=PATIENCE))
            method = stub.stream_unary(f"/{SERVICE}/ClientStream")
            call = method.future(iter([b"1", b"", b"3" * 100_000]), metadata=fields, timeout=PATIENCE)
            found[named("client streaming")] = told(call, [] if call.exception(PATIENCE) else [call.result()])
            found[named("bidirectional")] = talk(stub, fields)
        method = stub.unary_unary(f"/{SERVICE}/NoSuchMethod")
        call = method.future(b"", timeout=PATIENCE)
        call.exception(PATIENCE)
        found["unknown method"] = told(call, [])
        call = stub.unary_unary(f"/{SERVICE}/Unary").future(b"", timeout=0.2, metadata=[("x-gate", "1")])
        call.exception(PATIENCE)
        found["a deadline that passes"] = call.code().name
    return found


def passing(binary: str) -> int:
    server = Server()
    with server.serve() as direct, process(binary, f"h2c://127.0.0.1:{direct}", MEMORY) as (proxy, _):
        # Calls without a key are counted together: each of the two begins anew.
        expected = every_kind(direct)
        server.runs.clear()
        found = every_kind(proxy)
        server.go.release(2)
    for name, outcome in expected.items():
        assert found[name] == outcome, f"{name}: {found[name]}, expected {outcome}"
        code = outcome if isinstance(outcome, str) else outcome["code"]
        print(f"ok    {name} as without Retrysafe: {code}")
    return len(expected)


def marked(outcome: dict) -> bool:
    """Whether it is a replay: in the head, which is at the end where there is nothing else."""
    return ("idempotent-replayed", "true") in outcome["initial"] + outcome["trailing"]


def unmarked(outcome: dict) -> dict:
    drop = lambda fields: [field for field in fields if field[0] != "idempotent-replayed"]
    return outcome | {"initial": drop(outcome["initial"]), "trailing": drop(outcome["trailing"])}


def problem(outcome: dict) -> tuple:
    return outcome["code"], dict(outcome["trailing"]).get("retrysafe-code")


def retries(server: Server, stub: grpc.Channel, compress: grpc.Channel) -> int:
    """Two calls with one key, one after the other."""
    first = unary(stub, idempotency_key="k")
    again = unary(stub, idempotency_key="k")
    check("the first answer is no replay", (first["code"], marked(first), first["messages"]), ("OK", False, [b"1:x"]))
    check("the second is, and is the same", (marked(again), unmarked(again) == first), (True, True))
    runs_again = ["ABORTED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"]
    recorded = ["INVALID_ARGUMENT", "ALREADY_EXISTS", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN"]
    for status in runs_again + recorded:
        first = unary(stub, idempotency_key=status, x_status=status)
        again = unary(stub, idempotency_key=status, x_status=status)
        check(f"{status} as the server said it", first["code"], status)
        check(f"{status} again", unmarked(again) == first, True)
        runs = 2 if status in runs_again else 1
        check(f"executions of {status}", (server.runs[status], marked(again)), (runs, runs == 1))
    text = b"z" * 10_000
    packed = unary(compress, text, idempotency_key="gzip")
    check("a compressed message", (packed["code"], packed["messages"] == [b"1:" + text]), ("OK", True))
    call = stub.unary_unary(f"/{SERVICE}/Unary")
    left = call(b"", timeout=20, metadata=[("idempotency-key", "deadline"), ("x-deadline", "1")])
    check("the deadline reaches the server", 0 < int(left) <= 20, True)
    method = stub.unary_stream(f"/{SERVICE}/ServerStream")
    first, again = (stream(method(b"s", metadata=[("idempotency-key", "stream")], timeout=PATIENCE)) for _ in range(2))
    check("a server that streams", (first["code"], first["messages"]), ("OK", [b"0:s", b"1:s", b"2:s"]))
    check("the same again", (marked(again), unmarked(again) == first), (True, True))
    return 6 + 3 * len(runs_again + recorded)


def refusals(stub: grpc.Channel) -> int:
    check("without a key", problem(unary(stub)), ("INVALID_ARGUMENT", "idempotency_key_missing"))
    unary(stub, idempotency_key="used")
    reused = unary(stub, b"other", idempotency_key="used")
    check("another message", problem(reused), ("FAILED_PRECONDITION", "idempotency_key_reused"))
    other = unary(stub, idempotency_key="used", authorization="Bearer other")
    check("other credentials", problem(other), ("FAILED_PRECONDITION", "idempotency_key_other_credentials"))
    fields = [("idempotency-key", "stream")]
    call = stub.stream_unary(f"/{SERVICE}/ClientStream").future(iter([b"1", b"2"]), metadata=fields, timeout=PATIENCE)
    call.exception(PATIENCE)
    check("more than one message", problem(told(call, [])), ("INVALID_ARGUMENT", "malformed_request"))
    return 4


def waiting(health: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{health}/metrics") as metrics:
        lines = [line.split() for line in metrics.read().decode().splitlines()]
    return next(int(line[1]) for line in lines if line[0] == "retrysafe_waiting")


def together(server: Server, stub: grpc.Channel, health: int) -> int:
    """Duplicates at the same time, and a client that cancels."""
    calls = 20
    with concurrent.futures.ThreadPoolExecutor(calls) as threads:
        running = [threads.submit(unary, stub, idempotency_key="many", x_gate="1") for _ in range(calls)]
        until("all duplicates wait", lambda: waiting(health) == calls - 1)
        server.go.release(calls)
        found = [call.result() for call in running]
    check("answers to duplicates", {(call["code"], *call["messages"]) for call in found}, {("OK", b"1:x")})
    check("replays among them", sum(map(marked, found)), calls - 1)
    check("executions of them", server.runs["many"], 1)
    while not server.entered.empty():
        server.entered.get()
    server.go = threading.Semaphore(0)
    fields = [("idempotency-key", "gone"), ("x-gate", "1")]
    call = stub.unary_unary(f"/{SERVICE}/Unary").future(b"x", metadata=fields, timeout=PATIENCE)
    context = server.entered.get(timeout=PATIENCE)
    call.cancel()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        duplicate = threads.submit(unary, stub, idempotency_key="gone", x_gate="1")
        until("the duplicate waits", lambda: waiting(health) == 1)
        check("the server's call goes on", context.is_active(), True)
        server.go.release()
        found = duplicate.result()
    check("after a cancel", (found["code"], marked(found), server.runs["gone"]), ("OK", True, 1))
    return 5


RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.01s",
    "maxBackoff": "0.05s",
    "backoffMultiplier": 1,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def own_retries(server: Server, proxy: int) -> int:
    with channel(proxy, RETRY) as stub:
        found = unary(stub, idempotency_key="come-again", x_first="UNAVAILABLE", x_pushback="10")
        runs = server.runs.get("come-again")
        check("UNAVAILABLE with a time to come again", (found["code"], found["messages"], runs), ("OK", [b"2:x"], 2))
        found = unary(stub, idempotency_key="bare", x_first="UNAVAILABLE")
        check("UNAVAILABLE without", (found["code"], marked(found), server.runs["bare"]), ("UNAVAILABLE", True, 1))
    return 2


def unreachable(binary: str) -> int:
    """The server is gone."""
    server = Server()
    with server.serve() as port:
        pass
    with process(binary, f"h2c://127.0.0.1:{port}", UNARY) as (proxy, _), channel(proxy) as stub:
        found = unary(stub, idempotency_key="k")
    check("an upstream out of reach", problem(found), ("UNAVAILABLE", "upstream_unreachable"))
    return 1


def main(binary: str) -> int:
    passed = passing(binary)
    server = Server()
    with (
        server.serve() as direct,
        process(binary, f"h2c://127.0.0.1:{direct}", UNARY) as (proxy, health),
        channel(proxy) as stub,
        grpc.insecure_channel(
            f"127.0.0.1:{proxy}", options=[("grpc.enable_http_proxy", 0)], compression=grpc.Compression.Gzip
        ) as compress,
    ):
        passed += retries(server, stub, compress)
        passed += refusals(stub)
        passed += together(server, stub, health)
        passed += own_retries(server, proxy)
    passed += unreachable(binary)
    print(f"{passed} passed, 0 failed")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(os.path.abspath(sys.argv[1])))
