"""Commands about a finished run: new images for it, and scores. torch is imported only when they compute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from twincluster.core import InputError, check_writable


def predict(
    run: Path,
    source: str,
    /,
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))],
    device: Literal["auto", "cpu", "cuda"] = "auto",
    data_root: Path | None = None,
) -> None:
    """Assign new images to the clusters of a run.

    Example: twincluster predict runs/photos new_photos/ --out new.csv

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`.
    source
        A folder, a .npy or .npz array, a list of paths (.txt, .csv, .parquet), shards (.tar), or a named set.
    out
        A .csv or .parquet file with path, cluster, confidence and status of every input, and the name of the cluster
        where the run has been edited; replaced if it exists.
    device
        auto takes a GPU when there is one.
    data_root
        Where named data sets are kept; $TWINCLUSTER_DATA when left out.
    """
    from twincluster import model
    from twincluster.data import location_of, open_source
    from twincluster.run_images import RunImages
    from twincluster.runs import EDITS_FILE, Run, check_table, kinds_of
    from twincluster.training import Progress

    check_table(out)
    if out.is_file() and os.path.exists(source) and out.samefile(source):
        raise InputError(f"{out} is SOURCE itself, which would be lost: choose another name for --out")
    opened, listing = Run.open(run), open_source(source, labels="none", root=data_root, at_least=1)
    with Progress() as progress:
        assignments = model.predict(
            opened,
            listing,
            device,
            progress.decoding,
            progress.encoding,
            location=location_of(source),
            edits=RunImages(opened, data_root, device).edits if (run / EDITS_FILE).is_file() else None,
        )
    assignments.write(out)
    problems, count = assignments.problems(), len(assignments.paths)
    of_them = f", {problems.total():,} of them unreadable{kinds_of(problems)}" if problems else ""
    print(f"{count:,} row{'s' * (count != 1)} in {out}{of_them}")


def update(
    run: Path,
    source: str | None = None,
    /,
    *,
    undo: Annotated[bool, Parameter(negative=())] = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    data_root: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Add new images to a run without training, and say whether they look like those it was trained on.

    Example: twincluster update runs/photos new_photos/

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`. Its assignments.csv gets a row for every image it does not know yet, and
        a new one for files that have changed; all other rows stay. updates.jsonl keeps what was done.
    source
        A folder, a .npy or .npz array, a list of paths (.txt, .csv, .parquet), shards (.tar), or a named set. It may
        be the source of the run itself, with more in it than before. Left out only with --undo.
    undo
        Take the last update back instead: its rows go, and rows that it replaced become what they were. Repeated, it
        takes back the one before.
    device
        auto takes a GPU when there is one.
    data_root
        Where named data sets are kept; $TWINCLUSTER_DATA when left out.
    json
        Print JSON instead of text.
    """
    if (run / "config.json").is_file():  # what is no run is told as that
        check_writable(run, "copy the run to where you may write")
    if undo:
        _undo(run, source, json)
        return
    if source is None:
        raise InputError("twincluster update needs SOURCE; see twincluster update --help")
    from twincluster.data import location_of, open_source

    listing = open_source(source, labels="none", root=data_root, at_least=1)  # before torch: a mistake is told at once

    from twincluster.runs import Run
    from twincluster.training import Progress
    from twincluster.update import update as update_run

    opened = Run.open(run)
    with Progress() as progress:
        done = update_run(
            opened, listing, location=location_of(source), device=device, decoding=progress.decoding,
            encoding=progress.encoding,
        )  # fmt: skip
    print(done.to_json() if json else done.to_text())


def _undo(run: Path, source: str | None, json: bool) -> None:
    if source is not None:
        raise InputError("--undo takes the last update back, whatever its source was: leave SOURCE out")
    from twincluster.runs import Run
    from twincluster.update import undo_update

    done = undo_update(Run.open(run))
    print(done.to_json() if json else done.to_text())


def evaluate(
    run: Path,
    /,
    *,
    labels: str | None = None,
    data_root: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Score a run against labels: ACC, NMI and ARI of one partition of the whole set, and the confusion matrix.

    Example: twincluster evaluate runs/photos --labels folders

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`.
    labels
        `folders`, or a file: .csv or .parquet with path,label, or .npy with one integer per input. A run on a named set
        takes the set's own labels when it is left out; other runs are then described without labels.
    data_root
        Where named data sets are kept; $TWINCLUSTER_DATA when left out.
    json
        Print JSON instead of a table.
    """
    from twincluster.findings import findings_of
    from twincluster.runs import Run
    from twincluster.training import Progress

    with Progress() as progress:
        findings = findings_of(Run.open(run), labels, data_root, progress.decoding)
    print(findings.to_json() if json else findings.to_text())
