"""Data and settings so small that a whole run takes a moment, for the tests of the trainer and what surrounds it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twincluster.config import Config, make_config, parse_overrides
from twincluster.data import Images, open_images, open_source
from twincluster.methods import Anchored, Method
from twincluster.resolve import resolve
from twincluster.runs import Run
from twincluster.training import Reporter, Trainer

FILLED = 5  # rows of the queue of `midway`

# Everything that matters to a test is said here: defaults may change.
SMALL = make_config(
    {
        "n_clusters": 3,
        "train": {"epochs": 4, "batch_size": 8, "device": "cpu"},
        "optimiser": {"name": "sgd", "learning_rate": 0.1, "weight_decay": 1e-3, "schedule": "cosine", "warmup": 0.1},
        "anchored": {
            "instance": "infonce", "instance_queue": 64, "n_features": 8, "hidden": 16, "cluster_weight": 0.1,
            "cluster_start": 0.25, "commit_weight": 1.0, "commit_start": 0.5,
        },
        "tcc": {"instance_queue": 16, "cluster_queue": 6, "n_features": 8},
    }
)  # fmt: skip


def small_config(images: Images, *changes: str) -> Config:
    """SMALL with changes as on the command line, "train.epochs=2", resolved for some data."""
    return resolve(make_config(parse_overrides(changes), SMALL), images)


def pictures(n: int = 28, side: int = 8, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Noisy pictures in three colours, (n,s,s,3), and which colour each has."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    pixels = random.integers(0, 120, (n, side, side, 3))
    pixels[np.arange(n), :, :, labels] += 120
    return pixels.astype(np.uint8), labels


def rows(n: int = 28, d: int = 5, seed: int = 0) -> NDArray[np.float32]:
    """Three clouds."""
    random = np.random.default_rng(seed)
    centres = 4 * random.normal(size=(3, d))
    return (centres[np.arange(n) % 3] + random.normal(size=(n, d))).astype(np.float32)


def images_of(array: NDArray[Any], usable: NDArray[np.int64] | None = None) -> Images:
    images = open_images(open_source(array))
    return images if usable is None else dataclasses.replace(images, usable=usable)


KINDS: dict[str, NDArray[Any]] = {"images": pictures()[0], "rows": rows()}


def make(kind: str, *changes: str) -> Trainer:
    images = images_of(KINDS[kind])
    return Trainer(small_config(images, *changes), images)


def midway(*changes: str, kind: str = "images") -> Anchored:
    """The default method in the midst of training: momentum weights that lag behind, a queue partly full, labels."""
    method = make(kind, *changes).method
    assert isinstance(method, Anchored)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in method.momentum.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
        keys = torch.randn(FILLED, method.online.n_projected, generator=generator)
        if method.queue is not None:
            method.queue.push(torch.nn.functional.normalize(keys, dim=1))
        method.labels.copy_(torch.randint(0, method.n_clusters, method.labels.shape, generator=generator))
        method.sure.copy_(torch.rand(method.sure.shape, generator=generator) < 0.7)
        prototypes = torch.randn(method.prototypes.shape, generator=generator)
        method.prototypes.copy_(torch.nn.functional.normalize(prototypes, dim=1))
    return method


class AtCall(Reporter):
    """Does something when it is told of a step or of an epoch for the n-th time."""

    def __init__(self, calls_left: int, act: Callable[[], None]) -> None:
        self.calls_left, self.act = calls_left, act

    def step(self, progress: float, remaining: float | None) -> None:
        self.epoch({})

    def epoch(self, row: dict[str, Any]) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            self.act()


def train(
    images: Images,
    *changes: str,
    folder: Path | None = None,
    resume: bool = False,
    labels: NDArray[np.int64] | None = None,
    reporter: Reporter | None = None,
) -> Method:
    """A whole run, or the rest of one."""
    run = Run(folder) if folder else None
    if run:
        run.folder.mkdir(exist_ok=True)
    return Trainer(small_config(images, *changes), images, run=run, labels=labels, reporter=reporter).run(resume)


class Diary(Reporter):
    """Remembers all that it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float | None]] = []
        self.rows: list[dict[str, Any]] = []
        self.warnings: list[tuple[int, str]] = []  # with the epoch they came after

    def step(self, progress: float, remaining: float | None) -> None:
        self.steps.append((progress, remaining))

    def epoch(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def warn(self, message: str) -> None:
        self.warnings.append((self.rows[-1]["epoch"], message))


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def assert_equal_state(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert one.keys() == two.keys()
    different = [name for name in one if not torch.equal(one[name], two[name])]
    assert different == []
