"""Drawings of ink on paper are known as such; greys and colours are not."""

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from twincluster.data import are_strokes


def drawn(ink: tuple[int, int, int], paper: tuple[int, int, int], n: int = 20) -> NDArray[np.uint8]:
    """Crosses at several places."""
    images = []
    for number in range(n):
        image = Image.new("RGB", (28, 28), paper)
        at = 8 + number % 12
        ImageDraw.Draw(image).line((4, at, 24, at), ink, 3)
        ImageDraw.Draw(image).line((at, 4, at, 24), ink, 3)
        images.append(np.asarray(image))
    return np.stack(images)


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (drawn((0, 0, 0), (255, 255, 255)), True),
        (drawn((230, 230, 230), (10, 12, 8)), True),
        (drawn((255, 0, 0), (255, 255, 255)), False),  # colour
        (drawn((0, 0, 0), (120, 120, 120)), False),  # paper that is neither
        (np.random.default_rng(0).integers(0, 256, (20, 28, 28, 1)).repeat(3, 3).astype(np.uint8), False),  # greys
    ],
    ids=["black on white", "nearly white on black", "red", "on grey", "greys"],
)
def test_ink_on_paper(images: NDArray[np.uint8], expected: bool) -> None:
    assert are_strokes(images) is expected


def test_most_images_decide() -> None:
    ink, grey = drawn((0, 0, 0), (255, 255, 255)), np.full((60, 28, 28, 3), 120, np.uint8)
    assert are_strokes(np.concatenate([ink, grey[:15]]))
    assert not are_strokes(np.concatenate([ink, grey]))
    assert not are_strokes(ink[:0])
    assert not are_strokes(np.zeros_like(ink)), "blank"
