"""Commands on a finished run: predict, update, evaluate, report, serve and export.

torch is imported only when they compute.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from twincluster.cli.terminal import whole
from twincluster.core import InputError, check_writable, counted


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
    from twincluster.data import location_of, open_source
    from twincluster.model import predict as predict_run
    from twincluster.run_images import RunImages
    from twincluster.runs import EDITS_FILE, Run, check_table, kinds_of
    from twincluster.training import Progress

    check_table(out)
    if out.is_file() and os.path.exists(source) and out.samefile(source):
        raise InputError(f"{out} is SOURCE itself, which would be lost: choose another name for --out")
    opened, listing = Run.open(run), open_source(source, labels="none", root=data_root, at_least=1)
    with Progress() as progress:
        assignments = predict_run(
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
    print(f"{counted(count, 'row')} in {out}{of_them}")


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
    from twincluster.run_images import findings_of
    from twincluster.runs import Run
    from twincluster.teacher import trust_of
    from twincluster.training import Progress

    with Progress() as progress:
        findings = findings_of(Run.open(run), labels, data_root, progress.decoding, trust_of)
    print(findings.to_json() if json else findings.to_text())


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


Kind = Literal["csv", "parquet", "folders", "onnx", "huggingface"]


def export(
    run: Path,
    out: Path,
    /,
    *,
    to: Kind,
    mode: Literal["symlink", "copy", "move"] | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    undo: Annotated[bool, Parameter(negative=())] = False,
    layout: Annotated[Literal["auto", "pca", "tsne"] | None, Parameter(name="--map")] = None,
    labels: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    data_root: Path | None = None,
) -> None:
    """Write the result of a run for use elsewhere, with the corrections that were made to it.

    Example: twincluster export runs/photos --to folders sorted/ --dry-run

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`.
    out
        The file to write (csv, parquet, onnx: replaced if it exists), or the folder (folders: nothing in it is ever
        overwritten; huggingface: a new one).
    to
        csv: a row per input. parquet: the same with embedding, x and y. folders: the images, one folder per cluster.
        onnx: the network with its preprocessing, for other programs, with merges, splits and what was taught.
        huggingface: the model with a card, to share.
    mode
        For folders: symlink (the default), copy, or move. Images of an array are copied, as PNG files. A move that was
        interrupted is finished by the same command.
    dry_run
        For folders: say what would be done, and do nothing.
    undo
        For folders: move back what --mode move has moved there.
    layout
        For parquet: what x and y are. auto takes t-SNE for up to 10,000 images if openTSNE is installed, else PCA.
    labels
        For huggingface: labels to score against, as in `twincluster evaluate`.
    device
        auto takes a GPU when there is one.
    data_root
        Where named data sets are kept; $TWINCLUSTER_DATA when left out.
    """
    _only_with("folders", to, {"--mode": mode, "--dry-run": dry_run, "--undo": undo})
    _only_with("parquet", to, {"--map": layout})
    _only_with("huggingface", to, {"--labels": labels})
    if undo and (dry_run or mode not in (None, "move")):
        raise InputError("--undo takes back a move: leave out --dry-run and --mode")

    from twincluster.runs import Run

    opened = Run.open(run)
    if undo:
        from twincluster.export import moves

        print(moves.undo(out))
        return

    from twincluster.export import folders, huggingface, onnx, tables
    from twincluster.run_images import RunImages
    from twincluster.training import Progress

    with Progress() as progress:
        inputs = RunImages(opened, data_root, device, progress.decoding, progress.encoding)
        said = {
            "csv": lambda: tables.write_csv(inputs, out),
            "parquet": lambda: tables.write_parquet(inputs, out, layout or "auto"),
            "folders": lambda: folders.sort_into_folders(inputs, out, mode or "symlink", dry_run=dry_run),
            "onnx": lambda: onnx.write_onnx(inputs, out),
            "huggingface": lambda: huggingface.write_model(inputs, out, labels),
        }[to]()
    print(said)


def _only_with(kind: Kind, to: Kind, options: dict[str, object]) -> None:
    for name, value in options.items():
        if value and to != kind:
            raise InputError(f"{name} belongs to --to {kind}, not to --to {to}: leave it out")
