"""Read text files and tables that name images: whatever bytes the names hold, they come out as Python has them.

Labels for a list of inputs, from the folders they lie in or from a file.

They are there to score against, never to train on.
"""

import csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from twincluster.core import InputError, counted
from twincluster.data.listing import IMAGE_SUFFIXES, printable

Table = dict[str, list[str]]  # column by name; of many columns in a .parquet, those that are not used are empty

USED = ("path", "label")


def read_text(file: Path, shown: str) -> str:
    """A text file, with bytes that are no UTF-8 as Python carries them in file names."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{shown} cannot be read ({error.strerror}): check the file") from None
    if b"\0" in content:
        raise InputError(f"{shown} holds zero bytes, so it is no plain text: save it again as UTF-8")
    return content.decode("utf-8-sig", errors="surrogateescape")


def read_table(file: Path, shown: str) -> Table:
    """The columns of a .csv or .parquet file."""
    return _parquet(file, shown) if file.suffix.lower() == ".parquet" else _csv(file, shown)


def _csv(file: Path, shown: str) -> Table:
    """Separated by commas, or by the semicolons or tabs of spreadsheets. Empty lines are no rows."""
    text = read_text(file, shown)
    first = text.lstrip("\r\n").partition("\n")[0]
    marks = [mark for mark in ",;\t" if "path" in [cell.strip(' "\r') for cell in first.split(mark)]]
    try:
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=marks[0] if marks else ",", strict=True)
        rows = [(lines.line_num, row) for row in lines if row]
    except csv.Error as error:
        raise InputError(f"{shown} cannot be read ({error}): close its quotes, or save it again as .csv") from None
    names = [name.strip() for name in rows[0][1]] if rows else []
    if len(names) == 1 and ("/" in names[0] or os.path.splitext(names[0])[1].lower() in IMAGE_SUFFIXES):
        names = ["path"]  # a list without a heading
    else:
        rows = rows[1:]
    _refuse_twice(names, shown)
    for number, row in rows:
        if any(row[len(names) :]):
            raise InputError(
                f"{shown} has {len(row)} values in line {number}, but {counted(len(names), 'column')}: "
                "put names that hold a comma in double quotes"
            )
    return {name: [row[place] if place < len(row) else "" for _, row in rows] for place, name in enumerate(names)}


def _parquet(file: Path, shown: str) -> Table:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{shown} needs a package: pip install 'twincluster[parquet]', or save it as .csv") from None
    try:
        with parquet.ParquetFile(file) as opened:
            # pandas keeps an index of its own in columns of such names
            names = [name for name in opened.schema_arrow.names if not name.startswith("__index_level_")]
            used = [name for name in names if name in USED] if len(names) > 1 else names
            _refuse_twice(used, shown)
            values = opened.read(columns=used)
            columns = {name: values.column(name).to_pylist() for name in used}
    except InputError:
        raise
    except Exception as error:  # whatever pyarrow makes of a damaged file
        raise InputError(f"{shown} cannot be read ({type(error).__name__}): save it again as .parquet") from None
    return {name: _as_text(columns.get(name, []), name, shown) for name in names}


def _refuse_twice(names: Sequence[str], shown: str) -> None:
    for name in USED:
        if names.count(name) > 1:
            raise InputError(f"{shown} has {names.count(name)} columns {name}: give the others another name")


def _as_text(values: Sequence[Any], column: str, shown: str) -> list[str]:
    """Names as str, bytes as in file names, nothing as ""; numbers are good for labels only."""
    allowed = (str, bytes, int, float) if column == "label" else (str, bytes)
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, allowed):
            kind = type(value).__name__
            raise InputError(f"{shown}: column {printable(column)} holds {kind} in row {row}: write names as text")
    return [
        "" if value is None or value != value else os.fsdecode(value) if isinstance(value, bytes) else str(value)
        for value in values
    ]


Labels = tuple[np.ndarray, tuple[str, ...] | None]  # int64 (n,), -1 where unknown, and what the codes are called

LARGEST_CODE = 10_000  # integers from here on are taken for names

_SPLIT_FOLDERS = frozenset(("train", "training", "test", "testing", "val", "valid", "validation"))


def read_labels(source: str, name: str, paths: Sequence[str], *, are_files: bool) -> Labels:
    """Labels of the inputs called paths: "folders", a .csv or .parquet with the columns path and label, or a .npy."""
    if source == "folders":
        if not are_files:
            raise InputError(f"{name} has no folders to take labels from: name a .csv, .parquet or .npy file instead")
        return _folders(name, paths)
    file = Path(os.path.expanduser(source))
    shown = printable(source)
    if file.suffix.lower() not in (".csv", ".parquet", ".npy"):
        raise InputError(f"labels {shown}: expected none, folders, or a .csv, .parquet or .npy file")
    if not os.path.exists(file):
        raise InputError(f"labels {shown}: no such file; check the path")
    if file.suffix.lower() != ".npy":
        return _table(file, shown, paths)
    try:
        values = np.load(file, allow_pickle=False)
    except Exception:  # whatever numpy makes of a damaged file
        raise InputError(f"labels {shown}: not a readable array of integers; save it again with numpy.save") from None
    return as_labels(values, len(paths), f"labels {shown}")


def as_labels(values: np.ndarray, count: int, name: str) -> Labels:
    """One integer or one name per input; negative and empty are unknown."""
    values = np.asarray(values)
    if values.shape != (count,):
        raise InputError(f"{name}: {count} labels are needed, one per input, but their shape is {values.shape}")
    if values.dtype.kind in "US":
        return _coded([printable(os.fsdecode(value)) for value in values.tolist()])
    if values.dtype.kind not in "iub":
        raise InputError(f"{name}: labels must be integers or names, not {values.dtype}; save them as such")
    return _compact(np.maximum(values.astype(np.int64), -1))


def _compact(codes: np.ndarray) -> Labels:
    """Codes as they are, unless they are so large (years, bar codes) that a table over all of them would be."""
    if codes.max(initial=-1) < LARGEST_CODE:
        return codes, None
    known, positions = np.unique(codes[codes >= 0], return_inverse=True)
    compact = np.full_like(codes, -1)
    compact[codes >= 0] = positions
    return compact, tuple(str(code) for code in known)


def _folders(name: str, paths: Sequence[str]) -> Labels:
    parents = [PurePosixPath(path).parent.parts for path in paths]
    # photos/train/cat and photos/test/cat hold the same animals.
    if all(parts and parts[0].lower() in _SPLIT_FOLDERS for parts in parents) and any(parts[1:] for parts in parents):
        parents = [parts[1:] for parts in parents]
    if not any(parents):
        raise InputError(f"{name} has no folders to take labels from: sort the images into one folder per class")
    return _coded(["/".join(parts) for parts in parents], numbers=False)


def _table(file: Path, shown: str, paths: Sequence[str]) -> Labels:
    table = read_table(file, f"labels {shown}")
    if not {"path", "label"} <= set(table):
        raise InputError(f"labels {shown}: the first line must name the columns path and label")
    written, labels = table["path"], [printable(label.strip()) for label in table["label"]]
    if not any(labels):
        raise InputError(f"labels {shown}: the column label is empty; fill it in, or leave out the labels")
    if [printable(path) for path in written] == list(paths):  # a list with its labels: row by row
        return _coded(labels)
    given: dict[str, str] = {}
    for path, label in zip(written, labels, strict=True):
        if given.setdefault(path.removeprefix("./"), label) != label:
            raise InputError(f"labels {shown} has two labels for {printable(path)}: keep one")
    # A path may be written as in assignments.csv, with escapes, or as it is.
    known = {printable(path): label for path, label in given.items()} | given
    labels = [known.get(path.removeprefix("./"), "") for path in paths]
    if not any(labels):
        raise InputError(f"labels {shown} names none of the inputs: write paths as in {printable(paths[0])!r}")
    return _coded(labels)


def _coded(labels: Sequence[str], *, numbers: bool = True) -> Labels:
    """Codes for names in sorted order; where all are integers, and numbers is true, they stand for themselves."""
    if numbers and all(re.fullmatch(r"-?[0-9]{1,18}", label) for label in labels if label):
        return _compact(np.array([max(int(label), -1) if label else -1 for label in labels], np.int64))
    names = tuple(sorted({label for label in labels if label}))
    code = {label: number for number, label in enumerate(names)}
    return np.array([code.get(label, -1) for label in labels], np.int64), names
