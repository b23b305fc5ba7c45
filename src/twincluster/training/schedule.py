"""How far a run is, how long it will take, and the learning rate that goes with it.

The optimiser of a run, made so that a captured graph and a checkpoint find all of its state in place.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import torch

from twincluster.config import Config, Optimiser
from twincluster.methods import Method

Numbers = list[float]
MARKS = 200  # moments of a run that are remembered, to tell how long the rest will take


class Clock:
    """Share of the run that is done, by steps (`epochs`) or by the wall (`minutes`).

    A GPU runs behind the host, so wall time is read only where the two meet (`meet`); between two such moments the
    clock counts steps at the pace measured so far. Of several processes one measures, and `agree` tells the others.
    """

    def __init__(
        self, epochs: int, minutes: float, steps_per_epoch: int, agree: Callable[[Numbers], Numbers] | None = None
    ) -> None:
        self.total_steps = epochs * steps_per_epoch
        self.budget = 60 * minutes  # seconds; 0: steps decide
        self.step = 0
        self.seconds = 0.0  # at the last meeting, over all resumed parts of the run
        self._met_step = 0
        self._pace = 0.0  # seconds per step
        self._begun = 0  # step that this part of the run began with
        self._marks = deque([(0, 0.0)])  # steps and seconds at some of the meetings
        self._created = self._started = time.monotonic()
        self._agree = agree or (lambda numbers: numbers)

    def resume(self, step: int, seconds: float) -> None:
        self.step = self._met_step = step
        self.seconds = seconds
        self._started = time.monotonic() - seconds
        self._begun, self._marks = step, deque([(step, seconds)])

    def begin(self) -> None:
        """The first step comes now. What went before, such as compiling, is taken off the time there is."""
        now = time.monotonic()
        if self.budget:
            (self.budget,) = self._agree([max(1.0, self.budget - (now - self._created))])
        self._started = now - self.seconds

    def meet(self) -> None:
        """Device and host are at the same step now."""
        seconds = time.monotonic() - self._started
        steps = self.step - self._met_step
        if steps:
            pace = (seconds - self.seconds) / steps
            # the first steps include compilation and caches, so the newest measurement weighs as much as all before
            self._pace = pace if not self._pace else (self._pace + pace) / 2
        self._met_step = self.step
        self.seconds, self._pace = self._agree([seconds, self._pace])
        self._mark()

    @property
    def elapsed(self) -> float:
        """Seconds of training, estimated since the last meeting."""
        return self.seconds + (self.step - self._met_step) * self._pace

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        if self.budget:
            return min(1.0, self.elapsed / self.budget)
        return min(1.0, self.step / self.total_steps) if self.total_steps else 1.0

    @property
    def finished(self) -> bool:
        return self.progress >= 1

    @property
    def remaining(self) -> float | None:
        """Seconds to go, None before anything was measured."""
        if self.budget:
            return max(0.0, self.budget * (1 - self.progress))
        step, seconds = self._marks[0]
        if self._met_step == step:
            return None
        pace = (self.seconds - seconds) / (self._met_step - step)  # with what is done between epochs
        return max(0.0, (self.total_steps - self._met_step) * pace - (self.elapsed - self.seconds))

    def _mark(self) -> None:
        """Keep all but the first quarter in mind: a busy moment weighs little there, and a slow start is forgotten."""
        if self.step - self._marks[-1][0] >= max(1, self.total_steps // MARKS):
            self._marks.append((self.step, self.seconds))
        while len(self._marks) > 2 and self._marks[1][0] <= self._begun + (self.step - self._begun) / 4:
            self._marks.popleft()


def learning_rate(settings: Optimiser, progress: float) -> float:
    """Linear warm-up over the first share of the run, then constant or half a cosine down to 0."""
    if progress < settings.warmup:
        return settings.learning_rate * progress / settings.warmup
    if settings.schedule == "constant":
        return settings.learning_rate
    done = (progress - settings.warmup) / max(1e-9, 1 - settings.warmup)
    return settings.learning_rate * (1 + math.cos(math.pi * done)) / 2


def make_optimiser(config: Config, method: Method, device: torch.device) -> torch.optim.Optimizer:
    """The optimiser with all its state in place. Decay spares biases, batch-norm and prototypes."""
    settings, cuda = config.optimiser, device.type == "cuda"
    trained = [(name, weight) for name, weight in method.named_parameters() if weight.requires_grad]
    spared = [weight for name, weight in trained if weight.dim() < 2 or name.endswith("prototypes")]
    decayed = [weight for name, weight in trained if weight.dim() >= 2 and not name.endswith("prototypes")]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    rate = torch.zeros((), device=device) if cuda else 0.0
    optimiser: torch.optim.Optimizer
    if settings.name == "adam":
        optimiser = torch.optim.Adam(groups, lr=rate, fused=cuda, capturable=cuda)
    else:
        keep = settings.momentum
        optimiser = torch.optim.SGD(groups, lr=rate, momentum=keep, nesterov=keep > 0, fused=cuda)
    for _, weight in trained:
        weight.grad = torch.zeros_like(weight)
    optimiser.step()  # at rate 0: creates momentum and moments now, so that checkpoints and graphs find them
    for slots in optimiser.state.values():
        for slot in slots.values():
            slot.zero_()
    return optimiser
