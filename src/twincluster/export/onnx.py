"""The network of a run as one ONNX file that takes images as they are: preprocessing, encoder and clusters inside.

Edits are not inside: the outputs are the model's. Shapes: N batch, H and W of the images, K clusters, D features.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from twincluster.disk import check_writable, unfinished
from twincluster.edits import Edits
from twincluster.errors import InputError
from twincluster.export.seeing import Seeing, SeeingArrays
from twincluster.methods.base import Network
from twincluster.opening import encoder_of, full_side, later_side
from twincluster.results import Run

OPSET = 18
INSTALL = "ONNX needs packages: pip install 'twincluster[onnx]'"
OUTPUTS = ("probabilities", "embedding")


def write_onnx(run: Run, out: Path) -> str:
    """Write the file, and say what it takes."""
    if out.suffix.lower() != ".onnx" or out.is_dir():
        raise InputError(f"{out}: expected the name of a file that ends in .onnx")
    check_writable(out.parent)
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise InputError(INSTALL)
    module, example, name = exported(run)
    moving = {0: "batch"} | ({1: "height", 2: "width"} if example.dim() == 4 else {})
    out.parent.mkdir(parents=True, exist_ok=True)
    with _quiet():
        try:
            program: Any = torch.onnx.export(
                module, (example,), dynamo=True, opset_version=OPSET, input_names=[name], output_names=list(OUTPUTS),
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
    edited = "; corrections by hand are not inside" if Edits(run).any else ""
    return f"{out} takes {name}, {takes}, and gives {' and '.join(OUTPUTS)}{edited}"


def exported(run: Run) -> tuple[nn.Module, Tensor, str]:
    """What goes into the file, an example of its input, and what that is called."""
    config, shape, data = run.read_config()
    network = run.load_network("cpu")
    inner: nn.Module = nn.Identity()
    if encoder := encoder_of(run.folder, config, data):
        seeing, inner = partial(Seeing, encoder.side, encoder.mean, encoder.std), encoder.network
        stored = encoder.side
    elif shape.side:
        seeing, stored = partial(Seeing, shape.side, shape.mean, shape.std), later_side(config, data)
    else:
        return OfRows(network).eval(), torch.zeros(2, shape.n_inputs), "rows"
    frame = config.train.frame
    seen: Seeing | SeeingArrays = seeing(frame, stored if data["files"] else 0)  # as the run's own images were read
    if not data["files"] and stored == full_side(config) and not config.train.frozen:
        seen = SeeingArrays(seeing(frame), seeing(frame, stored))
    example = torch.zeros(2, seen.side + 5, seen.side + 3, 3, dtype=torch.uint8)  # no two sizes alike
    return OfImages(network, seen, inner, of_rows=not shape.side).eval(), example, "images"


class OfRows(nn.Module):
    """float32 rows (N,d) to probabilities (N,K) and embedding (N,D)."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return _outputs(self.network, self.network.prepare(rows))


class OfImages(nn.Module):
    """uint8 images (N,H,W,3) to probabilities (N,K) and embedding (N,D)."""

    def __init__(self, network: Network, seeing: nn.Module, encoder: nn.Module, of_rows: bool) -> None:
        super().__init__()
        self.network, self.seeing, self.encoder, self.of_rows = network, seeing, encoder, of_rows

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.encoder(self.seeing(images))
        return _outputs(self.network, self.network.prepare(seen.flatten(1)) if self.of_rows else seen)


def _outputs(network: Network, seen: Tensor) -> tuple[Tensor, Tensor]:
    return network.log_assign(seen).exp(), network.embed(seen)


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
