"""The command that serves a run. torch and the server are imported only when it runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from twincluster.errors import InputError
from twincluster.whole_numbers import whole


def serve(
    run: Path,
    /,
    *,
    port: Annotated[int, whole(0, 65535)] = 8765,
    host: str = "127.0.0.1",
    in_browser: Annotated[bool, Parameter(name="--open", negative=())] = False,
    data_root: Path | None = None,
) -> None:
    """Browse the clusters of a run in a browser and correct them: rename, merge, split, move, junk, undo.

    Example: twincluster serve runs/photos

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`, or by the estimator.
    port
        Where the page is served; 0 takes any free port.
    host
        The address to listen on. Beyond 127.0.0.1 the page needs the token that is printed with its address.
    in_browser
        Also open the page in your browser.
    data_root
        Where named data sets are kept; $TWINCLUSTER_DATA when left out.
    """
    if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise InputError("serve needs two packages: pip install 'twincluster[ui]'")

    from twincluster.explorer.library import Library
    from twincluster.explorer.server import listen, serve_library
    from twincluster.progress import Progress
    from twincluster.results import Run

    opened, listening = Run.open(run), listen(host, port)  # whether the port is free is known before the run is read
    with Progress() as progress:
        library = Library(opened, data_root, progress.decoding)
    if library.no_pictures:
        print(f"without pictures: {library.no_pictures}")
    serve_library(library, listening, host, in_browser)
