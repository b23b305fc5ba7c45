"""`twincluster export`. torch is imported only when there is something to compute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from twincluster.core import InputError

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
        onnx: the network with its preprocessing, for other programs; corrections are not inside. huggingface: the model
        with a card, to share.
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
        if to == "onnx":
            said = onnx.write_onnx(opened, out)
        else:
            inputs = RunImages(opened, data_root, device, progress.decoding, progress.encoding)
            said = {
                "csv": lambda: tables.write_csv(inputs, out),
                "parquet": lambda: tables.write_parquet(inputs, out, layout or "auto"),
                "folders": lambda: folders.sort_into_folders(inputs, out, mode or "symlink", dry_run=dry_run),
                "huggingface": lambda: huggingface.write_model(inputs, out, labels),
            }[to]()
    print(said)


def _only_with(kind: Kind, to: Kind, options: dict[str, object]) -> None:
    for name, value in options.items():
        if value and to != kind:
            raise InputError(f"{name} belongs to --to {kind}, not to --to {to}: leave it out")
