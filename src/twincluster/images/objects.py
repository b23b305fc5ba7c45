"""What a caller in Python may hand over: tensors become arrays here, and images are told from rows of numbers."""

import os
from typing import Any

import numpy as np
import torch
from PIL import Image

CHANNELS = (1, 3, 4)
NAMES_OR_IMAGES = (str, bytes, os.PathLike, Image.Image)


def as_arrays(X: Any) -> Any:
    """A tensor, or a list of tensors, as an array with the channels of images last; anything else as it is."""
    if isinstance(X, list | tuple) and len(X) and all(isinstance(item, torch.Tensor) for item in X):
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
