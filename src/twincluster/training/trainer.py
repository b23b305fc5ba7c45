"""The one training loop. It draws batches, minimises a method's loss, updates its memory, and records each epoch.

On a CPU a step runs eagerly in float32; on CUDA the same step is one captured graph, and the host waits for it once per
epoch. Several processes run this loop in step (parallel/processes.py). Read `Trainer.run`, then `Trainer.step`. Below
the trainer are the clock and learning rate of a run, the record of each epoch in metrics.jsonl, and the checkpoint.

A checkpoint is one safetensors file: tensors in its body, progress as JSON in its header. It is replaced atomically,
and nothing in it is unpickled.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from twincluster.clustering import Health, divergence_advice, score
from twincluster.config import Config, DataShape, Optimiser
from twincluster.core import FEW, SEAL, InputError, check_seal, noted, one_thread, record_of, seal, unfinished
from twincluster.data import N_DRAWS, Images, augment_images, augment_rows
from twincluster.methods import Batch, Method, Network, Outcome, checked, checked_numbers, embed, find_method
from twincluster.nn import draws
from twincluster.parallel import ALONE, Processes, join
from twincluster.resolve import data_shape
from twincluster.runs import Run
from twincluster.training.cuda_graph import captured
from twincluster.training.row_views import feed_and_shown, rotate

FIRST_MEETINGS = (10, 100)  # steps at which the host waits for the GPU, to estimate the time left
SETTLED = 0.2  # share of the run before which unhealthy clusters cause no warning
PROGRESS = ("epoch", "step_in_epoch", "step", "seconds")  # of a checkpoint
NOISE = 20  # stream of normal draws for rows; views draw uniformly from their own streams


class Reporter:
    """Receives progress of a run. This one is silent; the command line draws a bar."""

    def step(self, progress: float, remaining: float | None) -> None:
        """Receive the finished share and the seconds left, if they can be estimated, after each step."""

    def epoch(self, row: dict[str, Any]) -> None:
        """Receive the row of metrics.jsonl after each epoch."""

    def say(self, message: str) -> None:
        """Receive a line about the training that is no warning."""

    def warn(self, message: str) -> None:
        """Receive a warning: the clusters look unhealthy, or the batch was divided."""


class Trainer:
    """A run in progress. `config` is resolved (resolve.py); `labels` are only scored against, never trained on."""

    def __init__(
        self, config: Config, images: Images, *, run: Run | None = None, shape: DataShape | None = None,
        labels: np.ndarray | None = None, reporter: Reporter | None = None,
    ) -> None:  # fmt: skip
        self.config, self.images, self.run_folder, self.labels = config, images, run, labels
        self.processes = join(config.train.device)
        self.reporter, self.device = reporter or Reporter(), torch.device(config.train.device)
        with torch.random.fork_rng(devices=[]):  # for initial weights; every other draw is keyed, see draws.py
            torch.default_generator.manual_seed(config.seed)
            self.method = find_method(config.method)(config, shape or data_shape(config, images))
        self.method.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimiser = make_optimiser(config, self.method, self.device)
        if self.processes.count > 1:  # a hook, because methods may also call step() between epochs
            self.optimiser.register_step_pre_hook(lambda *_: self.processes.average_gradients(self.optimiser))
        rotate(self.method, images)
        self.feed, self.shown = feed_and_shown(config, images, self.method.online)
        self.clock = Clock(
            config.train.epochs,
            config.train.minutes,
            self.feed.steps_per_epoch,
            lambda numbers: self.processes.broadcast_value(numbers),
        )
        self.epoch, self.last_saved = 0, 0.0  # the latter by the clock
        self.epoch_on_device = torch.zeros((), dtype=torch.int64, device=self.device)
        self.record = Record()
        self.losses, self.view = self.method.losses, self._view  # on CUDA replaced by compiled ones
        self.divide(self.processes, config.train.parts or 1)

    def run(self, resume: bool = False) -> Method:
        """Train to the end of the schedule. `resume` continues from the run folder's checkpoint."""
        self.processes.refuse_others(f"{self.images.fingerprint} {self.config}")
        step_in_epoch = self._restore() if resume else 0
        self.processes.broadcast(self.state().values())
        if self.shown.outdated():
            self.feed, self.shown = feed_and_shown(self.config, self.images, self.method.online)
        take_step = captured(self) if self.device.type == "cuda" else self.step
        self.clock.begin()
        self.last_saved = self.clock.elapsed
        few = self.device.type == "cpu" and not self.method.online.side and self.feed.images.numel() <= FEW
        with one_thread(few):
            with noted(self.run_folder is not None and self.processes.count == 1) as self.interrupt:
                self._train(take_step, step_in_epoch)
            self._save(0)
            if self.interrupt.asked:  # since the last step
                self.interrupt.unwind()
            self.method.finish(lambda network: embed(network, self.images.pixels, self.images.usable).to(self.device))
        self.divide(ALONE, 1)  # from here on, each process works alone
        return self.method.eval()

    def _train(self, take_step: Callable[[], object], step_in_epoch: int) -> None:
        while step_in_epoch or not self.clock.finished:  # always finish a started epoch
            self.epoch_on_device.fill_(self.epoch)
            for _ in self.feed.epoch(self.epoch, step_in_epoch):
                self.schedule()
                take_step()
                step_in_epoch += 1
                self.clock.step += 1
                if self.device.type == "cpu" or self.clock.step in FIRST_MEETINGS:
                    self._meet()
                self.reporter.step(self.clock.progress, self.clock.remaining)
                if self.clock.finished:
                    break
                if step_in_epoch < self.feed.steps_per_epoch:
                    self._save_when_due(step_in_epoch)
            self._end_epoch(step_in_epoch)
            step_in_epoch = 0
            self._save_when_due(0)  # only now: a checkpoint before _end_epoch would lose the row

    def step(self) -> None:
        """Take one step on the samples in the feed's buffers. It runs entirely on the device and never waits."""
        samples = self.feed.samples
        keys = draws.sample_keys(self.config.seed, self.epoch_on_device, samples)
        views = self.method.views(self._batch(samples, self.feed.images, keys))
        outcome = checked(self.losses(views, samples, keys), self.config, samples)
        self.optimiser.zero_grad(set_to_none=False)
        outcome.loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        with torch.no_grad():
            self.method.remember(outcome.memory)
            self.record.add(outcome)

    def _batch(self, samples: Tensor, images: Tensor, keys: Tensor) -> Batch:
        start = partial(self.shown.view, images, samples, keys)
        stream = partial(
            torch.full_like, self.epoch_on_device
        )  # a tensor: the compiler would recompile for each number
        view = self.view if len(samples) == self.feed.batch_size else self._view  # only one size is compiled
        return Batch(samples, keys, lambda i: view(start(i), keys, stream(i)), partial(self.shown.plain, images))

    def _view(self, images: Tensor, keys: Tensor, stream: Tensor) -> Tensor:
        """Augment a batch with one stream of random numbers."""
        network, settings = self.method.online, self.config.augment
        if not network.side:
            normal = draws.normal(keys, NOISE + stream, images.shape[1])
            return augment_rows(images, normal, draws.uniform(keys, stream, images.shape[1]), settings)
        uniform = draws.uniform(keys, stream, N_DRAWS)
        view = augment_images(images, uniform, settings, network.side, network.mean, network.std)
        return view.contiguous(memory_format=torch.channels_last)

    def schedule(self) -> None:
        progress = self.clock.progress
        rate = learning_rate(self.config.optimiser, progress)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # in place: the captured graph reads this tensor
            else:
                group["lr"] = rate
        self.method.schedule(self.epoch, progress)

    def _end_epoch(self, steps: int) -> None:
        """Run the method's `after_epoch`, write the row of the epoch, and warn if the clusters look unhealthy."""
        row = {"epoch": self.epoch, "steps": steps, **self.record.read(steps)}
        refuse_divergence(row, self.config)
        if self.labels is not None:
            row["on_batch_acc"] = self.record.on_batch_accuracy(self.labels[self.feed.samples.cpu().numpy()])
        row |= checked_numbers(self.method.after_epoch(self.epoch, self._all_batches, self.optimiser), self.config)
        # features may differ in the last bits between processors, and then k-means finds different clusters
        self.processes.broadcast(self.method.state_dict().values())
        self.clock.meet()
        row |= {"progress": self.clock.progress, "seconds": self.clock.seconds}
        if self.run_folder:
            self.run_folder.append_metrics(row)
        self.reporter.epoch(row)
        # no warning while the number of clusters is open, or before the first clusters exist
        settled = self.config.n_clusters and self.epoch and self.clock.progress > SETTLED
        if settled and (
            warning := health_of(row).warning(self.config.method, self.method.advice, self.config.train.precision)
        ):
            self.reporter.warn(warning)
        self.epoch += 1

    def _all_batches(self) -> Iterator[Batch]:
        """Yield all data once more in this epoch's order, for methods that read it between epochs."""
        for samples, images in self.feed.whole(self.epoch):
            yield self._batch(samples, images, draws.sample_keys(self.config.seed, self.epoch_on_device, samples))

    def divide(self, processes: Processes, parts: int) -> None:
        """Divide each batch over processes and parts."""
        self.processes, self.parts = processes, parts
        for network in self.method.modules():
            if isinstance(network, Network):
                network.divide(processes, parts)
        if parts > 1:
            self.losses = self.method.losses  # the backward pass in parts cannot be compiled

    def state(self) -> dict[str, Tensor]:
        """Return every tensor that changes during training, by name."""
        state = {f"method.{name}": tensor for name, tensor in self.method.state_dict().items()}
        for number, slots in self.optimiser.state_dict()["state"].items():
            state |= {f"optimiser.{number}.{name}": slot for name, slot in slots.items() if isinstance(slot, Tensor)}
        return state | {f"record.{name}": total for name, total in self.record.totals.items()}

    @torch.no_grad()
    def put_back(self, saved: dict[str, Tensor]) -> None:
        for name, tensor in self.state().items():
            if name in saved:
                tensor.copy_(saved[name])
            else:
                tensor.zero_()  # sums that were created after `saved`

    def _meet(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.clock.meet()

    def _save_when_due(self, step_in_epoch: int) -> None:
        due = self.clock.elapsed - self.last_saved >= 60 * self.config.train.checkpoint_minutes
        if due or self.interrupt.asked:
            self._save(step_in_epoch)
        if self.interrupt.asked:
            self.interrupt.unwind()

    def _save(self, step_in_epoch: int) -> None:
        self._meet()
        self.processes.check([weight for weight in self.method.parameters() if weight.requires_grad])
        if self.run_folder:
            progress = (self.epoch, step_in_epoch, self.clock.step, self.clock.seconds)
            save_checkpoint(self.run_folder.checkpoint, self.state(), dict(zip(PROGRESS, progress, strict=True)))
        self.last_saved = self.clock.elapsed

    def _restore(self) -> int:
        """Load the checkpoint, which the first process reads. Return the step within the epoch to continue at.

        Only numbers are sent to the other processes; all tensors are shared before the first step anyway.
        """
        assert self.run_folder is not None or not self.processes.first, "a run without a folder has no checkpoint"
        folder = self.run_folder.checkpoint if self.run_folder else None
        saved, progress = load_checkpoint(folder, PROGRESS) if folder and has_checkpoint(folder) else ({}, None)
        sums = {name: list(tensor.shape) for name, tensor in saved.items() if name.startswith("record.")}
        progress, sums = self.processes.broadcast_value([progress, sums])
        totals = {name.removeprefix("record."): torch.zeros(shape, device=self.device) for name, shape in sums.items()}
        self.record.totals = totals
        if folder and saved:
            refuse_other(folder, saved, self.state())
            self.put_back(saved)
        if progress:  # None if interrupted before the first checkpoint
            self.epoch = progress["epoch"]
            self.clock.resume(progress["step"], progress["seconds"])
        if self.run_folder:
            self.run_folder.truncate_metrics(self.epoch)
        return int(progress["step_in_epoch"]) if progress else 0


Numbers = list[float]
MARKS = 200  # measurements kept to estimate the time left


class Clock:
    """Finished share of the run, by steps (`epochs`) or by time (`minutes`).

    A GPU runs behind the host, so time is read only where the host waits for it (`meet`); between two such moments the
    clock extrapolates the measured pace. With several processes, one measures and `agree` sends its numbers to the
    others.
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
        self._begun = 0  # first step since the last resume
        self._marks = deque([(0, 0.0)])  # steps and seconds at some meetings
        self._created = self._started = time.monotonic()
        self._agree = agree or (lambda numbers: numbers)

    def resume(self, step: int, seconds: float) -> None:
        self.step = self._met_step = step
        self.seconds = seconds
        self._started = time.monotonic() - seconds
        self._begun, self._marks = step, deque([(step, seconds)])

    def begin(self) -> None:
        """Start the clock at the first step. Time spent before, such as on compiling, is taken from the budget."""
        now = time.monotonic()
        if self.budget:
            (self.budget,) = self._agree([max(1.0, self.budget - (now - self._created))])
        self._started = now - self.seconds

    def meet(self) -> None:
        """Measure the pace. Call when the device has finished all steps."""
        seconds = time.monotonic() - self._started
        steps = self.step - self._met_step
        if steps:
            pace = (seconds - self.seconds) / steps
            # the first steps include compilation, so the newest measurement weighs as much as all earlier ones
            self._pace = pace if not self._pace else (self._pace + pace) / 2
        self._met_step = self.step
        self.seconds, self._pace = self._agree([seconds, self._pace])
        self._mark()

    @property
    def elapsed(self) -> float:
        """Seconds of training, extrapolated from the last meeting."""
        return self.seconds + (self.step - self._met_step) * self._pace

    @property
    def progress(self) -> float:
        """Finished share of the run, 0 to 1."""
        if self.budget:
            return min(1.0, self.elapsed / self.budget)
        return min(1.0, self.step / self.total_steps) if self.total_steps else 1.0

    @property
    def finished(self) -> bool:
        return self.progress >= 1

    @property
    def remaining(self) -> float | None:
        """Seconds left; None before the first measurement."""
        if self.budget:
            return max(0.0, self.budget * (1 - self.progress))
        step, seconds = self._marks[0]
        if self._met_step == step:
            return None
        pace = (self.seconds - seconds) / (self._met_step - step)  # includes the work between epochs
        return max(0.0, (self.total_steps - self._met_step) * pace - (self.elapsed - self.seconds))

    def _mark(self) -> None:
        """Keep the measurements of the last three quarters: short stalls weigh little, and a slow start is dropped."""
        if self.step - self._marks[-1][0] >= max(1, self.total_steps // MARKS):
            self._marks.append((self.step, self.seconds))
        while len(self._marks) > 2 and self._marks[1][0] <= self._begun + (self.step - self._begun) / 4:
            self._marks.popleft()


def learning_rate(settings: Optimiser, progress: float) -> float:
    """Return the learning rate: linear warm-up over the first share of the run, then constant or half a cosine down to
    0.
    """
    if progress < settings.warmup:
        return settings.learning_rate * progress / settings.warmup
    if settings.schedule == "constant":
        return settings.learning_rate
    done = (progress - settings.warmup) / max(1e-9, 1 - settings.warmup)
    return settings.learning_rate * (1 + math.cos(math.pi * done)) / 2


def make_optimiser(config: Config, method: Method, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimiser with its state allocated. Biases, batch-norm and `method.spared` have no weight decay."""
    settings, cuda = config.optimiser, device.type == "cuda"
    trained = [(name, weight) for name, weight in method.named_parameters() if weight.requires_grad]
    free = [weight.dim() < 2 or name.rpartition(".")[2] in method.spared for name, weight in trained]
    spared = [weight for (_, weight), is_free in zip(trained, free, strict=True) if is_free]
    decayed = [weight for (_, weight), is_free in zip(trained, free, strict=True) if not is_free]
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
    optimiser.step()  # at rate 0: allocates momentum and moments for checkpoints and graphs
    for slots in optimiser.state.values():
        for slot in slots.values():
            slot.zero_()
    return optimiser


class Record:
    """Running sums over the steps of an epoch. Shapes: N batch, K clusters."""

    def __init__(self) -> None:
        self.totals: dict[str, Tensor] = {}
        self.last: Tensor | None = None  # (N,) clusters of the newest batch

    def add(self, outcome: Outcome) -> None:
        q, other = outcome.assignment, outcome.key_assignment
        clusters = q.argmax(1)
        numbers = {
            "loss": outcome.loss,
            **outcome.metrics,
            "confidence": q.amax(1).mean(),
            "agreement": (clusters == other.argmax(1)).float().mean(),
            "mean_assignment": q.mean(0),
            "histogram": F.one_hot(clusters, q.shape[1]).sum(0).float(),
        }
        if self.last is None:  # first step; later steps write in place, because a captured graph needs fixed buffers
            self.last = torch.zeros_like(clusters)
        self.last.copy_(clusters)
        for name, value in numbers.items():
            if name not in self.totals:
                self.totals[name] = torch.zeros_like(value, dtype=torch.float32)
            self.totals[name] += value.detach()

    def read(self, steps: int) -> dict[str, Any]:
        """Return averages as Python numbers and the histogram as counts, and reset the sums.

        A loss that was zero in every step is None: it had nothing to compare yet.
        """
        flat = torch.cat([total.flatten() for total in self.totals.values()]).cpu()
        row: dict[str, Any] = {}
        for name, total in self.totals.items():
            values, flat = flat[: total.numel()], flat[total.numel() :]
            if name == "histogram":
                row[name] = [int(count) for count in values]
            elif total.dim():
                row[name] = [float(value) / steps for value in values]
            else:
                row[name] = None if name.endswith("loss") and not values else float(values) / steps
            total.zero_()
        return row

    def on_batch_accuracy(self, labels: np.ndarray) -> float | None:
        """Return the ACC of the newest augmented batch, as plotted in Fig. 5 of the paper; not a result.

        None if no sample of the batch has a label (-1).
        """
        assert self.last is not None, "no step was taken"
        return score(labels, self.last.cpu().numpy()).acc if (labels >= 0).any() else None


def refuse_divergence(row: dict[str, Any], config: Config) -> None:
    """Raise InputError if the epoch's loss is nan or infinite, from which training never recovers."""
    if not math.isfinite(row["loss"] or 0):
        way_out = divergence_advice(config.method, config.train.precision)
        raise InputError(f"training diverged (the loss is NaN or infinite): {way_out}")


def health_of(row: dict[str, Any]) -> Health:
    """Return the label-free health of an epoch's row. Rows read from a file may lack numbers or hold None."""
    mean, confidence = np.array(row["mean_assignment"], float), float(np.array(row["confidence"], float))
    entropy = -float((mean * np.log(np.clip(mean, 1e-12, None))).sum()) / float(np.log(len(mean)))
    strain, ended = row.get("strain") or 0.0, (row.get("progress") or 1.0) >= 1
    return Health(
        sizes=row["histogram"], confidence=confidence, marginal_entropy=entropy, agreement=row.get("agreement"),
        strain=strain if ended else 0.0,  # it fluctuates during training
        empty=None if row.get("empty") is None else int(row["empty"]),  # over all images
    )  # fmt: skip


CHECKPOINT_FILE = "state.safetensors"


@dataclass(frozen=True)
class _Place:
    """Types of what a trainer saves."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    seconds: float = 0.0


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)  # not its parents: a run that was deleted meanwhile stays so
    # cloned: safetensors refuses tensors that share memory, such as channels-last views of one buffer
    body = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    with unfinished(folder / CHECKPOINT_FILE) as partial:
        try:
            save_file(body, partial, metadata={"progress": json.dumps(progress), **SEAL})
        except SafetensorError as error:  # in which safetensors hides what the system said
            if number := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(number[1]), os.strerror(int(number[1])), str(partial)) from error
            raise
        seal(partial)


def has_checkpoint(folder: Path) -> bool:
    return (folder / CHECKPOINT_FILE).is_file()


def load_checkpoint(folder: Path, needed: Iterable[str] = ()) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the progress; refuse a damaged file, and a progress without the `needed` entries."""
    target = folder / CHECKPOINT_FILE
    if not has_checkpoint(folder):
        raise InputError(f"nothing to resume: {target} does not exist; leave out --resume to start anew")
    try:
        with safe_open(target, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            progress: dict[str, Any] = json.loads(file.metadata()["progress"])
        record_of(_Place, progress, "progress")
        if missing := [name for name in needed if name not in progress]:
            raise ValueError(f"progress has no {missing[0]}")
        check_seal(target)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(
            f"{target} is not a checkpoint of twincluster ({problem}); start anew without --resume"
        ) from error
    return tensors, progress


def refuse_other(folder: Path, saved: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Every tensor of the state must be there, in its shape: copying would spread one row over all of them."""
    other = [name for name, tensor in state.items() if name not in saved or saved[name].shape != tensor.shape]
    if other:
        raise InputError(
            f"{folder / CHECKPOINT_FILE} is of another method, or of other code of it: {other[0]} is not in it, or has "
            "another shape; start anew without --resume"
        )
