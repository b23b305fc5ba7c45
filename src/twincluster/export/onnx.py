"""The network of a run as one ONNX file that takes images as they are: preprocessing, encoder and clusters inside.

Merges, splits and what was taught are inside, as two more outputs; single images that a person has moved are not, for
the file knows no image. Shapes: N batch, H and W of the images, K clusters, D features.

Images of any size as a network sees them, in operations that a graph of fixed form can hold.

Resizing is multiplication by matrices, which are computed from the size of the images: the Resize of ONNX is not bound
to weigh pixels as torch and Pillow do. Shapes: N batch, H and W of the images, S side, T stored side.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from twincluster.clustering import Head
from twincluster.core import InputError, check_writable, unfinished
from twincluster.data import Frame
from twincluster.methods import Network
from twincluster.model import Model, later_side
from twincluster.resolve import full_side
from twincluster.run_images import RunImages
from twincluster.runs import JUNK, Learned, Merge, Run, Split, State

OPSET = 18
INSTALL = "ONNX needs packages: pip install 'twincluster[onnx]'"
OUTPUTS = ("probabilities", "embedding")
ROUTED = ("cluster", "confidence")  # the same with a person's corrections


def write_onnx(inputs: RunImages, out: Path) -> str:
    """Write the file, and say what it takes."""
    run = inputs.run
    if out.suffix.lower() != ".onnx" or out.is_dir():
        raise InputError(f"{out}: expected the name of a file that ends in .onnx")
    check_writable(out.parent)
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise InputError(INSTALL)
    state = inputs.edits.state
    module, example, name = exported(run, state)
    outputs = OUTPUTS + (ROUTED if state.joined else ())
    moving = {0: "batch"} | ({1: "height", 2: "width"} if example.dim() == 4 else {})
    out.parent.mkdir(parents=True, exist_ok=True)
    with _quiet():
        try:
            program: Any = torch.onnx.export(
                module, (example,), dynamo=True, opset_version=OPSET, input_names=[name], output_names=list(outputs),
                dynamic_shapes=(moving,), verbose=False,
            )  # fmt: skip
        except Exception as error:  # whatever a graph is refused for
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"the network of {run.folder} cannot be written as ONNX ({said}): choose --to huggingface"
            ) from error
    with unfinished(out) as partial:
        program.save(partial)
    takes = "uint8 (batch, height, width, 3)" if name == "images" else f"float32 (batch, {example.shape[1]})"
    return f"{out} takes {name}, {takes}, and gives {', '.join(outputs[:-1])} and {outputs[-1]}{_edited(inputs, state)}"


def _edited(inputs: RunImages, state: State) -> str:
    """What there is to know about the corrections of a run."""
    if state.joined:
        return "; cluster is the number after all corrections, probabilities and embedding are the model's"
    return "; clusters keep their numbers there, whatever they are called" if inputs.edits.any else ""


def exported(run: Run, state: State | None = None) -> tuple[nn.Module, Tensor, str]:
    """What goes into the file, an example of its input, and what that is called."""
    model = Model.load(run, "cpu")
    routing = Routing(state) if state is not None and state.joined else None
    config, shape, data, network = model.config, model.shape, run.data, model.network
    inner: nn.Module = nn.Identity()
    if encoder := model.encoder:
        seeing, inner = partial(Seeing, encoder.side, encoder.mean, encoder.std), encoder.network
        stored = encoder.side
    elif shape.side:
        seeing, stored = partial(Seeing, shape.side, shape.mean, shape.std), later_side(config, data)
    else:
        return OfRows(network, routing).eval(), torch.zeros(2, shape.n_inputs), "rows"
    frame = config.train.frame
    seen: Seeing | SeeingArrays = seeing(frame, stored if data.files else 0)  # as the run's own images were read
    if not data.files and stored == full_side(config) and not config.train.frozen:
        seen = SeeingArrays(seeing(frame), seeing(frame, stored))
    example = torch.zeros(2, seen.side + 5, seen.side + 3, 3, dtype=torch.uint8)  # no two sizes alike
    return OfImages(network, seen, inner, not shape.side, routing).eval(), example, "images"


class OfRows(nn.Module):
    """float32 rows (N,d) to probabilities (N,K) and embedding (N,D), and what a person has made of them."""

    def __init__(self, network: Network, routing: Routing | None = None) -> None:
        super().__init__()
        self.network, self.routing = network, routing

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        standard = (rows - self.network.mean) / self.network.std
        return _outputs(self.network, self.network.prepare(rows), self.routing, standard)


class OfImages(nn.Module):
    """uint8 images (N,H,W,3) to probabilities (N,K) and embedding (N,D), and what a person has made of them."""

    def __init__(
        self, network: Network, seeing: nn.Module, encoder: nn.Module, of_rows: bool, routing: Routing | None = None
    ) -> None:
        super().__init__()
        self.network, self.seeing, self.encoder = network, seeing, encoder
        self.of_rows, self.routing = of_rows, routing

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        seen = self.encoder(self.seeing(images))
        if not self.of_rows:
            return _outputs(self.network, seen, self.routing)
        features = seen.flatten(1)
        return _outputs(self.network, self.network.prepare(features), self.routing, features)


def _outputs(network: Network, seen: Tensor, routing: Routing | None, *others: Tensor) -> tuple[Tensor, ...]:
    found = network.log_assign(seen).exp(), network.embed(seen)
    return found if routing is None else (*found, *routing(*found, *others))


class Routing(nn.Module):
    """`State.decide` as a graph: the taught model, where there is one, then later merges and splits."""

    def __init__(self, state: State) -> None:
        super().__init__()
        last = max((at for at, step in enumerate(state.joined) if isinstance(step, Learned)), default=-1)
        self.steps = nn.ModuleList(
            Merged(step) if isinstance(step, Merge) else Parted(step)
            for step in state.joined[last + 1 :]
            if isinstance(step, Merge | Split)
        )
        self.head = TaughtHead(state.head()) if last >= 0 and state.head else None

    def forward(self, probabilities: Tensor, embedding: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        """Cluster (N,) int64 and confidence (N,); `others` are kinds of features that stand before the embedding."""
        confidence, cluster = probabilities.max(1)
        if self.head is not None:
            confidence, cluster = self.head(*others, embedding)
        for step in self.steps:
            cluster = step(cluster, embedding)
        return cluster, confidence


class Merged(nn.Module):
    ended: Tensor

    def __init__(self, step: Merge) -> None:
        super().__init__()
        self.into = step.into
        self.register_buffer("ended", torch.from_numpy(step.clusters))

    def forward(self, cluster: Tensor, embedding: Tensor) -> Tensor:
        return torch.where((cluster[:, None] == self.ended).any(1), self.into, cluster)


class Parted(nn.Module):
    parts: Tensor
    centres: Tensor

    def __init__(self, step: Split) -> None:
        super().__init__()
        self.cluster, alone = step.cluster, step.centres is None
        parts = np.array([step.rest]) if alone else step.parts
        centres = np.zeros((1, 1), np.float32) if step.centres is None else step.centres
        self.register_buffer("parts", torch.from_numpy(parts))
        self.register_buffer("centres", None if alone else torch.from_numpy(centres))

    def forward(self, cluster: Tensor, embedding: Tensor) -> Tensor:
        nearest = torch.zeros_like(cluster) if self.centres is None else (embedding @ self.centres.T).argmax(1)
        return torch.where(cluster == self.cluster, self.parts[nearest], cluster)


class TaughtHead(nn.Module):
    """`Head.predict` without junk, as a graph."""

    classes: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, head: Head) -> None:
        super().__init__()
        ordinary = np.flatnonzero(head.classes != JUNK)
        self.register_buffer("classes", torch.from_numpy(head.classes[ordinary]))
        self.register_buffer("weight", torch.from_numpy(head.weight[:, ordinary]))
        self.register_buffer("bias", torch.from_numpy(head.bias[ordinary]))
        self.views = nn.ModuleList(Placed(view.mean, view.directions) for view in head.views)

    def forward(self, *kinds: Tensor) -> tuple[Tensor, Tensor]:
        placed = [place(kind) for place, kind in zip(self.views, kinds, strict=True)]
        rows = placed[0] if len(placed) == 1 else _unit(torch.cat(placed, 1))
        confidence, place = (rows @ self.weight + self.bias).softmax(1).max(1)
        return confidence, self.classes[place]


class Placed(nn.Module):
    """One kind of features in the space of the head."""

    mean: Tensor
    directions: Tensor

    def __init__(self, mean: np.ndarray, directions: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(mean))
        self.register_buffer("directions", torch.from_numpy(directions))

    def forward(self, features: Tensor) -> Tensor:
        return _unit((features - self.mean) @ self.directions)


def _unit(rows: Tensor) -> Tensor:
    length: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / length.clamp(min=1e-12)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(action="ignore"):
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


Kernel = Callable[[Tensor], Tensor]


class Seeing(nn.Module):
    """uint8 (N,H,W,3) to (N,3,S,S): the middle square, or all of an image between bars, standardised.

    Without `stored` it is what becomes of arrays. With it, it is what becomes of files: decoding.py first makes them T
    pixels a side, by Lanczos and in whole steps of 255.
    """

    mean: Tensor
    std: Tensor
    last: Tensor | None  # (S,T)

    def __init__(
        self, side: int, mean: tuple[float, ...], std: tuple[float, ...], frame: Frame, stored: int = 0
    ) -> None:
        super().__init__()
        self.side, self.frame, self.stored = side, frame, stored
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))
        again = stored not in (0, side)
        self.register_buffer("last", _weights(torch.arange(stored), stored, side, _triangle) if again else None)

    def forward(self, images: Tensor) -> Tensor:
        rows, columns = torch.arange(images.shape[1]), torch.arange(images.shape[2])
        height, width = torch.ones_like(rows).sum(), torch.ones_like(columns).sum()  # tensors: one graph for all sizes
        planes = images.permute(0, 3, 1, 2).float()  # 0 to 255
        if self.frame == "crop":
            seen = self._cropped(planes, rows, columns, torch.minimum(height, width))
        elif self.stored:
            seen = self._boxed(planes, rows, columns, torch.maximum(height, width))
        else:
            seen = self._barred(planes, rows, columns, torch.maximum(height, width))
        if self.last is not None:
            seen = self.last @ seen @ self.last.T
        return (seen / 255 - self.mean) / self.std

    def _cropped(self, planes: Tensor, rows: Tensor, columns: Tensor, edge: Tensor) -> Tensor:
        """The middle square, `edge` pixels a side."""
        side, kernel = (self.stored, _lanczos) if self.stored else (self.side, _triangle)
        down, across = (
            _weights(places - (torch.ones_like(places).sum() - edge) // 2, edge, side, kernel)
            for places in (rows, columns)
        )
        return self._whole(down @ self._whole(planes @ across.T))

    def _barred(self, planes: Tensor, rows: Tensor, columns: Tensor, edge: Tensor) -> Tensor:
        """Bars first, then the size: what becomes of arrays. What is missing from a sum of weights is bar."""
        border = torch.cat([planes[:, :, 0], planes[:, :, -1], planes[..., 0], planes[..., -1]], 2)  # (N,3,2H+2W)
        bar = border.mean(2).round()[:, :, None, None]
        weights = []
        for along, other in ((rows, columns), (columns, rows)):
            length = torch.ones_like(along).sum()
            beyond = torch.where(other >= length, other, -1)  # places of the square that this edge does not reach
            every = torch.cat([along, beyond])
            weights.append(_weights(along + (edge - length) // 2, edge, self.side, _triangle, every))
        down, across = weights
        seen = planes @ across.T + (1 - across.sum(1)) * bar
        return down @ seen + (1 - down.sum(1))[:, None] * bar

    def _boxed(self, planes: Tensor, rows: Tensor, columns: Tensor, edge: Tensor) -> Tensor:
        """The size first, then bars: what becomes of files."""
        (down, tall, ends), (across, wide, sides) = (self._box(places, edge) for places in (rows, columns))
        seen = self._whole(down @ self._whole(planes @ across.T))  # (N,3,T,T), black where bars will be
        border = ends[:, None] * wide + tall[:, None] * sides  # (T,T) how often each pixel lies on an edge
        bar = ((seen * border).sum((2, 3), keepdim=True) / border.sum()).round()
        inside = tall[:, None] * wide
        return seen * inside + bar * (1 - inside)

    def _box(self, places: Tensor, edge: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights (T,length), which outputs are picture (T,), and how often one is the picture's first or last (T,)."""
        length, outputs = torch.ones_like(places).sum(), torch.arange(self.stored)
        size = (self.stored * length / edge).round().clamp(min=1)
        first = torch.div(self.stored - size, 2, rounding_mode="floor")
        inside = ((outputs >= first) & (outputs < first + size)).float()
        ends = (outputs == first).float() + (outputs == first + size - 1).float()
        weights = _weights(places, length, size, _lanczos, outputs=outputs - first)
        return weights * inside[:, None], inside, ends

    def _whole(self, pixels: Tensor) -> Tensor:
        return pixels.round().clamp(0, 255) if self.stored else pixels


class SeeingArrays(nn.Module):
    """The same for a run that made its arrays smaller: what is much larger becomes T pixels a side first."""

    def __init__(self, plain: Seeing, kept: Seeing) -> None:
        super().__init__()
        self.plain, self.kept, self.side = plain, kept, plain.side

    def forward(self, images: Tensor) -> Tensor:
        height, width = (torch.ones_like(torch.arange(length)).sum() for length in images.shape[1:3])
        edge = torch.minimum(height, width) if self.plain.frame == "crop" else torch.maximum(height, width)
        return torch.where(3 * edge > 4 * self.kept.stored, self.kept(images), self.plain(images))


def _weights(
    places: Tensor,
    edge: Tensor | int,
    side: Tensor | int,
    kernel: Kernel,
    every: Tensor | None = None,
    outputs: Tensor | None = None,
) -> Tensor:
    """(S,length) what pixels at some places of an edge weigh in each of `side` outputs, or in those that are given.

    `every` holds all places of the edge, where `places` does not.
    """
    scale = torch.as_tensor(edge) / side
    outputs = torch.arange(int(side)) if outputs is None else outputs
    centres = ((outputs + 0.5) * scale - 0.5)[:, None]

    def of(there: Tensor) -> Tensor:
        inside = (there >= 0) & (there < edge)
        return kernel((there - centres) / scale.clamp(min=1)) * inside  # wider where it shrinks: antialiased

    total = of(places if every is None else every).sum(1, keepdim=True)
    return of(places) / torch.where(total == 0, 1, total)  # outputs far outside see nothing


def _triangle(distance: Tensor) -> Tensor:
    """Bilinear."""
    return (1 - distance.abs()).clamp(min=0)


def _lanczos(distance: Tensor) -> Tensor:
    """Three waves of a sinc, as Pillow has it."""
    near = distance.abs() < 1e-6
    turn = math.pi * torch.where(near, 1.0, distance)
    wave = torch.sin(turn) * torch.sin(turn / 3) * 3 / (turn * turn)
    return torch.where(near, 1.0, wave) * (distance.abs() < 3)
