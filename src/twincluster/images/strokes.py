"""Whether images are small drawings of few strokes, as letters and digits are: ink and paper, and little between. A
network that was taught photographs knows less of them than one learns that is trained on them alone."""

from __future__ import annotations

import numpy as np

ADVICE = (
    "these are drawings in black and white, of which a network trained on them alone may learn more: "
    "--recipe cpu --set train.image_size=16"
)
SAMPLE = 500  # images that are looked at
LARGEST = 64  # pixels a side of images that still show what they are at 16
NEAR = 32  # levels of 255 from black or white that count as these, and by which the channels of a grey may differ
GREY = 0.95  # of all pixels
TWO_TONED = 0.8  # of the pixels of most images: digits of MNIST have .92, clothes of Fashion-MNIST .63


def are_strokes(pixels: np.ndarray, rows: np.ndarray, side: int) -> bool:
    """`pixels` (N,H,W,3) uint8, numbers of images in it, and the side that the images had at first."""
    if side > LARGEST or not len(rows):
        return False
    sample = np.sort(np.random.default_rng(0).permutation(rows)[:SAMPLE])
    shares = np.array([_shares(np.asarray(pixels[row])) for row in sample])  # (n,2)
    return bool(shares[:, 0].mean() >= GREY and np.median(shares[:, 1]) >= TWO_TONED)


def _shares(image: np.ndarray) -> tuple[float, float]:
    """Of an image (H,W,3): the share of its pixels that are grey, and of those that are black or white."""
    low, high = image.min(-1), image.max(-1)
    return float((high - low <= NEAR).mean()), float(((high <= NEAR) | (low >= 255 - NEAR)).mean())
