"""Who may ask: requests of other web sites, of other names for this machine and without the token are turned away.

A page on the web can make a browser send requests to 127.0.0.1, and can have its own name point there (DNS rebinding):
the headers Host, Origin and Sec-Fetch-Site tell such requests from those of our own page.
"""

from __future__ import annotations

import hmac
import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from h11 import LocalProtocolError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse

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


@dataclass(frozen=True)
class Access:
    """Without a token only names of this machine itself may be in Host."""

    port: int
    token: str = ""

    @property
    def cookie(self) -> str:
        """Cookies know no ports: each explorer of a machine has its own."""
        return f"twincluster-{self.port}"

    @property
    def hosts(self) -> set[str]:
        names = ("127.0.0.1", "localhost", "[::1]")
        return {f"{name}:{self.port}" for name in names} | (set(names) if self.port == 80 else set())


def is_local(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Stands before the application."""

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
        with suppress(ClientDisconnect, LocalProtocolError):  # who breaks off amid a request is not to be answered
            await (answer or self.app)(scope, receive, send_with_headers)

    def _entrance(self, scope: Any) -> Any:
        """The address that was printed, with the token, becomes a cookie that no script can read."""
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
