"""Input from Python: convert tensors to arrays, and distinguish images from rows of numbers."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image

from twincluster.core import InputError
from twincluster.data.decoding import Frame, square
from twincluster.data.listing import Listing

# What the estimator takes: images, rows, paths, or the name of a source.
Inputs = ArrayLike | torch.Tensor | Iterable[str | os.PathLike[str] | Image.Image] | str | os.PathLike[str]
CHANNELS = (1, 3, 4)
RANGES = (1, 16, 255)  # the largest value that float images may have: usual, of scikit-learn's digits, of bytes
PIXELS_AT_ONCE = 2**24
NAMES_OR_IMAGES = (str, bytes, os.PathLike, Image.Image)


def as_arrays(X: Any) -> Any:
    """Return tensors as an array with channels last, and iterators of open images as a list. Raise InputError if empty.

    A list of tensors becomes one array. Everything else is returned as it is.
    """
    if isinstance(X, Mapping | Set) and not hasattr(X, "shape"):  # some sparse matrices are mappings with a shape
        raise InputError(f"X is a {type(X).__name__}: pass its images, paths or rows as a list")
    if isinstance(X, Iterator) or (not isinstance(X, list | tuple) and isinstance(_first(X), Image.Image)):
        X = list(X)
    if getattr(X, "ndim", 1) == 1 and hasattr(X, "__len__") and not len(X):
        raise InputError("X is empty: pass images, paths of images, a folder, or rows of numbers")
    if isinstance(X, list | tuple) and all(hasattr(item, "shape") for item in X):
        if len({tuple(item.shape) for item in X}) > 1:
            raise InputError("X holds images of several shapes: resize them to one size, or pass paths or PIL images")
        if all(isinstance(item, torch.Tensor) for item in X):
            X = torch.stack(list(X))
        elif X[0].ndim in (2, 3) and all(isinstance(item, np.ndarray) for item in X):
            X = np.stack(X)
    return _as_array(X) if isinstance(X, torch.Tensor) else X


def _first(X: Any) -> Any:
    try:
        return next(iter(X), None)
    except (TypeError, NotImplementedError):  # not iterable
        return None


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dim() in (3, 4) and tensor.dtype != torch.uint8 and not tensor.is_floating_point():
        raise InputError(
            f"expected uint8 images, got {tensor.dtype} {tuple(tensor.shape)}: scale the values to 0 .. 255 and cast "
            "them, for example (images * 255).to(torch.uint8) for values of 0 .. 1"
        )
    if tensor.dtype == torch.bfloat16:  # numpy has no such type
        tensor = tensor.float()
    if tensor.dim() == 4 and tensor.shape[1] in CHANNELS and tensor.shape[3] not in CHANNELS:
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor.numpy()


def is_float_images(X: Any) -> TypeGuard[np.ndarray]:
    """Return True if `X` is an array of images whose values are floats."""
    return isinstance(X, np.ndarray) and X.ndim in (3, 4) and X.dtype.kind == "f" and X.size > 0


def range_of(images: np.ndarray) -> int:
    """Return the smallest of 1, 16 and 255 that holds every value of float images."""
    largest = float(images.max())
    for limit in RANGES:
        if largest <= limit:
            return limit
    if math.isfinite(largest):
        raise InputError(f"X holds images with values up to {largest:g}: scale them to 0 .. 1 or 0 .. 255")
    return RANGES[0]  # as_bytes refuses them


def as_bytes(images: np.ndarray, limit: int) -> np.ndarray:
    """Return float images with values from 0 to `limit` as uint8. Raise InputError if a value lies outside."""
    least, largest = float(images.min()), float(images.max())
    if not math.isfinite(least + largest):
        raise InputError("X holds images with NaN or infinity: leave them out, or replace these values")
    if least < 0:
        raise InputError(f"X holds images with negative values, down to {least:g}: scale them to 0 .. {limit}")
    if largest > limit:
        raise InputError(f"X holds images with values up to {largest:g}: the model was fitted on 0 .. {limit}")
    found = np.empty(images.shape, np.uint8)
    step = max(1, PIXELS_AT_ONCE // images[0].size)
    for start in range(0, len(images), step):
        part = images[start : start + step].astype(np.float64)
        found[start : start + step] = np.rint(part * (255 / limit))
    return found


def is_rows(X: Any) -> bool:
    """Return True if `X` holds rows of numbers, which scikit-learn validates, instead of images or their names."""
    if isinstance(X, NAMES_OR_IMAGES):
        return False
    shape = getattr(X, "shape", ())
    if len(shape) > 1:
        return len(shape) == 2
    first = _first(X)
    if isinstance(first, Mapping) or (isinstance(first, list | tuple) and len(first) == 2 and _is_labelled(*first)):
        raise InputError("X holds images with labels: pass the images alone, as in [image for image, label in X]")
    return not isinstance(first, NAMES_OR_IMAGES) and np.ndim(first) < 2


def refuse_times(X: Any) -> None:
    """Refuse rows with dates or durations, which would become numbers of nanoseconds, or of any other unit."""
    first = _first(X) if isinstance(X, list | tuple) else X
    parts = [X, first, *(first[:1] if isinstance(first, list | tuple) else ())]
    types = [getattr(part, "dtype", None) for part in parts]
    types += list(getattr(X, "dtypes", ())) if getattr(X, "ndim", 0) == 2 else []
    if any(getattr(type_, "kind", "") in ("m", "M") for type_ in types):
        raise InputError("X holds dates or durations: give them as numbers of the unit that matters, such as days")


def _is_labelled(one: Any, other: Any) -> bool:
    """Return True for a pair of image and label, as torch data sets yield them."""
    is_image = isinstance(one, NAMES_OR_IMAGES) or np.ndim(one) > 1
    return is_image and not isinstance(other, NAMES_OR_IMAGES) and np.ndim(other) < 2


def are_open(X: Any) -> TypeGuard[Sequence[Image.Image]]:
    """Return True if `X` is a list of PIL images, which may differ in size."""
    return isinstance(X, list | tuple) and all(isinstance(item, Image.Image) for item in X)


def outline(images: Sequence[Image.Image]) -> Listing:
    """Return a listing that stands for PIL images before they are read: their number and typical size, all black."""
    short, long = np.median([sorted(image.size) for image in images], axis=0).astype(int)
    black = np.broadcast_to(np.uint8(0), (len(images), short, long))  # uses no memory
    return Listing("images", ("",) * len(images), array=black)


def as_squares(images: Sequence[Image.Image], side: int, frame: Frame) -> np.ndarray:
    """Return PIL images of any size as an array (n,s,s,3) uint8."""
    if empty := [row for row, image in enumerate(images) if 0 in image.size]:
        raise InputError(f"image {empty[0]} has no pixels: leave it out")
    try:
        return np.stack([square(image, side, frame) for image in images])
    except Exception as error:  # PIL reads the file only now
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"a PIL image cannot be read ({reason}): leave it out, or pass paths instead") from None
