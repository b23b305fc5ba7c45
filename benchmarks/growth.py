"""What more of everything costs: time and memory of a step against the queues and the number of clusters, and time of
what happens between epochs against the number of images.

The paper's O(L + J) is per row of similarities. A step has N rows against the J of queue Q and K rows against the L of
queue P, and masks the L columns for each of K clusters, so it grows as N·J + K·L; with L = 100·K, as K squared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.common import blank_images, noise_images
from benchmarks.floor import now
from benchmarks.train import ROUNDS, Stopwatch, configure, on_cpu
from twincluster.clustering import score
from twincluster.config import Config, make_config
from twincluster.core import unfinished
from twincluster.methods import Anchored
from twincluster.resolve import data_shape, resolve
from twincluster.training import Trainer

QUEUES = {"cpu": (4096, 16_384, 65_536, 262_144), "cuda": (4096, 16_384, 65_536, 262_144, 1_048_576)}  # J and L
CLUSTERS = {"cpu": (10, 40, 160, 640), "cuda": (10, 40, 160, 640)}  # K, each a divisor of the next
GROWING = {"cpu": (10, 40, 160, 640), "cuda": (10, 40, 100, 160, 250, 400, 640)}  # K with L = 100·K
IMAGES = {"cpu": (10_000, 20_000, 40_000, 80_000, 160_000), "cuda": (15_000, 60_000, 240_000, 960_000)}
SPREAD = 0.5  # of made-up features around their clusters, which k-means then finds in a few rounds
SMALL = [
    "train.backbone=small",
    "train.batch_size=64",
    "train.image_size=16",
]  # on a CPU
STEPS = {"cpu": 2, "cuda": 50}


@dataclass(frozen=True)
class Point:
    value: int  # of what grows
    seconds: float
    memory: int  # bytes; 0 where not measured
    work: int  # what seconds should grow with


@dataclass(frozen=True)
class Line:
    title: str
    name: str
    points: tuple[Point, ...]
    work: str  # as in "N·J"

    def rows(self) -> list[str]:
        """The last column is constant where time grows as the work does, falls where it grows more slowly."""
        lines = [self.title, f"{self.name:>10}{'ms':>10}{'GB':>9}{'ns for each added ' + self.work:>26}"]
        for before, point in zip((None, *self.points), self.points, strict=False):
            memory = f"{point.memory / 1e9:.2f}" if point.memory else ""
            line = f"{point.value:>10,}{1e3 * point.seconds:>10,.2f}{memory:>9}"
            if before:
                line += f"{1e9 * (point.seconds - before.seconds) / (point.work - before.work):>26.3f}"
            lines.append(line.rstrip())
        return lines


@dataclass(frozen=True)
class Growth:
    title: str
    lines: tuple[Line, ...]

    def to_text(self) -> str:
        return "\n".join([self.title] + [row for line in self.lines for row in ("", *line.rows())])

    def plot(self, path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4 * len(self.lines), 3.6), layout="constrained")
        for axes, line in zip(figure.subplots(1, len(self.lines), squeeze=False)[0], self.lines, strict=True):
            axes.plot(
                [point.value for point in line.points], [1e3 * point.seconds for point in line.points], marker="o"
            )
            axes.set(xscale="log", yscale="log", xlabel=line.name, ylabel="ms", title=line.title)
        with unfinished(path) as partial:
            figure.savefig(partial, format=path.suffix[1:].lower())


def measure(recipe: str, device: str | None, settings: Sequence[str]) -> Growth:
    """A line each for J, L, K at a fixed L, K at L = 100·K, and two for N."""
    base = configure(recipe, "tcc", device, settings)
    kind = base.train.device
    if kind == "cpu":
        base = configure(recipe, "tcc", device, [*SMALL, *settings])
    base = replace(base, train=replace(base.train, compile=False))  # each point would be compiled anew
    fixed = 100 * max(CLUSTERS[kind])
    batch, few = base.train.batch_size, base.n_clusters
    lines = (
        _steps("a step, by rows of Q", "J", QUEUES[kind], lambda j: _with(base, instance_queue=j),
               lambda j: batch * j, "N·J"),
        _steps("a step, by rows of P", "L", [few * (rows // few) for rows in QUEUES[kind]],
               lambda rows: _with(base, cluster_queue=rows), lambda rows: few * rows, "K·L"),
        _steps(f"a step, by clusters at L = {fixed:,}", "K", CLUSTERS[kind],
               lambda k: _with(base, k, cluster_queue=fixed), lambda k: k * fixed, "K·L"),
        _steps("a step, by clusters at L = 100·K", "K", GROWING[kind],
               lambda k: _with(base, k, cluster_queue=100 * k), lambda k: 100 * k * k, "K·L"),
        *_between_epochs(base, IMAGES[kind]),
    )  # fmt: skip
    train = base.train
    sizes = f"{train.backbone}, {train.image_size} px, batch {batch}, {train.precision}, not compiled"
    where = torch.cuda.get_device_name() if kind == "cuda" else on_cpu()
    return Growth(f"growth of tcc, {sizes} on {where}", lines)


def _with(base: Config, n_clusters: int = 0, **tcc: int) -> Config:
    """With other queues; as for so many images that they are not cut to the size of the data."""
    config = make_config({"tcc": tcc}, base)
    config = replace(config, n_clusters=n_clusters or base.n_clusters)
    return resolve(config, blank_images(max(QUEUES["cuda"]), base.train.image_size))


def _steps(
    title: str, name: str, values: Sequence[int], made: Callable[[int], Config], work: Callable[[int], int], of: str
) -> Line:
    points = []
    for value in values:
        try:
            seconds, memory = step_cost(made(value))
        except torch.cuda.OutOfMemoryError:
            title += f" (out of memory at {value:,})"
            break
        points.append(Point(value, seconds, memory, work(value)))
    return Line(title, name, tuple(points), of)


def step_cost(config: Config) -> tuple[float, int]:
    """Seconds of a step, and the most memory on the device; on a CPU the bytes of all state."""
    device, cuda = config.train.device, config.train.device == "cuda"
    steps = STEPS[device]
    steps = max(steps, -(-config.n_clusters // config.train.batch_size))
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    config = replace(config, train=replace(config.train, epochs=ROUNDS + 1, minutes=0.0))
    watch = Stopwatch(steps, lambda: now(device))
    images = noise_images(steps * config.train.batch_size, config.train.image_size)
    trainer = Trainer(config, images, reporter=watch)
    trainer.run()
    state = sum(tensor.nbytes for tensor in trainer.state().values())
    memory = torch.cuda.max_memory_allocated() if cuda else state
    return statistics.median(watch.rounds[1:]) / steps, memory


def _between_epochs(base: Config, sizes: Sequence[int]) -> list[Line]:
    """New clusters after an epoch, and scores of the result, by images; both should grow as N·K at most."""
    relabelling, scoring = [], []
    for n in sizes:
        features, origin = _clouds(n, base)
        relabelling.append(Point(n, relabel(features, base), 0, n * base.n_clusters))
        scoring.append(Point(n, _scoring(origin), 0, n * base.n_clusters))
    return [
        Line("new clusters after an epoch (anchored), by images", "N", tuple(relabelling), "N·K"),
        Line("ACC, NMI and ARI, by images", "N", tuple(scoring), "N·K"),
    ]


def relabel(features: torch.Tensor, base: Config) -> float:
    """Seconds of what the default method does after an epoch: k-means from scratch and from the clusters there are."""
    config = replace(base, method="anchored")
    shape = replace(data_shape(config, blank_images(1, config.train.image_size)), n_samples=len(features))
    method = Anchored(config, shape).to(config.train.device)
    method.bank = features[:, : method.bank.shape[1]].contiguous()
    optimiser = torch.optim.SGD(method.parameters())
    return _timed(lambda epoch: method.after_epoch(epoch, lambda: iter(()), optimiser), config.train.device)


def _scoring(origin: np.ndarray) -> float:
    return _timed(lambda turn: score(origin, np.roll(origin, 1 + turn)), "cpu")


def _timed(work: Callable[[int], object], device: str) -> float:
    """Seconds, median of the rounds after a first one, which also imports."""
    times = []
    for turn in range(ROUNDS + 1):
        start = now(device)
        work(turn)
        times.append(now(device) - start)
    return statistics.median(times[1:])


def _clouds(n: int, base: Config) -> tuple[torch.Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    origin = torch.arange(n) % base.n_clusters
    middles = F.normalize(torch.randn(base.n_clusters, 512, generator=generator), dim=1)
    noise = torch.randn(n, 512, generator=generator) / 512**0.5
    return F.normalize(middles[origin] + SPREAD * noise, dim=1).to(base.train.device), origin.numpy()
