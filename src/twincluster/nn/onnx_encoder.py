"""Image encoders from ONNX files, run by onnxruntime.

The file declares its input and output: `onnx:FILE` needs one input of images and one output of features. The settings
encoder.size, mean, std and output add what a file cannot declare. Shapes: N images of a batch, S side, D features, T
tokens.
"""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import re
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from twincluster.core import InputError, first_line

USUAL_SIDE = 224  # for files that accept any size
INSTALL = "ONNX files need onnxruntime: pip install 'twincluster[onnx]'"
SAME = 1e-3  # largest difference of a compiled network's features, as a share of the largest feature
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_NUMBERS = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}
_NUMPY = {torch.float32: np.float32, torch.float16: np.float16}


@dataclass(frozen=True)
class Signature:
    """The input and output that a file declares."""

    input: str
    kind: torch.dtype
    side: int  # 0: any
    batch: int  # 0: any
    channels_last: bool
    output: str


class OnnxNetwork(nn.Module):
    """An ONNX file as a network: standardised images (N,3,S,S) in, features (N,D) float32 out.

    A session is opened per device on first use. onnxruntime reads and writes the memory of tensors directly.
    """

    def __init__(self, path: Path, output: str = "") -> None:
        super().__init__()
        self.path, self.sessions = path, {"cpu": open_session(path, "cpu")}
        self.signature = _signature(path, self.sessions["cpu"], output)

    def forward(self, images: Tensor) -> Tensor:
        pixels = as_input(images, self.signature)
        parts = torch.split(pixels, self.signature.batch or len(pixels))
        features = torch.cat([self._features(part) for part in parts])
        return features.to(images.device)

    def _features(self, pixels: Tensor) -> Tensor:
        """Return features (N,D) of one batch, padded with copies of an image if the file needs a fixed number."""
        count, batch = len(pixels), self.signature.batch or len(pixels)
        if count < batch:
            pixels = torch.cat([pixels, pixels[:1].expand(batch - count, -1, -1, -1)])
        found = self.raw(pixels)
        output = f"{self.path}: output {self.signature.output!r}"
        if found.ndim == 0 or found.shape[0] != batch:
            raise InputError(f"{output} is {_shown(found.shape)} for {batch} images: it needs one row per image")
        rows = as_rows(found)
        if rows.ndim != 2 or not rows.shape[1]:
            raise InputError(
                f"{output} has {_shown(found.shape[1:])} numbers per image, not a row: name another output, "
                "--set encoder.output=NAME"
            )
        return rows[:count]

    def raw(self, pixels: Tensor) -> Tensor:
        """Return the file's output for one batch."""
        import onnxruntime

        device = pixels.device.type if PROVIDERS[pixels.device.type] in onnxruntime.get_available_providers() else "cpu"
        if device not in self.sessions:
            self.sessions[device] = open_session(self.path, device)
        pixels, session = pixels.to(device).contiguous(), self.sessions[device]
        if device == "cuda":
            torch.cuda.current_stream().synchronize()  # onnxruntime has a stream of its own
        binding = session.io_binding()
        binding.bind_input(
            self.signature.input, device, pixels.device.index or 0, _NUMPY[pixels.dtype], tuple(pixels.shape),
            pixels.data_ptr(),
        )  # fmt: skip
        binding.bind_output(self.signature.output, "cpu")
        try:
            session.run_with_iobinding(binding)
        except Exception as error:  # the class of the error depends on the reason
            raise InputError(
                f"{self.path} cannot be run on images of {_shown(pixels.shape[1:])} ({first_line(error)}): "
                "name the side it was made for, --set encoder.size=SIDE"
            ) from error
        return torch.from_numpy(np.array(binding.copy_outputs_to_cpu()[0]))


def as_input(images: Tensor, signature: Signature) -> Tensor:
    """Return images (N,3,S,S) in the form that the file accepts."""
    return (images.permute(0, 2, 3, 1) if signature.channels_last else images).to(signature.kind)


def as_rows(output: Tensor) -> Tensor:
    """Return rows (N,D): the first of tokens (N,T,D), which sums up the image; all values of (N,D,1,1) or (N,D,1)."""
    if output.ndim in (3, 4) and output.shape[2:].numel() == 1:
        output = output.flatten(1)
    elif output.ndim == 3:
        output = output[:, 0]
    return output.float()


def open_session(path: Path, device: str) -> Any:
    """Open a file with as many threads as torch has. Raise InputError if onnxruntime cannot read it."""
    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError:
        raise InputError(INSTALL) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised as well
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch computes in between
    providers = [PROVIDERS[device], PROVIDERS["cpu"]] if device != "cpu" else [PROVIDERS["cpu"]]
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # the class of the error depends on the reason
        raise InputError(f"{path} is not an ONNX model that onnxruntime can read ({first_line(error)})") from error


def digest_of_model(path: Path) -> str:
    """Return the SHA-256 of a file and of the files beside it that hold its weights."""
    digest = hashlib.sha256()
    for part in (path, *_weights_beside(path)):
        with open(part, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()[:16]


def _weights_beside(path: Path) -> list[Path]:
    """Return the files that an ONNX file names as the location of tensors, sorted. Needs no package for ONNX."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        places = [match.end() for match in re.finditer(rb"\x0a\x08location\x12", content)]
        names = {_string_at(content, place) for place in places}
    return sorted(part for name in names if b"\0" not in name and (part := path.parent / os.fsdecode(name)).is_file())


def _string_at(content: mmap.mmap, place: int) -> bytes:
    """Return the string of a protobuf field, which is preceded by its length as a varint."""
    length = shift = 0
    while place < len(content):
        byte, place = content[place], place + 1
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return content[place : place + length]


@torch.inference_mode()
def compile_network(network: nn.Module, side: int) -> nn.Module:
    """Return a network as onnxruntime runs it on a CPU, two to four times as fast as torch.

    Return the network itself where onnxruntime or onnx is missing, or where the outputs would differ.
    """
    if isinstance(network, OnnxNetwork) or not all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))):
        return network
    network = network.cpu().to(memory_format=torch.contiguous_format)
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"input_names": ["images"], "output_names": ["features"], "dynamo": False}
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
            path = Path(folder) / "network.onnx"
            moving = {"images": {0: "n"}, "features": {0: "n"}}
            torch.onnx.export(network, (images,), path, dynamic_axes=moving, **options)
            compiled = OnnxNetwork(path)
        wanted, features = network(images), compiled(images)
    except Exception:  # the exporter raises many types
        return network
    same = wanted.shape == features.shape and (wanted - features).abs().max() <= SAME * wanted.abs().max()
    return compiled if same else network


@torch.inference_mode()
def check_network(network: OnnxNetwork, name: str, side: int) -> None:
    """Run two test images. Raise InputError if the features are wrong."""
    images = torch.stack([torch.zeros(3, side, side), torch.linspace(-2, 2, 3 * side * side).view(3, side, side)])
    features = network(images)
    if not features.isfinite().all():
        raise InputError(f"{name} gives NaN or infinity for a test image: choose another file")
    if torch.equal(features[0], features[1]):
        output = network.signature.output
        raise InputError(f"{name}: output {output!r} is the same for any image: name another, encoder.output=NAME")


def _signature(path: Path, session: Any, output: str) -> Signature:
    """Raise InputError if a file needs anything but images of three channels, or has several possible outputs."""
    inputs = session.get_inputs()
    if len(inputs) != 1:
        takes = ", ".join(entry.name for entry in inputs)
        raise InputError(f"{path} takes {len(inputs)} inputs ({takes}), not images alone: export its image encoder")
    entry = inputs[0]
    takes = f"{path} takes {entry.name}, {entry.type.removeprefix('tensor')}{_shown(entry.shape)}"
    if entry.type not in _NUMBERS or len(entry.shape) != 4:
        raise InputError(f"{takes}, not images: expected floats (n,3,side,side)")
    batch, *rest = (size if isinstance(size, int) and size > 0 else 0 for size in entry.shape)
    channels_last = rest[0] != 3 and rest[2] == 3
    channels, height, width = (rest[2], *rest[:2]) if channels_last else rest
    if channels not in (0, 3):
        raise InputError(f"{takes}: expected three channels, (n,3,side,side)")
    if height != width:
        raise InputError(f"{takes}: expected square images, (n,3,side,side)")
    outputs = [entry.name for entry in session.get_outputs()]
    if output and output not in outputs:
        raise InputError(f"{path} has no output {output!r}: it has {', '.join(outputs)}")
    if not output and len(outputs) > 1:
        raise InputError(
            f"{path} has {len(outputs)} outputs ({', '.join(outputs)}): name one, --set encoder.output={outputs[0]}"
        )
    return Signature(entry.name, _NUMBERS[entry.type], height, batch, channels_last, output or outputs[0])


def _shown(shape: Any) -> str:
    return f"({','.join(str(size) if size else '?' for size in shape)})"
