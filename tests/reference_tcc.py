"""One step of TCC once more, slowly, from what the networks return; and the small models that steps are tried on.

Shapes: N samples of a batch, K clusters, D features, J and L rows of the queues Q and P.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

import reference_losses as slow
from twincluster.config import DataShape
from twincluster.config import schema as config
from twincluster.methods import METHODS, Batch, Outcome, Tcc
from twincluster.methods.tcc import KEY_GUMBEL, ONLINE_GUMBEL, Reading, TccNetwork
from twincluster.nn import draws

N, K, D, J, L = 12, 4, 6, 30, 12
SHAPE = DataShape(n_samples=64, side=8, n_inputs=3, mean=(0.5,) * 3, std=(0.25,) * 3)
ROWS = DataShape(n_samples=64, side=0, n_inputs=5, mean=(0.0,) * 5, std=(1.0,) * 5)
SAMPLES = torch.arange(N) * 5
KEYS = draws.sample_keys(3, torch.tensor(2), SAMPLES)


def fresh(name: str = "tcc", shape: DataShape = SHAPE, **settings: object) -> Tcc:
    """The same small model for every call: equal seeds, equal weights, whatever the method."""
    backbone = "small" if shape.side else "mlp"
    values = {"n_features": D, "instance_queue": J, "cluster_queue": L, **settings}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method = METHODS[name](
            config.Config(
                method=name,
                n_clusters=K,
                train=config.Train(backbone=backbone, precision="float32"),
                groups={"tcc": values},
            ),
            shape,
        )
    assert isinstance(method, Tcc)
    return method


def build(name: str = "tcc", shape: DataShape = SHAPE, **settings: object) -> Tcc:
    """A model in the midst of training: momentum networks that lag behind, P that has wrapped, Q half full."""
    method = fresh(name, shape, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in method.momentum.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
        for _ in range(L // K + 1):
            method.cluster_queue.push(F.normalize(torch.randn(K, D, generator=generator), dim=1))
        method.instance_queue.push(F.normalize(torch.randn(J // 2, D, generator=generator), dim=1))
    return method


def pictures(seed: int = 0, n: int = N, shape: DataShape = SHAPE) -> Tensor:
    size = (n, shape.n_inputs, shape.side, shape.side) if shape.side else (n, shape.n_inputs)
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def batches(count: int = 4, size: int = 8) -> Iterator[Batch]:
    """All of a set once, as methods see it between epochs; the paper's look at augmented images alone."""
    for number in range(count):
        samples = torch.arange(size) + number * size
        yield Batch(
            samples,
            draws.sample_keys(0, torch.tensor(0), samples),
            view=lambda i, number=number: pictures(100 * number + i, n=size),
            plain=lambda: pytest.fail("these are images without augmentation"),
        )


def three_views(shape: DataShape = SHAPE) -> tuple[Tensor, Tensor, Tensor]:
    return pictures(1, shape=shape), pictures(2, shape=shape), pictures(3, shape=shape)


def step(method: Tcc, views: tuple[Tensor, ...] | None = None, keys: Tensor = KEYS) -> Outcome:
    """The losses of a step and nothing after them; another step from the same state yields the same."""
    views = views or three_views(SHAPE if method.online.side else ROWS)
    return method.losses(views[: n_views(method)], SAMPLES, keys)


def n_views(method: Tcc) -> int:
    return 3 if isinstance(method, METHODS["tcc-without-image-augmentation"]) else 2


def reading(labels: list[int], seed: int) -> Reading:
    """Samples with random features whose most likely clusters are `labels`."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.rand(len(labels), K, generator=random)
    logits[torch.arange(len(labels)), torch.tensor(labels)] += 1.5
    features = torch.randn(len(labels), D, generator=random)
    return Reading(features.requires_grad_(), logits.log_softmax(1), logits.softmax(1))


def gradients(method: Tcc, loss: Tensor) -> dict[str, Tensor]:
    """By name; zeros where no gradient arrives."""
    weights = dict(method.online.named_parameters())
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {
        name: torch.zeros_like(weight) if gradient is None else gradient
        for (name, weight), gradient in zip(weights.items(), found, strict=True)
    }


@dataclass
class Side:
    """What one network makes of one view, in plain numbers."""

    features: NDArray[np.float64]
    assignments: list[list[float]]
    noise: NDArray[np.float64]
    network: TccNetwork

    def samples(self) -> list[list[float]]:
        rows = zip(self.assignments, self.noise, strict=True)
        return [slow.sample(pi, noise, self.network.settings.gumbel_temperature) for pi, noise in rows]

    def shift(self, sample: list[float]) -> list[float]:
        layer = self.network.assignment_shift
        return [
            slow.dot(row, sample) + bias for row, bias in zip(numbers(layer.weight), numbers(layer.bias), strict=True)
        ]

    def embeddings(self) -> list[list[float]]:
        return [
            slow.unit([a + b for a, b in zip(f, self.shift(c), strict=True)])
            for f, c in zip(self.features, self.samples(), strict=True)
        ]


def sides(method: Tcc, views: tuple[Tensor, ...] | None = None, keys: Tensor = KEYS) -> tuple[Side, Side]:
    """The features come from the networks; everything after them is computed here."""
    first, second, *_ = views or three_views(SHAPE if method.online.side else ROWS)
    return side(method.online, first, keys, ONLINE_GUMBEL), side(method.momentum, second, keys, KEY_GUMBEL)


def side(network: TccNetwork, images: Tensor, keys: Tensor, stream: int) -> Side:
    settings = network.settings
    features = numbers(copy.deepcopy(network).embed(images))
    mu, f = numbers(network.prototypes), features
    if settings.unit_norm:
        mu, f = (np.array([slow.unit(row) for row in rows]) for rows in (mu, f))
    assignments = slow.assignment(f, mu, settings.assignment_temperature)
    return Side(features, assignments, numbers(draws.gumbel(keys, stream, K)), network)


def slow_l1(method: Tcc, online: Side, key: Side) -> float:
    clusters, keys = (slow.clusters(side.features, side.assignments) for side in (online, key))
    return float(np.mean(slow.cluster_terms(clusters, keys, stored(method), method.settings.temperature)))


def stored(method: Tcc) -> list[tuple[int, list[float]]]:
    """The rows of P that were written, with the cluster each belongs to: blocks of K, written one after another."""
    queue = method.cluster_queue
    return [(row % K, list(queue.rows[row])) for row in range(min(int(queue.written), L))]


def slow_l2(method: Tcc, online: Side, key: Side) -> float:
    written = min(int(method.instance_queue.written), J)
    negatives = list(numbers(method.instance_queue.rows)[:written])
    pairs = zip(online.embeddings(), key.embeddings(), strict=True)
    nll = [-slow.info_nce(e, other, negatives, method.settings.temperature) for e, other in pairs]
    if method.settings.entropy == "sample":
        entropy = float(np.mean([slow.entropy(pi) for pi in online.assignments]))
    else:
        entropy = slow.entropy(list(np.mean(online.assignments, 0)))
    return float(np.mean(nll)) - entropy - math.log(K)


def numbers(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().numpy()


def close(found: Tensor, wanted: object, atol: float = 3e-5) -> None:
    np.testing.assert_allclose(np.asarray(found.detach()), np.asarray(wanted), rtol=0, atol=atol)
