"""The one training loop. It draws batches, descends a method's loss, keeps its memory, and records what happens.

On a CPU a step runs eagerly in float32; on CUDA the same step is one captured graph, and the host waits for it once per
epoch. Several processes run this loop in step (parallel/processes.py). Read `Trainer.run`, then `Trainer.step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twincluster.config import Config, DataShape
from twincluster.core import FEW, noted, one_thread
from twincluster.data import N_DRAWS, Images, augment_images, augment_rows
from twincluster.methods import Batch, Method, Network, checked, checked_numbers, embed, find_method
from twincluster.nn import draws
from twincluster.parallel import ALONE, Processes, join
from twincluster.resolve import data_shape
from twincluster.runs import Run
from twincluster.training import checkpoint
from twincluster.training.cuda_graph import captured
from twincluster.training.metrics import Record, health_of, refuse_divergence
from twincluster.training.row_views import feed_and_shown, rotate
from twincluster.training.schedule import Clock, learning_rate, make_optimiser

FIRST_MEETINGS = (10, 100)  # steps at which even a GPU is waited for, to tell how long the run will take
SETTLED = 0.2  # share of the run before which unhealthy clusters are no cause for a warning
PROGRESS = ("epoch", "step_in_epoch", "step", "seconds")  # of a checkpoint
NOISE = 20  # stream of the normal draws of rows, beside the uniform ones of each view


class Reporter:
    """Who is told how the run goes. This one keeps silent; the command line draws a bar."""

    def step(self, progress: float, remaining: float | None) -> None:
        """After each step: share done and seconds to go, once they can be estimated."""

    def epoch(self, row: dict[str, Any]) -> None:
        """After each epoch: the row that metrics.jsonl gets."""

    def warn(self, message: str) -> None:
        """When the clusters look unhealthy, or a batch had to be divided."""


class Trainer:
    """A run in progress. `config` is resolved (derive.py); `labels` are recorded against, never trained on."""

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
        if self.processes.count > 1:  # a hook, since methods may take steps of their own between epochs
            self.optimiser.register_step_pre_hook(lambda *_: self.processes.average_gradients(self.optimiser))
        rotate(self.method, images)
        self.feed, self.shown = feed_and_shown(config, images, self.method.online)
        self.clock = Clock(
            config.train.epochs, config.train.minutes, self.feed.steps_per_epoch, lambda told: self.processes.tell(told)
        )
        self.epoch, self.last_saved = 0, 0.0  # the latter by the clock
        self.epoch_on_device = torch.zeros((), dtype=torch.int64, device=self.device)
        self.record = Record()
        self.losses, self.view = self.method.losses, self._view  # on CUDA replaced by compiled ones
        self.divide(self.processes, config.train.parts or 1)

    def run(self, resume: bool = False) -> Method:
        """Train to the end of the schedule; `resume` continues from the run folder's checkpoint."""
        self.processes.refuse_others(f"{self.images.fingerprint} {self.config}")
        step_in_epoch = self._restore() if resume else 0
        self.processes.share(self.state().values())
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
            self.method.finish(lambda network: embed(network, self.images.pixels, self.images.usable).to(self.device))
        self.divide(ALONE, 1)  # from here on each process is by itself
        return self.method.eval()

    def _train(self, take_step: Callable[[], object], step_in_epoch: int) -> None:
        while step_in_epoch or not self.clock.finished:  # an epoch once begun is brought to its end
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
            self._save_when_due(0)  # only now: after its last step an epoch has still to be ended

    def step(self) -> None:
        """One step on the samples in the feed's buffers. All of it runs on the device, nothing waits for the host."""
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
        stream = partial(torch.full_like, self.epoch_on_device)  # for a number the compiler would begin again
        return Batch(samples, keys, lambda i: self.view(start(i), keys, stream(i)), partial(self.shown.plain, images))

    def _view(self, images: Tensor, keys: Tensor, stream: Tensor) -> Tensor:
        """The augmentation of a batch, drawn from one stream of random numbers."""
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
                group["lr"].fill_(rate)  # in place: a captured graph reads this very tensor
            else:
                group["lr"] = rate
        self.method.schedule(self.epoch, progress)

    def _end_epoch(self, steps: int) -> None:
        """Let the method look back, write the epoch's row, warn when the clusters look unhealthy."""
        row = {"epoch": self.epoch, "steps": steps, **self.record.read(steps)}
        refuse_divergence(row, self.config)
        if self.labels is not None:
            row["on_batch_acc"] = self.record.on_batch_accuracy(self.labels[self.feed.samples.cpu().numpy()])
        row |= checked_numbers(self.method.after_epoch(self.epoch, self._all_batches, self.optimiser), self.config)
        # where processors differ, the last bits of features do, and k-means may make other clusters of them
        self.processes.share(self.method.state_dict().values())
        self.clock.meet()
        row |= {"progress": self.clock.progress, "seconds": self.clock.seconds}
        if self.run_folder:
            self.run_folder.append_metrics(row)
        self.reporter.epoch(row)
        # their number may still have to be chosen, and in the first epoch they may have to be found
        settled = self.config.n_clusters and self.epoch and self.clock.progress > SETTLED
        if settled and (warning := health_of(row).warning(self.config.method, self.config.train.precision)):
            self.reporter.warn(warning)
        self.epoch += 1

    def _all_batches(self) -> Iterator[Batch]:
        """The data once more in this epoch's order, for methods that look at all of it between epochs."""
        for _ in self.feed.epoch(self.epoch):
            samples, images = self.feed.samples.clone(), self.feed.images.clone()
            yield self._batch(samples, images, draws.sample_keys(self.config.seed, self.epoch_on_device, samples))

    def divide(self, processes: Processes, parts: int) -> None:
        """Who encodes a batch, and in how many parts."""
        self.processes, self.parts = processes, parts
        for network in self.method.modules():
            if isinstance(network, Network):
                network.divide(processes, parts)
        if parts > 1:
            self.losses = self.method.losses  # parts are encoded again in the backward pass, which is not compiled

    def state(self) -> dict[str, Tensor]:
        """Every tensor that changes while training, by name."""
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
                tensor.zero_()  # sums that did not exist yet

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
            checkpoint.save(self.run_folder.checkpoint, self.state(), dict(zip(PROGRESS, progress, strict=True)))
        self.last_saved = self.clock.elapsed

    def _restore(self) -> int:
        """Take up the checkpoint, which the first process reads; returns the step within the epoch at which to go on.

        Only numbers are told here: all tensors are shared before the first step in any case.
        """
        assert self.run_folder is not None or not self.processes.first, "a run without a folder has no checkpoint"
        folder = self.run_folder.checkpoint if self.run_folder else None
        saved, progress = checkpoint.load(folder, PROGRESS) if folder and checkpoint.exists(folder) else ({}, None)
        sums = {name: list(tensor.shape) for name, tensor in saved.items() if name.startswith("record.")}
        progress, sums = self.processes.tell([progress, sums])
        totals = {name.removeprefix("record."): torch.zeros(shape, device=self.device) for name, shape in sums.items()}
        self.record.totals = totals
        if folder and saved:
            checkpoint.refuse_other(folder, saved, self.state())
            self.put_back(saved)
        if progress:  # else interrupted before the first checkpoint: all is still to be done
            self.epoch = progress["epoch"]
            self.clock.resume(progress["step"], progress["seconds"])
        if self.run_folder:
            self.run_folder.truncate_metrics(self.epoch)
        return int(progress["step_in_epoch"]) if progress else 0
