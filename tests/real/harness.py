"""What the scripts of this folder share: Retrysafe as a process, waiting, checks."""

import contextlib
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

PATIENCE = 30


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


@contextlib.contextmanager
def process(binary: str, upstream: str, policy: str):
    """Retrysafe in front of an upstream url: the ports of clients and of health."""
    port, health = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.toml"), "w", encoding="utf-8") as config:
            config.write(
                f"""
                [server]
                listen = "127.0.0.1:{port}"
                [upstream]
                url = "{upstream}"
                [health]
                listen = "127.0.0.1:{health}"
                {policy}
                """
            )
        server = subprocess.Popen([binary, "run"], cwd=folder, stderr=subprocess.DEVNULL)
        try:
            until("retrysafe", lambda: answers(health, "/readyz"))
            yield port, health
        finally:
            server.terminate()
            assert server.wait(PATIENCE) == 0


@contextlib.contextmanager
def retrysafe(binary: str, upstream: int):
    """The same in front of a port of plain HTTP."""
    policy = '[policy.key]\nrequired_on = ["POST"]'
    with process(binary, f"http://127.0.0.1:{upstream}", policy) as (port, _):
        yield port


def check(name: str, found, expected):
    assert found == expected, f"{name}: {found}, expected {expected}"
    print(f"ok    {name}: {found}")
