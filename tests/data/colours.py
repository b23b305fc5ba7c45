"""A picture in which any turn, flip or shift of channels shows, and ways to look at what decoding made of it."""

import itertools

import numpy as np
from PIL import Image, ImageDraw

SIDE = 16
PLAIN = [(255, 0, 0), (0, 200, 0), (0, 0, 255), (90, 90, 90)]


def corners(width: int = 64, height: int = 64) -> Image.Image:
    """Four plain quarters: red, green over blue, grey. Any turn, flip or shift of channels shows."""
    image = Image.new("RGB", (width, height), (255, 0, 0))
    draw = ImageDraw.Draw(image)
    draw.rectangle((width // 2, 0, width, height // 2 - 1), fill=(0, 200, 0))
    draw.rectangle((0, height // 2, width // 2 - 1, height), fill=(0, 0, 255))
    draw.rectangle((width // 2, height // 2, width, height), fill=(90, 90, 90))
    return image


def quarters(pixels: np.ndarray | None) -> list[tuple[int, ...]]:
    """The colour in the middle of each quarter of a decoded image, row by row."""
    assert pixels is not None
    assert pixels.shape == (SIDE, SIDE, 3)
    assert pixels.dtype == np.uint8
    near, far = SIDE // 4, 3 * SIDE // 4
    return [tuple(int(v) for v in pixels[row, column]) for row, column in itertools.product((near, far), (near, far))]


def close(found: list[tuple[int, ...]], expected: list[tuple[int, ...]], within: int = 6) -> bool:
    return bool(np.abs(np.array(found) - np.array(expected)).max() <= within)


def is_problem(status: str) -> bool:
    """Whether this is a status of an image that cannot be used."""
    return status in ("incomplete", "too_large") or status.startswith("unreadable: ")
