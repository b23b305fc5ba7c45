"""The contract between the engine and a method, checks of what a method returns, and inference with its network.

The engine owns the loop, the optimiser and the data; a method owns its networks, its losses and its memory. One step is
`views` -> `losses` -> backward -> `remember`; between epochs comes `after_epoch`. Shapes: N batch, K clusters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import Advice
from twincluster.config import OWN, Config, DataShape
from twincluster.core import InputError
from twincluster.data import Images, plain_images, read_ahead
from twincluster.nn import Pretrained, build_backbone, in_parts, load_encoder, share_batch_norm
from twincluster.parallel import ALONE, Processes

if TYPE_CHECKING:
    from twincluster.clustering import Choice

MANY = 20_000  # from this many samples on, a GPU takes large batches


@dataclass(frozen=True)
class Batch:
    """The samples of one step. Views are computed only when a method asks for them."""

    samples: Tensor  # (N,) int64, positions in the data
    keys: Tensor  # (N,) int64, seeds of this epoch's random numbers (draws.py)
    view: Callable[[int], Tensor]  # the i-th random augmentation
    plain: Callable[[], Tensor]  # without augmentation


@dataclass(frozen=True)
class Outcome:
    """The result of a step: the loss to minimise, rows to remember after the optimiser step, numbers to record."""

    loss: Tensor
    assignment: Tensor  # (N,K) q of the first view, for the health record
    key_assignment: Tensor  # (N,K) q of the other view, to record how often the two agree
    memory: dict[str, Tensor]
    metrics: dict[str, Tensor]  # numbers, averaged over the epoch


class Network(nn.Module):
    """A backbone and the method's own layers on top. A method has an online network and usually a momentum copy.

    The backbone may run in bf16; its output and everything after it is float32.
    """

    mean: Tensor
    std: Tensor
    rotation: Tensor | None  # (d, components): principal directions of standardised rows
    widths: tuple[int, ...] = ()  # columns of each encoder, where rows are the features of several
    processes: Processes = ALONE  # that encode a batch together
    parts: int = 1  # number of parts of this process's share; one is in memory at a time

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
        """Return standardised input without augmentation, from uint8 images (N,H,W,3) or float rows (N,d)."""
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
        """Divide every batch from now on: each process encodes its share, in `parts`."""
        self.processes, self.parts = processes, parts
        share_batch_norm(self.backbone, processes)

    def backbone_features(self, images: Tensor) -> Tensor:
        """Return the backbone's features of all images, (N, n_features) float32, gathered from all processes
        (`divide`).
        """
        features = in_parts(self._encode, self.backbone, self.processes.own(images), self.parts)
        return self.processes.gather(features, len(images))

    def _encode(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bf16):
            features: Tensor = self.backbone(images)
        return features.float() if self.bf16 else features  # float64 stays float64: the estimator's rows

    def embed(self, images: Tensor) -> Tensor:
        """Return the features that a user gets from `transform`, (N,D)."""
        raise NotImplementedError(f"{type(self).__name__} has no embed")

    def log_assign(self, images: Tensor) -> Tensor:
        """Return log q(k|x), (N,K)."""
        raise NotImplementedError(f"{type(self).__name__} has no log_assign")


@dataclass(frozen=True)
class NoSettings:
    """The settings of a method without settings of its own."""


class Method(nn.Module):
    """Base class of all methods. `online` is the network that is optimised and that predicts after training."""

    network_type: type[Network]
    settings_type: type = NoSettings  # a frozen dataclass with defaults: the settings in `[own]` of a recipe
    groups: ClassVar[Mapping[str, type]] = {}
    large_backbone = "resnet18"  # for images above 32 pixels, where train.backbone is auto
    chooses_clusters = False  # whether n_clusters may be 0
    spared: ClassVar[Collection[str]] = ("prototypes",)  # last part of the names of weights without weight decay
    steady_confidence = False  # whether the mean confidence hardly depends on the images
    advice = Advice()  # when clusters are uniform, uneven or too even
    online: Network
    choice: Choice | None = None  # how the number of clusters was chosen; None if it was given

    @classmethod
    def setting_groups(cls) -> dict[str, type]:
        """Return the dataclass of each group of settings that the method reads beyond those of every run."""
        own = {} if cls.settings_type is NoSettings else {OWN: cls.settings_type}
        return {**cls.groups, **own}

    @classmethod
    def batch_size(cls, config: Config, n_samples: int, device: str) -> int:
        """Return the batch size for train.batch_size=0."""
        return 512 if device == "cuda" and n_samples >= MANY else 128  # a CPU gains nothing but memory use

    @classmethod
    def resolve(cls, config: Config, n_samples: int) -> Config:
        """Return the config with the method's derived settings.

        Raise InputError for values that do not fit the data.
        """
        return config

    def refine(self, earlier: Network, probabilities: Tensor, features: Tensor) -> None:
        """Begin with a finished run, for the methods in REFINERS.

        `earlier` is its network, (n,K) and (n,D) are its assignments and features of all samples, on the CPU.
        """
        raise NotImplementedError(f"{type(self).__name__} has no refine")

    def schedule(self, epoch: int, progress: float) -> None:
        """Set weights that are held as buffers.

        Called before every step; `progress` is the finished share of the run.
        """

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the augmented images of a step: two views unless a method overrides this."""
        return batch.view(0), batch.view(1)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        raise NotImplementedError(f"{type(self).__name__} has no losses")

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Update momentum copies, queues and banks. Called after the optimiser step, without gradient."""

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Work between epochs. Return metrics: finite numbers, under names that the engine does not use.

        Each call of `batches` iterates over all of the data once; its last two batches may be smaller.
        """
        return {}

    def finish(self, embed: Callable[[Network], Tensor]) -> None:
        """Finish after the last epoch.

        `embed` returns the features of all samples without augmentation, (n_samples,F).
        """


RECORDED = {  # in each row of metrics.jsonl, for every method
    "epoch", "steps", "loss", "confidence", "agreement", "mean_assignment", "histogram", "on_batch_acc", "progress",
    "seconds",
}  # fmt: skip


def checked(outcome: Outcome, config: Config, samples: Tensor) -> Outcome:
    """Return the outcome, or raise InputError that names its problem.

    Looks only at types, shapes and devices, which the host knows, so that no step waits for the GPU.
    """
    for problem in _problems(outcome, config.n_clusters, samples):
        raise InputError(f"{config.method}.losses: {problem}")
    return outcome


def checked_numbers(numbers: dict[str, float], config: Config) -> dict[str, float]:
    """Return the result of `after_epoch`, or raise InputError that names its problem."""
    for problem in _problems_between(numbers):
        raise InputError(f"{config.method}.after_epoch: {problem}")
    return numbers


def _problems_between(numbers: dict[str, float]) -> Iterator[str]:
    if not isinstance(numbers, dict):
        yield f"it returned {_kind(numbers)}, expected a dict of numbers, {{}} for none"
    for name, value in numbers.items():
        yield from _of_name(repr(name), name)
        if not isinstance(value, int | float):  # numbers of torch and numpy cannot be written as JSON
            yield f"{name!r} is {_kind(value)}, expected a Python number: convert it to float, or leave it out"
        if not math.isfinite(value):
            yield f"{name!r} is {value}: leave it out in epochs where it is not finite"


def _problems(outcome: Outcome, n_clusters: int, samples: Tensor) -> Iterator[str]:
    if not isinstance(outcome, Outcome):
        yield f"it returned {_kind(outcome)}, expected an Outcome"
    for name, held in (("memory", outcome.memory), ("metrics", outcome.metrics)):
        if not isinstance(held, dict):
            yield f"{name} is {_kind(held)}, expected a dict of tensors"
    yield from _of_number("loss", outcome.loss, samples.device)
    if not outcome.loss.requires_grad:
        yield "the loss has no gradient: it is detached, or depends on no trained parameter"
    yield from _of_assignments(outcome, n_clusters, samples)
    for name, value in outcome.metrics.items():
        yield from _of_name(f"metrics[{name!r}]", name)
        yield from _of_number(f"metrics[{name!r}]", value, samples.device)


def _of_assignments(outcome: Outcome, n_clusters: int, samples: Tensor) -> Iterator[str]:
    for name, q in (("assignment", outcome.assignment), ("key_assignment", outcome.key_assignment)):
        yield from _of_tensor(name, q, samples.device)
        if not n_clusters and q.dim() == 2:  # K is still to be chosen: take the method's own
            n_clusters = q.shape[1]
        if q.shape != (len(samples), n_clusters):
            yield f"{name} is {tuple(q.shape)}, expected ({len(samples)}, {n_clusters or 'K'})"
        if not q.is_floating_point():
            yield f"{name} has dtype {q.dtype}, expected floating-point probabilities"


def _of_number(name: str, value: Tensor, device: torch.device) -> Iterator[str]:
    yield from _of_tensor(name, value, device)
    if value.dim():
        yield f"{name} is {tuple(value.shape)}, expected one number: take its mean or sum"


def _of_name(label: str, name: object) -> Iterator[str]:
    if not isinstance(name, str):
        yield f"the name of {label} is {_kind(name)}, expected a str"
    if name in RECORDED:
        yield f"{label} has a name that every run records itself: choose another name"


def _of_tensor(name: str, value: Tensor, device: torch.device) -> Iterator[str]:
    if not isinstance(value, Tensor):
        yield f"{name} is {_kind(value)}, expected a tensor"
    if value.device != device:
        yield f"{name} is on {value.device}, expected {device}"


def _kind(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


CHUNK_PIXELS = {"cpu": 256 * 32 * 32, "cuda": 2048 * 32 * 32}  # at a time through a network; a CPU is faster with few
CHUNK_ROWS = 8192
BEHIND = 3  # results in transfer from the GPU before the host waits for one


def predict(network: Network, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    """Return q(k|x) of the given rows of `pixels`, (n,K) float32 on the CPU."""
    return _apply(network, network.log_assign, pixels, rows).exp()


def embed(network: Network, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    """Return features of the given rows of `pixels`, (n,D) float32 on the CPU."""
    return _apply(network, network.embed, pixels, rows)


def spread(result: Tensor, images: Images) -> np.ndarray:
    """Return one row per input: its result if it could be read, otherwise nan."""
    rows = result.new_full((len(images.status), result.shape[1]), torch.nan)
    rows[images.usable] = result
    return rows.numpy()


@torch.no_grad()
def _apply(network: Network, function: Callable[[Tensor], Tensor], pixels: np.ndarray, rows: np.ndarray) -> Tensor:
    was_training = network.training
    network.eval()
    size = chunk_size(network, pixels)
    parts = [rows[start : start + size] for start in range(0, max(1, len(rows)), size)]  # at least one part
    with closing(read_ahead(pixels, parts, network.mean.device)) as chunks:
        results = list(_on_host(function(network.prepare(raw)) for raw in chunks))
    network.train(was_training)
    return torch.cat(results)


def chunk_size(network: Network, pixels: np.ndarray) -> int:
    """Return the number of samples that pass a network at once."""
    if not network.side:
        return CHUNK_ROWS
    side: int = max(network.side, pixels.shape[1])
    return max(1, CHUNK_PIXELS[network.mean.device.type] // side**2)


def _on_host(results: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield results on the CPU. The host waits only when BEHIND transfers are pending."""
    waiting: deque[tuple[Tensor, torch.cuda.Event]] = deque()
    for result in results:
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
    return pinned.clone()  # in pageable memory: pinned memory is scarce
