"""The contract between the engine and a method.

The engine owns the loop, the optimiser and the data; a method owns its networks, its losses and its memory. One step is
`views` -> `losses` -> backward -> `remember`; between epochs comes `after_epoch`. Shapes: N batch, K clusters.

Whether a method yields what the engine expects (base.py), told in words before a wrong shape, or a name that the
engine uses itself, turns into wrong numbers.

Of a step only types, shapes and devices are looked at, which the host knows: nothing waits. Shapes: N batch,
K clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import Advice
from twincluster.config import OWN, Config, DataShape
from twincluster.core import InputError
from twincluster.data import plain_images
from twincluster.nn import Pretrained, build_backbone, in_parts, load_encoder, share_batch_norm
from twincluster.parallel import ALONE, Processes

if TYPE_CHECKING:
    from twincluster.clustering import Choice


from collections import deque
from collections.abc import Iterable
from contextlib import closing

import numpy as np

from twincluster.data import Images, read_ahead

MANY = 20_000  # samples from which a GPU takes large batches


@dataclass(frozen=True)
class Batch:
    """The samples of one step. Nothing is drawn until a method asks for it."""

    samples: Tensor  # (N,) int64, positions in the data
    keys: Tensor  # (N,) int64, seeds of this epoch's random numbers (draws.py)
    view: Callable[[int], Tensor]  # the i-th random augmentation
    plain: Callable[[], Tensor]  # without augmentation


@dataclass(frozen=True)
class Outcome:
    """What a step yields: the loss to descend, what to remember once the optimiser has moved, what to record."""

    loss: Tensor
    assignment: Tensor  # (N,K) q of the first view, for the health record
    key_assignment: Tensor  # (N,K) q of the other view, to see whether the two agree
    memory: dict[str, Tensor]
    metrics: dict[str, Tensor]  # numbers, averaged over the epoch


class Network(nn.Module):
    """A backbone with whatever a method puts on top; there is an online one and a momentum copy.

    The backbone may run in bf16; what it returns, and everything after it, is float32.
    """

    mean: Tensor
    std: Tensor
    rotation: Tensor | None  # (d, components): principal directions of standardised rows
    widths: tuple[int, ...] = ()  # columns of each encoder, where rows are the features of several
    processes: Processes = ALONE  # who encodes a batch together
    parts: int = 1  # of this process's share, one in memory at a time

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.side, self.widths = shape.side, shape.widths
        n_inputs, components = shape.n_inputs, 0 if shape.side else min(config.train.components, shape.n_inputs)
        self.backbone = (
            Pretrained(load_encoder(config.train.encoder, config.encoder))
            if config.train.finetune
            else build_backbone(config.train.backbone, side=shape.side, n_inputs=components or n_inputs)
        )
        self.bf16 = config.train.precision == "bf16"
        self.register_buffer("mean", torch.tensor(shape.mean))
        self.register_buffer("std", torch.tensor(shape.std))
        rotation = torch.eye(n_inputs, components) if components else None
        self.register_buffer("rotation", rotation)  # training/row_views.py

    def prepare(self, raw: Tensor) -> Tensor:
        """Standardised input without augmentation, from uint8 images (N,H,W,3) or float rows (N,d)."""
        if not self.side:
            rows = self.standardise(raw)
            return rows if self.rotation is None else rows @ self.rotation
        return plain_images(raw, self.side, self.mean, self.std)

    def standardise(self, raw: Tensor) -> Tensor:
        """Rows (N,d) before they are turned; the features of each of several encoders count as much as the others'."""
        rows = (raw - self.mean) / self.std
        if not self.widths:
            return rows
        return torch.cat([F.normalize(part, dim=1) for part in torch.split(rows, list(self.widths), 1)], 1)

    def divide(self, processes: Processes = ALONE, parts: int = 1) -> None:
        """From now on each of the processes encodes its share of a batch, and does so in parts."""
        self.processes, self.parts = processes, parts
        share_batch_norm(self.backbone, processes)

    def backbone_features(self, images: Tensor) -> Tensor:
        """(N, n_features) float32, before any head, of all images, whoever encoded them (`divide`)."""
        features = in_parts(self._encode, self.backbone, self.processes.own(images), self.parts)
        return self.processes.gather(features, len(images))

    def _encode(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bf16):
            features: Tensor = self.backbone(images)
        return features.float() if self.bf16 else features  # float64 stays float64: the estimator's rows

    def embed(self, images: Tensor) -> Tensor:
        """The features a user gets from `transform`, (N,D)."""
        raise NotImplementedError(f"{type(self).__name__} has no embed")

    def log_assign(self, images: Tensor) -> Tensor:
        """log q(k|x), (N,K)."""
        raise NotImplementedError(f"{type(self).__name__} has no log_assign")


@dataclass(frozen=True)
class NoSettings:
    """Of methods that have none of their own."""


class Method(nn.Module):
    """Base of all methods. `online` is what is optimised and, at the end, what predicts."""

    network_type: type[Network]
    settings_type: type = NoSettings  # a frozen dataclass with defaults: what `[own]` of a recipe may hold
    groups: ClassVar[Mapping[str, type]] = {}
    large_backbone = "resnet18"  # for images above 32 pixels, where train.backbone is auto
    chooses_clusters = False  # whether n_clusters may be 0
    spared: ClassVar[Collection[str]] = ("prototypes",)  # last names of weights that weight decay leaves out
    steady_confidence = False  # whether the mean confidence is much the same on any images
    advice = Advice()  # when clusters are uniform, uneven or too even
    online: Network
    choice: Choice | None = None  # how the number of clusters was decided, where the method was left to decide it

    @classmethod
    def setting_groups(cls) -> dict[str, type]:
        """Return the dataclass of each group of settings that the method reads, beside those of every run."""
        own = {} if cls.settings_type is NoSettings else {OWN: cls.settings_type}
        return {**cls.groups, **own}

    @classmethod
    def batch_size(cls, config: Config, n_samples: int, device: str) -> int:
        """Return the batch size for train.batch_size=0."""
        return 512 if device == "cuda" and n_samples >= MANY else 128  # a CPU gains nothing but memory use

    @classmethod
    def resolve(cls, config: Config, n_samples: int) -> Config:
        """Return the config with the method's own derived settings; InputError for values that do not fit the data."""
        return config

    def schedule(self, epoch: int, progress: float) -> None:
        """Called before every step with the share of the run that is done; sets weights that are held as buffers."""

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        """The augmented images a step needs: two views unless a method says otherwise."""
        return batch.view(0), batch.view(1)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        raise NotImplementedError(f"{type(self).__name__} has no losses")

    def remember(self, memory: dict[str, Tensor]) -> None:
        """After the optimiser's step, without gradient: momentum copies, queues, banks."""

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Between epochs; returns metrics, finite and under names that the engine does not use. Each call of
        `batches` walks all of the data once; its last two batches may be smaller."""
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        """After the last epoch. `embed` gives the features of all samples without augmentation, (n_samples,F)."""


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


CHUNK_PIXELS = {"cpu": 256 * 32 * 32, "cuda": 2048 * 32 * 32}  # go through a network at once; a CPU gains by less
CHUNK_ROWS = 8192
BEHIND = 3  # results that may be on their way from a GPU before the host waits for one


def predict(network: Network, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    """q(k|x) of the given rows of `pixels`, (n,K) float32 on the CPU."""
    return _apply(network, network.log_assign, pixels, rows).exp()


def embed(network: Network, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    """Features of the given rows of `pixels`, (n,D) float32 on the CPU."""
    return _apply(network, network.embed, pixels, rows)


def spread(result: Tensor, images: Images) -> np.ndarray:
    """One row per input of what was found for those that could be read; nan for the others."""
    rows = result.new_full((len(images.status), result.shape[1]), torch.nan)
    rows[images.usable] = result
    return rows.numpy()


@torch.no_grad()
def _apply(network: Network, function: Callable[[Tensor], Tensor], pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    was_training = network.training
    network.eval()
    size = chunk_size(network, pixels)
    parts = [rows[start : start + size] for start in range(0, max(1, len(rows)), size)]  # no rows give a result of none
    with closing(read_ahead(pixels, parts, network.mean.device)) as chunks:
        results = list(_on_host(function(network.prepare(raw)) for raw in chunks))
    network.train(was_training)
    return torch.cat(results)


def chunk_size(network: Network, pixels: np.ndarray) -> int:
    """Samples that go through a network at once."""
    if not network.side:
        return CHUNK_ROWS
    side: int = max(network.side, pixels.shape[1])
    return max(1, CHUNK_PIXELS[network.mean.device.type] // side**2)


def _on_host(found: Iterable[Tensor]) -> Iterator[Tensor]:
    """Results, moved to the CPU; the host waits for a GPU only when that is BEHIND chunks ahead of it."""
    waiting: deque[tuple[Tensor, torch.cuda.Event]] = deque()
    for result in found:
        if not result.is_cuda:
            yield result
            continue
        pinned = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
        pinned.copy_(result, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        waiting.append((pinned, copied))
        if len(waiting) > BEHIND:
            yield _copied(*waiting.popleft())
    for pinned, copied in waiting:
        yield _copied(pinned, copied)


def _copied(pinned: Tensor, copied: torch.cuda.Event) -> Tensor:
    copied.synchronize()
    return pinned.clone()  # in ordinary memory, of which there is more
