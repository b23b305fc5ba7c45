"""Find the images a user names: a data set, a folder, an array file, or objects of Python.

Nothing is decoded here. A new kind of source is one more function in NAMED or READERS that returns a Listing.
"""

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from twincluster.errors import InputError
from twincluster.images.decode import IMAGE_SUFFIXES, rgb, square
from twincluster.images.folders import printable, walk
from twincluster.images.labels import as_labels, read_labels

DEFAULT_SIDE = 96  # pixels a side, for folders and for open images of several sizes
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_EXPECTED = "expected uint8 images (n,h,w[,c]) or float rows (n,d)"


@dataclass(frozen=True, eq=False)
class Listing:
    """What a source names, one entry per input in a stable order, before anything is decoded."""

    name: str  # for messages and config.json, e.g. "digits", "photos/"
    paths: tuple[str, ...]  # as written to assignments.csv: relative path, or row number for an array
    files: tuple[Path, ...] | None = None  # absolute; None for arrays
    array: np.ndarray | None = None  # uint8 (n,h,w) or (n,h,w,c), or float32 rows (n,d)
    labels: np.ndarray | None = None  # int64 (n,), -1 where unknown
    class_names: tuple[str, ...] | None = None  # what label 0, 1, ... is called
    split: np.ndarray | None = None  # int8 (n,): 0 train, 1 test
    skipped: int = 0  # files without an image suffix
    root: Path | None = None  # the folder that was searched


def open_source(
    source: str | Path | np.ndarray | Sequence[Any],
    *,
    labels: str | None = None,
    root: Path | None = None,
    at_least: int = 2,
) -> Listing:
    """List the inputs of a source.

    source: a named set ("digits", "cifar10"; write "./digits" for a folder of that name), a folder, a .npy or .npz
        file, a folder with images.npy (and labels.npy, split.npy), an array, or a sequence of paths or PIL images.
        Open images of one size keep it; of several, they become centre squares of at most 96 pixels a side.
    labels: None keeps what the source carries, "none" drops it, "folders" takes the folder an image lies in (without a
        leading train, test or val), or a file: .csv with the columns path,label, or .npy of one integer per input.
    root: where named sets are kept; else $TWINCLUSTER_DATA, else ~/.cache/twincluster/data.
    at_least: inputs asked for; 2 to train, 1 to predict.
    """
    if isinstance(source, str | bytes | os.PathLike):
        listing = _from_name(source, root)
    else:
        listing = _from_objects(source)
    if (count := len(listing.paths)) < at_least:
        counted = f"{count} sample" + "s" * (count != 1)
        raise InputError(f"{listing.name} has {counted}, at least {at_least} are needed: add more images")
    if labels is None:
        return listing
    if labels == "none":
        return replace(listing, labels=None, class_names=None)
    codes, class_names = read_labels(labels, listing.name, listing.paths, are_files=listing.files is not None)
    return replace(listing, labels=codes, class_names=class_names)


def take_split(listing: Listing, which: Literal["all", "train", "test"]) -> Listing:
    """The rows of one split, under their old paths. A split that is one run of rows stays memory-mapped."""
    if which == "all":
        return listing
    if listing.split is None:
        raise InputError(f"{listing.name} is not split into train and test: leave out --split, or use all of it")
    rows = np.flatnonzero(listing.split == ("train", "test").index(which))
    if len(rows) == 0:
        raise InputError(f"{listing.name} has no {which} images: use the other split, or all of it")
    run = slice(int(rows[0]), int(rows[-1]) + 1)
    index = run if run.stop - run.start == len(rows) else rows
    return replace(
        listing,
        paths=tuple(listing.paths[row] for row in rows),
        files=listing.files and tuple(listing.files[row] for row in rows),
        array=None if listing.array is None else listing.array[index],
        labels=None if listing.labels is None else listing.labels[index],
        split=listing.split[index],
    )


def _from_name(source: str | bytes | os.PathLike[Any], root: Path | None) -> Listing:
    if isinstance(source, str) and source in NAMED:
        return NAMED[source](root)
    path = Path(os.path.expanduser(os.fsdecode(source)))
    shown = printable(os.fsdecode(source))
    if os.path.isdir(path):
        return _prepared(path) if os.path.exists(path / "images.npy") else _folder(path)
    if os.path.exists(path):
        if (suffix := path.suffix.lower()) in READERS:
            return READERS[suffix](path)
        if suffix in IMAGE_SUFFIXES:
            raise InputError(f"{shown} is a single image: name the folder it lies in")
        raise InputError(f"{shown}: cannot tell what this is; expected a folder, {' or '.join(READERS)}")
    close = difflib.get_close_matches(shown, NAMED, n=1)
    hint = f"did you mean {close[0]}?" if close else f"check the path, or name a data set: {', '.join(NAMED)}"
    raise InputError(f"{shown}: no such file, folder or data set; {hint}")


def _folder(folder: Path) -> Listing:
    name = printable(folder.resolve().name) + "/"
    found, skipped = walk(folder, name)
    if not found and not skipped:
        raise InputError(f"{name} is empty: put images into it, or name another folder")
    if not found:
        counted = f"{skipped} other file" + "s" * (skipped != 1)
        raise InputError(f"{name} holds no images ({counted}): name a folder with .jpg, .png or the like")
    whole = Path(os.path.abspath(folder))
    paths = tuple(printable(path) for path in found)
    return Listing(name, paths, files=tuple(whole / path for path in found), skipped=skipped, root=whole)


def _prepared(folder: Path) -> Listing:
    """A folder with images.npy and, perhaps, labels.npy and split.npy."""
    name = printable(folder.resolve().name) + "/"
    parts = {part: _load(folder / f"{part}.npy") for part in ("labels", "split") if (folder / f"{part}.npy").exists()}
    return _from_array(_load(folder / "images.npy"), name, **parts)


def _npy(path: Path) -> Listing:
    return _from_array(_load(path), printable(path.name))


def _npz(path: Path) -> Listing:
    name = printable(path.name)
    parts = dict(_load(path))
    images = [key for key in parts if key not in ("labels", "split")]
    key = "images" if "images" in parts else images[0] if len(images) == 1 else None
    if key is None:
        held = ", ".join(printable(key) for key in parts) or "nothing"
        raise InputError(f"{name} holds {held}: call the array to cluster 'images'")
    return _from_array(parts[key], name, labels=parts.get("labels"), split=parts.get("split"))


def _load(path: Path) -> Any:
    """An array, memory-mapped, or what an .npz holds. Nothing is ever unpickled."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else {key: loaded[key] for key in loaded.files}
    except Exception:  # whatever numpy makes of a damaged file
        name = printable(path.name)
        raise InputError(f"{name}: not a readable array of plain numbers; save it again with numpy.save") from None


def _digits(root: Path | None) -> Listing:
    """scikit-learn's 1,797 handwritten digits, 8 x 8."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = np.rint(loaded.images * (255 / 16)).astype(np.uint8)
    return _from_array(images, "digits", labels=loaded.target, class_names=tuple("0123456789"))


def _cifar10(root: Path | None) -> Listing:
    """CIFAR-10, 50,000 training images and then 10,000 for testing."""
    kept = Path(root or os.environ.get("TWINCLUSTER_DATA") or "~/.cache/twincluster/data").expanduser()
    if (kept / "cifar10" / "images.npy").exists():
        return replace(_prepared(kept / "cifar10"), name="cifar10", class_names=CIFAR10_CLASSES)
    holder = kept / "cifar10" if (kept / "cifar10" / "cifar-10-batches-py").is_dir() else kept
    try:
        from torchvision.datasets import CIFAR10

        # torchvision unpickles these files, after comparing them with the checksums it knows.
        train, test = (CIFAR10(holder, train=part, download=True) for part in (True, False))
    except Exception as error:  # no torchvision, no network, no room, a damaged download
        raise InputError(
            f"cifar10 could not be downloaded ({type(error).__name__}): put cifar-10-batches-py, or a folder cifar10 "
            f"with images.npy, labels.npy and split.npy, into {kept} (or set TWINCLUSTER_DATA to where they are)"
        ) from None
    return _from_array(
        np.concatenate([train.data, test.data]),
        "cifar10",
        labels=np.array(train.targets + test.targets),
        split=np.repeat([0, 1], [len(train.data), len(test.data)]),
        class_names=CIFAR10_CLASSES,
    )


NAMED: dict[str, Callable[[Path | None], Listing]] = {"digits": _digits, "cifar10": _cifar10}
READERS: dict[str, Callable[[Path], Listing]] = {".npy": _npy, ".npz": _npz}


def _from_objects(source: Any) -> Listing:
    """Arrays and whatever numpy can make one of (tensors, data frames, lists of rows), paths, or PIL images."""
    if isinstance(source, Image.Image):
        raise InputError("a single image cannot be clustered: pass a list of images")
    try:
        items = np.asarray(source) if hasattr(source, "__array__") else list(source)
        if isinstance(items, np.ndarray) and (items.ndim != 1 or items.dtype.kind not in "OUST"):
            return _from_array(items, "array")
        items = list(items)
        if items and all(isinstance(item, str | bytes | os.PathLike) for item in items):
            return _from_paths([os.fsdecode(item) for item in items])
        if items and all(isinstance(item, Image.Image) for item in items):
            return _from_open_images(items)
        return _from_array(np.asarray(items), "array")
    except InputError:
        raise
    except Exception as error:  # ragged rows, a tensor on another device, something that is no sequence at all
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"array: {_EXPECTED}, or paths, or PIL images ({said})") from None


def _from_paths(names: list[str]) -> Listing:
    files = tuple(Path(os.path.abspath(os.path.expanduser(name))) for name in names)
    return Listing("paths", tuple(printable(name) for name in names), files=files)


def _from_open_images(images: list[Image.Image]) -> Listing:
    pixels = [rgb(image) for image in images] if len({image.size for image in images}) == 1 else []
    if len({picture.shape for picture in pixels}) != 1:  # metadata may still turn images of one size
        side = min(DEFAULT_SIDE, max(min(image.size) for image in images))
        pixels = [square(image, side) for image in images]
    return _from_array(np.stack(pixels), "images")


def _from_array(
    array: np.ndarray,
    name: str,
    *,
    labels: np.ndarray | None = None,
    split: np.ndarray | None = None,
    class_names: tuple[str, ...] | None = None,
) -> Listing:
    array = _rows(array, name) if array.ndim == 2 and array.dtype.kind in "fiub" else _pictures(array, name)
    if labels is not None:
        labels, named = as_labels(labels, len(array), name)
        class_names = class_names or named
    if split is not None:
        split = np.asarray(split)
        if split.shape != (len(array),) or not np.isin(split, (0, 1)).all():
            raise InputError(f"{name}: split must hold 0 (train) or 1 (test) for each of the {len(array)} inputs")
        split = split.astype(np.int8)
    paths = tuple(str(row) for row in range(len(array)))
    return Listing(name, paths, array=array, labels=labels, class_names=class_names, split=split)


def _rows(array: np.ndarray, name: str) -> np.ndarray:
    if array.shape[1] == 0:
        raise InputError(f"{name}: rows of shape {array.shape} have no columns; {_EXPECTED}")
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, which is said below
        rows = array.astype(np.float32, copy=False)
    for start in range(0, len(rows), 65536):
        bad = np.flatnonzero(~np.isfinite(rows[start : start + 65536]).all(1))
        if len(bad):
            raise InputError(f"{name} contains NaN or infinity in row {start + bad[0]}: replace it or drop the row")
    return rows


def _pictures(array: np.ndarray, name: str) -> np.ndarray:
    shape = array.shape
    got = f"{name}: {_EXPECTED}, got {array.dtype} {shape}"
    if array.dtype.kind in "fiub" and array.dtype != np.uint8 and array.ndim in (3, 4):
        sample = array[:256]
        low, high = (sample.min(), sample.max()) if sample.size else (0, 0)
        if low >= 0 and high <= 1:
            raise InputError(f"{got}: multiply by 255 and cast, (images * 255).astype('uint8')")
        raise InputError(f"{got}: bring the values to 0 .. 255 and cast, images.astype('uint8')")
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or 0 in shape[1:]:
        raise InputError(got)
    if array.ndim == 3 and shape[2] in (3, 4) and shape[1] != shape[2]:
        raise InputError(f"{got}, which looks like one colour image: pass several, stacked to (n,h,w,c)")
    if array.ndim == 4 and shape[3] not in (1, 3, 4):
        turn = ": put the channels last, images.transpose(0, 2, 3, 1)" if shape[1] in (1, 3, 4) else " (c is 1, 3 or 4)"
        raise InputError(got + turn)
    return array
