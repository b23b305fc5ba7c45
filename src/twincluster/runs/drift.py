"""Whether new images look like those a run was trained on, without labels.

At the end of training the run keeps what its own images look like to the network: the centre of each cluster, and the
confidence and the distance from the centre that only one in twenty of its images goes beyond. Of new images that are
like them about one in twenty goes beyond as well. Shapes: n images, K clusters, D features.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from twincluster.core import SEAL, InputError, check_seal, seal, unfinished

REFERENCE_FILE = "reference.safetensors"
REFERENCE_SAMPLE = 50_000  # training images that are enough for the reference
TAIL = 0.05  # share of the training images beyond each bound
FEWEST = 20  # images that a cluster needs for bounds of its own (else it takes those of all), and "alike" needs
SLACK = 1e-3  # beyond a bound by less is rounding
# Shares beyond a bound that were measured (docs/results.md): 7 to 9 % of the other half of the same set, 13 % where
# only 300 images were trained on; 16 % of darkened digits, 56 % of moved ones, 66 to 74 % of other things altogether.
EXPECTED, CLEARLY = 0.10, 0.25
CERTAINTY = 0.01  # chance of saying "different" where the share in truth is just EXPECTED

Verdict = Literal["alike", "somewhat different", "different", "too few to tell"]


@dataclass(frozen=True, eq=False)
class Reference:
    """What the training images look like to the network."""

    centres: np.ndarray  # (K,D) mean of unit-norm features; of an empty cluster zeros, which nothing is near to
    confidence: np.ndarray  # (K,) the lowest that is usual
    distance: np.ndarray  # (K,) the largest that is usual, Euclidean, of unit-norm features
    typical: np.ndarray  # (K,) median distance

    @classmethod
    def of(cls, features: Tensor, probabilities: Tensor) -> Reference:
        """Of training images, (n,D) and (n,K), or of a sample of them."""
        rows, n_clusters = F.normalize(features.float(), dim=1).numpy(), probabilities.shape[1]
        confidence, clusters = (part.numpy() for part in probabilities.float().max(dim=1))
        sums = np.zeros((n_clusters, rows.shape[1]))
        np.add.at(sums, clusters, rows)
        sizes = np.bincount(clusters, minlength=n_clusters)
        centres = (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)
        distance = np.linalg.norm(rows - centres[clusters], axis=1)
        return cls(
            centres,
            _per_cluster(confidence, clusters, sizes, TAIL),
            _per_cluster(distance, clusters, sizes, 1 - TAIL),
            _per_cluster(distance, clusters, sizes, 0.5),
        )

    def write(self, folder: Path) -> None:
        with unfinished(folder / REFERENCE_FILE) as partial:
            partial.write_bytes(save(vars(self), SEAL))
            seal(partial)

    @classmethod
    def read(cls, folder: Path, n_clusters: int) -> Reference | None:
        """None for runs that were made before there was such a file."""
        path = folder / REFERENCE_FILE
        if not path.is_file():
            return None
        try:
            found = cls(**load(path.read_bytes()))
            if {len(part) for part in vars(found).values()} != {n_clusters} or found.centres.ndim != 2:
                raise ValueError(f"it is not about {n_clusters} clusters")
            if odd := [name for name, part in vars(found).items() if not np.isfinite(part).all()]:
                raise ValueError(f"{odd[0]} holds NaN or infinity")
            check_seal(path)
        except (SafetensorError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged or from another run ({error}): delete it to do without") from None
        return found


@dataclass(frozen=True)
class Drift:
    """How new images compare with the training images; shares are of the new images that could be read."""

    images: int
    low_confidence: float  # share below what was usual in their cluster; TAIL of the training images are
    far: float  # share farther from the centre of their cluster than was usual; TAIL of the training images are
    distance: float  # median distance from the centre, in units of the training images' median
    verdict: Verdict

    @classmethod
    def between(cls, reference: Reference, features: Tensor, probabilities: Tensor) -> Drift | None:
        """Of new images (n,D) and (n,K); None where there is none."""
        if not len(features):
            return None
        rows = F.normalize(features.float(), dim=1).numpy()
        confidence, clusters = (part.numpy() for part in probabilities.float().max(dim=1))
        distance = np.linalg.norm(rows - reference.centres[clusters], axis=1)
        low = ~(confidence >= reference.confidence[clusters] - SLACK)  # so that NaN is never usual
        far = ~(distance <= reference.distance[clusters] + SLACK)
        relative = distance / np.maximum(reference.typical[clusters], SLACK)
        verdict = _verdict(max(int(low.sum()), int(far.sum())), len(rows))
        return cls(len(rows), float(low.mean()), float(far.mean()), float(np.median(relative)), verdict)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "expected": TAIL}

    def lines(self) -> list[str]:
        """The figures, and what they mean."""
        return [
            f"low confidence    {self.low_confidence:6.1%} of the new images, {TAIL:.0%} of the training images",
            f"far from centre   {self.far:6.1%} of the new images, {TAIL:.0%} of the training images",
            f"typical distance  {self.distance:6.2f} times that of the training images",
            _MEANING[self.verdict],
        ]


_MEANING: dict[Verdict, str] = {
    "alike": "the new images look like those the run was trained on",
    "somewhat different": (
        "the new images look somewhat different from those the run was trained on, or these were few: look at the rows "
        "with the lowest confidence, and fit again with all images if their clusters are wrong"
    ),
    "different": (
        "the new images do not look like those the run was trained on, and their clusters may mean little: "
        "fit again with all images"
    ),
    "too few to tell": "too few new images to tell whether they look like those the run was trained on",
}


def _per_cluster(values: np.ndarray, clusters: np.ndarray, sizes: np.ndarray, level: float) -> np.ndarray:
    """A quantile of the values (n,) of each cluster, (K,) float32."""
    result = np.full(len(sizes), np.quantile(values, level))
    for cluster in np.flatnonzero(sizes >= FEWEST):
        result[cluster] = np.quantile(values[clusters == cluster], level)
    return result.astype(np.float32)


def _verdict(beyond: int, count: int) -> Verdict:
    """What `beyond` of `count` images past a bound say, with luck taken into account."""
    from scipy.special import bdtrc  # the tail of a binomial, without half a second for all of scipy.stats

    if bdtrc(beyond - 1, count, CLEARLY) <= CERTAINTY:
        return "different"
    if bdtrc(beyond - 1, count, EXPECTED) <= CERTAINTY:
        return "somewhat different"
    return "alike" if count >= FEWEST else "too few to tell"
