"""Whether a method yields what the engine expects (base.py), told in words before a wrong shape, or a name that the
engine uses itself, turns into wrong numbers.

Of a step only types, shapes and devices are looked at, which the host knows: nothing waits. Shapes: N batch,
K clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from twincluster.config import Config
from twincluster.errors import InputError
from twincluster.methods.base import Outcome

RECORDED = {  # in a row of metrics.jsonl, whatever the method
    "epoch", "steps", "loss", "confidence", "agreement", "mean_assignment", "histogram", "on_batch_acc", "progress",
    "seconds",
}  # fmt: skip


def checked(outcome: Outcome, config: Config, samples: Tensor) -> Outcome:
    """The outcome of these samples itself; InputError names what is wrong with it."""
    for problem in _problems(outcome, config.n_clusters, samples):
        raise InputError(f"{config.method}.losses: {problem}")
    return outcome


def checked_numbers(numbers: dict[str, float], config: Config) -> dict[str, float]:
    """What `after_epoch` returned itself; InputError names what is wrong with it."""
    for problem in _problems_between(numbers):
        raise InputError(f"{config.method}.after_epoch: {problem}")
    return numbers


def _problems_between(numbers: dict[str, float]) -> Iterator[str]:
    if not isinstance(numbers, dict):
        yield f"it returned {_kind(numbers)}, expected a dict of numbers, {{}} for none"
    for name, value in numbers.items():
        yield from _of_name(repr(name), name)
        if not isinstance(value, int | float):  # torch and numpy have others, which JSON does not know
            yield f"{name!r} is {_kind(value)}, expected a number of Python: make it a float, or leave it out"
        if not math.isfinite(value):
            yield f"{name!r} is {value}: leave it out in epochs that have no such number"


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
        yield from _of_name(f"metrics[{name!r}]", name)
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


def _of_name(told: str, name: object) -> Iterator[str]:
    if not isinstance(name, str):
        yield f"{told} is named by {_kind(name)}, expected a str"
    if name in RECORDED:
        yield f"{told} has a name under which every run records something: choose another"


def _of_tensor(name: str, value: Tensor, device: torch.device) -> Iterator[str]:
    if not isinstance(value, Tensor):
        yield f"{name} is {_kind(value)}, expected a tensor"
    if value.device != device:
        yield f"{name} is on {value.device}, expected {device}"


def _kind(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
