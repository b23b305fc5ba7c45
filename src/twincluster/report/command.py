"""The command that writes a report. torch is imported only when it computes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twincluster.disk import check_writable

if TYPE_CHECKING:
    from twincluster.images.sources import Listing
    from twincluster.progress import Progress
    from twincluster.results import Run


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
        from twincluster.report.figures import check_installed

        check_installed()
    from twincluster.progress import Progress
    from twincluster.report.figures import FOLDER
    from twincluster.report.page import write_report
    from twincluster.results import Run

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
        from twincluster.report.figures import write_figures

        folder = write_figures(material, gathered)
        print(f"figures in {folder}")


def report_after_fit(run: Run, source: Listing, root: Path | None, progress: Progress) -> None:
    """The report of a run that was just made. What goes wrong here is told in a line: the run itself is safe."""
    try:
        from twincluster.report.page import write_report

        path, _, _ = write_report(run, "none", root, source=source)
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        progress.warn(f"the run is complete, but its report could not be written ({said}): try twincluster report")
    else:
        print(f"look at it: open {path} in a browser")
