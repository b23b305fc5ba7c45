"""A run served by the explorer, in a thread of the tests, as a browser or a stranger meets it."""

import io
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from twincluster.pages import Library, listen
from twincluster.pages.explorer.guard import Access, Server
from twincluster.pages.explorer.server import make_app
from twincluster.runs import Run


@dataclass
class Served:
    url: str
    run: Run
    library: Library
    client: httpx.Client

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def edit(self, kind: str, expected: int | None = None, **fields: Any) -> httpx.Response:
        number = self.number if expected is None else expected
        return self.client.post("/api/edit", json={"kind": kind, "expected": number, **fields})

    @property
    def number(self) -> int:
        return int(self.state["number"])

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/api/state").json()
        return found

    def rows(self, **query: Any) -> list[int]:
        found: list[int] = self.get("/api/rows", params=query).json()["rows"]
        return found


@contextmanager
def serving(run: Run, token: str = "") -> Iterator[Served]:
    library = Library(run)
    library.start()
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        server = Server(make_app(library, Access(port, token)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        assert library.ready.wait(60)
        while not server.started:
            time.sleep(0.01)
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=60) as client:
            yield Served(url, run, library, client)
        server.should_exit = True
        thread.join(20)


def opened(answer: httpx.Response) -> Image.Image:
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(answer.content))


def copied(run: Run, folder: Path) -> Run:
    """The same run without its edits, to be edited anew; the images stay where they are."""
    shutil.copytree(run.folder, folder, ignore=shutil.ignore_patterns("edits.jsonl"))
    return Run.open(folder)


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWINCLUSTER_CACHE", str(folder))
        yield
