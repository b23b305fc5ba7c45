"""Training on images that stay in a file, beside training on the same images on the device.

Both train the same network with the same method on the same memory-mapped array and take turns, an epoch at a time. The
third row only fills batches, so it says how much faster than the steps the reading is.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.common import write_noise
from benchmarks.peers import Turn, turn_seconds, turns
from benchmarks.train import EPOCH, title_of
from twincluster.config import Config
from twincluster.data import Feed, Images, open_images, open_source
from twincluster.training import Trainer
from twincluster.training.cuda_graph import captured

RESIDENT, STREAMED, READING = "on the device", "streamed from a file", "streamed, no steps"
GOAL = 0.9
CPU_STEPS = 4


@dataclass(frozen=True)
class FeedSpeed:
    """Seconds of an epoch, one figure for each round."""

    title: str
    count: int  # images in an epoch
    image_bytes: int
    seconds: dict[str, list[float]]

    def to_text(self) -> str:
        rounds = len(self.seconds[RESIDENT])
        lines = [
            f"{self.title}, epochs of {self.count:,} images of {self.image_bytes:,} bytes, median of {rounds} rounds",
            f"{'':26}{'s an epoch':>11}{'images/s':>11}{'MB/s':>9}{'share':>8}",
        ]
        for name, seconds in self.seconds.items():
            middle = statistics.median(seconds)
            speed = self.count / middle
            share = f"{self.share(name):.0%}" if name == STREAMED else ""
            rates = f"{speed:>11,.0f}{speed * self.image_bytes / 1e6:>9,.0f}{share:>8}"
            lines.append(f"{name:26}{middle:>11.3f}{rates}".rstrip())
        return "\n".join([*lines, f"goal on a GPU: {STREAMED} at {GOAL:.0%} or more of {RESIDENT}"])

    def share(self, name: str) -> float:
        """Of the resident speed: the median over rounds, each compared within itself."""
        pairs = zip(self.seconds[RESIDENT], self.seconds[name], strict=True)
        return statistics.median(resident / other for resident, other in pairs)


def measure(config: Config, rounds: int, steps: int | None, side: int | None) -> FeedSpeed:
    """Let them take `rounds` turns of `steps` steps, after one that warms up. `config` is resolved; images are stored
    at `side` pixels, or at the size of training."""
    train = config.train
    steps = steps or (CPU_STEPS if train.device == "cpu" else max(1, EPOCH // train.batch_size))
    count = max(steps * train.batch_size, config.n_clusters)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npy"
        write_noise(path, count, side or train.image_size)
        images = open_images(open_source(path))
        contenders = {
            RESIDENT: training(config, images, resident=True),
            STREAMED: training(config, images, resident=False),
            READING: reading(config, images),
        }
        seconds = turn_seconds(contenders, rounds, train.device)
    return FeedSpeed(title_of(config), steps * train.batch_size, images.pixels[0].nbytes, seconds)


def training(config: Config, images: Images, *, resident: bool) -> Turn:
    trainer = Trainer(config, images)
    # another feed before the step is captured, because the graph reads the buffers of the one it was captured with
    trainer.feed = feed_of(config, images, resident)
    return turns(trainer, captured(trainer) if config.train.device == "cuda" else trainer.step)


def reading(config: Config, images: Images) -> Turn:
    feed = feed_of(config, images, resident=False)

    def turn(number: int) -> None:
        for _ in feed.epoch(number):
            pass

    return turn


def feed_of(config: Config, images: Images, resident: bool) -> Feed:
    return Feed(images, config.train.batch_size, config.seed, torch.device(config.train.device), resident=resident)
