"""Read labels from folders or files, and tables that name images.

Labels are used for scores, never for training. Invalid UTF-8 in names is kept as surrogate escapes.
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

Table = dict[str, list[str]]  # column by name; unused columns of a .parquet are empty

USED = ("path", "label")


def read_text(file: Path, shown: str) -> str:
    """Read a text file, with invalid UTF-8 as surrogate escapes."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{shown} cannot be read ({error.strerror}): check the file") from None
    if b"\0" in content:
        raise InputError(f"{shown} contains zero bytes, so it is not plain text: save it again as UTF-8")
    return content.decode("utf-8-sig", errors="surrogateescape")


def read_table(file: Path, shown: str) -> Table:
    """Read the columns of a .csv or .parquet file."""
    return _parquet(file, shown) if file.suffix.lower() == ".parquet" else _csv(file, shown)


def _csv(file: Path, shown: str) -> Table:
    """Read a table with commas, semicolons or tabs as separators. Empty lines are skipped."""
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
        names = ["path"]  # a list without a header
    else:
        rows = rows[1:]
    _refuse_twice(names, shown)
    for number, row in rows:
        if any(row[len(names) :]):
            raise InputError(
                f"{shown} has {len(row)} values in line {number}, but {counted(len(names), 'column')}: "
                "put names that contain a comma in double quotes"
            )
    return {name: [row[place] if place < len(row) else "" for _, row in rows] for place, name in enumerate(names)}


def _parquet(file: Path, shown: str) -> Table:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{shown} needs a package: pip install 'twincluster[parquet]', or save it as .csv") from None
    try:
        with parquet.ParquetFile(file) as opened:
            # pandas stores its index in columns of such names
            names = [name for name in opened.schema_arrow.names if not name.startswith("__index_level_")]
            used = [name for name in names if name in USED] if len(names) > 1 else names
            _refuse_twice(used, shown)
            values = opened.read(columns=used)
            columns = {name: values.column(name).to_pylist() for name in used}
    except InputError:
        raise
    except Exception as error:  # pyarrow raises many types for damaged files
        raise InputError(f"{shown} cannot be read ({type(error).__name__}): save it again as .parquet") from None
    return {name: _as_text(columns.get(name, []), name, shown) for name in names}


def _refuse_twice(names: Sequence[str], shown: str) -> None:
    for name in USED:
        if names.count(name) > 1:
            raise InputError(f"{shown} has {names.count(name)} columns {name}: rename all but one")


def _as_text(values: Sequence[Any], column: str, shown: str) -> list[str]:
    """Return strings unchanged, bytes decoded as file names, None as "", and, for labels only, numbers as text."""
    allowed = (str, bytes, int, float) if column == "label" else (str, bytes)
    for row, value in enumerate(values):
        if value is not None and not isinstance(value, allowed):
            kind = type(value).__name__
            raise InputError(
                f"{shown}: column {printable(column)} has a value of type {kind} in row {row}: write it as text"
            )
    return [
        "" if value is None or value != value else os.fsdecode(value) if isinstance(value, bytes) else str(value)
        for value in values
    ]


Labels = tuple[np.ndarray, tuple[str, ...] | None]  # int64 (n,), -1 if unknown, and the class names

LARGEST_CODE = 10_000  # integers from here on are treated as names

_SPLIT_FOLDERS = frozenset(("train", "training", "test", "testing", "val", "valid", "validation"))


def read_labels(source: str, name: str, paths: Sequence[str], *, are_files: bool) -> Labels:
    """Read labels of the inputs `paths` from "folders", a .csv or .parquet with columns path and label, or a .npy."""
    if source == "folders":
        if not are_files:
            raise InputError(f"{name} has no folders to take labels from: choose a .csv, .parquet or .npy file instead")
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
    except Exception:  # numpy raises many types for damaged files
        raise InputError(f"labels {shown}: not a readable array of integers; save it again with numpy.save") from None
    return as_labels(values, len(paths), f"labels {shown}")


def as_labels(values: np.ndarray, count: int, name: str) -> Labels:
    """Return labels from one integer or one name per input; negative and empty are unknown."""
    values = np.asarray(values)
    if values.shape != (count,):
        raise InputError(f"{name}: expected {count} labels, one per input, got shape {values.shape}")
    if values.dtype.kind in "US":
        return _coded([printable(os.fsdecode(value)) for value in values.tolist()])
    if values.dtype.kind not in "iub":
        raise InputError(f"{name}: expected integers or names, got {values.dtype}; save the labels as integers")
    return _compact(np.maximum(values.astype(np.int64), -1))


def _compact(codes: np.ndarray) -> Labels:
    """Return codes unchanged, or renumbered if they are large (years, bar codes), because tables over all codes are
    made.
    """
    if codes.max(initial=-1) < LARGEST_CODE:
        return codes, None
    values, positions = np.unique(codes[codes >= 0], return_inverse=True)
    compact = np.full_like(codes, -1)
    compact[codes >= 0] = positions
    return compact, tuple(str(code) for code in values)


def _folders(name: str, paths: Sequence[str]) -> Labels:
    parents = [PurePosixPath(path).parent.parts for path in paths]
    # photos/train/cat and photos/test/cat are the same class
    if all(parts and parts[0].lower() in _SPLIT_FOLDERS for parts in parents) and any(parts[1:] for parts in parents):
        parents = [parts[1:] for parts in parents]
    if not any(parents):
        raise InputError(f"{name} has no folders to take labels from: sort the images into one folder per class")
    return _coded(["/".join(parts) for parts in parents], numbers=False)


def _table(file: Path, shown: str, paths: Sequence[str]) -> Labels:
    table = read_table(file, f"labels {shown}")
    if not {"path", "label"} <= set(table):
        raise InputError(f"labels {shown}: the header must name the columns path and label")
    written, labels = table["path"], [printable(label.strip()) for label in table["label"]]
    if not any(labels):
        raise InputError(f"labels {shown}: the column label is empty; fill it in, or omit the labels")
    if [printable(path) for path in written] == list(paths):  # the same list: match row by row
        return _coded(labels)
    given: dict[str, str] = {}
    for path, label in zip(written, labels, strict=True):
        if given.setdefault(path.removeprefix("./"), label) != label:
            raise InputError(f"labels {shown} has two labels for {printable(path)}: keep one")
    # Paths may be escaped, as in assignments.csv, or raw.
    by_path = {printable(path): label for path, label in given.items()} | given
    labels = [by_path.get(path.removeprefix("./"), "") for path in paths]
    if not any(labels):
        raise InputError(f"labels {shown}: no path matches an input; write paths as in {printable(paths[0])!r}")
    return _coded(labels)


def _coded(labels: Sequence[str], *, numbers: bool = True) -> Labels:
    """Encode names in sorted order. If all are integers and `numbers` is true, they are the codes themselves."""
    if numbers and all(re.fullmatch(r"-?[0-9]{1,18}", label) for label in labels if label):
        return _compact(np.array([max(int(label), -1) if label else -1 for label in labels], np.int64))
    names = tuple(sorted({label for label in labels if label}))
    code = {label: number for number, label in enumerate(names)}
    return np.array([code.get(label, -1) for label in labels], np.int64), names
