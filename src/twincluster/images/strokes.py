"""Whether images are drawings of few strokes, as letters and digits are: ink and paper, and little between. A network
that was taught photographs knows less of them than one learns that is trained on them alone."""

from __future__ import annotations

import numpy as np

LARGEST = 64  # pixels a side of images that still show what they are when they are made tiny
NEAR = 32  # levels of 255 from black or white that count as these, and by which the channels of a grey may differ
GREY = 0.95  # of all pixels
INK = 0.02  # of all pixels, and as much paper: blank images are no drawings
TWO_TONED = 0.8  # of the pixels of most images: digits of MNIST have .92, clothes of Fashion-MNIST .63


def are_strokes(images: np.ndarray) -> bool:  # uint8 (n,H,W,3)
    if not len(images):
        return False
    low, high = images.min(-1), images.max(-1)
    black, white, grey = high <= NEAR, low >= 255 - NEAR, high - low <= NEAR
    two_toned = np.median((black | white).mean((1, 2))) >= TWO_TONED
    return bool(two_toned and grey.mean() >= GREY and min(black.mean(), white.mean()) >= INK)
