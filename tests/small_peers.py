"""The peers with sizes so small that a run takes a moment, and which tests they share."""

from typing import Any

import torch
from torch import Tensor

from small_runs import make
from twincluster.methods import METHODS, Method, Outcome
from twincluster.nn import draws

OWN_FILES = [name for name in METHODS if name != "anchored" and not name.startswith("tcc")]
SMALL_OWN = {  # what matters to a test; the width of heads and queues is what costs
    "moco": ("own.queue_size=16", "own.n_features=8", "own.hidden=16"),
    "cc": ("own.n_features=8", "own.hidden=16"),
    "swav": ("own.queue_size=16", "own.n_features=8", "own.hidden=16", "own.queue_start=0.5", "own.frozen=0.3"),
    "deepcluster_v2": ("own.n_features=8", "own.hidden=16", "own.n_clusterings=2", "own.n_prototypes=4"),
    "mice": ("own.queue_size=16", "own.n_features=16", "own.ema=0.9"),
    "propos": ("own.n_features=8", "own.hidden=16", "own.start=0.3"),
    "idfd": ("own.n_features=8",),
    "scan": ("own.n_features=8", "own.hidden=16", "own.neighbours=3", "own.cluster_start=0.2", "own.threshold=0.4"),
    "cdc": (
        *("own.queue_size=16", "own.n_features=8", "own.hidden=16"),
        *("own.head_hidden=12", "own.spread_steps=10", "own.cluster_start=0.2"),
    ),
    "iic": ("own.n_heads=2", "own.repeats=2", "own.over_clusters=5", "own.cluster_epochs=1"),
    "pica": ("own.repeats=2", "own.over_clusters=5"),
    "jule": ("own.n_features=8", "own.neighbours=4", "own.negatives=3", "own.merge_epochs=1", "own.merge_share=0.3"),
    "dec": ("own.n_features=4", "own.hidden=16", "own.cluster_start=0.2"),
    "dac": (),
    "dccm": ("own.hidden=16", "own.graph_threshold=0.8", "own.label_threshold=0.4"),
    "adc": ("own.n_features=6", "own.n_centroids=2", "own.repeats=2", "own.cluster_start=0.2"),
    "gatcluster": ("own.n_features=4",),
    "mmdc": ("own.refine_start=0.6",),
    "dccs": ("own.n_style=3", "own.hidden=12", "optimiser.name=adam", "optimiser.learning_rate=0.001"),
    "ae": ("own.n_features=8", "own.width=4"),
    "dae": ("own.n_features=8", "own.width=4"),
    "vae": ("own.n_features=8", "own.width=4"),
    "decnn": ("own.width=4",),
    "dcgan": ("own.n_noise=6", "own.width=4"),
    "pcl": (
        *("own.queue_size=16", "own.n_features=8", "own.hidden=16"),
        *("own.n_clusterings=2", "own.finest=1.0", "own.start=0.2"),
    ),
    "sccl": ("own.n_features=8", "own.cluster_start=0.2"),
    "vade": ("own.n_features=4", "own.width=4", "own.cluster_start=0.2"),
    "spice": ("own.queue_size=16", "own.n_features=8", "own.hidden=16", "own.cluster_start=0.2"),
    "ruc": (),
    "scl": ("own.queue_size=16", "own.n_features=8", "own.hidden=16", "own.cluster_start=0.2"),
    "dhog": ("own.n_heads=2", "own.hidden=16"),
    "ddc": (),
}


def small(name: str) -> tuple[str, ...]:
    return (f"method={name}", *SMALL_OWN.get(name, ()))


N = 8
SAMPLES = torch.arange(N) * 3
KEYS = draws.sample_keys(0, torch.tensor(0), SAMPLES)


def method_of(name: str, *changes: str, kind: str = "rows") -> Any:
    """A method midway: weights of the momentum copy lag behind, and clusters, where they come from k-means, are set."""
    method = make(kind, *small(name), *changes).method.double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part, weight in method.named_parameters():
            if part.startswith("momentum."):
                weight += 0.1 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    method.schedule(1, 1.0)
    return method


def views_of(method: Method, count: int = 2) -> tuple[Tensor, ...]:
    shape = (N, 3, 8, 8) if method.online.side else (N, 5)
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(count))


def step(method: Method, views: tuple[Tensor, ...] | None = None) -> Outcome:
    return method.losses(views or views_of(method), SAMPLES, KEYS)


def directions(*shape: int, seed: int = 3) -> Tensor:
    """Random rows of unit norm."""
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=-1)
