"""The number of clusters that is chosen, on sets whose number is known.

Made-up sets, about half of them blobs, and classes of image sets: features of an encoder, as `fit` would see them. The
criterion was fixed on one half of the sets ("development"); the rates of the other half ("test") are what to expect. An
image set that the criterion was developed on gives both halves, with other classes; any other is for the test alone.
Shapes: n rows, D dimensions, K clusters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twincluster.clustering import choose_clusters, score
from twincluster.data import open_images, open_source
from twincluster.nn import encode, load_encoder

EASY = 0.95  # k-means with the true number has at least this ARI
UNEVEN = 6.0  # largest cluster by smallest, where sizes are uneven
HIGHEST = 50  # largest number that is tried, as by `fit`
COMPONENTS, FEWEST, ROWS_PER_DIRECTION = 128, 32, 32  # of an encoder's features, as `fit` takes them
DEVELOPED = ("digits", "cifar", "imagenette")  # beginnings of the names of sets that the criterion was developed on
MOST, SMALL = 2_000, 400  # rows of an image set or a subset, and of the smallest


@dataclass(frozen=True)
class Case:
    """A set of rows with its true clusters."""

    name: str
    kind: str  # blobs, shapes, nothing or images
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
    return np.asarray(np.maximum(8, np.round(n * share / share.sum())), np.int64)


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


def families(rng: np.random.Generator, n: int, d: int, k: int, per: int, apart: float) -> tuple[np.ndarray, np.ndarray]:
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
    ("blobs", blobs, {"n": 1500, "d": 10, "k": 5, "apart": 13}),
    ("blobs", blobs, {"n": 1500, "d": 10, "k": 5, "apart": 13}),
    ("blobs", blobs, {"n": 1500, "d": 10, "k": 5, "apart": 13}),
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
    ("blobs", blobs, {"n": 1500, "d": 10, "k": 5, "apart": 13}),
    ("blobs", blobs, {"n": 1500, "d": 10, "k": 5, "apart": 13}),
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


# -- image sets --------------------------------------------------------------------------------------------------------


def of_images(source: str, root: Path | None = None) -> Iterator[Case]:
    """All classes of a source, and subsets: half of the classes, three quarters, and others of few rows."""
    name, rows, truth = features_of(source, root)
    developed = name.startswith(DEVELOPED)
    n_classes = int(truth.max()) + 1
    rng = np.random.default_rng(n_classes)
    yield _subset(name, rows, truth, np.arange(n_classes), MOST, not developed)
    if n_classes < 4:
        return
    for place, share in enumerate((0.5, 0.7, 0.5, 0.6)):
        classes = rng.permutation(n_classes)[: max(2, round(share * n_classes))]
        yield _subset(name, rows, truth, classes, SMALL if place == 3 else MOST, not developed or place > 1)


def _subset(name: str, rows: np.ndarray, truth: np.ndarray, classes: np.ndarray, most: int, test: bool) -> Case:
    chosen = np.flatnonzero(np.isin(truth, classes))
    chosen = np.random.default_rng(0).permutation(chosen)[:most]
    labels = np.unique(truth[chosen], return_inverse=True)[1]
    text = f"{name}: {len(classes)} classes, {len(chosen):,} rows"
    return Case(text, "images", test, as_seen(rows[chosen]), labels)


def features_of(source: str, root: Path | None) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the name, the features (n,D) of the bundled encoder and the classes; rows of numbers stay as they are."""
    listing = open_source(source, root=root)
    if listing.labels is None:
        listing = open_source(source, root=root, labels="folders")
    encoder = load_encoder("pretrained")
    images = open_images(listing, side=encoder.side)
    rows = images.pixels if images.is_rows else encode(images, encoder).pixels
    assert listing.labels is not None
    labels = np.unique(listing.labels[images.usable], return_inverse=True)[1]
    return Path(source).stem, np.asarray(rows)[images.usable], labels


def as_seen(rows: np.ndarray) -> np.ndarray:
    """Return features as `fit` takes them to choose the number: standardised principal components of unit length."""
    rows = (rows - rows.mean(0, dtype=np.float64)) / np.maximum(rows.std(0, dtype=np.float64), 1e-6)
    count = min(COMPONENTS, max(FEWEST, len(rows) // ROWS_PER_DIRECTION))
    rows = rows @ np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :count]
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What was chosen for a set."""

    case: Case
    chosen: int
    clear: bool
    ari: float  # of k-means with the true number
    seconds: float  # of processor time

    @property
    def right(self) -> bool:
        return self.chosen == self.case.n_clusters

    @property
    def easy(self) -> bool:
        return self.case.n_clusters > 1 and self.ari >= EASY


def measure(
    sources: Sequence[str], *, made: bool = True, root: Path | None = None, say: Callable[[str], None] = print
) -> list[Answer]:
    """Choose a number for every set."""
    answers = []
    for case in _cases(sources, made, root):
        most = min(HIGHEST, len(case.rows) // 4)
        begun = time.process_time()
        choice = choose_clusters(case.rows, 2, most, seed=0)
        seconds = time.process_time() - begun
        answers.append(Answer(case, choice.n_clusters, choice.clear, k_means_ari(case), seconds))
        say(_line(answers[-1]))
    return answers


def _cases(sources: Iterable[str], made: bool, root: Path | None) -> Iterator[Case]:
    if made:
        yield from made_up()
    for source in sources:
        yield from of_images(source, root)


def k_means_ari(case: Case) -> float:
    """Return the adjusted Rand index of scikit-learn's k-means with the true number."""
    from sklearn.cluster import KMeans

    found = KMeans(case.n_clusters, n_init=10, random_state=0).fit_predict(case.rows)
    return float(score(case.truth, found).ari)


def _line(answer: Answer) -> str:
    case, verdict = answer.case, "clear" if answer.clear else "guess"
    true = case.n_clusters if case.n_clusters > 1 else "none"
    half = "test" if case.test else "development"
    return (
        f"| {half} | {case.kind} | {case.name} | {answer.ari:.2f} | {true} | {answer.chosen} | {verdict} "
        f"| {answer.seconds:.1f} |"
    )


def to_text(answers: Sequence[Answer]) -> str:
    """Return the rates of both halves."""
    lines = [
        "| half | sets | right | easy | clear | clear and right | easy and clear | s a set |",
        "|---" * 8 + "|",
    ]
    for test in (False, True):
        half = [answer for answer in answers if answer.case.test == test]
        for kind in ("all", "blobs", "shapes", "nothing", "images"):
            some = [answer for answer in half if kind in ("all", answer.case.kind)]
            if some:
                lines.append(_rates(f"{'test' if test else 'development'}, {kind}", some))
    return "\n".join(lines)


def _rates(name: str, answers: Sequence[Answer]) -> str:
    clear = [answer for answer in answers if answer.clear]
    easy = [answer for answer in answers if answer.easy]
    cells = (
        name,
        len(answers),
        sum(answer.right for answer in answers),
        len(easy),
        len(clear),
        sum(answer.right for answer in clear),
        sum(answer.clear and answer.right for answer in easy),
        f"{np.mean([answer.seconds for answer in answers]):.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |"
