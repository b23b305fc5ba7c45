"""Commands on a finished run: predict, update, evaluate, report, serve and export.

torch is imported only when they compute.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from twincluster.cli.terminal import Count, Json, results, whole
from twincluster.core import InputError, check_writable, counted, strict_json

if TYPE_CHECKING:
    from twincluster.clustering import Tree
    from twincluster.run_images import RunImages
    from twincluster.runs import Edits, Run, State


def predict(
    run: Path,
    source: str,
    /,
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))],
    device: Literal["auto", "cpu", "cuda"] = "auto",
    data_root: Path | None = None,
    json: Json = False,
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
        if the run has been edited. It is replaced if it exists.
    device
        auto uses a GPU if there is one.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    json
        Print JSON instead of text.
    """
    from twincluster.data import location_of, open_source
    from twincluster.model import predict as predict_run
    from twincluster.run_images import RunImages
    from twincluster.runs import EDITS_FILE, Run, check_table, kinds_of
    from twincluster.training import Progress

    check_table(out)
    if out.is_file() and os.path.exists(source) and out.samefile(source):
        raise InputError(f"{out} is SOURCE itself and would be overwritten: choose another --out")
    opened, listing = Run.open(run), open_source(source, labels="none", root=data_root, at_least=1)
    with results(json) as found:
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
        found |= {"table": str(out), "inputs": count, "problems": dict(problems)}
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
    json: Json = False,
    no_problems: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Add new images to a run without training, and report whether they look like the training images.

    Example: twincluster update runs/photos new_photos/

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`. Its assignments.csv gets a row for every new image, and the rows of
        changed files are replaced; all other rows stay. updates.jsonl records the update.
    source
        A folder, a .npy or .npz array, a list of paths (.txt, .csv, .parquet), shards (.tar), or a named set. It may
        be the run's own source with new images in it. Omit it only with --undo.
    undo
        Undo the last update: remove its rows, and restore the rows that it replaced. Repeat to undo the one before.
    device
        auto uses a GPU if there is one.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    json
        Print JSON instead of text.
    no_problems
        Do not look for copies and flaws among the new images, for problems.csv.
    """
    if (run / "config.json").is_file():  # Run.open reports other folders
        check_writable(run, "copy the run to where you may write")
    if undo:
        _undo(run, source, json)
        return
    if source is None:
        raise InputError("twincluster update needs SOURCE; see twincluster update --help")
    from twincluster.data import location_of, open_source

    listing = open_source(
        source, labels="none", root=data_root, at_least=1
    )  # before torch is imported, so that mistakes are reported at once

    from twincluster.runs import Run
    from twincluster.training import Progress
    from twincluster.update import update as update_run

    opened = Run.open(run)
    with Progress() as progress:
        done = update_run(
            opened, listing, location=location_of(source), device=device, decoding=progress.decoding,
            encoding=progress.encoding, problems=not no_problems,
        )  # fmt: skip
    print(done.to_json() if json else done.to_text())


def _undo(run: Path, source: str | None, json: bool) -> None:
    if source is not None:
        raise InputError("--undo takes no SOURCE, because it undoes the last update: omit SOURCE")
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
    json: Json = False,
) -> None:
    """Score a run against labels: ACC, NMI and ARI of one partition of the whole set, and the confusion matrix.

    Example: twincluster evaluate runs/photos --labels folders

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`.
    labels
        `folders`, or a file: .csv or .parquet with path,label, or .npy with one integer per input. The default is the
        labels of a named set; other runs are evaluated without labels.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    json
        Print JSON instead of text.
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
    no_problems: Annotated[bool, Parameter(negative=())] = False,
    data_root: Path | None = None,
    json: Json = False,
) -> None:
    """Write RUN/report.html: the clusters, a map and possible problems, in one file that works offline.

    Example: twincluster report runs/photos

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`, which writes a report itself, or by the estimator.
    labels
        Compare with labels: `folders`, or a file: .csv or .parquet with path,label, or .npy with one integer per input.
        The default is the labels of a named set; `none` ignores them.
    figures
        Also write figures into RUN/figures, as PNG and SVG. Needs pip install 'twincluster[plots]'.
    no_problems
        Do not write problems.csv if the run lacks it.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    json
        Print JSON instead of text.
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
    with results(json) as found:
        with Progress() as progress:
            path, material, gathered = write_report(
                opened, labels, data_root, decoding=progress.decoding, problems=not no_problems
            )
        found |= {"report": str(path), "pictures": not material.no_pictures, "unseen": material.unseen}
        print(f"open {path} in a browser")
        if material.no_pictures:
            print(f"without pictures: {material.no_pictures}")
        elif material.unseen:
            print(f"{counted(material.unseen, 'image')} cannot be shown: missing or changed")
        if material.no_scores:
            print(f"without scores: {material.no_scores}")
        if figures:
            from twincluster.pages import write_figures

            folder = write_figures(material, gathered)
            found["figures"] = str(folder)
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
    """Explore the clusters of a run in a browser and correct them: rename, merge, split, move, junk, undo.

    Example: twincluster serve runs/photos

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`, or by the estimator.
    port
        Port of the page; 0 chooses a free one.
    host
        Address to listen on. For addresses other than 127.0.0.1 the page needs the token that is printed with its URL.
    in_browser
        Also open the page in your browser.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    """
    if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise InputError("serve needs two packages: pip install 'twincluster[ui]'")

    from twincluster.pages import Library, listen, serve_library
    from twincluster.runs import Run
    from twincluster.training import Progress

    opened, listening = Run.open(run), listen(host, port)  # listen first, so that a used port is reported at once
    with Progress() as progress:
        library = Library(opened, data_root, progress.decoding)
    if library.no_pictures:
        print(f"without pictures: {library.no_pictures}")
    serve_library(library, listening, host, in_browser, page)


def cut(
    run: Path,
    /,
    *,
    clusters: Count | None = None,
    opened: Annotated[list[int] | None, whole(0, name="--open")] = None,
    closed: Annotated[list[int] | None, whole(0, name="--close")] = None,
    undo: Annotated[bool, Parameter(negative=())] = False,
    data_root: Path | None = None,
    json: Json = False,
) -> None:
    """Choose another number of clusters without training, from the tree of clusters of a run.

    Example: twincluster cut runs/photos --clusters 14

    Without an option, print the levels at which two halves of the images agree. A cut is an edit: report, serve,
    predict and export follow it, evaluate as long as no image was moved by hand, and assignments.csv keeps the clusters
    of the fit.

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`. A run without a tree gets one from its images.
    clusters
        The number of clusters. Those that you made by hand (merged, moved to, taught) count, and stay as they are.
    opened
        Divide the branch of this cluster in two, after --clusters. May be repeated.
    closed
        Join this cluster with the rest of the smallest branch that holds more than it. May be repeated.
    undo
        Undo the last edit, if it is a cut.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    json
        Print JSON instead of text.
    """
    from twincluster.runs import Edits, Run, read_tree

    if (run / "config.json").is_file():  # Run.open reports other folders
        check_writable(run, "copy the run to where you may write")
    given = [name for name, value in (("--clusters", clusters), ("--open", opened), ("--close", closed)) if value]
    if undo and given:
        raise InputError(f"--undo undoes a cut: omit {given[0]}")
    opened_run = Run.open(run)
    edits = Edits(opened_run, lambda rows: _images_of(opened_run, data_root).kinds_later(rows))
    before = edits.state
    if undo:
        after = _undo_cut(edits, before)
    else:
        tree, made = read_tree(opened_run)[0], ""
        if tree is None:
            tree, made = _images_of(opened_run, data_root).tree()
        if made and not json:
            print(made)
        if not given:
            print(levels_as_json(tree, before) if json else levels_as_text(tree, before))
            return
        after = edits.cut(tree, clusters, opened=opened or (), closed=closed or (), expected=before.number)
    opened_run.mark_outdated("cut")
    _print_clusters(before, after, json)


def _undo_cut(edits: Edits, before: State) -> State:
    if not (done := edits.history[0]) or done[-1]["kind"] != "cut":
        raise InputError("the last edit is not a cut: undo it in twincluster serve")
    return edits.undo(expected=before.number)


def _print_clusters(before: State, after: State, as_json: bool) -> None:
    sizes = after.sizes()
    if as_json:
        print(strict_json({"clusters": len(sizes), "before": len(before.names), "sizes": sizes, "names": after.names}))
        return
    print(f"{counted(len(sizes), 'cluster')}, {len(before.names)} before")
    print("id, images and name:")
    print("\n".join(f"  {cluster:5}  {size:7,}  {after.names[cluster]}" for cluster, size in sizes.items()))


def _images_of(run: Run, root: Path | None) -> RunImages:
    from twincluster.run_images import RunImages
    from twincluster.training import Progress

    with Progress() as progress:
        return RunImages(run, root, decoding=progress.decoding, encoding=progress.encoding)


def levels_as_json(tree: Tree, state: State) -> str:
    from twincluster.runs import Living

    living, best = Living.of(tree, state), tree.best()
    natural = [
        {"clusters": level, "agreement": round(value, 4), "best": level in best}
        for level, value in tree.natural().items()
        if living.fewest <= level <= living.most
    ]
    return strict_json({"clusters": len(state.names), "from": living.fewest, "to": living.most, "natural": natural})


def levels_as_text(tree: Tree, state: State) -> str:
    """Return the number of clusters now, the numbers there can be, and the natural ones."""
    from twincluster.runs import Living

    living = Living.of(tree, state)
    natural = {level: value for level, value in tree.natural().items() if living.fewest <= level <= living.most}
    best = [level for level in tree.best() if level in natural]
    lines = [f"{counted(len(state.names), 'cluster')} now; the tree has {living.fewest} to {living.most:,}"]
    if not natural:
        return "\n".join([*lines, "two halves of the images agree on no number better than on the next ones"])
    lines.append("natural cuts, where two halves of the images agree better than with a few more or fewer clusters:")
    lines += [f"  {level:4} clusters, agreement {value:.2f}" for level, value in natural.items()]
    if len(best) > 1:
        lines.append(f"equally good, up to noise: {', '.join(map(str, best))}")
    return "\n".join(lines)


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
    levels: str | None = None,
    layout: Annotated[Literal["auto", "pca", "tsne"] | None, Parameter(name="--map")] = None,
    labels: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    data_root: Path | None = None,
    json: Json = False,
) -> None:
    """Export the result of a run, including corrections: as a table, folders of images, ONNX or a model to share.

    Example: twincluster export runs/photos --to folders sorted/ --dry-run

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`.
    out
        The file to write (csv, parquet, onnx: replaced if it exists), or the folder (folders: existing files are never
        overwritten; huggingface: a new folder).
    to
        csv: one row per input. parquet: the same with embedding, x and y. folders: the images, one folder per cluster.
        onnx: the network with its preprocessing, including merges, splits and what was taught. huggingface: the model
        with a card, to share.
    mode
        For folders: symlink (the default), copy, or move. Images of an array are copied, as PNG files. To finish an
        interrupted move, repeat the command.
    dry_run
        For folders: print the plan without doing it.
    undo
        For folders: move the files of --mode move back.
    levels
        For csv, parquet and folders: levels of the tree of clusters, as numbers of clusters such as 3,10. A table gets
        a column for each, level_3 and level_10; folders are nested.
    layout
        For parquet: the method for x and y. auto uses t-SNE for up to 10,000 images if openTSNE is installed, otherwise
        PCA.
    labels
        For huggingface: labels to score against, as for `twincluster evaluate`.
    device
        auto uses a GPU if there is one.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    json
        Print JSON instead of text.
    """
    _only_with("folders", to, {"--mode": mode, "--dry-run": dry_run, "--undo": undo})
    _only_with("parquet", to, {"--map": layout})
    _only_with("huggingface", to, {"--labels": labels})
    counts = _counts(levels)
    if levels and to not in ("csv", "parquet", "folders"):
        raise InputError(f"--levels belongs to --to csv, parquet or folders, not to --to {to}: omit it")
    if undo and (dry_run or mode not in (None, "move")):
        raise InputError("--undo undoes a move: omit --dry-run and --mode")

    from twincluster.runs import Run

    opened = Run.open(run)
    if undo:
        from twincluster.export import moves

        with results(json) as found:
            print(said := moves.undo(out))
            found |= {"to": to, "out": str(out), "summary": said}
        return

    from twincluster.export import folders, huggingface, onnx, tables
    from twincluster.run_images import RunImages
    from twincluster.training import Progress

    with results(json) as found, Progress() as progress:
        inputs = RunImages(opened, data_root, device, progress.decoding, progress.encoding)
        summary = {
            "csv": lambda: tables.write_csv(inputs, out, counts),
            "parquet": lambda: tables.write_parquet(inputs, out, layout or "auto", counts),
            "folders": lambda: folders.sort_into_folders(
                inputs, out, mode or "symlink", dry_run=dry_run, levels=counts
            ),
            "onnx": lambda: onnx.write_onnx(inputs, out),
            "huggingface": lambda: huggingface.write_model(inputs, out, labels),
        }[to]()
        found |= {"to": to, "out": str(out), "summary": str(summary)}
    if not json:
        print(summary)


def _counts(levels: str | None) -> list[int]:
    """Return the numbers in "3,10"."""
    parts = levels.split(",") if levels is not None else []
    if not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
        raise InputError(f"--levels {levels[:40] if levels else ''!r}: give numbers of clusters, for example 3,10")
    return [int(part) for part in parts]


def _only_with(kind: Kind, to: Kind, options: dict[str, object]) -> None:
    for name, value in options.items():
        if value and to != kind:
            raise InputError(f"{name} belongs to --to {kind}, not to --to {to}: omit it")
