"""The network of a run as one ONNX file that takes raw images: preprocessing, encoder and clusters in one graph.

Merges, splits and the taught model are included, as two more outputs. Images moved by hand are not: the graph does not
recognise images. Images may have any size. They are resized by matrix products, computed from the size of the images,
because the Resize operator of ONNX need not weigh pixels as torch and Pillow do. Shapes: N batch, H and W of the
images, S side, T stored side, K clusters, D features.
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
from twincluster.nn import Encoder, OnnxNetwork, Signature, as_input, as_rows
from twincluster.resolve import full_side
from twincluster.run_images import RunImages
from twincluster.runs import JUNK, Learned, Merge, Split, State

OPSET = 18
INSTALL = "--to onnx needs packages: pip install 'twincluster[onnx]'"
OUTPUTS = ("probabilities", "embedding")
ROUTED = ("cluster", "confidence")  # after corrections
TAKES = "uint8 ({batch}, height, width, 3)"


def write_onnx(inputs: RunImages, out: Path) -> str:
    """Write the file. Return a summary of its inputs and outputs."""
    run = inputs.run
    if out.suffix.lower() != ".onnx" or out.is_dir():
        raise InputError(f"{out}: expected a file name that ends in .onnx")
    check_writable(out.parent)
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise InputError(INSTALL)
    model, state = Model.load(run, "cpu"), inputs.edits.state
    routing = Routing(state) if state.joined else None
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _quiet(), unfinished(out) as partial:
            takes = (_write_around_files if _has_files(model.encoder) else _write)(model, routing, partial)
    except (InputError, OSError):
        raise
    except Exception as error:  # the exporter raises many types
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the network of {run.folder} cannot be exported to ONNX ({reason}): choose --to huggingface"
        ) from error
    outputs = _outputs_with(routing)
    return f"{out} takes {takes}, and returns {', '.join(outputs[:-1])} and {outputs[-1]}{_edited(inputs, state)}"


def _edited(inputs: RunImages, state: State) -> str:
    """Return a remark on how corrections show in the outputs."""
    if state.joined:
        return "; cluster includes all corrections, probabilities and embedding are the model's"
    return "; clusters keep their numbers, names are not included" if inputs.edits.any else ""


def _outputs_with(routing: Routing | None) -> list[str]:
    return [*OUTPUTS, *(ROUTED if routing else ())]


def _write(model: Model, routing: Routing | None, path: Path) -> str:
    """Write a model that torch can trace completely. Return a description of its input."""
    module, example = _whole(model, routing)
    name = "images" if example.dtype == torch.uint8 else "rows"
    _program(module, (example,), [name], _outputs_with(routing)).save(path)
    takes = TAKES.format(batch="batch") if name == "images" else f"float32 (batch, {example.shape[1]})"
    return f"{name}, {takes}"


def _program(
    module: nn.Module, examples: tuple[Tensor, ...], names: list[str], outputs: list[str], opset: int = OPSET
) -> Any:
    """Export a module as an ONNX program for batches of any size, and images of any size."""
    moving = tuple({0: "batch"} | ({1: "height", 2: "width"} if x.dtype == torch.uint8 else {}) for x in examples)
    return torch.onnx.export(
        module.eval(), examples, dynamo=True, opset_version=opset, input_names=names, output_names=outputs,
        dynamic_shapes=(moving,) if isinstance(module, _Back) else moving, verbose=False,
    )  # fmt: skip


def _whole(model: Model, routing: Routing | None) -> tuple[nn.Module, Tensor]:
    """Return what goes into the file, and an example of its input."""
    config, shape, network = model.config, model.shape, model.network
    if model.encoder:
        return OfImages(network, _fronts(model, model.encoder), routing), _example(model.encoder.side)
    if not shape.side:
        return OfRows(network, routing), torch.zeros(2, shape.n_inputs)
    stored, files = later_side(config, model.data), model.data is None or model.data.files
    seeing = partial(Seeing, shape.side, shape.mean, shape.std, config.train.frame)
    seen: Seeing | SeeingArrays = seeing(stored if files else 0)  # preprocess as the run's own images were
    if not files and stored == full_side(config):
        seen = SeeingArrays(seeing(), seeing(stored))
    return OfImages(network, [Front(seen)], routing), _example(seen.side)


def _fronts(model: Model, encoder: Encoder) -> list[Front]:
    """Return the input stage of each of the model's encoders."""
    stored = encoder.side if model.data is None or model.data.files else 0
    frame, fronts = model.config.train.frame, []
    for part in encoder.parts or (encoder,):
        seeing = Seeing(part.side, part.mean, part.std, frame, stored, part.cubic)
        if isinstance(part.network, OnnxNetwork):
            fronts.append(Front(seeing, part.network.signature))
        else:
            fronts.append(Front(seeing, network=part.network))
    return fronts


def _example(side: int) -> Tensor:
    # all sizes differ, so that none is taken for another
    return torch.zeros(2, side + 5, side + 3, 3, dtype=torch.uint8)


class Front(nn.Module):
    """From uint8 images (N,H,W,3) to an encoder's features, or to pixels for an ONNX file or the network itself."""

    def __init__(self, seeing: nn.Module, signature: Signature | None = None, network: nn.Module | None = None) -> None:
        super().__init__()
        self.seeing, self.signature, self.network = seeing, signature, network

    def forward(self, images: Tensor) -> Tensor:
        seen: Tensor = self.seeing(images)
        if self.signature:
            return as_input(seen, self.signature)
        return self.network(seen).flatten(1) if self.network else seen


class OfRows(nn.Module):
    """From float32 rows (N,d) to probabilities (N,K) and embedding (N,D), then to corrected clusters (N,)."""

    def __init__(self, network: Network, routing: Routing | None = None) -> None:
        super().__init__()
        self.network, self.routing = network, routing

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        standard = (rows - self.network.mean) / self.network.std
        return _outputs(self.network, self.network.prepare(rows), self.routing, standard)


class OfImages(nn.Module):
    """From uint8 images (N,H,W,3) to probabilities (N,K) and embedding (N,D), then to corrected clusters (N,)."""

    def __init__(self, network: Network, fronts: list[Front], routing: Routing | None = None) -> None:
        super().__init__()
        self.network, self.fronts, self.routing = network, nn.ModuleList(fronts), routing

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        seen = torch.cat([front(images) for front in self.fronts], 1)
        if self.network.side:
            return _outputs(self.network, seen, self.routing)
        return _outputs(self.network, self.network.prepare(seen), self.routing, seen)


class _Fronts(nn.Module):
    """uint8 images (N,H,W,3) to what each front makes of them."""

    def __init__(self, fronts: list[Front]) -> None:
        super().__init__()
        self.fronts = nn.ModuleList(fronts)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(front(images) for front in self.fronts)


class _Back(nn.Module):
    """What each encoder gives, (N,...), to probabilities (N,K) and embedding (N,D), and where corrections lead."""

    def __init__(self, network: Network, routing: Routing | None = None) -> None:
        super().__init__()
        self.network, self.routing = network, routing

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        features = torch.cat([as_rows(each) for each in given], 1)
        return _outputs(self.network, self.network.prepare(features), self.routing, features)


def _has_files(encoder: Encoder | None) -> bool:
    return bool(encoder and any(isinstance(part.network, OnnxNetwork) for part in encoder.parts or (encoder,)))


@torch.no_grad()
def _write_around_files(model: Model, routing: Routing | None, path: Path) -> str:
    """Write encoders that are ONNX files between what comes before and what comes after them; return what it takes."""
    import onnx

    assert model.encoder is not None
    networks = [part.network for part in model.encoder.parts or (model.encoder,)]
    files = {place: onnx.load(str(each.path)) for place, each in enumerate(networks) if isinstance(each, OnnxNetwork)}
    opset = max([OPSET, *(_opset(file) for file in files.values())])
    fronts, names = _fronts(model, model.encoder), [f"seen_{place}" for place in range(len(networks))]
    example, batch, given = _example(model.encoder.side), 0, []
    graph = _program(_Fronts(fronts), (example,), ["images"], names, opset).model_proto
    for place, (front, network) in enumerate(zip(fronts, networks, strict=True)):
        seen = front(example)
        if isinstance(network, OnnxNetwork):
            batch = batch or network.signature.batch
            graph, names[place] = _with_file(graph, files[place], network.signature, names[place], place, opset)
            found = network.raw(seen[:1].repeat(network.signature.batch or 1, 1, 1, 1))
            seen = found.new_zeros(2, *found.shape[1:])
        given.append(seen)
    taken = [f"given_{place}" for place in range(len(given))]
    outputs = _outputs_with(routing)
    back = _program(_Back(model.network, routing), tuple(given), taken, outputs, opset)
    graph = _merged(graph, back.model_proto, dict(zip(names, taken, strict=True)), "head_")
    for name in outputs:
        _rename(graph.graph, f"head_{name}", name)
    if batch:  # of the file, which takes no other
        graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    onnx.save(graph, str(path))
    return f"images, {TAKES.format(batch=batch or 'batch')}"


def _opset(file: Any) -> int:
    return max(int(entry.version) for entry in file.opset_import if entry.domain in ("", "ai.onnx"))


def _with_file(graph: Any, file: Any, signature: Signature, name: str, place: int, opset: int) -> tuple[Any, str]:
    """Return the graph with an encoder behind its output `name`, and the name of what that gives."""
    from onnx import version_converter

    if _opset(file) < opset:
        file = version_converter.convert_version(file, opset)
    outputs = [output for output in file.graph.output if output.name == signature.output]
    del file.graph.output[:], file.metadata_props[:]
    file.graph.output.extend(outputs)
    return _merged(graph, file, {name: signature.input}, f"encoder_{place}_"), f"encoder_{place}_{signature.output}"


def _merged(first: Any, second: Any, connected: dict[str, str], prefix: str) -> Any:
    """Two graphs as one, the names of the second behind a prefix."""
    from onnx import compose

    first.ir_version = second.ir_version = max(first.ir_version, second.ir_version)
    joints = [(name, prefix + input_) for name, input_ in connected.items()]
    return compose.merge_models(first, compose.add_prefix(second, prefix), joints)


def _rename(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new
    for output in graph.output:
        output.name = new if output.name == old else output.name


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
    """Silence the exporter's warnings and logs."""
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
    """Preprocessing from uint8 (N,H,W,3) to standardised (N,3,S,S): the centre square, or the whole image with bars.

    Without `stored` it reproduces the preprocessing of arrays. With it, that of files: decoding.py first resizes them
    to T pixels a side, by Lanczos, rounded to 8 bits.
    """

    mean: Tensor
    std: Tensor
    last: Tensor | None  # (S,T)

    def __init__(
        self,
        side: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        frame: Frame,
        stored: int = 0,
        cubic: bool = False,
    ) -> None:
        super().__init__()
        self.side, self.frame, self.stored = side, frame, stored
        self.kernel, self.cubic = _cubic if cubic else _triangle, cubic
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))
        again = stored not in (0, side)
        self.register_buffer("last", _weights(torch.arange(stored), stored, side, self.kernel) if again else None)

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
        seen = seen.clamp(0, 255) if self.cubic else seen  # which overshoots at edges
        return (seen / 255 - self.mean) / self.std

    def _cropped(self, planes: Tensor, rows: Tensor, columns: Tensor, edge: Tensor) -> Tensor:
        """Resize the centre square of `edge` pixels a side."""
        side, kernel = (self.stored, _lanczos) if self.stored else (self.side, self.kernel)
        down, across = (
            _weights(places - (torch.ones_like(places).sum() - edge) // 2, edge, side, kernel)
            for places in (rows, columns)
        )
        return self._whole(down @ self._whole(planes @ across.T))

    def _barred(self, planes: Tensor, rows: Tensor, columns: Tensor, edge: Tensor) -> Tensor:
        """Add bars, then resize, as for arrays. The missing part of a sum of weights is bar."""
        border = torch.cat([planes[:, :, 0], planes[:, :, -1], planes[..., 0], planes[..., -1]], 2)  # (N,3,2H+2W)
        bar = border.mean(2).round()[:, :, None, None]
        weights = []
        for along, other in ((rows, columns), (columns, rows)):
            length = torch.ones_like(along).sum()
            beyond = torch.where(other >= length, other, -1)  # positions of the square outside the image
            every = torch.cat([along, beyond])
            weights.append(_weights(along + (edge - length) // 2, edge, self.side, self.kernel, every))
        down, across = weights
        seen = planes @ across.T + (1 - across.sum(1)) * bar
        return down @ seen + (1 - down.sum(1))[:, None] * bar

    def _boxed(self, planes: Tensor, rows: Tensor, columns: Tensor, edge: Tensor) -> Tensor:
        """Resize, then add bars, as for files."""
        (down, tall, ends), (across, wide, sides) = (self._box(places, edge) for places in (rows, columns))
        seen = self._whole(down @ self._whole(planes @ across.T))  # (N,3,T,T), black in the place of bars
        border = ends[:, None] * wide + tall[:, None] * sides  # (T,T) how many edges each pixel lies on
        bar = ((seen * border).sum((2, 3), keepdim=True) / border.sum()).round()
        inside = tall[:, None] * wide
        return seen * inside + bar * (1 - inside)

    def _box(self, places: Tensor, edge: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights (T,length), a mask of the outputs inside the picture (T,), and how often each is its first or
        last (T,).
        """
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
    """Preprocessing of arrays for a run that shrank its arrays: much larger images are first resized to T pixels a
    side.
    """

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
    """Return the weights (S,length) of pixels at some positions of an edge in each of `side` outputs, or in given
    `outputs`.

    `every` holds all positions of the edge if `places` does not.
    """
    scale = torch.as_tensor(edge) / side
    outputs = torch.arange(int(side)) if outputs is None else outputs
    centres = ((outputs + 0.5) * scale - 0.5)[:, None]

    def of(there: Tensor) -> Tensor:
        inside = (there >= 0) & (there < edge)
        return kernel((there - centres) / scale.clamp(min=1)) * inside  # wider when it shrinks: antialiasing

    total = of(places if every is None else every).sum(1, keepdim=True)
    return of(places) / torch.where(total == 0, 1, total)  # outputs far outside have no weights


def _triangle(distance: Tensor) -> Tensor:
    """Return the bilinear kernel."""
    return (1 - distance.abs()).clamp(min=0)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' cubic convolution with a = -0.5, as torch and Pillow have it."""
    near, far = distance.abs(), distance.abs().clamp(max=2)
    return torch.where(near < 1, (1.5 * near - 2.5) * near**2 + 1, ((-0.5 * far + 2.5) * far - 4) * far + 2)


def _lanczos(distance: Tensor) -> Tensor:
    """Return the Lanczos kernel with three lobes, as in Pillow."""
    near = distance.abs() < 1e-6
    turn = math.pi * torch.where(near, 1.0, distance)
    wave = torch.sin(turn) * torch.sin(turn / 3) * 3 / (turn * turn)
    return torch.where(near, 1.0, wave) * (distance.abs() < 3)
