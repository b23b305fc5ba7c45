"""Hostile requests to the explorer: it goes on answering, gives no file away, and prints no traceback."""

from __future__ import annotations

import json
import resource
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from attacks.folders import run_command
from attacks.workplace import FIT, Fork, import_all, must, write_images

COUNT = 2_000
HALF_OPEN = 1_200
MOST_PRINTED = 5_000  # bytes
PATHS = (
    "/", "/api/state", "/api/rows?of=all", "/api/rows?of=cluster&cluster=99999999999999999999", "/api/rows?of=x",
    "/api/details?rows=0", "/api/details?rows=-1", "/api/details?rows=" + "9," * 3000, "/api/image/0",
    "/api/image/99999999999999999999", "/api/image/-1", "/api/image/%2e%2e%2fsecret", "/api/image/../../secret",
    "/page/../../secret", "/page/%2e%2e/secret", "/page/..%5csecret", "/page/secret\x00", "/api/thumbnail/0",
    "/api/neighbours/1e9", "/api/map", "/api/edit", "/api/drop", "//secret", "/\x80\xff", "/?token=" + "x" * 5000,
    "/api/rows?of=all&order=alike&like=" + "1," * 400, "/api/rows?of=all&path=" + "%f0" * 300,
)  # fmt: skip
METHODS = (b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"X" * 400, b"get", b"")
ODD_HEADERS = (
    b"Origin: http://evil.example", b"Sec-Fetch-Site: cross-site", b"Transfer-Encoding: chunked", b"X" * 9000,
    b"Cookie: " + b"a=b;" * 900, b"Expect: 100-continue", b"Upgrade: websocket", b"Range: bytes=0-" + b"9" * 40,
    b": :", b"Host: other", b"If-None-Match: *",
)  # fmt: skip
BODIES = (
    b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"kind":"rename"}', b'{"kind":"move","rows":[1e400],"to":0}',
    b'{"kind":"merge","clusters":[[]],"into":{}}', b"\xff" * 1000, b'{"kind":"split","cluster":0,"parts":1e9}',
    b'{"kind":"rename","cluster":0,"name":"\\ud800","expected":0}', b"GIF89a" + b"\0" * 50,
    b'{"kind":"junk","rows":' + b"[0]" * 9 + b"}", b'{"kind":"confirm","rows":"all","expected":-1}',
)  # fmt: skip


def attack(seed: int, count: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Send `count` hostile requests, then leave connections half open; return figures."""
    write_images("small", 200)
    must(*FIT, "--epochs", 3, "--out", "run")
    Path("secret").write_text("a secret\n" * 3)
    import_all()
    figures: dict[str, Any] = {"hostile requests": 0, "faults": 0}
    for host in ("127.0.0.1", "0.0.0.0"):
        from twincluster.pages import listen

        with listen("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        server = Fork(lambda host=host, port=port: _serve(host, port))  # type: ignore[misc]
        answers: Counter[str] = Counter()
        random = np.random.default_rng([seed, len(host)])
        _wait_for(port)
        for _ in range(count // 2):
            request = _request(random, port)
            answer = _send(port, request, breaks_off=random.random() < 0.1)
            figures["hostile requests"] += 1
            answers[answer[9:12].decode(errors="replace") or "none"] += 1
            if b"a secret" in answer or answer[9:12].startswith(b"5"):
                figures["faults"] += 1
                tell(f"requests seed {seed}: {request[:300]!r} is answered with {answer[:300]!r}")
        figures[f"answers at {host}"] = dict(answers)
        open_ = _leave_half_open(port)
        seconds = _wait_for(port)
        figures[f"s to answer beside {HALF_OPEN:,} half-open connections at {host}"] = round(seconds, 1)
        for connection in open_:
            connection.close()
        if not server.is_running or seconds > 60:
            figures["faults"] += 1
            tell(f"requests seed {seed}: the explorer at {host} answers no more")
        printed = server.printed()
        server.kill(0)
        if "Traceback" in printed or len(printed) > MOST_PRINTED:
            figures["faults"] += 1
            tell(f"requests seed {seed}: the explorer at {host} prints {len(printed):,} bytes: {printed[-1500:]}")
    return figures


def _serve(host: str, port: int) -> int:
    """Few file descriptors, as a shell gives them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    return run_command("serve", "run", "--port", port, "--host", host)


def _wait_for(port: int) -> float:
    """Seconds until the explorer answers; it may refuse who has no token."""
    began = time.monotonic()
    while time.monotonic() < began + 90:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/number", timeout=5) as answer:
                json.load(answer)
                break
        except urllib.error.HTTPError:
            break
        except OSError:
            time.sleep(0.05)
    return time.monotonic() - began


def _request(random: np.random.Generator, port: int) -> bytes:
    def one_of(choices: Any) -> Any:
        return choices[random.integers(len(choices))]

    path, body = one_of(PATHS).encode("latin-1", "replace"), one_of(BODIES)

    def mostly(usual: bytes, others: Any) -> Any:
        return usual if random.random() < 0.7 else one_of(others)

    host = b"127.0.0.1:%d" % port
    headers = [b"Host: " + mostly(host, (b"evil.example", b"", b"localhost:%d" % port))]
    headers += [b"Content-Type: " + mostly(b"application/json", (b"text/html", b"\xff"))]
    headers += [b"Content-Length: " + mostly(b"%d" % len(body), (b"-1", b"9" * 30, b"x", b"0"))]
    if random.random() < 0.3:
        headers += [one_of(ODD_HEADERS)]
    method = mostly(b"POST" if b"/edit" in path or b"/drop" in path else b"GET", METHODS)
    request: bytes = method + b" " + path + b" HTTP/1.1\r\n" + b"\r\n".join(headers) + b"\r\n\r\n" + body
    if random.random() < 0.2:  # noise
        place = int(random.integers(len(request)))
        request = request[:place] + random.bytes(8) + request[place + 8 :]
    return request


def _send(port: int, request: bytes, *, breaks_off: bool) -> bytes:
    answer = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
        connection.sendall(request[: len(request) // 2] if breaks_off else request)
        if breaks_off:
            return b""
        while len(answer) < 100_000 and (part := connection.recv(65_536)):
            answer += part
            if b"\r\n\r\n" in answer:
                connection.settimeout(0.05)
    return answer


def _leave_half_open(port: int) -> list[socket.socket]:
    """Connections that send half a request and wait."""
    connections: list[socket.socket] = []
    for _ in range(HALF_OPEN):
        with suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), timeout=1.0)
            connection.sendall(b"GET / HTTP/1.1\r\nHost:")
            connections.append(connection)
    return connections
