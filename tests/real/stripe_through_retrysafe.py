#!/usr/bin/env python3
"""The Stripe SDK talking through Retrysafe to localstripe, which ignores idempotency keys.

    stripe_through_retrysafe.py PATH-TO-RETRYSAFE

Without the proxy two identical creates with one key make two customers; with it one. When the
connection is cut after the request went out, the SDK's own retry makes one PaymentIntent.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request

import stripe

from support import answers, check, done, free_port, retrysafe, until


@contextlib.contextmanager
def localstripe():
    port = free_port()
    command = [os.path.join(os.path.dirname(sys.executable), "localstripe"), "--port", str(port), "--from-scratch"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until("localstripe", lambda: answers(port))
        yield port
    finally:
        server.kill()
        server.wait()


class Cutter:
    """A TCP relay that cuts the first connection once the request went out and an answer came."""

    def __init__(self, target: int):
        self.target, self.cuts, self.connections = target, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self.target))
            cut = self.connections == 1
            threading.Thread(target=self.pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, cut), daemon=True).start()

    def pump(self, source, sink, cut):
        while data := source.recv(65536):
            if cut:
                self.cuts += 1
                break
            sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def client(port: int, retries: int = 0) -> stripe.StripeClient:
    return stripe.StripeClient(
        "sk_test_12345",
        base_addresses={"api": f"http://127.0.0.1:{port}"},
        max_network_retries=retries,
    )


def create_twice(port: int, key: str) -> set[str]:
    sdk = client(port)
    create = lambda: sdk.v1.customers.create({"name": "Ada"}, {"idempotency_key": key}).id
    return {create(), create()}


def count(port: int, what: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/{what}?limit=100")
    request.add_header("Authorization", "Bearer sk_test_12345")
    with urllib.request.urlopen(request) as answer:
        return len(json.load(answer)["data"])


def main(binary: str) -> int:
    with localstripe() as api:
        check("customers made by two creates with one key, without the proxy", len(create_twice(api, "direct")), 2)
        with retrysafe(binary, api) as proxy:
            before = count(api, "customers")
            check("customers made by the same through Retrysafe", len(create_twice(proxy, "through")), 1)
            check("customers the API counts for it", count(api, "customers") - before, 1)

            cutter = Cutter(proxy)
            before = count(api, "payment_intents")
            intent = client(cutter.port, retries=3).v1.payment_intents.create({"amount": 1000, "currency": "eur"})
            check("answers cut off", cutter.cuts, 1)
            check("tries the SDK needed", cutter.connections, 2)
            check("PaymentIntents the API counts for it", count(api, "payment_intents") - before, 1)
            check("the intent is the one that was made", client(api).v1.payment_intents.retrieve(intent.id).id, intent.id)
    return done()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(os.path.abspath(sys.argv[1])))
