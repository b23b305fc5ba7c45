"""The forward and backward pass of a residual network in training on a GPU, around the kernels of norm.py
and stem.py.

Activations travel as pairs that share their memory: one for the convolution ahead and one for the shortcut. So the two
gradients come back apart, and one kernel adds, masks and sums them, where autograd would add them in a pass of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from twincluster.kernels.norm import Settled, activate, pull_back, settle, slopes
from twincluster.kernels.stem import CHANNELS, convolve, convolve_back

if TYPE_CHECKING:
    from twincluster.backbones import ResNet

Pair = tuple[Tensor, Tensor]


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it has nothing left to fuse here
def pixels(network: ResNet, images: Tensor) -> Tensor:
    """What the last block gives, (N,C,H,W)."""
    conv, norm, _, *pool = network.stem.children()
    pair = _stem(images, conv, norm) if _is_plain(conv, images) else norm_relu(conv(images), norm)
    for layer in pool:
        pair = (layer(pair[0]),) * 2
    for block in network.stages.children():
        pair = _through(block, pair)
    return pair[0]


def _is_plain(conv: Any, images: Tensor) -> bool:
    """Whether stem.py can do it. Images that somebody has made want a gradient, which those kernels lack."""
    shape = conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.bias
    usual = shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1, None)
    return usual and images.shape[1] <= CHANNELS and not images.requires_grad


def _through(block: nn.Module, pair: Pair) -> Pair:
    assert isinstance(block.residual, nn.Module)  # as in every block of backbones.py
    assert isinstance(block.shortcut, nn.Module)
    layers = [layer for layer in block.residual.children() if not isinstance(layer, nn.ReLU)]
    x, also = pair
    for conv, norm in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        x = norm_relu(conv(x), norm)[0]
    x = layers[-2](x)
    if isinstance(block.shortcut, nn.Identity):
        return norm_relu(x, layers[-1], also)
    conv, norm = block.shortcut.children()
    return norm_relu(x, layers[-1], conv(also), norm)


def norm_relu(
    x: Tensor, norm: nn.Module, shortcut: Tensor | None = None, shortcut_norm: nn.Module | None = None
) -> Pair:
    """ReLU of the normalised input, to which a shortcut, normalised or not, is added; the same tensor twice."""
    of_shortcut = (shortcut_norm.weight, shortcut_norm.bias) if shortcut_norm else (None, None)
    pair: Pair = _NormRelu.apply(x, norm.weight, norm.bias, shortcut, *of_shortcut, norm, shortcut_norm)
    return pair


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, _weight: Tensor | None,
        _bias: Tensor | None, norm: nn.Module, shortcut_norm: nn.Module | None,
    ) -> Pair:  # fmt: skip
        settled = settle(_rows(x), norm)
        joined: Tensor | Settled | None = None if shortcut is None else _rows(shortcut)
        if isinstance(joined, Tensor) and shortcut_norm:
            joined = settle(joined, shortcut_norm)
        out = activate(settled, joined)
        ctx.set_materialize_grads(False)
        ctx.joins = joined is not None
        other = joined if isinstance(joined, Settled) else (None, None)
        ctx.save_for_backward(*settled, *other, out if ctx.joins else None)
        return out, out.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(gradient is None for gradient in gradients):
            return (None,) * 8
        x, channels, other_x, other_channels, out = ctx.saved_tensors
        settled, shortcut = Settled(x, channels), None if other_x is None else Settled(other_x, other_channels)
        slope = slopes([_rows(one) for one in gradients if one is not None], out, settled, shortcut)
        of_input = pull_back(slope, settled, 1)
        of_shortcut = pull_back(slope, shortcut, 2) if shortcut else (slope.gradient if ctx.joins else None, None, None)
        return *of_input, *of_shortcut, None, None


def _stem(images: Tensor, conv: nn.Module, norm: nn.Module) -> Pair:
    """Convolution of 3 x 3 pixels at stride 1 and what follows it. The images get no gradient."""
    pair: Pair = _Stem.apply(_rows(images), conv.weight, norm.weight, norm.bias, norm)
    return pair


class _Stem(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, _weight: Tensor, _bias: Tensor, norm: nn.Module) -> Pair:
        kind = images.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        x, sums = convolve(images, _rows(weight), dtype)
        settled = settle(x, norm, sums)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(images, *settled)
        out = activate(settled, None)
        return out, out.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(gradient is None for gradient in gradients):
            return (None,) * 5
        images, *settled = ctx.saved_tensors
        slope = slopes([_rows(one) for one in gradients if one is not None], None, Settled(*settled), None)
        return None, *convolve_back(slope, Settled(*settled), images), None


def _rows(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
