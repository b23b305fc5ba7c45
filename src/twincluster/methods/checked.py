"""Whether a step yields what the engine expects (base.py), told in words before a wrong shape turns into wrong numbers.

Only types, shapes and devices are looked at, which the host knows: nothing waits. Shapes: N batch, K clusters.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from twincluster.config import Config
from twincluster.errors import InputError
from twincluster.methods.base import Outcome


def checked(outcome: Outcome, config: Config, samples: Tensor) -> Outcome:
    """The outcome of these samples itself; InputError names what is wrong with it."""
    for problem in _problems(outcome, config.n_clusters, samples):
        raise InputError(f"{config.method}.losses: {problem}")
    return outcome


def _problems(outcome: Outcome, n_clusters: int, samples: Tensor) -> Iterator[str]:
    if not isinstance(outcome, Outcome):
        yield f"it returned {_kind(outcome)}, expected an Outcome"
    for name, held in (("memory", outcome.memory), ("metrics", outcome.metrics)):
        if not isinstance(held, dict):
            yield f"{name} is {_kind(held)}, expected a dict of tensors"
    yield from _of_number("loss", outcome.loss, samples.device)
    if not outcome.loss.requires_grad:
        yield "the loss has no gradient: it was detached, or made of nothing that is trained"
    yield from _of_assignments(outcome, n_clusters, samples)
    for name, value in outcome.metrics.items():
        yield from _of_number(f"metrics[{name!r}]", value, samples.device)


def _of_assignments(outcome: Outcome, n_clusters: int, samples: Tensor) -> Iterator[str]:
    for name, q in (("assignment", outcome.assignment), ("key_assignment", outcome.key_assignment)):
        yield from _of_tensor(name, q, samples.device)
        if not n_clusters and q.dim() == 2:  # left to the data: until it is chosen the method has a number of its own
            n_clusters = q.shape[1]
        if q.shape != (len(samples), n_clusters):
            yield f"{name} is {tuple(q.shape)}, expected ({len(samples)}, {n_clusters or 'K'})"
        if not q.is_floating_point():
            yield f"{name} is of {q.dtype}, expected probabilities"


def _of_number(name: str, value: Tensor, device: torch.device) -> Iterator[str]:
    yield from _of_tensor(name, value, device)
    if value.dim():
        yield f"{name} is {tuple(value.shape)}, expected one number: take its mean or sum"


def _of_tensor(name: str, value: Tensor, device: torch.device) -> Iterator[str]:
    if not isinstance(value, Tensor):
        yield f"{name} is {_kind(value)}, expected a tensor"
    if value.device != device:
        yield f"{name} is on {value.device}, expected {device}"


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
