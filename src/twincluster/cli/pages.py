"""The command that writes a report. torch is imported only when it computes.

The command that serves a run. torch and the server are imported only when it runs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twincluster.cli.help import whole
from twincluster.core import InputError, check_writable

if TYPE_CHECKING:
    from twincluster.data import Listing
    from twincluster.runs import Run
    from twincluster.training import Progress


def report(
    run: Path,
    /,
    *,
    labels: str | None = None,
    figures: Annotated[bool, Parameter(negative=())] = False,
    data_root: Path | None = None,
) -> None:
    """Write RUN/report.html: the clusters, a map and what deserves a second look, in one file that needs no network.

    Example: twincluster report runs/photos

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`, which writes its report itself, or by the estimator.
    labels
        Compare with labels: `folders`, or a file: .csv or .parquet with path,label, or .npy with one integer per input.
        A run on a named set takes the set's own labels when it is left out; `none` ignores them.
    figures
        Also write figures as in the paper, as PNG and SVG, into RUN/figures; pip install 'twincluster[plots]'.
    data_root
        Where named data sets are kept; $TWINCLUSTER_DATA when left out.
    """
    if figures:
        from twincluster.pages import check_installed

        check_installed()
    from twincluster.pages import FOLDER, write_report
    from twincluster.runs import Run
    from twincluster.training import Progress

    opened = Run.open(run)
    for folder in (run, run / FOLDER) if figures else (run,):
        check_writable(folder, "copy the run to where you may write")
    with Progress() as progress:
        path, material, gathered = write_report(opened, labels, data_root, decoding=progress.decoding)
    print(f"open {path} in a browser")
    if material.no_pictures:
        print(f"without pictures: {material.no_pictures}")
    elif material.unseen:
        print(f"{material.unseen:,} cannot be shown: their images are gone or changed since")
    if material.no_scores:
        print(f"without scores: {material.no_scores}")
    if figures:
        from twincluster.pages import write_figures

        folder = write_figures(material, gathered)
        print(f"figures in {folder}")


def report_after_fit(run: Run, source: Listing, root: Path | None, progress: Progress) -> None:
    """The report of a run that was just made. What goes wrong here is told in a line: the run itself is safe."""
    try:
        from twincluster.pages import write_report

        path, _, _ = write_report(run, "none", root, source=source)
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        progress.warn(f"the run is complete, but its report could not be written ({said}): try twincluster report")
    else:
        print(f"look at it: open {path} in a browser")


def serve(
    run: Path,
    /,
    *,
    port: Annotated[int, whole(0, 65535)] = 8765,
    host: str = "127.0.0.1",
    in_browser: Annotated[bool, Parameter(name="--open", negative=())] = False,
    data_root: Path | None = None,
    page: Annotated[str, Parameter(parse=False)] = "",
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

    from twincluster.pages import Library, listen, serve_library
    from twincluster.runs import Run
    from twincluster.training import Progress

    opened, listening = Run.open(run), listen(host, port)  # whether the port is free is known before the run is read
    with Progress() as progress:
        library = Library(opened, data_root, progress.decoding)
    if library.no_pictures:
        print(f"without pictures: {library.no_pictures}")
    serve_library(library, listening, host, in_browser, page)
