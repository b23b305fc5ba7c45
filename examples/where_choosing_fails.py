"""Made-up features on which the number of clusters is chosen wrongly, or at least in doubt: docs/results.md.

Run it by python examples/where_choosing_fails.py, which prints a line, and the reason for any doubt, for each of them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import Choice, choose_clusters

SIZES = (600, 300, 200, 150, 120)


def blobs(sizes: tuple[int, ...], d: int, noise: float = 0.0) -> Tensor:
    """Unit rows around random directions, so many of each; `noise` goes to two coordinates that tell nothing."""
    generator = torch.Generator().manual_seed(0)
    middle = F.normalize(torch.randn(len(sizes), d, generator=generator), dim=1)
    origin = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    rows = middle[origin] + torch.randn(len(origin), d, generator=generator) / d**0.5
    rows[:, :2] += noise * torch.randn(len(rows), 2, generator=generator)
    return F.normalize(rows, dim=1)


def tell(what: str, choice: Choice, shown: tuple[int, ...] = ()) -> None:
    scores = {tried.n_clusters: tried.score for tried in choice.candidates}
    listed = ", ".join(f"{k}: {scores[k]:.2f}" for k in sorted({choice.n_clusters, *shown} & scores.keys()))
    print(f"{what:42} {'clear' if choice.clear else 'cannot tell'}, {choice.n_clusters} ({listed})")
    if choice.reason:
        print(f"{'':42} {choice.reason}")


if __name__ == "__main__":
    few, many = (tuple(times * size for size in SIZES) for times in (1, 10))
    tell("five uneven blobs, 1,370 rows", choose_clusters(blobs(few, 48), 2, 12, seed=0), (3, 5))
    tell("five uneven blobs, 13,700 rows", choose_clusters(blobs(many, 48), 2, 12, seed=0), (2, 3, 5))
    for noise in (0.3, 0.6, 1.0):
        tell(f"the first, noise of {noise}", choose_clusters(blobs(few, 48, noise), 2, 12, seed=0), (5,))
    noise = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
    tell("three directions of noise", choose_clusters(noise, 2, 12, seed=0))
    tell("40 even blobs, 2,400 rows", choose_clusters(blobs((60,) * 40, 64), 20, 70, seed=0), (40,))
