"""The addresses that the explorer answers, and the process that serves them.

Images are requested by row number, never by path. A bad request gets a status of 4xx and one sentence; an edit that
comes too late gets 409 and the current state.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import sys
import webbrowser
from contextlib import suppress
from threading import Thread
from typing import Annotated, Any, Literal

import torch
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool

from twincluster.core import InputError
from twincluster.pages.explorer import pictures
from twincluster.pages.explorer.corrections import correct, grow_from
from twincluster.pages.explorer.guard import Access, Guard, Server, has_no_descriptor, is_local
from twincluster.pages.explorer.library import Library, Newest
from twincluster.pages.explorer.pictures import MOST_BYTES, Visitors
from twincluster.pages.explorer.view import Order, View
from twincluster.pages.web import read_asset
from twincluster.runs import ConflictError

MOST_ROWS = 500  # in one address
ROW_NUMBERS = f"up to {MOST_ROWS} whole numbers with commas between them are expected"
MOST_JSON = 32_000_000  # bytes of an edit: two million rows
NO_IMAGE = "there is no such image"
FOREVER = "private, max-age=31536000, immutable"  # the address of a picture contains the version of the data
ASSETS = {  # by name
    "page.css": ("page.css", "text/css"),
    "explorer.css": ("explorer/explorer.css", "text/css"),
    "explorer.js": ("built/explorer.js", "text/javascript"),
}


def serve_library(
    library: Library, listening: socket.socket, host: str, in_browser: bool = False, page: str = ""
) -> None:
    """Serve until interrupted. `page` is appended to the address, as in "#teach"."""
    number = int(listening.getsockname()[1])
    access = Access(number, "" if is_local(host) else secrets.token_urlsafe(24))
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{number}/{f'?token={access.token}' if access.token else ''}{page}"
    print(f"open {address} in a browser", flush=True)
    print("Ctrl+C ends it; corrections are kept as they are made", flush=True)
    torch.set_num_threads(max(1, torch.get_num_threads() - 1))  # leave a core for the page
    library.start()
    if in_browser:
        # beside the server: a browser in the terminal returns only when it is closed, and needs answers until then
        Thread(target=webbrowser.open, args=(address,), daemon=True, name="browser").start()
    newest = Newest(library, _app_of)
    with suppress(KeyboardInterrupt):
        Server(Guard(newest, access)).run(sockets=[listening])
    if newest.busy:
        sys.stdout.flush()
        os._exit(0)  # a computing thread cannot be ended in another way; every edit is on the disk


def make_app(library: Library, access: Access) -> Guard:
    return Guard(Newest(library, _app_of), access)


def _app_of(library: Library, newest: Newest) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    view = View(library)
    _add_page(app)
    _add_views(app, library, view)
    _add_branches(app, library)
    _add_watch(app, library, newest)
    _add_pictures(app, library)
    _add_lessons(app, library)
    _add_edits(app, library, view)
    _add_faults(app, view)
    return app


def _add_page(app: FastAPI) -> None:
    page_html = read_asset("explorer/explorer.html")
    assets = {name: (read_asset(place), kind) for name, (place, kind) in ASSETS.items()}

    @app.get("/")
    def page() -> Response:
        return Response(page_html, media_type="text/html")

    @app.get("/page/{name}")
    def part(name: str) -> Response:
        if name not in assets:
            return _said(404, "there is no such file")
        content, kind = assets[name]
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})


def _add_views(app: FastAPI, library: Library, view: View) -> None:
    @app.get("/api/state")
    def state() -> Response:
        return _json(view.state())

    @app.get("/api/rows")
    def rows(
        of: Literal["cluster", "all", "junk", "unreadable"],
        cluster: Annotated[int, Query(ge=-1, le=2**53)] = -1,
        order: Order = "typical",
        path: Annotated[str, Query(max_length=1000)] = "",
    ) -> Response:
        found = view.rows(of, cluster, order, path)
        return _json(found) if found else _said(404, f"there is no cluster {cluster}: it was merged or split")

    @app.get("/api/details")
    def details(rows: Annotated[str, Query(max_length=10_000)]) -> Response:
        numbers = _numbers(rows)
        if numbers is None:
            return _said(400, f"rows: {ROW_NUMBERS}")
        return _json(view.details(numbers)) if library.has(max(numbers)) else _said(404, NO_IMAGE)

    @app.get("/api/neighbours/{row}")
    def neighbours(row: int) -> Response:
        return _json(view.neighbours(row)) if library.has(row) else _said(404, NO_IMAGE)

    @app.get("/api/suspects")
    def suspects() -> Response:
        return _json(view.suspects())

    @app.get("/api/map")
    def map_() -> Response:
        try:
            return _json(view.map())
        except InputError as error:
            return _json({"absent": str(error), "waiting": library.waits_for_map})


def _add_branches(app: FastAPI, library: Library) -> None:
    @app.get("/api/tree")
    def tree() -> Response:
        try:
            return _json(library.branches.as_json())
        except InputError as error:
            return _json({"absent": str(error), "waiting": library.branches.waits})


def _numbers(text: str) -> list[int] | None:
    """Return the row numbers in an address; None if it contains anything else."""
    parts = text.split(",")
    sound = len(parts) <= MOST_ROWS and all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts)
    return [int(part) for part in parts] if sound else None


def _add_watch(app: FastAPI, library: Library, newest: Newest) -> None:
    @app.get("/api/number")
    def number() -> Response:
        """Return what a page polls every other second to see whether anything has changed."""
        newest.look()
        library.lessons.wake()  # another process may have edited
        seen = {"ready": library.ready.is_set(), "version": library.version}
        try:
            return _json(seen | {"number": library.edits.state.number, "trouble": newest.trouble})
        except InputError as error:  # the edits cannot be read, either
            return _json(seen | {"number": None, "trouble": newest.trouble or str(error)})


def _add_pictures(app: FastAPI, library: Library) -> None:
    def answer(row: int, make: Any, request: Request) -> Response:
        if not library.has(row):
            return _said(404, NO_IMAGE)
        tag = f'"{library.version}-{row}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag, "cache-control": FOREVER})
        found = make(library, row)
        if found is None:
            return _said(404, "this image has no picture")
        return Response(found[0], media_type=found[1], headers={"cache-control": FOREVER, "etag": tag})

    @app.get("/api/thumbnail/{row}")
    def thumbnail(row: int, request: Request) -> Response:
        return answer(row, pictures.thumbnail, request)

    @app.get("/api/image/{row}")
    def whole(row: int, request: Request) -> Response:
        return answer(row, pictures.whole, request)


def _add_lessons(app: FastAPI, library: Library) -> None:
    lessons = library.lessons

    @app.get("/api/lesson")
    def status() -> Response:
        lessons.wake()  # another process may have edited
        return _json(lessons.status())

    @app.get("/api/proposals")
    def proposals() -> Response:
        return _json(lessons.proposals())

    @app.get("/api/proposals/{source}/{to}")
    def group(source: int, to: int) -> Response:
        return _json(lessons.group(source, to))

    @app.get("/api/questions")
    def questions(
        count: Annotated[int, Query(ge=0, le=MOST_ROWS)] = 8,
        keep: Annotated[str, Query(max_length=10_000)] = "",
        without: Annotated[str, Query(max_length=10_000)] = "",
    ) -> Response:
        kept, left_out = _some_numbers(keep), _some_numbers(without)
        if kept is None or left_out is None:
            return _said(400, f"keep, without: {ROW_NUMBERS}")
        return _json(lessons.questions(count, kept, left_out))

    @app.get("/api/sheet")
    def sheet(
        cluster: Annotated[int | None, Query(ge=0, le=2**53)] = None,
        without: Annotated[str, Query(max_length=10_000)] = "",
    ) -> Response:
        left_out = _some_numbers(without)
        return _said(400, f"without: {ROW_NUMBERS}") if left_out is None else _json(lessons.sheet(cluster, left_out))

    @app.post("/api/grow")
    async def grow(request: Request) -> Response:
        asked = await _json_of(request)
        return asked if isinstance(asked, Response) else _json(await run_in_threadpool(grow_from, library, asked))


def _some_numbers(text: str) -> list[int] | None:
    """Like `_numbers`, but there may be none."""
    return _numbers(text) if text else []


def _add_edits(app: FastAPI, library: Library, view: View) -> None:
    visitors = Visitors(library)

    @app.post("/api/edit")
    async def edit(request: Request) -> Response:
        asked = await _json_of(request)
        if isinstance(asked, Response):
            return asked
        await run_in_threadpool(correct, library, asked)
        library.lessons.wake()
        await run_in_threadpool(library.date_report)
        return _json(await run_in_threadpool(view.state))

    @app.post("/api/drop")
    async def drop(request: Request) -> Response:
        body = await _body(request, MOST_BYTES)
        if body is None:
            return _said(413, f"a file may have {MOST_BYTES // 1_000_000} MB at most")
        return _json(await run_in_threadpool(visitors.look_at, body))


async def _json_of(request: Request) -> Any:
    """Return what a request holds as JSON, or the answer that refuses it."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return _said(415, "an edit is sent as application/json")
    body = await _body(request, MOST_JSON)
    if body is None:
        return _said(413, f"an edit has at most {MOST_JSON:,} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return _said(400, "an edit is a JSON object")


async def _body(request: Request, most: int) -> bytes | None:
    """None when it is larger, without reading the rest."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)


def _add_faults(app: FastAPI, view: View) -> None:
    @app.exception_handler(ConflictError)
    def too_late(request: Request, error: ConflictError) -> Response:
        return _json({"error": str(error), "state": view.state()}, 409)

    @app.exception_handler(InputError)
    def refused(request: Request, error: InputError) -> Response:
        return _said(400, str(error))

    @app.exception_handler(OSError)
    def crowded(request: Request, error: OSError) -> Response:
        if has_no_descriptor(error):
            return _said(503, "this machine has too many files open: try again")
        raise error

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> Response:
        return _said(400, "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())[:500])


def _json(value: Any, status: int = 200) -> Response:
    """Encode as ASCII, so that no odd character in a name can cause an error."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(text, status_code=status, media_type="application/json")


def _said(status: int, why: str) -> Response:
    return _json({"error": why}, status)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket with its protocol set to TCP.

    Otherwise asyncio leaves Nagle's algorithm on: answers are sent as head and body, and each would wait 40 ms for the
    browser to acknowledge the head.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # the reader of the address may connect before the server is ready
    except (OSError, UnicodeError) as error:
        listening.close()
        said = getattr(error, "strerror", None) or str(error)
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        advice = "--port 0 takes any free one" if taken else "give another --port, or --host"
        raise InputError(f"cannot listen on {host}:{port} ({said}): {advice}") from None
    return listening
