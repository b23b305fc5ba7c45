"""Figure 7 of the paper: the layers of the backbone, as they are built here for the images of a set."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor, nn

from twincluster.backbones import ResNet, build_backbone, flops
from twincluster.errors import InputError
from twincluster.reproduce.trainings import Asked, by_paper

FOOT = "convolutions have batch-norm and then ReLU, the last one of a block after its shortcut is added, and no bias"


def describe_network(asked: Asked) -> str:
    """A line for each layer of the stem, for blocks that are alike, and for what follows them."""
    config = by_paper(asked.data).config(asked, seed=0)
    side, name = config.train.image_size, config.train.backbone
    backbone = build_backbone(name, side=side, n_inputs=3).to("meta").eval()
    if not isinstance(backbone, ResNet):
        raise InputError(f"train.backbone is {name}: figure7 shows residual networks, such as resnet18")
    assert isinstance(backbone.stem, nn.Sequential)
    assert isinstance(backbone.stages, nn.Sequential)
    x, lines = torch.empty(1, 3, side, side, device="meta"), []
    for layer in backbone.stem:
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            lines.append((_layer(layer), _size(x)))
    for block in backbone.stages:
        x = block(x)
        lines.append((_block(block), _size(x)))
    lines += [("mean over pixels", str(backbone.n_features)), ("linear", str(config.tcc.n_features))]
    weights = sum(weight.numel() for weight in backbone.parameters())
    title = (
        f"{name} at {side} px: {weights / 1e6:.1f} million weights, {flops(backbone, side) / 1e9:.2f} GFLOP an image"
    )
    return "\n".join([title, *_joined(lines), FOOT])


def _layer(layer: nn.Conv2d | nn.MaxPool2d) -> str:
    kind = "convolution" if isinstance(layer, nn.Conv2d) else "maximum"
    size, stride = (value[0] if isinstance(value, tuple) else value for value in (layer.kernel_size, layer.stride))
    return f"{kind} {size} x {size}" + (f", stride {stride}" if stride != 1 else "")


def _block(block: nn.Module) -> str:
    """A residual block by its convolutions, the shortcut's left out."""
    layers = [layer for name, layer in block.named_modules() if isinstance(layer, nn.Conv2d) and "shortcut" not in name]
    return "block of " + " and ".join(_layer(layer).removeprefix("convolution ") for layer in layers)


def _size(x: Tensor) -> str:
    return f"{x.shape[2]} x {x.shape[3]} x {x.shape[1]}"


def _joined(lines: list[tuple[str, str]]) -> list[str]:
    """Layers that are alike in one line, with how many there are."""
    counted = [(*line, len(list(group))) for line, group in groupby(lines)]
    return [f"  {f'{count} x {what}' if count > 1 else what:48}{size}" for what, size, count in counted]
