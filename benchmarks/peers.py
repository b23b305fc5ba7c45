"""The training step beside what people write instead: the same network, losses and optimiser, run in other ways.

The plain loop is a good one: uint8 images in memory, torchvision v2 in worker processes that stay alive, pinned memory,
channels-last, and a bf16 backbone where ours has one. The eager loop has our augmentation, on the device, but neither
compilation nor a graph. All take turns.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.augment import Pairs
from benchmarks.common import noise_images
from benchmarks.floor import now
from benchmarks.train import title_of
from twincluster.config import Config
from twincluster.core import InputError
from twincluster.data import Images
from twincluster.methods import Method
from twincluster.nn import draws
from twincluster.training import Trainer
from twincluster.training.cuda_graph import Step, captured

OURS, EAGER, PLAIN = "twincluster", "the same, eager", "plain loop, torchvision v2"
GOALS = {EAGER: 2, PLAIN: 5}
STEPS = {"cpu": 2, "cuda": 20}
MOST_WORKERS = 16

Turn = Callable[[int], object]  # the number of the turn


@dataclass(frozen=True)
class StepSpeeds:
    """Of every contender, seconds per step, one figure for each round."""

    title: str
    batch_size: int
    workers: int
    seconds: dict[str, list[float]]

    def to_text(self) -> str:
        lines = [
            f"{self.title}, {self.workers} workers, median of {len(self.seconds[OURS])} rounds",
            f"{'':28}{'images/s':>10}{'ms a step':>11}{'ours is':>9}{'goal':>7}",
        ]
        for name, seconds in self.seconds.items():
            middle = statistics.median(seconds)
            times = "" if name == OURS else f"{self.ratio(name):.1f}x"
            goal = f"{GOALS[name]}x" if name in GOALS else ""
            lines.append(f"{name:28}{self.batch_size / middle:>10,.0f}{1000 * middle:>11.2f}{times:>9}{goal:>7}")
        return "\n".join(lines)

    def ratio(self, name: str) -> float:
        """How many times faster ours is: the median over rounds, each compared within itself."""
        pairs = zip(self.seconds[name], self.seconds[OURS], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def measure(config: Config, rounds: int, steps: int | None, workers: int | None) -> StepSpeeds:
    """Let all contenders take `rounds` turns of `steps` steps, after one that warms up. `config` is resolved."""
    train = config.train
    steps, workers = steps or STEPS[train.device], workers or min(MOST_WORKERS, os.cpu_count() or 1)
    images = noise_images(max(steps * train.batch_size, config.n_clusters), train.image_size)
    contenders = {
        OURS: ours(config, images),
        EAGER: eager(config, images),
        PLAIN: plain(config, images, workers),
    }
    taken = turn_seconds(contenders, rounds, train.device)
    seconds = {name: [turn / steps for turn in every] for name, every in taken.items()}
    return StepSpeeds(title_of(config), train.batch_size, workers, seconds)


def turn_seconds(contenders: Mapping[str, Turn], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of the turns that contenders take one after the other; the first of each warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, run in contenders.items():
            start = now(device)
            run(turn)
            if turn:
                seconds[name].append(now(device) - start)
    return seconds


def ours(config: Config, images: Images) -> Turn:
    trainer = Trainer(config, images)
    step = captured(trainer) if config.train.device == "cuda" else trainer.step
    return turns(trainer, step)


def eager(config: Config, images: Images) -> Turn:
    trainer = Trainer(replace(config, train=replace(config.train, compile=False)), images)
    return turns(trainer, trainer.step)


def turns(trainer: Trainer, step: Step) -> Turn:
    def turn(number: int) -> None:
        for _ in trainer.feed.epoch(number):
            trainer.schedule()
            step()

    return turn


def plain(config: Config, images: Images, workers: int) -> Turn:
    trainer = Trainer(config, images)  # for its method and optimiser alone
    method, optimiser, device = trainer.method, trainer.optimiser, trainer.device
    if type(method).views is not Method.views:
        raise InputError(f"{config.method} takes other views than two: this benchmark compares methods that take two")
    batches = DataLoader(
        Numbered(images, pillow=False, settings=config.augment), config.train.batch_size, shuffle=True, drop_last=True,
        num_workers=workers, persistent_workers=True, pin_memory=device.type == "cuda",
    )  # fmt: skip

    def turn(number: int) -> None:
        for *pair, samples in batches:
            trainer.schedule()
            first, second = (view.to(device, non_blocking=True, memory_format=torch.channels_last) for view in pair)
            samples = samples.to(device, non_blocking=True)
            keys = draws.sample_keys(config.seed, trainer.epoch_on_device, samples)
            outcome = method.losses((first, second), samples, keys)
            optimiser.zero_grad()
            outcome.loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            with torch.no_grad():
                method.remember(outcome.memory)

    return turn


class Numbered(Pairs):
    """Two views of an image, and which image it is."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return *super().__getitem__(index), torch.tensor(index)
