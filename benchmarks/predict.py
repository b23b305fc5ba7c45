"""Prediction: arrays beside the network alone, and files with torch beside ONNX Runtime.

The network has its first weights, which cost what trained ones do. "The network alone" is the same network, again and
again on one chunk that lies on the device, ready to be seen: no reading, no copies, no results.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import make_pictures, noise_images
from benchmarks.peers import Turn, turn_seconds
from benchmarks.train import on_cpu, title_of
from twincluster.config import Config
from twincluster.core import InputError
from twincluster.data import Images, open_images, open_source
from twincluster.export.onnx import write_onnx
from twincluster.fit import describe
from twincluster.methods import Network, find_method
from twincluster.methods.base import chunk_size, predict
from twincluster.model import load_network
from twincluster.resolve import data_shape, store_side
from twincluster.run_images import RunImages
from twincluster.runs import Run

GOAL = 0.8
IMAGES = {"cpu": 1024, "cuda": 200_000}
TURNS = 5  # that torch and ONNX Runtime take, each on another part of the files
TORCH, ONNX = "torch", "ONNX Runtime"


@dataclass(frozen=True)
class ArraySpeed:
    """Seconds, one figure for each round."""

    title: str
    count: int
    alone: list[float]
    predicting: list[float]

    def to_text(self) -> str:
        rates = [self.count / statistics.median(seconds) for seconds in (self.alone, self.predicting)]
        return "\n".join(
            [
                f"{self.title}, {self.count:,} images in an array, median of {len(self.alone)} rounds",
                f"{'':26}{'images/s':>10}{'share':>8}",
                f"{'the network alone':26}{rates[0]:>10,.0f}",
                f"{'predict':26}{rates[1]:>10,.0f}{self.share:>8.0%}",
                f"goal on a GPU: {GOAL:.0%} of the network alone",
            ]
        )

    @property
    def share(self) -> float:
        pairs = zip(self.alone, self.predicting, strict=True)
        return statistics.median(alone / predicting for alone, predicting in pairs)


@dataclass(frozen=True)
class FileSpeed:
    """Seconds of wall and processor; the network's one pair for each turn."""

    title: str
    count: int
    decoding: float
    network: dict[str, list[tuple[float, float]]]
    difference: float  # largest, of two probabilities

    def to_text(self) -> str:
        lines = [
            f"{self.title}, {self.count:,} JPEG files, decoded in {self.decoding:.1f} s",
            f"{'':26}{'network, s':>11}{'images/s':>10}{'CPU s':>8}{'with decoding, s':>18}",
        ]
        for name, turns in self.network.items():
            wall, cpu = (sum(column) for column in zip(*turns, strict=True))
            lines.append(f"{name:26}{wall:>11.1f}{self.count / wall:>10,.0f}{cpu:>8.1f}{wall + self.decoding:>18.1f}")
        ratio = f"{ONNX} has {self.ratio:.2f}x the speed of {TORCH} in the network, median of {TURNS} turns"
        return "\n".join([*lines, f"{ratio}; probabilities differ by {self.difference:.1e} at most"])

    @property
    def ratio(self) -> float:
        pairs = zip(self.network[TORCH], self.network[ONNX], strict=True)
        return statistics.median(ours[0] / theirs[0] for ours, theirs in pairs)


def measure_arrays(config: Config, images: int | None, rounds: int) -> ArraySpeed:
    """`config` is resolved."""
    device = config.train.device
    data = noise_images(images or IMAGES[device], config.train.image_size)
    network = network_of(config, data)
    forward = alone(network, data)
    contenders: dict[str, Turn] = {
        "forward": lambda _: forward(),
        "predict": lambda _: predict(network, data.pixels, data.usable),
    }
    seconds = turn_seconds(contenders, rounds, device)
    return ArraySpeed(title_of(config), len(data.usable), seconds["forward"], seconds["predict"])


def network_of(config: Config, images: Images) -> Network:
    network = find_method(config.method)(config, data_shape(config, images)).online.eval()
    network.to(config.train.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def alone(network: Network, images: Images) -> Callable[[], object]:
    """As many forward passes as the images take, all of one chunk."""
    size, count = chunk_size(network, images.pixels), len(images.usable)
    raw = torch.from_numpy(images.pixels[:size]).to(network.mean.device)
    whole, rest = divmod(count, size)
    seen = network.prepare(raw)

    @torch.no_grad()
    def run() -> None:
        for _ in range(whole):
            network.log_assign(seen)
        if rest:
            network.log_assign(seen[:rest])

    return run


def measure_files(config: Config, source: str | None, count: int) -> FileSpeed:
    """The same decoded files through torch, on the CPU, and through the file that `export --to onnx` writes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if source is None:
            make_pictures(folder / "photos", count, (config.train.image_size, config.train.image_size))
        listing = open_source(source or folder / "photos")
        listing = listing.part(range(min(count, len(listing.paths))))
        start = time.perf_counter()
        images = open_images(
            listing, side=store_side(config, listing), frame=config.train.frame, cache=folder / "cache"
        )
        decoding = time.perf_counter() - start
        run = Run.create(folder / "run")
        run.write_config(config, data_shape(config, images), describe(images))
        run.save_model(network_of(config, images))
        network = load_network(run, "cpu")
        session = onnx_session(run, folder / "network.onnx", chunk_size(network, images.pixels))
        contenders = {
            TORCH: lambda rows: predict(network, images.pixels, rows).numpy(),
            ONNX: lambda rows: session(images.pixels, rows),
        }
        seconds, difference = take_turns(contenders, images.usable)
    where = f"{config.train.backbone}, {network.side} px, float32 on {on_cpu()}"
    return FileSpeed(where, len(images.usable), decoding, seconds, difference)


def onnx_session(run: Run, path: Path, size: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """What gives the probabilities of some rows of an array by ONNX Runtime, with as many threads as torch has."""
    try:
        from onnxruntime import InferenceSession, SessionOptions
    except ImportError:
        raise InputError("files are also predicted by ONNX Runtime: pip install onnxruntime, or --files 0") from None
    write_onnx(RunImages(run), path)
    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(str(path), options)

    def probabilities(pixels: np.ndarray, rows: np.ndarray) -> np.ndarray:
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        return np.concatenate([session.run(["probabilities"], {"images": pixels[part]})[0] for part in parts])

    return probabilities


def take_turns(
    contenders: dict[str, Callable[[np.ndarray], np.ndarray]], rows: np.ndarray
) -> tuple[dict[str, list[tuple[float, float]]], float]:
    """Seconds of wall and processor by turn, and by how much the results differ at most."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for run in contenders.values():
        run(rows[:8])  # warms up
    largest = 0.0
    for part in np.array_split(rows, TURNS):
        found = []
        for name, run in contenders.items():
            start, spent = time.perf_counter(), time.process_time()
            found.append(run(part))
            seconds[name].append((time.perf_counter() - start, time.process_time() - spent))
        largest = max(largest, float(np.abs(found[0] - found[1]).max()))
    return seconds, largest
