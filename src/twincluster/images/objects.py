"""What a caller in Python may hand over: tensors become arrays here, and images are told from rows of numbers."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from twincluster.errors import InputError
from twincluster.images.decode import Frame, squares

CHANNELS = (1, 3, 4)
NAMES_OR_IMAGES = (str, bytes, os.PathLike, Image.Image)


def as_arrays(X: Any) -> Any:
    """A tensor, or a list of tensors, as an array with the channels of images last, and a generator, which can be read
    only once, as a list; anything else as it is."""
    if isinstance(X, Iterator):
        X = list(X)
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


def as_squares(images: Sequence[Image.Image], side: int, frame: Frame) -> np.ndarray:
    """Open images of several sizes as (n,s,s,3) uint8; a side of 0 leaves it to the images."""
    try:
        return squares(images, side, frame)
    except Exception as error:  # an image is read from its file only now
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"an open image cannot be read ({said}): leave it out, or pass paths instead") from None
