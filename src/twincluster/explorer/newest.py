"""The run as it is now: after `twincluster update` it is opened again, beside the one that is being shown.

Whoever asks is answered from the old one until the new one has its features; then all requests go to the new one. A
run that cannot be opened again is told on the page and, once, on standard error, and tried again when its files are
others.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

from twincluster.errors import InputError
from twincluster.explorer.library import TABLES, Library, Signature

OPENED = (*TABLES, "config.json", "edits.jsonl", "model.safetensors")  # what decides whether a run can be opened


class Newest:
    """An application that hands every request to that of the newest library."""

    def __init__(self, library: Library, make: Callable[[Library, Newest], Any]) -> None:
        self.library, self._make = library, make
        self._app = make(library, self)
        self._opening = Lock()  # held while a library is being opened
        self._seen = library.signature  # of the run, when it was looked at last
        self._failed: Signature | None = None  # of all that a run is opened from, when that could not be done
        self.trouble = ""  # why

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    def look(self) -> None:
        """Starts to open the run again if its tables have changed, and not gone on changing since the last look."""
        now, before = self.library.read_signature(), self._seen
        self._seen = now
        if now == self.library.signature:
            self.trouble = ""  # what could not be opened has been taken back
            return
        if now != before or self.library.read_signature(*OPENED) == self._failed:
            return
        if self._opening.acquire(blocking=False):
            Thread(target=self._open, daemon=True, name="update").start()

    @property
    def busy(self) -> bool:
        return self._opening.locked() or not self.library.ready.is_set() or self.library.waits_for_map

    def _open(self) -> None:
        tried = self.library.read_signature(*OPENED)  # before anything is read
        try:
            library = Library(self.library.run, self.library.root)
            library.start()
            library.ready.wait()
            self._app, self.library = self._make(library, self), library
            self._failed, self.trouble = None, ""
        except OSError as error:  # it may pass by itself: the next look tries again
            self._tell(error)
        except Exception as error:  # an update is half-way, which then goes on, or somebody has to mend something
            self._failed = tried
            self._tell(error)
        finally:
            self._opening.release()

    def _tell(self, error: Exception) -> None:
        said = f"the run has changed but cannot be opened again: {' '.join(str(error).split())[:500]}"
        if said != self.trouble:
            if not isinstance(error, InputError | OSError):  # a fault of ours, which its words alone do not explain
                traceback.print_exception(error)
            print(f"twincluster: {said}", file=sys.stderr, flush=True)
        self.trouble = said
