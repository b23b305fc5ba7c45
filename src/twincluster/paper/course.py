"""Estimate how long the trainings of a table will take, and show their progress in one line."""

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

PASSES = 6  # forward passes per image and step: two views, and a backward pass that costs two
TRIAL = 8  # images that are timed
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
    finished: bool  # by an earlier call

    @property
    def steps(self) -> int:
        train = self.config.train
        return train.epochs * max(1, self.n_samples // (train.batch_size or 128))


def expected_seconds(plans: Sequence[Plan]) -> list[float]:
    """Return the duration of each training: its minutes, or a rough guess from the work of its network; 0 if it is
    finished."""
    work = [0.0 if plan.finished or plan.config.train.minutes else _work(plan) for plan in plans]
    pace = _pace(plans[work.index(max(work))].config) if any(work) else 1.0
    minutes = [0.0 if plan.finished else plan.config.train.minutes for plan in plans]
    return [60 * length + each / pace for length, each in zip(minutes, work, strict=True)]


def announcement(plans: Sequence[Plan], seconds: Sequence[float]) -> str:
    """Say in a sentence what will be trained and how long it will take."""
    left = [(each, plan) for plan, each in zip(plans, seconds, strict=True) if not plan.finished]
    total = f"{len(left)} training{'s' if len(left) > 1 else ''}, about {long_duration(sum(each for each, _ in left))}"
    if all(plan.config.train.minutes for _, plan in left):
        return total
    longest, plan = max(left, key=lambda pair: pair[0])
    return (
        f"{total} on this machine, by a rough guess; the longest is {plan.name}: {plan.steps:,} steps, about "
        f"{long_duration(longest)}. --minutes M gives each M minutes instead"
    )


def long_duration(seconds: float) -> str:
    """Like `duration`, but in days if there are many hours."""
    return f"{seconds / DAY:.0f} days" if seconds > 3 * DAY else duration(seconds)


def _work(plan: Plan) -> float:
    """Return the operations of the backbone in the whole training."""
    train = plan.config.train
    return PASSES * float(_operations(train.backbone, train.image_size)) * plan.n_samples * train.epochs


@cache
def _operations(backbone: str, side: int) -> int:
    from twincluster.nn import flops

    return flops(_backbone(backbone, side), side)


def _pace(config: Config) -> float:
    """Measure the operations per second of a forward and a backward pass on a few images."""
    import torch

    wanted = config.train.device
    device = torch.device(wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    name, side = config.train.backbone, config.train.image_size
    network = _backbone(name, side).to(device)
    count = TRIAL if device.type == "cpu" else 32 * TRIAL
    images = torch.zeros(count, 3, side, side, device=device)
    seconds = 1.0
    for _ in range(2):  # the first one also allocates memory and selects kernels
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
    """The progress of all trainings: one line that is overwritten on a terminal, elsewhere a line per finished
    training."""

    def __init__(self, seconds: Sequence[float], stream: TextIO | None = None) -> None:
        self.expected, self.stream = list(seconds), stream or sys.stdout  # 0 for finished trainings
        self.overwrites = self.stream.isatty()
        self.ended = 0  # trainings, including those of earlier calls
        self.started = time.monotonic()
        self._width = 0

    @contextmanager
    def training(self, name: str, folder: Path) -> Iterator[None]:
        """Show the progress of the training in this folder while it runs in another process."""
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
        """Count a training as finished, and estimate the time that the others will take."""
        self.ended += 1
        left = self.left()
        rest = f"; about {long_duration(left)} left" if left and self.ended < len(self.expected) else ""
        self._write(f"{self.ended} of {len(self.expected)}: {line}{rest}\n")

    def left(self, share: float = 0.0) -> float:
        """Return the seconds left at the pace so far, given the finished share of the current training; 0 if nothing
        was trained."""
        current = self.expected[self.ended] if self.ended < len(self.expected) else 0.0
        passed = sum(self.expected[: self.ended]) + share * current
        return (time.monotonic() - self.started) * (sum(self.expected) - passed) / passed if passed else 0.0

    def _watch(self, name: str, folder: Path, over: threading.Event) -> None:
        while not over.wait(WAIT):
            share = _progress(folder)
            left = self.left(share)
            line = f"{self.ended + 1} of {len(self.expected)}: {name}, {share:.0%}"
            line += f"; about {long_duration(left)} left in all" if left else ""
            self._write(f"\r{line:{self._width}}")
            self._width = len(line)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _progress(folder: Path) -> float:
    """Return the progress in the newest row of metrics."""
    try:
        *_, last = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return float(json.loads(last)["progress"])
    except (OSError, ValueError, KeyError):  # not written yet, or being written
        return 0.0
