"""Read text files and tables that name images: whatever bytes the names hold, they come out as Python has them."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twincluster.errors import InputError
from twincluster.images.decode import IMAGE_SUFFIXES
from twincluster.images.folders import printable

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
    for number, row in rows:
        if any(row[len(names) :]):
            raise InputError(
                f"{shown} has {len(row)} values in line {number}, but {len(names)} column{'s' * (len(names) != 1)}: "
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
            values = opened.read(columns=used)
            columns = {name: values.column(name).to_pylist() for name in used}
    except Exception as error:  # whatever pyarrow makes of a damaged file
        raise InputError(f"{shown} cannot be read ({type(error).__name__}): save it again as .parquet") from None
    return {name: _as_text(columns.get(name, []), name, shown) for name in names}


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
