"""Whom the server answers, and what it refuses: other sites, nonsense, odd addresses, files that are not the run's."""

import asyncio
import errno
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from explorer_server import Served, copied, opened, serving
from PIL import Image

from twincluster.pages.explorer import guard, pictures
from twincluster.runs import Run


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:80"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_sites_are_turned_away(served: Served, headers: dict[str, str]) -> None:
    body = {"kind": "rename", "expected": 0, "cluster": 0, "name": "harm"}
    assert served.client.post("/api/edit", json=body, headers=headers).status_code in (403, 421)
    assert served.get("/api/state", headers=headers).status_code in (403, 421)
    assert served.get("/api/image/0", headers=headers).status_code in (403, 421)
    assert not (served.run.folder / "edits.jsonl").exists()


def test_policy_forbids_what_the_page_does_not_need(served: Served) -> None:
    for path in ("/", "/api/state", "/api/thumbnail/0", "/nothing"):
        headers = served.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_beyond_this_machine_a_token_is_needed(original: Run, tmp_path: Path) -> None:
    with serving(copied(original, tmp_path / "run"), token="s3cret") as served:
        paths = ("/", "/api/state", "/api/image/0", "/page/explorer.js", "/?token=wrong", "/api/state?token=s3cret")
        for path in paths:
            assert served.get(path).status_code == 401
        assert served.client.post("/api/edit", json={}).status_code == 401
        entered = served.get("/?token=s3cret")
        assert entered.status_code == 303
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert "SameSite=strict" in entered.headers["set-cookie"]
        assert served.get("/api/state").status_code == 200  # the client keeps the cookie
        assert served.get("/api/state", headers={"host": "photos.local"}).status_code == 200


NONSENSE = [
    b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff\xfe", b"[" * 100_000, b"{}", b'{"kind":"rename"}',
    b'{"kind":["rename"],"expected":0}', b'{"kind":"rename","expected":"0","cluster":0,"name":"x"}',
    b'{"kind":"rename","expected":0,"cluster":true,"name":"x"}', b'{"kind":"rename","expected":0,"cluster":0,"name":7}',
    b'{"kind":"rename","expected":0,"cluster":0,"name":" "}', b'{"kind":"rename","expected":0,"cluster":99,"name":"x"}',
    b'{"kind":"rename","expected":0,"cluster":0,"name":"\\ud800"}',
    b'{"kind":"move","expected":0,"rows":[],"to":1}', b'{"kind":"move","expected":0,"rows":[[1]],"to":1}',
    b'{"kind":"move","expected":0,"rows":[1e999],"to":1}', b'{"kind":"move","expected":0,"rows":[-1],"to":1}',
    b'{"kind":"move","expected":0,"rows":[999999999999999999999],"to":1}',
    b'{"kind":"move","expected":0,"rows":{"a":1}}',
    b'{"kind":"junk","expected":0,"rows":[4000]}', b'{"kind":"junk","expected":0,"rows":[NaN]}',
    b'{"kind":"split","expected":0,"cluster":0,"parts":1}', b'{"kind":"split","expected":0,"cluster":-1,"parts":2}',
    b'{"kind":"split_off","expected":0,"cluster":0,"rows":[1]}', b'{"kind":"merge","expected":0,"clusters":[0,0]}',
    b'{"kind":"merge","expected":0,"clusters":[0,"1"]}', b'{"kind":"undo","expected":0}',
    b'{"kind":"start","expected":0}',
]  # fmt: skip


def test_nonsense_is_refused_in_a_sentence_and_writes_nothing(served: Served) -> None:
    for body in NONSENSE:
        answer = served.client.post("/api/edit", content=body, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, (body[:60], answer.status_code)
        assert answer.json()["error"]
    assert served.client.post("/api/edit", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    log = served.run.folder / "edits.jsonl"
    assert not log.exists() or log.read_bytes() == b""


@pytest.mark.parametrize(
    "path",
    [
        "/api/image/-1", "/api/image/999", "/api/image/x", "/api/image/1e3", "/api/image/99999999999999999999999",
        "/api/image/..%2f..%2fetc%2fpasswd", "/api/thumbnail/%00", "/api/neighbours/999", "/api/rows", "/api/rows?of=x",
        "/api/rows?of=cluster&cluster=x", "/api/rows?of=cluster&cluster=99999999999999999999", "/api/details?rows=",
        "/api/details?rows=1,,2", "/api/details?rows=-1", "/api/details?rows=999", "/api/details?rows=%D9%A3",
        "/api/rows?of=all&path=" + "x" * 2000,
        "/page/server.py", "/page/..%2fserver.py", "/page/", "/docs", "/openapi.json",
    ],
)  # fmt: skip
def test_odd_addresses_are_refused(served: Served, path: str) -> None:
    assert 400 <= served.get(path).status_code < 500
    assert served.client.request("TRACE", path).status_code in (400, 404, 405)


def test_what_is_no_http_is_refused_without_a_fault_of_ours(
    original: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(copied(original, tmp_path / "run")) as served:
        port = int(served.url.rpartition(":")[2])
        post = b"POST /api/edit HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n" % port
        for sent in (
            b"\x00\xff" * 500 + b"\r\n\r\n",
            b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
            post + b"Content-Length: -5\r\n\r\n",
            post + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=20) as line, suppress(ConnectionError):
                line.sendall(sent)
                assert line.recv(100).startswith(b"HTTP/1.1 4")
        assert served.get("/api/state").status_code == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("secret", ["secret.txt", "secret.png"])
def test_a_file_that_became_a_link_to_something_else_shows_nothing_of_it(
    served: Served, tmp_path: Path, secret: str
) -> None:
    row = served.library.assignments.paths.index("oblong.png")
    (tmp_path / "secret.txt").write_text("the secret")
    Image.new("RGB", (90, 30), "red").save(tmp_path / "secret.png")
    assert served.library.files is not None
    file = served.library.files[row]
    assert isinstance(file, Path)
    kept = file.rename(file.with_name("kept"))
    file.symlink_to(tmp_path / secret)
    try:
        answer = served.get(f"/api/image/{row}")
        assert b"secret" not in answer.content
        shown = opened(answer).convert("RGB")  # what the run keeps of it
        assert shown.size[0] == shown.size[1]
        assert shown.getpixel((2, 2)) == (0, 0, 128)  # navy
    finally:
        file.unlink()
        kept.rename(file)


# -- floods of connections ---------------------------------------------------------------------------------------------

DESCRIPTORS = 200
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


@contextmanager
def serving_process(run: Path, host: str, log: Path) -> Iterator[str]:
    """`twincluster serve` with few file descriptors; its address."""
    words = [sys.executable, "-m", "twincluster", "serve", str(run), "--port", "0", "--host", host]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    with log.open("w") as said, subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=said, text=True, preexec_fn=limit
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.kill()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_flood_of_half_open_connections_costs_a_line(original: Run, tmp_path: Path, host: str) -> None:
    log = tmp_path / "log"
    with serving_process(original.folder, host, log) as address, ExitStack() as connections:
        parts = urlsplit(address)
        assert parts.port is not None
        for number in range(2 * DESCRIPTORS):
            one = connections.enter_context(socket.create_connection(("127.0.0.1", parts.port)))
            if number % 2:
                one.send(HALF)
        with httpx.Client(base_url=f"http://127.0.0.1:{parts.port}", timeout=20) as client:
            assert client.get(f"/?{parts.query}", follow_redirects=True).status_code == 200
            assert client.get("/api/thumbnail/0").status_code == 200
    assert "connections at once: the oldest that send nothing are closed" in log.read_text()
    assert len(log.read_text().splitlines()) == 1


def is_closed(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0]) and not connection.recv(1000)


def test_a_client_that_keeps_the_server_waiting_is_dropped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Amid the head, amid the body, and after a refusal; one that asks again and again stays."""
    monkeypatch.setattr(guard, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(guard, "BODY_SECONDS", 2.0)
    host = served.url.removeprefix("http://")
    post = "POST /api/edit HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{{"
    slow = [HALF, post.format(host).encode(), post.format("evil.example").encode()]
    with ExitStack() as connections:
        opened_ones = [connections.enter_context(socket.create_connection(host.split(":"), timeout=20)) for _ in slow]
        for connection, start in zip(opened_ones, slow, strict=True):
            connection.send(start)
        assert b"421" in opened_ones[2].recv(10_000)
        end = time.monotonic() + 20
        while not all(map(is_closed, opened_ones)) and time.monotonic() < end:
            for connection in opened_ones:
                with suppress(OSError):
                    connection.send(b"x")
            assert served.get("/api/number").status_code == 200
            time.sleep(0.2)
    assert time.monotonic() < end


def test_the_address_with_the_most_connections_makes_room(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "most_connections", lambda: 10)
    host, port = served.url.removeprefix("http://").split(":")
    with ExitStack() as connections:
        mine = connections.enter_context(socket.create_connection((host, port), source_address=("127.0.0.2", 0)))
        flood = [connections.enter_context(socket.create_connection((host, port))) for _ in range(30)]
        time.sleep(0.5)
        assert not is_closed(mine)
        assert [is_closed(one) for one in flood] == [True] * 21 + [False] * 9


def test_without_a_descriptor_requests_and_connections_wait(
    served: Served, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(pictures, "thumbnail", full)
    answer = served.get("/api/thumbnail/0")
    assert answer.status_code == 503
    assert answer.json() == {"error": "this machine has too many files open: try again"}
    loop = asyncio.new_event_loop()
    for _ in range(100):
        guard._report(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
    loop.close()
    assert len(capfd.readouterr().err.splitlines()) == 1
