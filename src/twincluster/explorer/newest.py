"""The run as it is now: after `twincluster update` it is opened again, beside the one that is being shown.

Whoever asks is answered from the old one until the new one has its features; then all requests go to the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

from twincluster.errors import InputError
from twincluster.explorer.library import Library


class Newest:
    """An application that hands every request to that of the newest library."""

    def __init__(self, library: Library, make: Callable[[Library, Newest], Any]) -> None:
        self.library, self._make = library, make
        self._app = make(library, self)
        self._opening = Lock()  # held while a library is being opened
        self._seen = library.signature  # of the run, when it was looked at last

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def look(self) -> None:
        """Starts to open the run again if its tables have changed, and not gone on changing since the last look."""
        now, before = self.library.read_signature(), self._seen
        self._seen = now
        if now != self.library.signature and now == before and self._opening.acquire(blocking=False):
            Thread(target=self._open, daemon=True, name="update").start()

    @property
    def busy(self) -> bool:
        return self._opening.locked() or not self.library.ready.is_set() or self.library.waits_for_map

    def _open(self) -> None:
        try:
            library = Library(self.library.run, self.library.root)
            library.start()
            library.ready.wait()
            self._app, self.library = self._make(library, self), library
        except (InputError, OSError):
            pass  # an update is half-way, or the run is gone: the next look tries again
        finally:
            self._opening.release()
