"""nginx as upstream: files, ranges, validators, compression, a proxy of its own, uploads."""

import contextlib
import os
import random
import signal
import subprocess
import tempfile

from support import PATIENCE, answers, free_port, until

LARGE = 48 << 20

# gzip_proxied: by default nginx compresses nothing for a request that bears Via.
CONFIG = """
daemon off;
error_log {root}/error.log warn;
pid {root}/nginx.pid;
worker_processes 1;
{user}
events {{ worker_connections 1024; }}
http {{
  log_format calls "$connection $request_method $request_uri $status $http_idempotency_key$arg_key";
  access_log {root}/access.log calls;
  client_body_temp_path {root}/body;
  proxy_temp_path {root}/proxy;
  fastcgi_temp_path {root}/fastcgi;
  uwsgi_temp_path {root}/uwsgi;
  scgi_temp_path {root}/scgi;
  types {{ text/plain txt; text/html html; application/octet-stream bin; }}
  gzip on;
  gzip_min_length 100;
  gzip_proxied any;
  gzip_types text/x-gzip;
  server {{
    listen 127.0.0.1:{port} {speaks};
    {tls}
    listen 127.0.0.1:{inner};
    server_name api.test;
    absolute_redirect off;
    root {root}/www;
    keepalive_requests {keepalive};
    client_max_body_size 64m;

    location /gzip/ {{ types {{ }} default_type text/x-gzip; alias {root}/www/; }}
    location /summed/ {{ alias {root}/www/; add_header Trailer X-Sum; add_trailer X-Sum 9; }}
    location /proxied/ {{ proxy_pass http://127.0.0.1:{inner}/; proxy_set_header Host $http_host; proxy_http_version 1.1; }}
    location /unbuffered/ {{ proxy_pass http://127.0.0.1:{inner}/gzip/; proxy_buffering off; proxy_http_version 1.1; }}
    location /as-get/ {{ proxy_pass http://127.0.0.1:{inner}/gzip/; proxy_method GET; proxy_http_version 1.1;
      proxy_pass_request_body off; proxy_set_header Content-Length ""; }}
    location /dav/ {{ dav_methods PUT DELETE MKCOL MOVE COPY; create_full_put_path on; }}
    location /small/ {{ client_max_body_size 1k; dav_methods PUT; }}
    location = /empty {{ return 204; }}
    location = /reset {{ return 205; }}
    location = /teapot {{ add_header Set-Cookie a=1 always; add_header Set-Cookie b=2 always; return 418 "short\\n"; }}
    location = /see {{ return 303 /file.txt; }}
    location = /latin {{ add_header X-Latin "caf{latin}"; return 200 "x"; }}
    location /pay {{ return 201 "$request_id\\n"; }}
    location /told {{ return 200 "$request_method $request_uri $http_host $http_accept_encoding\\n"; }}
    location = /fails {{ return 503 "later\\n"; }}
    location = /cut {{ return 444; }}
  }}
}}
"""


class Nginx:
    """A running nginx, and what its log says of the calls it answered."""

    def __init__(self, root: str, port: int, process: subprocess.Popen):
        self.root, self.port, self.process = root, port, process

    def ended(self) -> list:
        """Lets it end its calls; the lines of its log, which is whole only then: connection,
        method, target, status, key."""
        self.process.send_signal(signal.SIGQUIT)
        assert self.process.wait(PATIENCE) == 0
        with open(os.path.join(self.root, "access.log"), encoding="utf-8") as log:
            return [line.rstrip("\n").split(" ") for line in log]


def fill(root: str):
    www = os.path.join(root, "www")
    os.makedirs(os.path.join(www, "folder"))
    os.makedirs(os.path.join(www, "dav"))
    os.makedirs(os.path.join(www, "small"))
    files = {
        "file.txt": b"".join(b"line %d\n" % number for number in range(500)),
        "folder/index.html": b"<!doctype html><title>x</title>\n",
        "none.txt": b"",
        "large.bin": random.Random(7).randbytes(LARGE),
    }
    for name, octets in files.items():
        path = os.path.join(www, name)
        with open(path, "wb") as file:
            file.write(octets)
        os.utime(path, (1_700_000_000, 1_700_000_000))


@contextlib.contextmanager
def nginx(keepalive: int = 1000, http2: bool = False, tls: tuple = ()):
    port = free_port()
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        fill(root)
        path = os.path.join(root, "nginx.conf")
        user = "user root;" if os.getuid() == 0 else ""
        with open(path, "w", encoding="latin-1") as config:
            wanted = {"root": root, "port": port, "inner": free_port(), "keepalive": keepalive, "user": user}
            speaks = ("ssl " if tls else "") + ("http2" if http2 else "")
            pair = "ssl_certificate {}; ssl_certificate_key {};".format(*tls) if tls else ""
            config.write(CONFIG.format(**wanted, latin="\u00e9", speaks=speaks, tls=pair))
        process = subprocess.Popen(["nginx", "-p", root, "-c", path, "-e", os.path.join(root, "error.log")])
        try:
            until("nginx", lambda: answers(wanted["inner"], "/empty"))
            yield Nginx(root, port, process)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE)
