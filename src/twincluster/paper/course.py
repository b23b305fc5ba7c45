"""How long the trainings of a table will take, and the one line that tells how far they are."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from twincluster.config import Config
from twincluster.core import duration

PASSES = 6  # forward passes that a step costs for an image: two views, and a backward pass that costs two
TRIAL = 8  # images whose time is taken
WAIT = 2.0  # seconds between two looks at a training
DAY = 24 * 3600

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Plan:
    """A training before it begins."""

    name: str
    config: Config
    n_samples: int
    finished: bool  # in an earlier call

    @property
    def steps(self) -> int:
        train = self.config.train
        return train.epochs * max(1, self.n_samples // (train.batch_size or 128))


def expected_seconds(plans: Sequence[Plan]) -> list[float]:
    """How long each training takes: its minutes, or a rough guess from the work of its network alone; 0 if it is
    finished."""
    work = [0.0 if plan.finished or plan.config.train.minutes else _work(plan) for plan in plans]
    pace = _pace(plans[work.index(max(work))].config) if any(work) else 1.0
    minutes = [0.0 if plan.finished else plan.config.train.minutes for plan in plans]
    return [60 * length + each / pace for length, each in zip(minutes, work, strict=True)]


def announcement(plans: Sequence[Plan], seconds: Sequence[float]) -> str:
    """What is about to be trained and how long that takes, in a sentence."""
    left = [(each, plan) for plan, each in zip(plans, seconds, strict=True) if not plan.finished]
    total = f"{len(left)} training{'s' if len(left) > 1 else ''}, about {spoken(sum(each for each, _ in left))}"
    if all(plan.config.train.minutes for _, plan in left):
        return total
    longest, plan = max(left, key=lambda pair: pair[0])
    return (
        f"{total} on this machine, by a rough guess; the longest is {plan.name}: {plan.steps:,} steps, about "
        f"{spoken(longest)}. --minutes M gives each M minutes instead"
    )


def spoken(seconds: float) -> str:
    """As `duration`, in days where hours are too many to grasp."""
    return f"{seconds / DAY:.0f} days" if seconds > 3 * DAY else duration(seconds)


def _work(plan: Plan) -> float:
    """Operations of the backbone in the whole training."""
    train = plan.config.train
    return PASSES * float(_operations(train.backbone, train.image_size)) * plan.n_samples * train.epochs


@cache
def _operations(backbone: str, side: int) -> int:
    from twincluster.nn import flops

    return flops(_backbone(backbone, side), side)


def _pace(config: Config) -> float:
    """Operations a second, of a forward and a backward pass on a few images."""
    import torch

    wanted = config.train.device
    device = torch.device(wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    name, side = config.train.backbone, config.train.image_size
    network = _backbone(name, side).to(device)
    count = TRIAL if device.type == "cpu" else 32 * TRIAL
    images = torch.zeros(count, 3, side, side, device=device)
    seconds = 1.0
    for _ in range(2):  # the first one also finds memory and kernels
        start = time.perf_counter()
        network(images).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return 3 * _operations(name, side) * count / seconds


def _backbone(name: str, side: int) -> nn.Module:
    from twincluster.nn import BACKBONES, build_backbone

    return build_backbone(name if name in BACKBONES else "resnet18", side=side, n_inputs=3)


class Course:
    """One line for all trainings: written over and over on a terminal, elsewhere once when a training ends."""

    def __init__(self, seconds: Sequence[float], stream: TextIO | None = None) -> None:
        self.expected, self.stream = list(seconds), stream or sys.stdout  # the former 0 for what is there already
        self.overwrites = self.stream.isatty()
        self.ended = 0  # trainings, those that were there already included
        self.started = time.monotonic()
        self._width = 0

    @contextmanager
    def training(self, name: str, folder: Path) -> Iterator[None]:
        """Show how far the training in this folder is, while it runs elsewhere."""
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(name, folder, over), daemon=True)
        if self.overwrites:
            watcher.start()
        try:
            yield
        finally:
            over.set()
            if self.overwrites:
                watcher.join()
                self._write("\r" + " " * self._width + "\r")

    def end(self, line: str) -> None:
        """A training is over, or was there already; of the rest the time is told."""
        self.ended += 1
        left = self.left()
        rest = f"; about {spoken(left)} left" if left and self.ended < len(self.expected) else ""
        self._write(f"{self.ended} of {len(self.expected)}: {line}{rest}\n")

    def left(self, share: float = 0.0) -> float:
        """Seconds to go, by the pace so far; `share` of the current training is done. 0 where nothing was trained."""
        current = self.expected[self.ended] if self.ended < len(self.expected) else 0.0
        passed = sum(self.expected[: self.ended]) + share * current
        return (time.monotonic() - self.started) * (sum(self.expected) - passed) / passed if passed else 0.0

    def _watch(self, name: str, folder: Path, over: threading.Event) -> None:
        while not over.wait(WAIT):
            share = _progress(folder)
            left = self.left(share)
            line = f"{self.ended + 1} of {len(self.expected)}: {name}, {share:.0%}"
            line += f"; about {spoken(left)} left in all" if left else ""
            self._write(f"\r{line:{self._width}}")
            self._width = len(line)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _progress(folder: Path) -> float:
    """What the newest epoch says."""
    try:
        *_, last = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return float(json.loads(last)["progress"])
    except (OSError, ValueError, KeyError):  # none yet, or one that is being written
        return 0.0
