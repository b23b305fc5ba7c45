"""Whether images can be told from their mirror images. Where they can, as with digits, text or X-rays, left and right
mean something, and an augmentation that mirrors an image may make one kind of thing into another.

Whether images are drawings of few strokes, as letters and digits are: ink and paper, and little between. A network
that was taught photographs knows less of them than one learns that is trained on them alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from twincluster.data.augment import luminance, resize

# Shapes: n images, S side at which they are compared.
SAMPLE = 2000  # images that are looked at
SIDE = 12  # pixels
NEIGHBOURS = 9  # an odd number, which cannot be of two minds
TOO_ALIKE = 0.95  # correlation above which two images may be one scene, which tells of itself and not of its kind
CLEAR = 0.1  # above chance: what photographs of animals and things stay below (.50), and digits do not (.94)
DEVIATIONS = 3.0  # of chance that it takes besides, where images are few


def left_differs_from_right(pixels: np.ndarray, rows: np.ndarray) -> bool:  # uint8 (N,H,W,3), numbers of images in it
    sample = np.sort(np.random.default_rng(0).permutation(rows)[:SAMPLE])
    chance = DEVIATIONS * 0.5 / math.sqrt(len(sample))
    return told_apart(comparable(pixels, sample)) > 0.5 + max(CLEAR, chance)


def told_apart(images: Tensor) -> float:  # (n,S,S)
    """Share of the images of which their neighbours know whether they are mirrored, as half of all are: .5 by chance.

    Each half of the images asks the other half, in which no image is its own neighbour. Nobody has to label anything.
    """
    generator = torch.Generator().manual_seed(0)
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    rows = torch.where(mirrored[:, None, None], images.flip(2), images).flatten(1)
    half, right = len(rows) // 2, 0
    order = torch.randperm(len(rows), generator=generator)
    for known, asked in ((order[:half], order[half:]), (order[half:], order[:half])):
        likeness = rows[asked] @ rows[known].T / rows.shape[1]  # correlations
        likeness[likeness > TOO_ALIKE] = -1.0
        nearest = likeness.topk(min(NEIGHBOURS, half)).indices
        said = mirrored[known][nearest].float().mean(1) > 0.5
        right += int((said == mirrored[asked]).sum())
    return right / len(rows)


def comparable(pixels: np.ndarray, rows: np.ndarray) -> Tensor:  # (n,S,S)
    """Small and grey, of one brightness and contrast. One after the other: the images may be large."""
    grey = torch.cat([luminance(resize(torch.from_numpy(pixels[[row]]), SIDE))[:, 0] for row in rows])
    grey -= grey.mean((1, 2), keepdim=True)
    return grey / grey.std((1, 2), keepdim=True).clamp(min=1e-3)


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
