"""Find the images that a user names: a data set, a folder, an array, a list of paths, shards, or Python objects.

Nothing is decoded here. To add a kind of source, add a function that returns a Listing to NAMED or READERS.
"""

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from twincluster.core import InputError, counted, uncollected
from twincluster.data.encoded import ENCODED_FILE, from_encoded
from twincluster.data.labels import Labels, as_labels, read_labels, read_table, read_text
from twincluster.data.listing import (
    EXPECTED,
    IMAGE_SUFFIXES,
    Listing,
    from_array,
    from_prepared,
    load_array,
    printable,
    walk,
)
from twincluster.data.named import NAMED
from twincluster.data.shards import from_shards, is_pattern, labels_of_shards

TABLES = (".csv", ".parquet")


def from_list(file: Path) -> Listing:
    """List one input per line or row, in order, including duplicates and missing files.

    Relative paths start in the folder of the list. In a .txt, blank lines and lines that start with # are skipped. In a
    table, paths are in the column path, or in its only column.
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
    """Read the column label of a table of paths, row by row: a path that occurs twice may have two labels."""
    name = printable(file.name)
    table = read_table(file, name)
    if "label" not in table:
        raise InputError(f"{name} has no column label: add one, or choose other labels")
    labels = [label.strip() for label in table["label"]]
    if not any(labels):
        raise InputError(f"{name}: the column label is empty; fill it in, or choose other labels")
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
        raise InputError(f"{name} has no columns: add a column path with one file per row")
    columns = ", ".join(printable(column) for column in table)
    raise InputError(f"{name} has the columns {columns}: rename the column of the files to path")


__all__ = ["NAMED", "Listing", "open_source"]


def open_source(
    source: str | Path | np.ndarray | Sequence[Any],
    *,
    labels: str | None = None,
    root: Path | None = None,
    at_least: int = 2,
) -> Listing:
    """List the inputs of a source.

    source: a named set (one of NAMED; write "./digits" for a folder of that name), a folder, a .npy or .npz file, a
        list of paths (.txt, or a .csv or .parquet with a column path), WebDataset shards (a .tar, or a pattern such as
        "s-{000..099}.tar" or "shards/*.tar"), a folder with images.npy (and labels.npy, split.npy), an array, or a
        sequence of paths.
    labels: None keeps what the source carries, "none" drops it, "folders" takes the folder an image lies in (without a
        leading train, test or val), or a file: .csv with the columns path,label, or .npy of one integer per input. The
        source itself, when it is a .csv or .parquet list, stands for its column label, row by row. In shards, "cls" is
        the .cls beside an image and "json:FIELD" a field of its .json.
    root: where named sets are kept; else $TWINCLUSTER_DATA, else ~/.cache/twincluster/data.
    at_least: inputs asked for; 2 to train, 1 to predict.
    """
    if isinstance(source, str | bytes | os.PathLike):
        listing = _from_name(source, root)
    else:
        listing = _from_objects(source)
    if (count := len(listing.paths)) < at_least:
        samples = counted(count, "sample")
        raise InputError(f"{listing.name} has {samples}, at least {at_least} are needed: add more images")
    if labels is None:
        return listing
    if labels == "none":
        return replace(listing, labels=None, class_names=None)
    if (own := _own_table(source, labels)) is not None:
        codes, class_names = labels_of_list(own)
    elif (beside := labels_of_shards(listing, labels)) is not None:
        codes, class_names = beside
    else:
        codes, class_names = read_labels(labels, listing.name, listing.paths, are_files=listing.files is not None)
    return replace(listing, labels=codes, class_names=class_names)


def location_of(source: Any) -> str | None:
    """Return what opens the same source from another working directory; None for Python objects."""
    if not isinstance(source, str | os.PathLike):
        return None
    path = Path(os.path.expanduser(source))
    is_named = isinstance(source, str) and source in NAMED  # a folder of that name here is another source
    is_place = path.exists() or is_pattern(str(path))
    return str(path.absolute()) if is_place and not is_named else str(source)


def _from_name(source: str | bytes | os.PathLike[Any], root: Path | None) -> Listing:
    if isinstance(source, str) and source in NAMED:
        return NAMED[source](root)
    if not os.fspath(source):  # an unset variable; as a path it would be the current folder
        raise InputError("the source is empty: name a folder, an array, a list of paths or a data set")
    path = Path(os.path.expanduser(os.fsdecode(source)))
    shown = printable(os.fsdecode(source))
    if os.path.isdir(path):
        if (path / ENCODED_FILE).is_file():
            return from_encoded(path)
        return from_prepared(path) if os.path.exists(path / "images.npy") else _folder(path)
    if os.path.exists(path):
        if (suffix := path.suffix.lower()) in READERS:
            return READERS[suffix](path)
        if suffix in IMAGE_SUFFIXES:
            raise InputError(f"{shown} is a single image: name the folder it lies in")
        raise InputError(
            f"{shown}: cannot tell what this is; expected a folder, .npy or .npz, a list of "
            "paths (.txt, .csv, .parquet), or shards (.tar)"
        )
    if is_pattern(str(path)):
        return from_shards(path)
    close = difflib.get_close_matches(shown, NAMED, n=1) or _close_files(path)
    hint = f"did you mean {close[0]}?" if close else f"check the path, or name a data set: {', '.join(NAMED)}"
    raise InputError(f"{shown}: no such file, folder or data set; {hint}")


def _close_files(path: Path) -> list[str]:
    """Return the file in the same folder with the most similar name, if any."""
    try:
        beside = os.listdir(path.parent)
    except (OSError, ValueError):
        return []
    return [printable(str(path.with_name(name))) for name in difflib.get_close_matches(path.name, beside, n=1)]


def _own_table(source: Any, labels: str) -> Path | None:
    """Return the source as a file if it is a table of paths and `labels` names the same file."""
    if not isinstance(source, str | bytes | os.PathLike):
        return None
    file = Path(os.path.expanduser(os.fsdecode(source)))
    try:
        is_own = file.suffix.lower() in TABLES and file.is_file() and file.samefile(os.path.expanduser(labels))
    except (OSError, ValueError):  # no such file
        return None
    return file if is_own else None


def _folder(folder: Path) -> Listing:
    name = printable(folder.resolve().name) + "/"
    found, skipped = walk(folder, name)
    if not found and not skipped:
        raise InputError(f"{name} is empty: put images into it, or name another folder")
    if not found:
        others = counted(skipped, "other file")
        raise InputError(f"{name} contains no images ({others}): name a folder with .jpg, .png or the like")
    whole = os.path.abspath(folder)
    inside = os.path.join(whole, "")
    with uncollected():
        paths, files = tuple(printable(path) for path in found), tuple(inside + path for path in found)
    return Listing(name, paths, files=files, skipped=skipped, root=Path(whole))


def _npy(path: Path) -> Listing:
    return from_array(load_array(path), printable(path.name))


def _npz(path: Path) -> Listing:
    name = printable(path.name)
    parts = dict(load_array(path))
    images = [key for key in parts if key not in ("labels", "split")]
    key = "images" if "images" in parts else images[0] if len(images) == 1 else None
    if key is None:
        held = ", ".join(printable(key) for key in parts) or "nothing"
        raise InputError(f"{name} contains {held}: rename the array to cluster to 'images'")
    return from_array(parts[key], name, labels=parts.get("labels"), split=parts.get("split"))


READERS: dict[str, Callable[[Path], Listing]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".txt": from_list,
    ".csv": from_list,
    ".parquet": from_list,
    ".tar": from_shards,
}


def _from_objects(source: Any) -> Listing:
    """List arrays and objects that numpy can convert (tensors, data frames, lists of rows), or paths."""
    if isinstance(source, Image.Image):
        raise InputError("a single image cannot be clustered: pass a list of images")
    try:
        items = np.asarray(source) if hasattr(source, "__array__") else list(source)
        if isinstance(items, np.ndarray) and (items.ndim != 1 or items.dtype.kind not in "OUST"):
            return from_array(items, "array")
        items = list(items)
        if items and all(isinstance(item, str | bytes | os.PathLike) for item in items):
            return _from_paths([os.fsdecode(item) for item in items])
        return from_array(np.asarray(items), "array")
    except InputError:
        raise
    except Exception as error:  # ragged rows, a tensor on a GPU, not a sequence
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"array: {EXPECTED}, or paths, or PIL images ({said})") from None


def _from_paths(names: list[str]) -> Listing:
    files = tuple(os.path.abspath(os.path.expanduser(name)) for name in names)
    return Listing("paths", tuple(printable(name) for name in names), files=files)
