"""Where the time of `fit --backbone pretrained` goes, from the images to the report, with nothing in the cache."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.common import cpu_seconds, environment, write_noise
from twincluster.config import load_recipe, make_config, parse_overrides
from twincluster.data import location_of, open_source
from twincluster.fit import fit
from twincluster.nn import CPU_PIXELS, OnnxNetwork, compile_network, load_encoder
from twincluster.pages import write_report
from twincluster.training import Reporter

SIDE = 32  # pixels of made-up images, which the encoder enlarges
PHASES = ("read", "encoded", "made ready", "trained", "assigned, written", "report")
READING, ENCODING, READY, TRAINING, READ_OUT, REPORT = PHASES


@dataclass(frozen=True)
class Phases:
    title: str
    seconds: dict[str, tuple[float, float]]  # of wall and processor, by phase
    images: int
    alone: dict[str, float]  # images per second of processor of the network alone, by what runs it

    def to_text(self) -> str:
        lines = [self.title, f"{'':20}{'s':>8}{'CPU s':>8}"]
        lines += [f"{name:20}{wall:>8.1f}{cpu:>8.1f}" for name, (wall, cpu) in self.seconds.items()]
        wall, cpu = (sum(column) for column in zip(*self.seconds.values(), strict=True))
        longest = max(self.seconds, key=lambda name: self.seconds[name][0])
        reached, best = self.images / self.seconds[ENCODING][1], max(self.alone.values())
        rates = ", ".join(f"{name} {rate:.0f}" for name, rate in self.alone.items())
        return "\n".join(
            [
                *lines,
                f"{'together':20}{wall:>8.1f}{cpu:>8.1f}",
                f"most time: {longest}, {self.seconds[longest][0] / wall:.0%}",
                f"encoded: {reached:.0f} images a CPU second, {reached / best:.0%} of the network alone ({rates})",
            ]
        )


def rates_alone(name: str, seconds: float = 2.0) -> dict[str, float]:
    """Return how many images a network encodes per second of processor: by torch, by torch in bf16, by onnxruntime."""
    encoder = load_encoder(name)
    images = torch.randn(max(1, CPU_PIXELS // encoder.side**2), 3, encoder.side, encoder.side)
    last, network = images.contiguous(memory_format=torch.channels_last), encoder.network
    rates = {"onnxruntime": _rate(compile_network(network, encoder.side), images, seconds)}
    if not isinstance(network, OnnxNetwork):
        rates["torch"] = _rate(network.to(memory_format=torch.channels_last), last, seconds)
        rates["torch bf16"] = _rate(network.bfloat16(), last.bfloat16(), seconds)
    return rates


@torch.inference_mode()
def _rate(network: nn.Module, images: torch.Tensor, seconds: float) -> float:
    network(images)
    start, done = cpu_seconds(), 0
    while (passed := cpu_seconds() - start) < seconds:
        network(images)
        done += len(images)
    return done / passed


class _Watch(Reporter):
    """Notes when each phase ends."""

    stepped = False

    def __init__(self) -> None:
        self.marks, self.seconds = (time.perf_counter(), cpu_seconds()), dict.fromkeys(PHASES, (0.0, 0.0))

    def until_now(self, phase: str) -> None:
        """All since the last mark belonged to this phase."""
        now, (wall, cpu) = (time.perf_counter(), cpu_seconds()), self.seconds[phase]
        self.seconds[phase] = (wall + now[0] - self.marks[0], cpu + now[1] - self.marks[1])
        self.marks = now

    def encoding(self, done: int, total: int) -> None:
        self.until_now(ENCODING if done else READING)

    def step(self, progress: float, remaining: float | None) -> None:
        self.until_now(TRAINING if self.stepped else READY)  # what is made ready includes the first step
        self.stepped = True

    def epoch(self, row: dict[str, Any]) -> None:
        self.until_now(TRAINING)


def measure(source: str | None, images: int, settings: Sequence[str]) -> Phases:
    base = make_config(load_recipe("pretrained").settings, make_config({"n_clusters": 10, "train": {"device": "cpu"}}))
    config = make_config(parse_overrides(settings), base)
    with tempfile.TemporaryDirectory() as place, environment(TWINCLUSTER_CACHE=place):
        folder = Path(place)
        if source is None:
            write_noise(folder / "noise.npy", images, SIDE)
        source = source or str(folder / "noise.npy")
        listing = open_source(source)
        watch, where = _Watch(), location_of(source)  # without which a report shows no images
        fitted = fit(listing, config, folder / "run", location=where, reporter=watch, encoding=watch.encoding)
        watch.until_now(READ_OUT)
        write_report(fitted.run, "none", source=listing)
        watch.until_now(REPORT)
    title = f"{config.train.encoder}, {len(listing.paths):,} images of {listing.name}, {config.train.epochs} epochs"
    title = f"{title}, {torch.get_num_threads()} threads"
    return Phases(title, watch.seconds, len(listing.paths), rates_alone(config.train.encoder))
