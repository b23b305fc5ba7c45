"""Lists of image files: .txt with one path a line, or a column of a .csv or .parquet table."""

import os
from pathlib import Path

import numpy as np

from twincluster.errors import InputError
from twincluster.images.folders import printable
from twincluster.images.labels import Labels, as_labels
from twincluster.images.listing import Listing
from twincluster.images.tables import read_table, read_text

TABLES = (".csv", ".parquet")


def from_list(file: Path) -> Listing:
    """One input per line or row, in their order, whether or not there is such a file, and however often.

    Relative paths start in the folder of the list. In a .txt, blank lines and lines that start with # are left out.
    A table has its paths in the column path, or in the only one it has.
    """
    name = printable(file.name)
    written = _lines(file, name) if file.suffix.lower() == ".txt" else _column(file, name)
    whole = Path(os.path.abspath(file))
    return Listing(
        name,
        tuple(printable(path) for path in written),
        files=tuple(str(whole.parent / os.path.expanduser(path)) for path in written),
        root=None if os.path.islink(whole) else whole,  # the same list in another folder names other files
    )


def labels_of_list(file: Path) -> Labels:
    """The column label of a table of paths, row by row: a file that stands there twice may have two."""
    name = printable(file.name)
    table = read_table(file, name)
    if "label" not in table:
        raise InputError(f"{name} has no column label: add one, or name other labels")
    labels = [label.strip() for label in table["label"]]
    if not any(labels):
        raise InputError(f"{name}: the column label is empty; fill it in, or name other labels")
    return as_labels(np.array(labels), len(labels), name)


def _lines(file: Path, name: str) -> list[str]:
    lines = (line.removesuffix("\r") for line in read_text(file, name).split("\n"))
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _column(file: Path, name: str) -> list[str]:
    table = read_table(file, name)
    if "path" in table:
        return table["path"]
    if len(table) == 1:
        return next(iter(table.values()))
    if not table:
        raise InputError(f"{name} has no columns: give it a column path with one file a row")
    columns = ", ".join(printable(column) for column in table)
    raise InputError(f"{name} has the columns {columns}: call the one with the files path")
