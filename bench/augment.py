"""Augmented pairs of CIFAR-sized images per second, ours against a torchvision v2 DataLoader with two workers.

Both use two cores and the paper's augmentation and take turns; the table holds medians. Run: python bench/augment.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from twincluster.config import Augment
from twincluster.images.augment import N_DRAWS, augment_images

CORES, BATCH, BATCHES, SIDE, ROUNDS = 2, 512, 4, 32, 5
PASSES = 8  # of ours in a round, so that both sides are watched for about as long
TARGET = 3.0
MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


def main() -> None:
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (BATCH * BATCHES, SIDE, SIDE, 3), dtype=torch.uint8)
    runs: dict[str, Callable[[], int]] = {
        "twincluster": lambda: _ours(images),
        "torchvision v2, tensors": _loader(images, pillow=False),
        "torchvision v2, Pillow": _loader(images, pillow=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            pairs = run()
            if turn:  # the first round starts the workers and warms the allocator
                speeds[name].append(pairs / (time.perf_counter() - start))
    _print(speeds)


def _ours(images: Tensor) -> int:
    """Shuffled epochs: gather a batch, draw, augment it twice. Returns the number of pairs."""
    settings, mean, std = Augment(), torch.tensor(MEAN), torch.tensor(STD)
    for _ in range(PASSES):
        for chosen in torch.randperm(len(images)).split(BATCH):
            batch = images[chosen]
            for _ in range(2):
                augment_images(batch, torch.rand(len(batch), N_DRAWS), settings, SIDE, mean, std)
    return PASSES * len(images)


def _loader(images: Tensor, pillow: bool) -> Callable[[], int]:
    """One shuffled epoch of the usual way, with workers that stay alive between epochs."""
    loader = DataLoader(_Pairs(images, pillow), BATCH, shuffle=True, num_workers=CORES, persistent_workers=True)

    def run() -> int:
        return sum(len(first) for first, _ in loader)

    return run


class _Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Two views per image, transformed image by image as torchvision means it: every image has its own draws."""

    def __init__(self, images: Tensor, pillow: bool) -> None:
        planes = images.permute(0, 3, 1, 2).contiguous()
        self.images = [Image.fromarray(pixels) for pixels in images.numpy()] if pillow else planes
        settings = Augment()
        jitter = settings.brightness, settings.contrast, settings.saturation, settings.hue
        crop = v2.RandomResizedCrop(SIDE, settings.crop_area, settings.crop_ratio, antialias=pillow)
        colour = [v2.RandomGrayscale(settings.grey), v2.ColorJitter(*jitter), v2.RandomHorizontalFlip(settings.flip)]
        to_float = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
        # Each kind in its fastest order: tensors go faster as float from the start, Pillow knows bytes only.
        steps = [crop, *colour, *to_float] if pillow else [*to_float, crop, *colour]
        self.transform = v2.Compose([*steps, v2.Normalize(MEAN, STD)])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        return self.transform(image), self.transform(image)


def _print(speeds: dict[str, list[float]]) -> None:
    ours = speeds["twincluster"]
    print(
        f"augmented pairs of {SIDE}x{SIDE} images per second, {CORES} cores, batch {BATCH}, median of {ROUNDS} rounds"
    )
    print(f"{'':26}{'pairs/s':>9}{'slowest':>9}{'fastest':>9}{'ours is':>9}")
    for name, values in speeds.items():
        ratio = statistics.median(mine / other for mine, other in zip(ours, values, strict=True))
        times = "" if values is ours else f"{ratio:.1f}x"
        print(f"{name:26}{statistics.median(values):9,.0f}{min(values):9,.0f}{max(values):9,.0f}{times:>9}")
    print(f"target: at least {TARGET:.0f}x the faster torchvision loader")


if __name__ == "__main__":
    main()
