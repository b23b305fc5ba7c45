"""One row per input with its final cluster: as csv, or as parquet with the embedding and a position on a map.

Shapes: n rows, m of them with features, D features.
"""

from __future__ import annotations

import dataclasses
import operator
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from twincluster.core import InputError, unfinished
from twincluster.data import Member
from twincluster.run_images import RunImages
from twincluster.runs import check_table, levels_of

FORMULAS = ("=", "+", "-", "@")  # first characters of cells that spreadsheets evaluate, in any width
MOST_TSNE = 10_000  # most images for t-SNE: it takes minutes on two cores
Map = Literal["auto", "pca", "tsne"]


def write_csv(inputs: RunImages, out: Path, levels: Sequence[int] = ()) -> str:
    """Write path, cluster, confidence, status, name if the run was edited, and where each row is on levels of the tree.
    Return a summary."""
    _check(out, ".csv")
    assignments, state, _ = inputs.edited()
    paths = tuple(_no_formula(path, "./") for path in assignments.paths)
    names = assignments.names and tuple(_no_formula(name, "'") for name in assignments.names)
    changed = sum(map(operator.ne, assignments.paths, paths)) + sum(
        map(operator.ne, assignments.names or (), names or ())
    )
    more = {title: [_no_formula(name, "'") for name in names] for title, names in _level_columns(inputs, levels)}
    dataclasses.replace(assignments, paths=paths, names=names).write(out, more)
    marked = f"; {changed:,} cells that a spreadsheet would run as formulas are escaped" if changed else ""
    return f"{len(assignments.paths):,} rows in {out}{marked}{guesses(state.guessed)}"


def _level_columns(inputs: RunImages, counts: Sequence[int]) -> list[tuple[str, list[str]]]:
    levels = levels_of(inputs.tree()[0], inputs.edits.state, counts) if counts else []
    return [(f"level_{level.count}", [level.names.get(key, "") for key in level.keys.tolist()]) for level in levels]


def write_parquet(inputs: RunImages, out: Path, place: Map = "auto", levels: Sequence[int] = ()) -> str:
    """Write the columns of the csv plus file, embedding (list of float32), x and y. Return a summary."""
    _check(out, ".parquet")
    import pyarrow as pa
    from pyarrow import parquet

    from twincluster.clustering import lay_out

    assignments, state, _ = inputs.edited()
    features, rows = inputs.features()
    if not len(rows):
        raise InputError(f"--to parquet needs the images, but {inputs.absent}: put them back, or choose --to csv")
    laid = lay_out(features, method=_method(place, len(rows)))
    count = len(assignments.paths)
    table = assignments.to_arrow()
    if inputs.data.files:
        table = table.append_column("file", pa.array([_writable(file) for file in inputs.files], pa.string()))
    for title, names in _level_columns(inputs, levels):
        table = table.append_column(title, pa.array([name or None for name in names], pa.string()))
    missing = np.ones(count, dtype=bool)
    missing[rows] = False
    for name, values in zip("xy", _spread(laid.places, rows, count).T, strict=True):
        table = table.append_column(name, pa.array(values, pa.float32(), mask=missing))
    table = table.append_column("embedding", _lists(features, missing))
    out.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(out) as partial:
        parquet.write_table(table, partial)
    unseen = int((missing & (inputs.assignments.clusters >= 0)).sum())
    gaps = (
        f"; {unseen:,} rows have no embedding, because {inputs.absent or 'their images are missing'}" if unseen else ""
    )
    return f"{count:,} rows in {out}, x and y by {laid.method}{gaps}{guesses(state.guessed)}"


def _no_formula(text: str, mark: str) -> str:
    """Escape text that a spreadsheet would evaluate; a path with ./ in front stays the same path."""
    begins = unicodedata.normalize("NFKC", text[:1])
    return mark + text if begins.isspace() or begins.startswith(FORMULAS) else text


def guesses(guessed: np.ndarray) -> str:
    """Return a remark on rows whose part of a split cluster is unknown, or ""."""
    if not guessed.any():
        return ""
    return (
        f"; {int(guessed.sum()):,} added after a split of their cluster and missing by now, so they stay in its first "
        "part"
    )


def _check(out: Path, suffix: str) -> None:
    if out.suffix.lower() != suffix:
        raise InputError(f"{out}: expected a file name that ends in {suffix}")
    check_table(out)


def _method(place: Map, count: int) -> str | None:
    if place == "tsne":
        import importlib.util

        if importlib.util.find_spec("openTSNE") is None:
            raise InputError("--map tsne needs openTSNE: pip install openTSNE, or choose --map pca")
        return "t-SNE"
    return "PCA" if place == "pca" or count > MOST_TSNE else None


def _spread(values: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Return (m,...) as float32 in all n rows, with zeros elsewhere."""
    whole = np.zeros((count, values.shape[1]), np.float32)
    whole[rows] = values
    return whole


def _lists(features: np.ndarray, missing: np.ndarray) -> Any:
    """Return (m,D) as one list per row, null in missing rows.

    Not as fixed-size lists: pyarrow before 19 cannot write them with nulls, and no release up to 24 reads them.
    """
    import pyarrow as pa

    ends = np.cumsum(np.where(missing, 0, features.shape[1]))
    return pa.LargeListArray.from_arrays(
        pa.array(np.append(0, ends), pa.int64()), pa.array(features.reshape(-1), pa.float32()), mask=pa.array(missing)
    )


def _writable(file: Path | Member) -> str | None:
    """Return the path as text; None for images inside an archive and for names that are not valid text."""
    if isinstance(file, Member):
        return None
    try:
        return str(file).encode().decode()
    except UnicodeEncodeError:
        return None
