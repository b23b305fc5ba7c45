"""Training passes of a residual network on a GPU with the kernels of norm.py, and kernels for its first convolution.

Activations are passed as pairs that share memory: one for the next convolution, one for the shortcut. So their two
gradients arrive separately, and one kernel adds, masks and sums them; autograd would add them in a pass of its own.

The first convolution takes 3 x 3 pixels of few channels, so memory traffic dominates: its output is far larger than its
input. The forward kernel writes the output once, together with the sums for batch-norm. The backward kernel reads it
once; images need no gradient, so the gradient of the output is never written. Shapes: M rows (pixels of all images),
C channels of the images, K = 9 C values around a pixel (padded to a power of two), N channels of the output, P parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from twincluster.nn.kernels.norm import (
    FUSION,
    Settled,
    Slopes,
    activate,
    pull_back,
    pulled_back,
    settle,
    settle_back,
    slopes,
)

if TYPE_CHECKING:
    from twincluster.nn.backbones import ResNet

Pair = tuple[Tensor, Tensor]


@torch.compiler.disable
def pixels(network: ResNet, images: Tensor) -> Tensor:
    """Return the output of the last block, (N,C,H,W)."""
    conv, norm, _, *pool = network.stem.children()
    pair = _stem(images, conv, norm) if _is_plain(conv, images) else norm_relu(conv(images), norm)
    for layer in pool:
        pair = (layer(pair[0]),) * 2
    for block in network.stages.children():
        pair = _through(block, pair)
    return pair[0]


def _is_plain(conv: Any, images: Tensor) -> bool:
    """Return True if the kernels below support this convolution. They give no gradient of the images."""
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
    """Return ReLU of the normalised input plus an optional shortcut, normalised or not; the same tensor twice."""
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
    """Apply a 3 x 3 convolution at stride 1, batch-norm and ReLU. The images get no gradient."""
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


PROGRAMS = 528  # four per multiprocessor of a large GPU
CHANNELS = 4  # most channels of images: a tile holds all values around its pixels
TILE = {"M": 128, "N": 64, **FUSION}
BACK_TILE = {"M": 64, "N": 64, **FUSION}  # 128 rows would exceed the shared memory of most GPUs


def convolve(images: Tensor, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the output (N,C,H,W) in `dtype`, and its sums (P,2,C) for `norm.settle`."""
    n_channels, (parts, chunk, columns) = len(weight), _division(images, len(weight), TILE)
    shape = len(images), n_channels, *images.shape[2:]
    out = torch.empty(shape, dtype=dtype, device=images.device, memory_format=torch.channels_last)
    sums = torch.empty(parts, 2, n_channels, dtype=torch.float32, device=images.device)
    _convolve_kernel[parts, columns](
        images, weight, out, sums, n_channels, chunk, *_sizes(images), **_around(images), **TILE
    )
    return out, sums


def convolve_back(slopes: Slopes, settled: Settled, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the convolution's weight and of the batch-norm's weight and bias."""
    back, n_channels, n_inputs = settle_back(slopes, settled, 1), settled.x.shape[1], images.shape[1]
    around, (parts, chunk, columns) = _around(images), _division(images, n_channels, BACK_TILE)
    of_weight = torch.empty(parts, around["K"], n_channels, dtype=torch.float32, device=images.device)
    _convolve_back_kernel[parts, columns](
        slopes.gradient, settled.x, settled.channels, back, images, of_weight, n_channels, chunk, *_sizes(images),
        MASKED=slopes.masked, **around, **BACK_TILE,
    )  # fmt: skip
    by_place = of_weight.sum(0)[: 9 * n_inputs].T.reshape(n_channels, 3, 3, n_inputs)
    return by_place.permute(0, 3, 1, 2), back[0], back[1]


def _division(images: Tensor, n_channels: int, tile: dict[str, int]) -> tuple[int, int, int]:
    """Return the number of parts, the rows in each, and the number of tiles along the channels."""
    assert images.is_contiguous(memory_format=torch.channels_last), "channels-last images expected"
    columns = triton.cdiv(n_channels, tile["N"])
    rows = images.numel() // images.shape[1]
    chunk = tile["M"] * triton.cdiv(rows, tile["M"] * max(1, PROGRAMS // columns))
    return triton.cdiv(rows, chunk), chunk, columns


def _sizes(images: Tensor) -> tuple[int, int, int]:
    return images.numel() // images.shape[1], images.shape[2], images.shape[3]


def _around(images: Tensor) -> dict[str, int]:
    return {"C": images.shape[1], "K": max(16, triton.next_power_of_2(9 * images.shape[1]))}


@triton.jit
def _around_pixels(images, row, n_rows, height, width, C: tl.constexpr, K: tl.constexpr):
    """Load (M,K): three pixels each of the line above, the own line and the line below, channel by channel; zero
    outside.
    """
    k = tl.arange(0, K)
    down, along = k // (3 * C) - 1, k % (3 * C)
    line, column = row // width % height, row % width
    near_line, near_column = line[:, None] + down, column[:, None] + along // C - 1
    inside = (near_line >= 0) & (near_line < height) & (near_column >= 0) & (near_column < width)
    exists = inside & (row < n_rows)[:, None] & (k < 9 * C)
    return tl.load(images + (row[:, None] + down * width - 1) * C + along, exists, 0.0)


@triton.jit
def _convolve_kernel(
    images, weight, out, sums, n_channels, chunk, n_rows, height, width,
    C: tl.constexpr, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    part, k = tl.program_id(0), tl.arange(0, K)
    channel = tl.program_id(1) * N + tl.arange(0, N)
    is_channel = channel < n_channels
    weights = tl.load(weight + channel * (9 * C) + k[:, None], is_channel & (k < 9 * C)[:, None], 0.0)  # (K,N)
    weights = weights.to(out.dtype.element_ty)
    first_row = _around_pixels(images, 0 * tl.arange(0, M), n_rows, height, width, C, K).to(out.dtype.element_ty)
    centre = tl.max(tl.dot(first_row, weights, input_precision="ieee").to(out.dtype.element_ty).to(tl.float32), 0)
    first, second = tl.zeros((N,), tl.float32), tl.zeros((N,), tl.float32)
    for start in range(0, chunk, M):
        row = part * chunk + start + tl.arange(0, M)
        pixels = _around_pixels(images, row, n_rows, height, width, C, K).to(out.dtype.element_ty)
        value = tl.dot(pixels, weights, input_precision="ieee").to(out.dtype.element_ty)
        exists = (row < n_rows)[:, None] & is_channel
        tl.store(out + row.to(tl.int64)[:, None] * n_channels + channel, value, exists)
        centred = tl.where(exists, value.to(tl.float32) - centre, 0.0)
        first += tl.sum(centred, 0)
        second += tl.sum(centred * centred, 0)
    sums += part * 2 * n_channels + channel
    tl.store(sums, first, is_channel)
    tl.store(sums + n_channels, second, is_channel)


@triton.jit
def _convolve_back_kernel(
    slope, x, settled, back, images, of_weight, n_channels, chunk, n_rows, height, width,
    MASKED: tl.constexpr, C: tl.constexpr, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    part, k = tl.program_id(0), tl.arange(0, K)
    channel = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((K, N), tl.float32)
    for start in range(0, chunk, M):
        row = part * chunk + start + tl.arange(0, M)
        exists = (row < n_rows)[:, None] & (channel < n_channels)
        place = row.to(tl.int64)[:, None] * n_channels + channel
        gradient = tl.load(slope + place, exists, 0.0).to(tl.float32)
        value = tl.load(x + place, exists, 0.0).to(tl.float32)
        gradient = pulled_back(gradient, value, settled, back, channel, n_channels, MASKED)
        gradient = tl.where(exists, gradient, 0.0).to(x.dtype.element_ty)
        pixels = _around_pixels(images, row, n_rows, height, width, C, K).to(x.dtype.element_ty)
        total = tl.dot(tl.trans(pixels), gradient, total, input_precision="ieee")
    tl.store(of_weight + (part * K + k[:, None]) * n_channels + channel, total, (channel < n_channels)[None, :])
