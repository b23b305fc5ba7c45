"""Whether the fast ways of taking a step compute what the plain way computes, from one seed, step by step.

The plain way is eager, in full float32, on images that lie on the device; the tests hold it to a loop of their own.
Each other way takes every step twice: from the state that the plain way had there, which the tolerances are for, and
running free, where the smallest rounding error grows. Convolutions do without TensorFloat-32 and sum in one order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import noise_images
from benchmarks.feed import feed_of
from benchmarks.train import title_of
from twincluster.config import Config, Precision
from twincluster.data import Images
from twincluster.methods import Anchored
from twincluster.training import Trainer
from twincluster.training.cuda_graph import Step, captured

STEPS = 20
LOSS: dict[Precision, float] = {"float32": 1e-4, "bf16": 2e-2}  # tolerance, against the larger of the plain loss and 1
UPDATE: dict[Precision, float] = {"float32": 5e-2, "bf16": 0.5}  # of what a step does to weights and memory
RESOLUTION = 2e-6  # of float32, times 30: a part that moves by less has not been seen to move
LATE = (1, 0.9)  # epoch and progress at which every part of a loss has its weight
BACKEND = "inductor"  # of compilation on a CPU

State = dict[str, Tensor]


@dataclass(frozen=True)
class Way:
    """Of taking steps."""

    name: str
    graph: bool = False
    compiled: bool = False
    precision: Precision = "float32"
    streamed: bool = False


PLAIN = Way("eager, float32")
WAYS = {
    "cpu": (Way("streamed", streamed=True), Way("compiled", compiled=True)),
    "cuda": (
        Way("streamed", streamed=True),
        Way("graph", graph=True),
        Way("graph, streamed", graph=True, streamed=True),
        Way("graph, compiled", graph=True, compiled=True),
        Way("eager, bf16", precision="bf16"),
        Way("graph, compiled, bf16", graph=True, compiled=True, precision="bf16"),
    ),
}


@dataclass(frozen=True)
class Course:
    """The plain way."""

    losses: list[float]
    states: list[State]  # before each step, and after the last


@dataclass(frozen=True)
class Differences:
    """Of another way from the plain one, the largest of all steps."""

    loss: float  # each step from the plain state
    update: float  # of weights and memory
    free: float  # of a loss, each step from its own state

    def within(self, precision: Precision) -> bool:
        return self.loss <= LOSS[precision] and self.update <= UPDATE[precision]  # also false for nan


@dataclass(frozen=True)
class Sameness:
    title: str
    plain: Course
    others: dict[Way, Differences]

    @property
    def outside(self) -> list[str]:
        """The ways that are not within the tolerance."""
        return [way.name for way, found in self.others.items() if not found.within(way.precision)]

    def to_text(self) -> str:
        first, *_, last = self.plain.losses
        lines = [
            f"{self.title}, {len(self.plain.losses)} steps from one seed",
            f"{PLAIN.name}: losses from {first:.6f} to {last:.6f}; the others differ from it by at most",
            f"{'':26}{'loss':>10}{'of':>8}{'update':>10}{'of':>8}{'':>5}{'loss, running free':>21}",
        ]
        for way, found in self.others.items():
            step = f"{found.loss:>10.1e}{LOSS[way.precision]:>8.0e}{found.update:>10.1e}{UPDATE[way.precision]:>8.0e}"
            said = "NO" if way.name in self.outside else "ok"
            lines.append(f"{way.name:26}{step}{said:>5}{found.free:>21.1e}")
        verdict = "all within the tolerance"
        if self.outside:
            verdict = f"outside of the tolerance: {'; '.join(self.outside)}"
        return "\n".join([*lines, verdict])


def measure(config: Config, steps: int) -> Sameness:
    """All ways that the device knows. `config` is resolved."""
    count = max(steps * config.train.batch_size, config.n_clusters)
    images = noise_images(count, config.train.image_size)
    with exactly():
        trainer, step = made(config, images, PLAIN)
        states: list[State] = []
        losses = taken(trainer, step, steps, lambda position: states.append(_copied(trainer.state())))
        states.append(_copied(trainer.state()))
        plain = Course(losses, states)
        others = {way: differences(config, images, way, plain) for way in WAYS[config.train.device]}
    return Sameness(title_of(config).replace(f", {config.train.precision} on", " on"), plain, others)


@contextmanager
def exactly() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.deterministic
    cudnn.allow_tf32, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.deterministic = before


def differences(config: Config, images: Images, way: Way, plain: Course) -> Differences:
    trainer, step = made(config, images, way)
    count, before = len(plain.losses), _copied(trainer.state())
    free = taken(trainer, step, count)
    trainer.put_back(before)
    ends: list[dict[str, Tensor]] = []  # of each step, and first the beginning

    def realign(position: int) -> None:
        ends.append(_parts(trainer.state()))
        trainer.put_back(plain.states[position])

    losses = taken(trainer, step, count, realign)
    ends.append(_parts(trainer.state()))
    along = [_parts(state) for state in plain.states]
    updates = [_update(*three) for three in zip(ends[1:], along[:-1], along[1:], strict=True)]
    return Differences(_largest(losses, plain.losses), max(updates), _largest(free, plain.losses))


def _update(end: dict[str, Tensor], start: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """How far a step ended from where the plain one did, against the way that one went; the largest of all parts."""
    found = []
    for name, part in wanted.items():
        way = max(float((part - start[name]).norm()), RESOLUTION * float(part.norm()), 1e-12)
        found.append(float((end[name] - part).norm()) / way)
    return max(found) if all(map(math.isfinite, found)) else math.nan


def made(config: Config, images: Images, way: Way) -> tuple[Trainer, Step]:
    train = replace(config.train, precision=way.precision, compile=way.compiled)
    trainer = Trainer(replace(config, train=train), images)
    trainer.feed = feed_of(config, images, resident=not way.streamed)
    _amid(trainer)
    if way.compiled:
        torch._dynamo.reset()
    if way.graph:
        return trainer, captured(trainer)
    if way.compiled:
        trainer.losses = torch.compile(trainer.losses, backend=BACKEND)
        trainer.view = torch.compile(trainer.view, backend=BACKEND)
    return trainer, trainer.step


def taken(
    trainer: Trainer, step: Step, steps: int, before: Callable[[int], None] = lambda position: None
) -> list[float]:
    """The losses of so many steps; `before` each of them the caller may look, or change the state."""
    losses = []
    for position, _ in zip(range(steps), trainer.feed.epoch(0), strict=False):
        before(position)
        if total := trainer.record.totals:
            total["loss"].zero_()
        step()
        losses.append(float(trainer.record.totals["loss"]))
    return losses


def _largest(losses: list[float], plain: list[float]) -> float:
    pairs = zip(losses, plain, strict=True)
    found = [abs(loss - other) / max(1.0, abs(other)) for loss, other in pairs]
    return max(found) if all(math.isfinite(value) for value in found) else math.nan


def _copied(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def _parts(state: State) -> dict[str, Tensor]:
    """The numbers of each part of a method (networks, queues, banks), one after another; statistics of batch-norm and
    counters are left out, which move in steps of another size."""
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for name, tensor in state.items():
        owner, part, *_ = name.split(".")
        if owner == "method" and tensor.is_floating_point() and not name.endswith(("running_mean", "running_var")):
            parts[part].append(tensor.flatten())
    return {part: torch.cat(tensors) for part, tensors in parts.items()}


def _amid(trainer: Trainer) -> None:
    """Put a run to where the rate is full and all parts of a loss count; clusters are made up, the same for all."""
    rate = trainer.config.optimiser.learning_rate
    for group in trainer.optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    method = trainer.method
    method.schedule(*LATE)
    if isinstance(method, Anchored):  # which would find them after the first epoch
        with torch.no_grad():
            method.labels.copy_(torch.arange(len(method.labels)) % method.n_clusters)
            method.sure.fill_(True)
            generator = torch.Generator().manual_seed(0)
            method.prototypes.copy_(F.normalize(torch.randn(method.prototypes.shape, generator=generator), dim=1))
