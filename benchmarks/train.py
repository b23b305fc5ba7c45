"""Training speed of a recipe on made-up images. The trainer runs as it does in `fit`, and a reporter holds the watch.

A round is one epoch of the made-up images; the first one warms up and does not count. On CUDA the watch waits for the
device wherever it is read, which is twice per round, so that what is timed is the captured graph and nothing else.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import blank_images, noise_images, peak_memory
from benchmarks.floor import PRODUCT_TYPE, Floor, copy_speed, floor, now, passes_alone, product_speed
from twincluster.config import Config, DataShape, load_recipe, make_config, parse_overrides
from twincluster.core import InputError
from twincluster.methods import Batch, find_method
from twincluster.nn import Backbone, draws, flops
from twincluster.resolve import data_shape, resolve
from twincluster.training import Reporter, Trainer

EPOCH = 60_000  # images of CIFAR-10, train and test merged
ROUNDS = 3
CPU_STEPS = 2
DEFAULT_SIDE, DEFAULT_CLUSTERS = 32, 10  # where the recipe leaves them to the data
PROBE = 4  # images that are enough to count the passes of a step
FIRST, PROFILED = 3, 5  # steps before the profiler looks, and at which it looks
KINDS = {  # by what the name of a kernel holds, the first that fits
    "fused": ("triton",),
    "convolution": ("conv", "xmma", "cutlass", "sm90", "sm80", "implicit", "wgrad", "dgrad", "fprop", "mkldnn"),
    "matrix product": ("gemm", "cublas", "addmm", "::mm"),
    "optimiser": ("multi_tensor", "adam", "sgd", "foreach", "lerp"),
    "batch-norm": ("batch_norm", "bn_", "_settle_", "_sum_kernel", "_activate_", "_slope_", "_pull_back_"),
    "copies": ("copy", "memcpy", "memset", "fill", "cat"),
}


@dataclass(frozen=True)
class TrainSpeed:
    title: str
    steps: int  # in a round
    batch_size: int
    step_seconds: float  # median over rounds
    pause_seconds: float  # between two epochs, median over rounds
    first_step: float | None  # seconds after the process began
    image_flops: int  # of one image in one step, all its views and their backward passes
    product: float  # FLOP/s of a large matrix product on the same device
    product_type: str
    copying: float  # bytes per second of a large copy on it
    floor: Floor  # of a step
    passes: float  # seconds of a step's passes through the backbones alone
    resident: int | None  # bytes
    on_gpu: int | None  # bytes

    @property
    def images_per_second(self) -> float:
        return self.batch_size / self.step_seconds

    @property
    def flops_per_second(self) -> float:
        return self.images_per_second * self.image_flops

    def to_text(self) -> str:
        epoch_steps = max(1, EPOCH // self.batch_size)
        pause = f"{self.pause_seconds:.2f} s after an epoch of {self.steps * self.batch_size:,} images"
        rows = {
            "images per second": f"{self.images_per_second:,.0f}",
            f"epoch of {EPOCH:,} images": f"{epoch_steps * self.step_seconds:.2f} s in {epoch_steps} steps",
            "between epochs": pause,
            "arithmetic": f"{self.flops_per_second / 1e12:.3g} TFLOP/s, {self.image_flops / 1e9:.3g} GFLOP an image",
            f"{self.product_type} matrix product": f"{self.product / 1e12:.3g} TFLOP/s",
            "share of it": f"{self.flops_per_second / self.product:.0%}",
            "memory copy": f"{self.copying / 1e12:.3g} TB/s, read and written",
            "floor of a step": self._floor_text(),
            "share of the floor": f"{self.floor.seconds / self.step_seconds:.0%}",
            "a step": f"{1000 * self.step_seconds:.2f} ms, {self.step_seconds / self.passes:.2f}x its passes alone",
            "process start to first step": "unknown" if self.first_step is None else f"{self.first_step:.1f} s",
            "peak GPU memory": "no GPU" if self.on_gpu is None else f"{self.on_gpu / 1e9:.2f} GB",
            "peak resident memory": "unknown" if self.resident is None else f"{self.resident / 1e9:.2f} GB",
        }
        lines = [f"{self.title}, {ROUNDS} rounds of {self.steps} steps"]
        return "\n".join([*lines, *(f"{name:30}{value}" for name, value in rows.items())])

    def _floor_text(self) -> str:
        parts = (self.floor.seconds, self.floor.arithmetic, self.floor.activations, self.floor.optimiser)
        whole, arithmetic, activations, optimiser = (f"{1000 * seconds:.2f}" for seconds in parts)
        return f"{whole} ms: {arithmetic} arithmetic, {activations} batch-norm, {optimiser} optimiser"


def configure(recipe: str, method: str | None, device: str | None, overrides: Sequence[str]) -> Config:
    """A recipe's settings with overrides and options, resolved as for a set of the size of CIFAR-10."""
    config = make_config(load_recipe(recipe).settings)
    config = make_config({"method": method} if method else {}, config)
    config = make_config(parse_overrides(overrides), config)
    config = make_config({"train": {"device": device}} if device else {}, config)
    if config.train.backbone.startswith("mlp"):
        raise InputError(f"recipe {recipe} is for rows of numbers: the benchmark train measures recipes for images")
    config = replace(config, n_clusters=config.n_clusters or DEFAULT_CLUSTERS)
    return resolve(config, blank_images(EPOCH, config.train.image_size or DEFAULT_SIDE))


def measure(config: Config, steps: int | None = None) -> TrainSpeed:
    """Train for ROUNDS + 1 epochs of `steps` steps; `config` is resolved."""
    device, batch_size, side = config.train.device, config.train.batch_size, config.train.image_size
    steps = steps or (CPU_STEPS if device == "cpu" else EPOCH // batch_size)
    steps = max(steps, -(-config.n_clusters // batch_size))  # fewer images than clusters cannot be clustered
    images = noise_images(steps * batch_size, side)
    config = replace(config, train=replace(config.train, epochs=ROUNDS + 1, minutes=0.0))
    watch = Stopwatch(steps, lambda: now(device))
    trainer = Trainer(config, images, reporter=watch)
    trainer.run()
    resident, on_gpu = peak_memory(), torch.cuda.max_memory_reserved() if device == "cuda" else None
    began = _process_began()
    online, momentum = passes(config, data_shape(config, images))
    backbone = trainer.method.online.backbone
    image = image_flops(flops(backbone, side), online, momentum)
    product, copying = product_speed(device), copy_speed(device)
    return TrainSpeed(
        title=title_of(config),
        steps=steps,
        batch_size=batch_size,
        step_seconds=statistics.median(watch.rounds[1:]) / steps,
        pause_seconds=statistics.median(watch.pauses[1:]),
        first_step=None if began is None else watch.first_step - began,
        image_flops=image,
        product=product,
        product_type=str(PRODUCT_TYPE[device]).removeprefix("torch."),
        copying=copying,
        floor=floor(config, backbone, image, online, momentum, product, copying),
        passes=passes_alone(trainer, online, momentum, steps),
        resident=resident,
        on_gpu=on_gpu,
    )


class Stopwatch(Reporter):
    """Laps of a run: the steps of each epoch, and the pause that follows them. `read` waits for the device."""

    def __init__(self, steps_per_epoch: int, read: Callable[[], float]) -> None:
        self.steps_per_epoch, self.read = steps_per_epoch, read
        self.taken = 0
        self.first_step = 0.0
        self.rounds: list[float] = []
        self.pauses: list[float] = []
        self._mark = read()

    def step(self, progress: float, remaining: float | None) -> None:
        self.taken += 1
        if self.taken == 1:
            self.first_step = self.read()
        if self.taken % self.steps_per_epoch == 0:
            self.rounds.append(self._lap())

    def epoch(self, row: dict[str, Any]) -> None:
        self.pauses.append(self._lap())

    def _lap(self) -> float:
        before, self._mark = self._mark, self.read()
        return self._mark - before


def passes(config: Config, shape: DataShape) -> tuple[int, int]:
    """How often one image passes a backbone in a step: with a backward pass after it, and without.

    Counted while a small copy of the method computes its losses, so that new methods need not say it.
    """
    config = replace(config, train=replace(config.train, precision="float32"))
    method = find_method(config.method)(config, replace(shape, n_samples=PROBE))
    counts = {True: 0, False: 0}

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts[output.requires_grad] += len(output)

    for module in method.modules():
        if isinstance(module, Backbone):
            module.register_forward_hook(count)
    images = torch.zeros(PROBE, shape.n_inputs, shape.side, shape.side)
    samples = torch.arange(PROBE)
    keys = draws.sample_keys(config.seed, torch.zeros((), dtype=torch.int64), samples)
    views = method.views(Batch(samples, keys, view=lambda stream: images, plain=lambda: images))
    method.losses(views, samples, keys)
    return counts[True] // PROBE, counts[False] // PROBE


def image_flops(forward: int, online: int, momentum: int) -> int:
    """Of one image in one step: a backward pass costs two forward ones, and momentum views have none."""
    return forward * (3 * online + momentum)


def title_of(config: Config) -> str:
    train = config.train
    where = torch.cuda.get_device_name() if train.device == "cuda" else on_cpu()
    sizes = f"{train.backbone}, {train.image_size} px, batch {train.batch_size}"
    return f"{config.method}, {sizes}, {train.precision} on {where}"


def on_cpu() -> str:
    """Where something ran, for a title."""
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads != 1)}"


def _process_began() -> float | None:
    """When this process was started, on the clock of time.monotonic(); None where /proc cannot tell."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return None
    return time.monotonic() - age


# -- kernels of a step -------------------------------------------------------------------------------------------------


def measure_kernels(config: Config) -> Kernels:
    """Of the same step, in a run of its own."""
    train = config.train
    images = noise_images((FIRST + PROFILED) * max(train.batch_size, config.n_clusters), train.image_size)
    watch = KernelWatch(train.device)
    Trainer(replace(config, train=replace(train, epochs=1, minutes=0.0)), images, reporter=watch).run()
    return watch.found()


@dataclass(frozen=True)
class Kernels:
    seconds: dict[str, float]  # of each in a step, by name

    def to_text(self, most: int) -> str:
        total = sum(self.seconds.values())
        kinds: dict[str, float] = defaultdict(float)
        for name, seconds in self.seconds.items():
            kinds[kind_of(name)] += seconds
        lines = [f"kernels of a step: {1000 * total:.2f} ms, mean of {PROFILED} steps"]
        lines += [_line(name, seconds, total) for name, seconds in _longest(kinds)]
        lines += ["", f"the longest {most}"]
        return "\n".join(lines + [_line(name, seconds, total) for name, seconds in _longest(self.seconds)[:most]])


class KernelWatch(Reporter):
    """Profiles the steps of a run from the FIRST on. With a graph on CUDA it sees the kernels that the graph runs."""

    def __init__(self, device: str) -> None:
        self.cuda, self.taken = device == "cuda", 0
        self.profiler = profile(activities=[ProfilerActivity.CUDA if self.cuda else ProfilerActivity.CPU])

    def step(self, progress: float, remaining: float | None) -> None:
        self.taken += 1
        if self.taken in (FIRST, FIRST + PROFILED) and self.cuda:
            torch.cuda.synchronize()
        if self.taken == FIRST:
            self.profiler.start()
        elif self.taken == FIRST + PROFILED:
            self.profiler.stop()

    def found(self) -> Kernels:
        events = self.profiler.key_averages()
        times = {
            event.key: (event.self_device_time_total if self.cuda else event.self_cpu_time_total) / 1e6 / PROFILED
            for event in events
        }
        return Kernels({name: seconds for name, seconds in times.items() if seconds > 0})


def kind_of(name: str) -> str:
    low = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in low for part in parts)), "other")


def _longest(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])


def _line(name: str, seconds: float, total: float) -> str:
    return f"{1000 * seconds:9.3f} ms {seconds / total:6.1%}  {name[:100]}"
