"""What a caller in Python may hand over: tensors become arrays here, and images are told from rows of numbers."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from twincluster.errors import InputError
from twincluster.images.decode import Frame, squares
from twincluster.images.listing import Listing
from twincluster.images.store import Images

CHANNELS = (1, 3, 4)
NAMES_OR_IMAGES = (str, bytes, os.PathLike, Image.Image)


def as_arrays(X: Any) -> Any:
    """A tensor, or a list of tensors, as an array with the channels of images last, and a generator, which can be read
    only once, as a list; anything else as it is, unless there is nothing in it."""
    if isinstance(X, Iterator):
        X = list(X)
    if getattr(X, "ndim", 1) == 1 and hasattr(X, "__len__") and not len(X):
        raise InputError("X is empty: give images, paths of images, a folder, or rows of numbers")
    if isinstance(X, list | tuple) and len(X) and all(isinstance(item, torch.Tensor) for item in X):
        if len({item.shape for item in X}) > 1:
            raise InputError("the tensors differ in shape: resize the images to one size, or pass paths or PIL images")
        X = torch.stack(list(X))
    if not isinstance(X, torch.Tensor):
        return X
    X = X.detach().cpu()
    if X.dtype == torch.bfloat16:  # numpy has no such type
        X = X.float()
    if X.dim() == 4 and X.shape[1] in CHANNELS and X.shape[3] not in CHANNELS:
        X = X.permute(0, 2, 3, 1)
    return X.numpy()


def is_rows(X: Any) -> bool:
    """Whether `X` is a matter for scikit-learn's validation: all that is neither images nor names of any."""
    if isinstance(X, NAMES_OR_IMAGES):
        return False
    shape = getattr(X, "shape", ())
    if len(shape) > 1:
        return len(shape) == 2
    try:
        first: Any = next(iter(X), None)
    except TypeError:
        return True
    return not isinstance(first, NAMES_OR_IMAGES) and np.ndim(first) < 2


def differ_in_size(X: Any) -> bool:
    """Whether `X` is a list of open images that no array can hold as they are."""
    if not isinstance(X, list | tuple) or not all(isinstance(item, Image.Image) for item in X):
        return False
    return len({item.size for item in X}) > 1


def outline(images: Sequence[Image.Image]) -> Listing:
    """What open images of several sizes are like before they are read: as many, of their typical size, all black."""
    short, long = np.median([sorted(image.size) for image in images], axis=0).astype(int)
    black = np.broadcast_to(np.uint8(0), (len(images), short, long))  # takes no memory
    return Listing("images", ("",) * len(images), array=black)


def as_squares(images: Sequence[Image.Image], side: int, frame: Frame) -> np.ndarray:
    """Open images of several sizes as (n,s,s,3) uint8; a side of 0 leaves it to the images."""
    try:
        return squares(images, side, frame)
    except Exception as error:  # an image is read from its file only now
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"an open image cannot be read ({said}): leave it out, or pass paths instead") from None


def refuse_too_few(images: Images, n_clusters: int) -> None:
    """Unless at least one input can be read, and as many as there are to be clusters."""
    if not (n_samples := len(images.usable)):
        path, why = images.listing.paths[0], images.status[0].removeprefix("unreadable: ")
        raise InputError(f"none of the {len(images.status):,} files can be read ({path}: {why}): check the paths")
    if n_samples < n_clusters:
        raise InputError(f"n_samples={n_samples} is below n_clusters={n_clusters}: ask for fewer clusters")
