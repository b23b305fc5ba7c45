"""Augmented pairs of images per second: ours beside a torchvision v2 DataLoader with two workers.

Both use two cores and the paper's augmentation and take turns, so that whatever else the machine does slows both. What
a busy machine does not change is the second comparison, by the processor time that a pair costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from benchmarks.common import TICK, cpu_seconds, noise_images
from twincluster.config import Augment
from twincluster.data import N_DRAWS, Feed, Images, augment_images
from twincluster.nn import draws

TARGET = 3.0
CORES = 2
PASSES = 8  # of ours in a round, so that both sides are watched for about as long
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
OURS = "twincluster"


@dataclass(frozen=True)
class AugmentSpeed:
    """Of every contender, one figure for each round."""

    side: int  # pixels
    batch_size: int
    speeds: dict[str, list[float]]  # pairs per second
    efficiency: dict[str, list[float]]  # pairs per second of processor time, of workers too

    def to_text(self) -> str:
        title = f"augmented pairs of {self.side} px images, {CORES} cores, batch {self.batch_size}"
        lines = [
            f"{title}, median of {len(self.speeds[OURS])} rounds",
            f"{'':26}{'pairs/s':>9}{'slowest':>9}{'fastest':>9}{'ours is':>9}{'per CPU s':>12}{'ours is':>9}",
        ]
        for name, values in self.speeds.items():
            times = ["", ""] if name == OURS else [f"{ratio(these, name):.1f}x" for these in self._both]
            numbers = f"{statistics.median(values):9,.0f}{min(values):9,.0f}{max(values):9,.0f}{times[0]:>9}"
            lines.append(f"{name:26}{numbers}{statistics.median(self.efficiency[name]):12,.0f}{times[1]:>9}")
        return "\n".join([*lines, f"target: at least {TARGET:.0f}x the pairs/s of the faster torchvision loader"])

    @property
    def _both(self) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        return self.speeds, self.efficiency


def ratio(figures: dict[str, list[float]], name: str) -> float:
    """How many times better ours is: the median over rounds, each compared within itself."""
    pairs = zip(figures[OURS], figures[name], strict=True)
    return statistics.median(mine / other for mine, other in pairs)


def measure(rounds: int, batches: int, batch_size: int, side: int = 32) -> AugmentSpeed:
    """Let all contenders take `rounds` turns, after one that warms up."""
    images = noise_images(batches * batch_size, side)
    contenders: dict[str, Callable[[], int]] = {
        OURS: feeder(images, batch_size),
        "torchvision v2, tensors": loader(images, batch_size, pillow=False),
        "torchvision v2, Pillow": loader(images, batch_size, pillow=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    efficiency: dict[str, list[float]] = {name: [] for name in contenders}
    with _threads(CORES):
        for turn in range(rounds + 1):
            for name, run in contenders.items():
                start, spent = time.perf_counter(), cpu_seconds()
                pairs = run()
                if turn:  # the first round starts the workers and warms the allocator
                    speeds[name].append(pairs / (time.perf_counter() - start))
                    efficiency[name].append(pairs / max(cpu_seconds() - spent, TICK))
    return AugmentSpeed(side, batch_size, speeds, efficiency)


def feeder(images: Images, batch_size: int) -> Callable[[], int]:
    """Some epochs as the engine takes them: read a batch, draw, augment it twice. Returns the number of pairs."""
    feed = Feed(images, batch_size, seed=0, device=torch.device("cpu"))
    settings, mean, std = Augment(), torch.tensor(MEAN), torch.tensor(STD)

    def view(keys: Tensor, stream: int) -> Tensor:
        uniform = draws.uniform(keys, stream, N_DRAWS)
        view = augment_images(feed.images, uniform, settings, images.side, mean, std)
        return view.contiguous(memory_format=torch.channels_last)

    def run() -> int:
        pairs = 0
        for epoch in range(PASSES):
            for _ in feed.epoch(epoch):
                keys = draws.sample_keys(feed.seed, torch.tensor(epoch), feed.samples)
                first, _second = view(keys, 0), view(keys, 1)
                pairs += len(first)
        return pairs

    return run


def loader(images: Images, batch_size: int, *, pillow: bool) -> Callable[[], int]:
    """One shuffled epoch of the usual way, with workers that stay alive between epochs."""
    batches = DataLoader(Pairs(images, pillow), batch_size, shuffle=True, num_workers=CORES, persistent_workers=True)

    def run() -> int:
        return sum(len(first) for first, _ in batches)

    return run


class Pairs(Dataset[tuple[Tensor, ...]]):
    """Two views per image, transformed image by image as torchvision means it: every image has its own draws."""

    def __init__(self, images: Images, pillow: bool, settings: Augment | None = None) -> None:
        planes = torch.from_numpy(images.pixels).permute(0, 3, 1, 2).contiguous()
        self.images = [Image.fromarray(pixels) for pixels in images.pixels] if pillow else planes
        settings = settings or Augment()
        jitter = settings.brightness, settings.contrast, settings.saturation, settings.hue
        crop = v2.RandomResizedCrop(images.side, settings.crop_area, settings.crop_ratio, antialias=pillow)
        colour = [v2.RandomGrayscale(settings.grey), v2.ColorJitter(*jitter), v2.RandomHorizontalFlip(settings.flip)]
        to_float = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        # Each kind in its fastest order: tensors go faster as float from the start, Pillow knows bytes only.
        steps = [crop, *colour, *to_float] if pillow else [*to_float, crop, *colour]
        self.transform = v2.Compose([*steps, v2.Normalize(MEAN, STD)])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        image = self.images[index]
        return self.transform(image), self.transform(image)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
