"""The number of clusters that is chosen, on sets whose number is known.

Half of the sets are made up, half of these are blobs. The others are classes of image sets, as features of the bundled
encoder. The criterion was fixed on the first half of the sets ("development"); the rates of the other half count
("test"). Shapes: n rows, D dimensions, K clusters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twincluster.clustering import Choice, choose_clusters, score

EASY = 0.95  # k-means with the true number has at least this ARI
UNEVEN = 6.0  # largest cluster by smallest, where sizes are uneven


@dataclass(frozen=True)
class Case:
    """A set of rows with its true clusters."""

    name: str
    kind: str  # blobs, shapes, nothing, or the name of an image set
    test: bool
    rows: np.ndarray  # (n,D)
    truth: np.ndarray  # (n,)

    @property
    def n_clusters(self) -> int:
        return int(self.truth.max()) + 1


# -- made-up sets ------------------------------------------------------------------------------------------------------


def sizes_of(n: int, n_clusters: int, uneven: bool) -> np.ndarray:
    """(K,) sizes in geometric progression, or equal ones."""
    share = np.geomspace(1, 1 / UNEVEN, n_clusters) if uneven else np.ones(n_clusters)
    return np.maximum(8, np.round(n * share / share.sum()).astype(int))


def centres_apart(n_clusters: int, d: int, apart: float, rng: np.random.Generator) -> np.ndarray:
    """(K,D) random centres, scaled so that the nearest two are `apart`."""
    best = np.zeros((n_clusters, d))
    for _ in range(20):
        centres = rng.standard_normal((n_clusters, d))
        gaps = np.linalg.norm(centres[:, None] - centres[None], axis=2)
        centres *= apart / gaps[~np.eye(n_clusters, dtype=bool)].min()
        if not best.any() or np.abs(centres).max() < np.abs(best).max():  # few far outliers
            best = centres
    return best


def blobs(
    rng: np.random.Generator, n: int, d: int, k: int, apart: float, uneven: bool = False, spread: float = 1.0,
    tails: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Round Gaussians whose nearest centres are `apart` standard deviations from each other.

    `spread`: standard deviation of the widest by that of the narrowest. `tails`: degrees of freedom of a t distribution
    instead of a Gaussian.
    """
    truth = np.repeat(np.arange(k), sizes_of(n, k, uneven))
    scale = np.geomspace(1, 1 / spread, k)[rng.permutation(k)]
    noise = rng.standard_normal((len(truth), d))
    if tails:
        noise /= np.sqrt(rng.chisquare(tails, (len(truth), 1)) / tails)
    return centres_apart(k, d, apart, rng)[truth] + noise * scale[truth, None], truth


def elongated(
    rng: np.random.Generator, n: int, d: int, k: int, apart: float, ratio: float, uneven: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussians that are `ratio` times longer than thick, each in a direction of its own."""
    rows, truth = blobs(rng, n, d, k, apart, uneven)
    centres = np.stack([rows[truth == one].mean(0) for one in range(k)])
    for one in range(k):
        axis = rng.standard_normal(d)
        axis /= np.linalg.norm(axis)
        inside = rows[truth == one] - centres[one]
        rows[truth == one] += (ratio - 1) * (inside @ axis)[:, None] * axis
    return rows, truth


def moons(rng: np.random.Generator, n: int, d: int, k: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Half circles that interlock in a chain, turned into D dimensions."""
    truth = np.repeat(np.arange(k), sizes_of(n, k, False))
    angle = rng.uniform(0, np.pi, len(truth))
    flip = np.where(truth % 2, -1, 1)
    flat = np.stack([np.cos(angle) + truth, flip * np.sin(angle) + 0.45 * (truth % 2)], 1)
    return turned(rng, flat, d, noise), truth


def rings(rng: np.random.Generator, n: int, d: int, k: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Rings in planes of their own, with centres apart."""
    truth = np.repeat(np.arange(k), sizes_of(n, k, False))
    angle = rng.uniform(0, 2 * np.pi, len(truth))
    rows = centres_apart(k, d, 2.6, rng)[truth]
    for one in range(k):
        plane = np.linalg.qr(rng.standard_normal((d, 2)))[0]
        rows[truth == one] += np.stack([np.cos(angle), np.sin(angle)], 1)[truth == one] @ plane.T
    return rows + noise * rng.standard_normal(rows.shape), truth


def turned(rng: np.random.Generator, flat: np.ndarray, d: int, noise: float) -> np.ndarray:
    """(n,D) rows in a random plane of D dimensions, with noise in all of them."""
    basis = np.linalg.qr(rng.standard_normal((d, flat.shape[1])))[0]
    rows: np.ndarray = flat @ basis.T + noise * rng.standard_normal((len(flat), d))
    return rows


def boxes(rng: np.random.Generator, n: int, d: int, k: int, gap: float) -> tuple[np.ndarray, np.ndarray]:
    """Evenly filled cubes on a grid, with a gap between neighbours of so many edges."""
    truth = np.repeat(np.arange(k), sizes_of(n, k, False))
    side = int(np.ceil(k ** (1 / min(d, 3))))
    place = np.stack(np.unravel_index(rng.permutation(side ** min(d, 3))[:k], (side,) * min(d, 3)), 1)
    rows = rng.uniform(size=(len(truth), d))
    rows[:, : place.shape[1]] += place[truth] * (1 + gap)
    return rows, truth


def bent(
    rng: np.random.Generator, n: int, d: int, k: int, apart: float, uneven: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Blobs in eight dimensions, sent through a random network of two layers, as features of a network may look."""
    rows, truth = blobs(rng, n, 8, k, apart, uneven, spread=2.0)
    rows = (rows - rows.mean(0)) / rows.std()
    hidden = np.tanh(rows @ rng.standard_normal((8, 64)) * 0.6)
    return np.maximum(hidden @ rng.standard_normal((64, d)) / 8, 0) + 0.02 * rng.standard_normal((len(truth), d)), truth


def directions(
    rng: np.random.Generator, n: int, d: int, k: int, noise: float, uneven: bool = False, loud: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows around random directions; `loud` coordinates of large variance tell nothing."""
    truth = np.repeat(np.arange(k), sizes_of(n, k, uneven))
    middle = rng.standard_normal((k, d))
    middle /= np.linalg.norm(middle, axis=1, keepdims=True)
    rows = middle[truth] + noise * rng.standard_normal((len(truth), d)) / d**0.5
    rows[:, :loud] += 0.6 * rng.standard_normal((len(truth), loud))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), truth


def littered(
    rng: np.random.Generator, n: int, d: int, k: int, apart: float, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Blobs, and a share of rows anywhere between them, which count to the nearest."""
    rows, truth = blobs(rng, n, d, k, apart)
    centres = np.stack([rows[truth == one].mean(0) for one in range(k)])
    stray = rng.permutation(len(rows))[: int(share * len(rows))]
    rows[stray] = rng.uniform(rows.min(0), rows.max(0), (len(stray), d))
    truth[stray] = np.linalg.norm(rows[stray, None] - centres[None], axis=2).argmin(1)
    return rows, truth


def families(
    rng: np.random.Generator, n: int, d: int, k: int, per: int, apart: float
) -> tuple[np.ndarray, np.ndarray]:
    """K blobs in groups of `per` that lie closer together."""
    rows, truth = blobs(rng, n, d, k, apart)
    far = centres_apart(k // per, d, 3 * apart, rng)
    return rows * 1.0 + far[truth // per], truth


def nothing(rng: np.random.Generator, n: int, d: int, shape: str) -> tuple[np.ndarray, np.ndarray]:
    """One cluster: a Gaussian, one with unequal variances, a cube or an arc."""
    rows = rng.standard_normal((n, d))
    if shape == "long":
        rows *= np.geomspace(5, 0.2, d)
    elif shape == "cube":
        rows = rng.uniform(size=(n, d))
    elif shape == "arc":
        angle = rng.uniform(0, np.pi, n)
        rows = turned(rng, 5 * np.stack([np.cos(angle), np.sin(angle)], 1), d, 0.3)
    elif shape == "t":
        rows /= np.sqrt(rng.chisquare(4, (n, 1)) / 4)
    return rows, np.zeros(n, np.int64)


Make = Callable[..., tuple[np.ndarray, np.ndarray]]
# kind, function and its arguments; first those of development, then those of the test
DEVELOPMENT: tuple[tuple[str, Make, dict[str, object]], ...] = (
    *(("blobs", blobs, {"n": 1500, "d": 10, "k": 5, "apart": 13}) for _ in range(3)),
    ("blobs", blobs, {"n": 1800, "d": 6, "k": 9, "apart": 8}),
    ("blobs", blobs, {"n": 300, "d": 2, "k": 3, "apart": 7}),
    ("blobs", blobs, {"n": 2000, "d": 2, "k": 12, "apart": 8}),
    ("blobs", blobs, {"n": 6000, "d": 32, "k": 20, "apart": 7, "uneven": True}),
    ("blobs", blobs, {"n": 3000, "d": 128, "k": 7, "apart": 12, "spread": 3}),
    ("blobs", blobs, {"n": 4000, "d": 64, "k": 40, "apart": 9}),
    ("blobs", blobs, {"n": 1200, "d": 256, "k": 4, "apart": 12, "uneven": True}),
    ("blobs", blobs, {"n": 900, "d": 5, "k": 6, "apart": 4.5}),
    ("blobs", blobs, {"n": 2500, "d": 16, "k": 8, "apart": 9, "tails": 4}),
    ("blobs", directions, {"n": 1500, "d": 48, "k": 5, "noise": 0.8, "uneven": True}),
    ("blobs", directions, {"n": 2000, "d": 64, "k": 15, "noise": 0.8}),
    ("shapes", elongated, {"n": 1500, "d": 8, "k": 5, "apart": 14, "ratio": 4}),
    ("shapes", elongated, {"n": 3000, "d": 32, "k": 10, "apart": 14, "ratio": 5, "uneven": True}),
    ("shapes", moons, {"n": 800, "d": 2, "k": 2, "noise": 0.07}),
    ("shapes", moons, {"n": 2000, "d": 16, "k": 4, "noise": 0.06}),
    ("shapes", rings, {"n": 2000, "d": 8, "k": 6, "noise": 0.08}),
    ("shapes", boxes, {"n": 2400, "d": 3, "k": 8, "gap": 0.4}),
    ("shapes", bent, {"n": 2500, "d": 128, "k": 9, "apart": 7}),
    ("shapes", bent, {"n": 1000, "d": 512, "k": 4, "apart": 7, "uneven": True}),
    ("shapes", littered, {"n": 2000, "d": 6, "k": 7, "apart": 12, "share": 0.08}),
    ("shapes", directions, {"n": 1500, "d": 48, "k": 6, "noise": 0.7, "loud": 2}),
    ("shapes", families, {"n": 2700, "d": 10, "k": 9, "per": 3, "apart": 9}),
    ("nothing", nothing, {"n": 2000, "d": 10, "shape": "round"}),
    ("nothing", nothing, {"n": 1500, "d": 64, "shape": "long"}),
    ("nothing", nothing, {"n": 1000, "d": 3, "shape": "cube"}),
)
TEST: tuple[tuple[str, Make, dict[str, object]], ...] = (
    *(("blobs", blobs, {"n": 1500, "d": 10, "k": 5, "apart": 13}) for _ in range(2)),
    ("blobs", blobs, {"n": 2000, "d": 12, "k": 11, "apart": 9}),
    ("blobs", blobs, {"n": 400, "d": 4, "k": 4, "apart": 8}),
    ("blobs", blobs, {"n": 3000, "d": 2, "k": 18, "apart": 8}),
    ("blobs", blobs, {"n": 20000, "d": 24, "k": 14, "apart": 8, "uneven": True}),
    ("blobs", blobs, {"n": 2500, "d": 512, "k": 6, "apart": 14, "spread": 3}),
    ("blobs", blobs, {"n": 5000, "d": 96, "k": 33, "apart": 9}),
    ("blobs", blobs, {"n": 300, "d": 64, "k": 3, "apart": 10, "uneven": True}),
    ("blobs", blobs, {"n": 1200, "d": 7, "k": 7, "apart": 4.5}),
    ("blobs", blobs, {"n": 3000, "d": 20, "k": 10, "apart": 10, "tails": 4}),
    ("blobs", directions, {"n": 2200, "d": 96, "k": 8, "noise": 0.8, "uneven": True}),
    ("blobs", directions, {"n": 3600, "d": 128, "k": 24, "noise": 0.8}),
    ("shapes", elongated, {"n": 2000, "d": 5, "k": 4, "apart": 16, "ratio": 4}),
    ("shapes", elongated, {"n": 4000, "d": 64, "k": 13, "apart": 15, "ratio": 5, "uneven": True}),
    ("shapes", moons, {"n": 1200, "d": 3, "k": 2, "noise": 0.06}),
    ("shapes", moons, {"n": 2400, "d": 24, "k": 3, "noise": 0.06}),
    ("shapes", rings, {"n": 2500, "d": 12, "k": 5, "noise": 0.08}),
    ("shapes", boxes, {"n": 3000, "d": 5, "k": 12, "gap": 0.4}),
    ("shapes", bent, {"n": 3000, "d": 256, "k": 12, "apart": 7}),
    ("shapes", bent, {"n": 1500, "d": 64, "k": 6, "apart": 7, "uneven": True}),
    ("shapes", littered, {"n": 2500, "d": 8, "k": 5, "apart": 12, "share": 0.08}),
    ("shapes", directions, {"n": 2000, "d": 64, "k": 9, "noise": 0.7, "loud": 2}),
    ("shapes", families, {"n": 3200, "d": 12, "k": 16, "per": 4, "apart": 9}),
    ("nothing", nothing, {"n": 3000, "d": 20, "shape": "round"}),
    ("nothing", nothing, {"n": 1200, "d": 96, "shape": "long"}),
    ("nothing", nothing, {"n": 1500, "d": 4, "shape": "arc"}),
    ("nothing", nothing, {"n": 2000, "d": 16, "shape": "t"}),
)


def made_up() -> Iterator[Case]:
    """Sets of known shape; each has a seed of its own."""
    for test, table in ((False, DEVELOPMENT), (True, TEST)):
        for place, (kind, make, arguments) in enumerate(table):
            rng = np.random.default_rng([int(test), place])
            rows, truth = make(rng, **arguments)
            order = rng.permutation(len(rows))
            words = " ".join(f"{name}={value}" for name, value in arguments.items())
            yield Case(f"{make.__name__} {words}", kind, test, rows[order].astype(np.float32), truth[order])
