"""Small files to open as sources, and the line a user reads when one is no good."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twincluster.core import InputError
from twincluster.data import open_source


def picture(path: Path, colour: tuple[int, int, int] = (9, 9, 9), size: tuple[int, int] = (8, 8)) -> Path:
    """An image of one colour, in the format its name asks for; PNG when it asks for none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, format="JPEG" if path.suffix.lower() == ".jpeg" else "PNG")
    return path


def colours(count: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def prepared(folder: Path, count: int = 12) -> np.ndarray:
    """A folder of arrays as named sets are kept: three classes, the last four images for testing."""
    folder.mkdir(parents=True)
    images = colours(count)
    np.save(folder / "images.npy", images)
    np.save(folder / "labels.npy", np.arange(count) % 3)
    np.save(folder / "split.npy", np.repeat([0, 1], [count - 4, 4]).astype(np.int8))
    return images


def complaint(source: object, **options: object) -> str:
    """The one line a user reads."""
    with pytest.raises(InputError) as caught:
        open_source(source, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)
