"""Reject requests from other web sites, under other host names, and without the token.

A page on the web can make a browser send requests to 127.0.0.1, and can point its own host name there (DNS rebinding).
The headers Host, Origin and Sec-Fetch-Site tell such requests from those of our own page. Connections are limited
before any header is read: in number, and in the time that they may wait for their client.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from socket import socket
from typing import Any
from urllib.parse import parse_qs

import h11
import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
MOST_CONNECTIONS = 128
SHARE = 8  # one in eight file descriptors may be a connection
HEAD_SECONDS = 10.0  # for a client to send the head of a request
BODY_SECONDS = 120.0  # for a client to send a body, or to read an answer
AT_ONCE = 16  # connections accepted in one go; closed ones keep their descriptors until the next
QUEUE = 128  # connections that the system holds back meanwhile
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
SAY_AGAIN = 60.0  # seconds between two lines about the same attack


@dataclass(frozen=True)
class Access:
    """Which hosts may ask. Without a token, Host must be a name of this machine."""

    port: int
    token: str = ""

    @property
    def cookie(self) -> str:
        """Cookies do not depend on the port, so each explorer of a machine has its own."""
        return f"twincluster-{self.port}"

    @property
    def hosts(self) -> set[str]:
        names = ("127.0.0.1", "localhost", "[::1]")
        return {f"{name}:{self.port}" for name in names} | (set(names) if self.port == 80 else set())


def is_local(host: str) -> bool:
    """Return True if an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """The application that checks each request before ours."""

    def __init__(self, app: Any, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._entrance(scope) or self._refusal(scope)
        with suppress(ClientDisconnect, h11.LocalProtocolError):  # a client that has gone needs no answer
            await (answer or self.app)(scope, receive, send_with_headers)

    def _entrance(self, scope: Any) -> Any:
        """Turn the token in the printed address into a cookie that no script can read."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0] if self.access.token else ""
        if scope["path"] != "/" or not given or not _same(given, self.access.token):
            return None
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(self.access.cookie, self.access.token, httponly=True, samesite="strict")
        return answer

    def _refusal(self, scope: Any) -> Any:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.access.token and host.lower() not in self.access.hosts:
            return _refused(421, "this server answers to 127.0.0.1 and localhost alone")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return _refused(403, "requests of other sites are not answered")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and scope["path"] != "/":
            return _refused(403, "requests of other sites are not answered")
        if self.access.token and not _same(_cookie(headers, self.access.cookie), self.access.token):
            return _refused(401, "open the address that twincluster serve has printed, with its token")
        return None


def _refused(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": why}, status_code=status)


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


class Server(uvicorn.Server):
    """A server for `app`. It closes connections of a flood, with one line about it."""

    def __init__(self, app: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app, http=Connection, ws="none", backlog=AT_ONCE, log_level="error", access_log=False,
                server_header=False, proxy_headers=False, timeout_graceful_shutdown=2,
            )
        )  # fmt: skip

    async def startup(self, sockets: list[socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_report)
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUE)


class Connection(H11Protocol):
    """A connection that is closed if its client is too slow, or if others need its place."""

    _since = 0.0  # when the client began to be slow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()
        if len(self.connections) > most_connections():
            self._make_room()
        self._watch()

    def data_received(self, data: bytes) -> None:
        before = self.conn.their_state
        super().data_received(data)
        if self.conn.their_state is not before:
            self._since = time.monotonic()

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._since = time.monotonic()
        super().pause_writing()

    @property
    def _patience(self) -> float:
        """Return the seconds that the client may take for its current step; infinite while we compute."""
        if self.flow.write_paused:
            return BODY_SECONDS
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is not h11.DONE:
            return BODY_SECONDS
        return HEAD_SECONDS if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) else float("inf")

    def _watch(self) -> None:
        if self.transport.is_closing():
            return
        if time.monotonic() - self._since > self._patience:
            self._drop()
        else:
            self.loop.call_later(1.0, self._watch)

    def _make_room(self) -> None:
        """Close the connection that has waited longest, of the address that has the most."""
        _say(f"more than {most_connections()} connections at once: the oldest that send nothing are closed")
        per_address = Counter(each.client and each.client[0] for each in self.connections)  # type: ignore[union-attr]
        waiting = [each for each in self.connections if isinstance(each, Connection) and each._patience < float("inf")]
        max(waiting, key=lambda each: (per_address[each.client and each.client[0]], -each._since))._drop()

    def _drop(self) -> None:
        self.connections.discard(self)  # aborting would remove it later, when more have come
        self.transport.abort()


def most_connections() -> int:
    """Return how many connections leave enough file descriptors for the files of a run."""
    try:
        import resource
    except ImportError:
        return MOST_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft < 0 else max(8, min(MOST_CONNECTIONS, soft // SHARE))


def has_no_descriptor(error: object) -> bool:
    """Return True if an error says that this process or machine has too many open files."""
    return isinstance(error, OSError) and error.errno in NO_DESCRIPTOR


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Print one line that no connection can be accepted; asyncio tries again each second."""
    if has_no_descriptor(context.get("exception")):
        _say("no file descriptor is left for another connection: raise the limit (ulimit -n) or close other programs")
    else:
        loop.default_exception_handler(context)


_said: dict[str, float] = {}  # when each line was last printed


def _say(line: str) -> None:
    now = time.monotonic()
    if now - _said.get(line, -SAY_AGAIN) >= SAY_AGAIN:
        _said[line] = now
        print(f"warning: {line}", file=sys.stderr, flush=True)
