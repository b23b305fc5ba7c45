"""What `anchored.balance` does where kinds are of different size: subsets of a named set with a long tail.

Images are seen through the pretrained encoder, whose features are kept, so that a CPU is enough. Labels choose the
subset and score the results; nothing is trained on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twincluster.clustering import Scores, score
from twincluster.config import Config, load_recipe, make_config, parse_overrides
from twincluster.core import InputError
from twincluster.data import Images, Listing, from_array, open_images, open_source
from twincluster.methods import base as inference
from twincluster.nn import encode, load_encoder
from twincluster.resolve import resolve
from twincluster.training import Reporter, Trainer

STARTS = 10  # of scikit-learn's k-means


@dataclass(frozen=True)
class Line:
    name: str
    scores: Scores
    sizes: list[int]
    strain: float = 0.0  # of the prior on sizes, in the last epoch
    warned: bool = False


@dataclass(frozen=True)
class LongTail:
    source: str
    ratio: float
    seed: int
    sizes: list[int]  # of the classes
    lines: tuple[Line, ...]

    def to_text(self) -> str:
        """A table, one line per clustering."""
        head = f"{self.source}, {sum(self.sizes):,} images, classes of {max(self.sizes):,} to {min(self.sizes):,}"
        rows = [
            f"{line.name:22}{line.scores.acc:7.3f}{line.scores.nmi:7.3f}{line.scores.ari:7.3f}"
            f"{max(line.sizes):9}{min(line.sizes):9}{line.strain:8.2f}{'  warned' * line.warned}"
            for line in self.lines
        ]
        columns = f"{'':22}{'ACC':>7}{'NMI':>7}{'ARI':>7}{'largest':>9}{'smallest':>9}{'strain':>8}"
        return "\n".join([f"{head}, seed {self.seed}", columns, *rows])


def measure(
    source: str,
    ratio: float,
    images: int,
    seed: int,
    balances: Sequence[float],
    settings: Sequence[str] = (),
    root: Path | None = None,
) -> LongTail:
    """Cluster a subset as often as there are balances, and once with k-means."""
    subset = long_tail(open_source(source, root=root), ratio, images, seed)
    assert subset.labels is not None
    n_classes = int(subset.labels.max()) + 1
    config = make_config(parse_overrides(settings), make_config(load_recipe("pretrained").settings))
    config = make_config({"n_clusters": n_classes, "seed": seed}, config)
    encoder = load_encoder(config.train.encoder, config.encoder)
    features = encode(open_images(subset, side=encoder.side), encoder)
    lines = [_kmeans(features, subset.labels, n_classes, seed)]
    for balance in balances:
        lines.append(_trained(features, subset.labels, make_config({"anchored": {"balance": balance}}, config)))
    return LongTail(source, ratio, seed, np.bincount(subset.labels).tolist(), tuple(lines))


def long_tail(listing: Listing, ratio: float, images: int, seed: int) -> Listing:
    """About so many images, in classes whose sizes fall exponentially; the largest is `ratio` times the smallest.

    The seed decides which classes are large and which of their images are taken.
    """
    if listing.labels is None or listing.array is None:
        raise InputError(f"{listing.name} is no labelled array: name a data set such as cifar10")
    n_classes, random = int(listing.labels.max()) + 1, np.random.default_rng(seed)
    share = ratio ** -(np.arange(n_classes) / max(1, n_classes - 1))
    counts = np.maximum(1, np.floor(images * share / share.sum())).astype(int)
    rows = []
    for label, count in zip(random.permutation(n_classes), counts, strict=True):
        found = random.permutation(np.flatnonzero(listing.labels == label))
        if len(found) < count:
            raise InputError(f"{listing.name} has {len(found)} images of class {label}, not {count}: ask for fewer")
        rows.append(found[:count])
    chosen = np.sort(np.concatenate(rows))
    return from_array(np.ascontiguousarray(listing.array[chosen]), listing.name, labels=listing.labels[chosen])


class _Listener(Reporter):
    strain, warned = 0.0, False

    def epoch(self, row: dict[str, Any]) -> None:
        self.strain = row["strain"]

    def warn(self, message: str) -> None:
        self.warned |= "anchored.balance" in message


def _trained(features: Images, labels: np.ndarray, config: Config) -> Line:
    listener, config = _Listener(), resolve(config, features)
    network = Trainer(config, features, reporter=listener).run().online
    clusters = inference.predict(network, features.pixels, features.usable).argmax(1).numpy()
    sizes = np.bincount(clusters, minlength=config.n_clusters).tolist()
    balance = config.groups["anchored"]["balance"]
    return Line(f"balance {balance:g}", score(labels, clusters), sizes, listener.strain, listener.warned)


def _kmeans(features: Images, labels: np.ndarray, n_clusters: int, seed: int) -> Line:
    from sklearn.cluster import KMeans

    clusters = KMeans(n_clusters, n_init=STARTS, random_state=seed).fit_predict(np.asarray(features.pixels))
    clusters = clusters.astype(np.int64)
    return Line("k-means", score(labels, clusters), np.bincount(clusters, minlength=n_clusters).tolist())
