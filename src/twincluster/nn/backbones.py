"""Encoders that turn a batch of images, or of rows, into features, and the count of their arithmetic.

Every network is written for batch-norm: convolutions carry no bias, and the stem fits the size of the images.
Shapes: N batch, C channels, S side in pixels, D features.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from twincluster.core import InputError
from twincluster.nn.batch_norm import BatchNorm1d, BatchNorm2d, is_divided

SMALL_STEM_SIDE = 64  # up to this many pixels the stem keeps the resolution; above, it divides it by four


class Backbone(nn.Module):
    """An encoder: images (N,C,S,S) or rows (N,C) in, features (N, n_features) out."""

    n_features: int  # D

    def maps(self, x: Tensor) -> Tensor:
        """(N,D,H,W) of which `forward` gives the mean; one place where a network has no others."""
        features: Tensor = self(x)
        return features[:, :, None, None]


def build_backbone(name: str, *, side: int, n_inputs: int) -> Backbone:
    """The backbone called `name` for images of `side` pixels, or rows, with `n_inputs` channels or columns."""
    if name not in BACKBONES:
        raise InputError(f"there is no backbone '{name}': choose one of {', '.join(BACKBONES)}")
    return BACKBONES[name](side, n_inputs)


def flops(backbone: nn.Module, side: int) -> int:
    """Floating-point operations of one forward pass of one image: 2 x the multiply-adds of its layers with weights."""
    model = copy.deepcopy(backbone).to("meta").eval()  # only shapes flow, and the caller's network stays untouched
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        total += 2 * output.numel() * layer.weight[0].numel()  # each output value is one product with one filter

    for layer in layers:
        layer.register_forward_hook(count)
    first = layers[0]
    shape = (1, first.in_channels, side, side) if isinstance(first, nn.Conv2d) else (1, first.in_features)
    with torch.no_grad():
        model(torch.empty(shape, device="meta", dtype=first.weight.dtype))
    return total


class ResNet(Backbone):
    """A stem, stages of residual blocks, and the mean over the remaining pixels."""

    fused = False  # whether to train with the kernels of kernels/fused.py, which want a GPU and channels-last

    def __init__(self, stem: nn.Module, stages: nn.Module, n_features: int) -> None:
        super().__init__()
        self.stem = stem
        self.stages = stages
        self.n_features = n_features
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.maps(x).mean(dim=(2, 3))  # (N,D)

    def maps(self, x: Tensor) -> Tensor:
        if self.fused and self.training and not is_divided(self):
            from twincluster.nn.kernels.fused import pixels  # which imports Triton

            x = pixels(self, x)
        else:
            x = self.stages(self.stem(x))
        return x


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; `width` channels come out."""

    expansion = 1

    def __init__(self, n_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            conv(n_inputs, width, 3, stride),
            BatchNorm2d(width),
            nn.ReLU(inplace=True),
            conv(width, width, 3),
            BatchNorm2d(width),
        )
        self.shortcut = shortcut(n_inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.residual(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1 down to `width`, 3x3, and 1x1 up to four times `width`; the 3x3 takes the stride."""

    expansion = 4

    def __init__(self, n_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        n_outputs = self.expansion * width
        self.residual = nn.Sequential(
            conv(n_inputs, width, 1),
            BatchNorm2d(width),
            nn.ReLU(inplace=True),
            conv(width, width, 3, stride),
            BatchNorm2d(width),
            nn.ReLU(inplace=True),
            conv(width, n_outputs, 1),
            BatchNorm2d(n_outputs),
        )
        self.shortcut = shortcut(n_inputs, n_outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.residual(x) + self.shortcut(x))


def shortcut(n_inputs: int, n_outputs: int, stride: int) -> nn.Module:
    """The identity where shapes allow it, otherwise a 1x1 convolution."""
    if stride == 1 and n_inputs == n_outputs:
        return nn.Identity()
    return nn.Sequential(conv(n_inputs, n_outputs, 1, stride), BatchNorm2d(n_outputs))


def conv(n_inputs: int, n_outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A padded convolution without bias: the batch-norm behind it would take the bias away again."""
    return nn.Conv2d(n_inputs, n_outputs, size, stride, padding=size // 2, bias=False)


class Mlp(Backbone):
    """Two layers for rows (N,C): tables, or, with features of either sign, embeddings of another network."""

    def __init__(self, n_inputs: int, width: int = 128, signed: bool = False) -> None:
        super().__init__()
        self.n_features = width
        self.layers = nn.Sequential(
            nn.Linear(n_inputs, width, bias=False),
            BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Linear(width, width, bias=False),
            BatchNorm1d(width),
            nn.Identity() if signed else nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)
        return features  # (N,D)


def resnet18(side: int, n_inputs: int) -> ResNet:
    return _resnet(BasicBlock, (2, 2, 2, 2), side, n_inputs)


def resnet34(side: int, n_inputs: int) -> ResNet:
    return _resnet(BasicBlock, (3, 4, 6, 3), side, n_inputs)


def resnet50(side: int, n_inputs: int) -> ResNet:
    return _resnet(Bottleneck, (3, 4, 6, 3), side, n_inputs)


def small(side: int, n_inputs: int) -> ResNet:
    """Three blocks for tiny images (8 to 28 px) on a CPU; larger ones work but cost time."""
    stem = nn.Sequential(conv(n_inputs, 24, 3), BatchNorm2d(24), nn.ReLU(inplace=True))
    blocks = nn.Sequential(BasicBlock(24, 24, 1), BasicBlock(24, 48, 2), BasicBlock(48, 96, 2))
    return ResNet(stem, blocks, n_features=96)


def mlp(side: int, n_inputs: int) -> Mlp:
    return Mlp(n_inputs)


def mlp_signed(side: int, n_inputs: int) -> Mlp:
    return Mlp(n_inputs, signed=True)


def _resnet(block: type[BasicBlock] | type[Bottleneck], depths: tuple[int, ...], side: int, n_inputs: int) -> ResNet:
    blocks: list[nn.Module] = []
    n_channels = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for position in range(depth):
            blocks.append(block(n_channels, width, stride=2 if stage > 0 and position == 0 else 1))
            n_channels = block.expansion * width
    return ResNet(_stem(side, n_inputs), nn.Sequential(*blocks), n_features=n_channels)


def _stem(side: int, n_inputs: int) -> nn.Sequential:
    if side <= SMALL_STEM_SIDE:
        return nn.Sequential(conv(n_inputs, 64, 3), BatchNorm2d(64), nn.ReLU(inplace=True))
    return nn.Sequential(
        conv(n_inputs, 64, 7, stride=2),
        BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


BACKBONES: dict[str, Callable[[int, int], Backbone]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "small": small,
    "mlp": mlp,
    "mlp_signed": mlp_signed,
}
