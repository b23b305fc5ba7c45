"""The equations once more, slowly: loops over plain Python numbers, written from the paper and not from the code.

Below them, the random arrays they are tried on. Shapes: N samples, K clusters, D features, J and L rows of Q and P.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-5}


def dot(one: Sequence[float], two: Sequence[float]) -> float:
    return math.fsum(float(a) * float(b) for a, b in zip(one, two, strict=True))


def unit(vector: Sequence[float]) -> list[float]:
    norm = math.sqrt(dot(vector, vector))
    return [float(value) / norm for value in vector]


def softmax(logits: Sequence[float]) -> list[float]:
    powers = [math.exp(logit) for logit in logits]
    return [power / math.fsum(powers) for power in powers]


def info_nce(query: Sequence[float], key: Sequence[float], negatives: list, temperature: float) -> float:
    """log of a fraction, exactly as Eq. 1 is printed, for one query."""
    own = math.exp(dot(query, key) / temperature)
    others = [math.exp(dot(query, negative) / temperature) for negative in negatives]
    return math.log(own / (own + math.fsum(others)))


def sample(probabilities: Sequence[float], noise: Sequence[float], temperature: float) -> list[float]:
    return softmax([(math.log(p) + e) / temperature for p, e in zip(probabilities, noise, strict=True)])


def assignment(features: Array, prototypes: Array, temperature: float = 1.0) -> list[list[float]]:
    return [softmax([dot(mu, f) / temperature for mu in prototypes]) for f in features]


def clusters(features: Array, weights: list[list[float]] | Array) -> list[list[float]]:
    n_clusters, n_features = len(weights[0]), len(features[0])
    sums = [[0.0] * n_features for _ in range(n_clusters)]
    for k, i, d in itertools.product(range(n_clusters), range(len(features)), range(n_features)):
        sums[k][d] += float(weights[i][k]) * float(features[i][d])
    return [unit(row) for row in sums]


def cluster_terms(clusters: list, keys: list, stored: list[tuple[int, list]], temperature: float) -> list[float]:
    """-log p(k | r_k) for each k; `stored` says for each row of P that was written which cluster it represents."""
    terms = []
    for k, (cluster, key) in enumerate(zip(clusters, keys, strict=True)):
        negatives = [row for owner, row in stored if owner != k]
        terms.append(-info_nce(cluster, key, negatives, temperature))
    return terms


def entropy(probabilities: Sequence[float]) -> float:
    return -math.fsum(p * math.log(p) for p in probabilities)


def dec(features: Array, prototypes: Array) -> float:
    """KL(P||Q) per sample, after Xie et al. 2016: q is a Student-t similarity, p its sharpened, balanced target."""
    q = []
    for f in features:
        gaps = [[float(a) - float(b) for a, b in zip(f, mu, strict=True)] for mu in prototypes]
        similarities = [1 / (1 + dot(gap, gap)) for gap in gaps]
        q.append([similarity / sum(similarities) for similarity in similarities])
    frequency = [math.fsum(row[k] for row in q) for k in range(len(prototypes))]
    divergence = 0.0
    for row in q:
        sharpened = [value**2 / frequency[k] for k, value in enumerate(row)]
        target = [value / sum(sharpened) for value in sharpened]
        divergence += math.fsum(p * math.log(p / value) for p, value in zip(target, row, strict=True))
    return divergence / len(q)


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.normal(size=shape) for shape in shapes]


def units(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    return [array / np.linalg.norm(array, axis=-1, keepdims=True) for array in arrays(*shapes, seed=seed)]


def tensor(array: object, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(np.asarray(array), dtype=dtype)


def close(found: Tensor, wanted: object, dtype: torch.dtype = torch.float64) -> None:
    assert found.dtype == dtype
    np.testing.assert_allclose(found.detach().double().numpy(), np.asarray(wanted), rtol=0, atol=TOLERANCES[dtype])
