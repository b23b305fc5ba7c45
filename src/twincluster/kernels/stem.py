"""GPU kernels for the first layer of a residual network on small images: a convolution of 3 x 3 pixels of few channels.

There a matrix product has little to do, and the output, far larger than the input, is what counts: going forward it is
written once, with the sums that batch-norm needs of it; going back it is read once, and since nobody asks for the
gradient of the images, the gradient of the output is never written. Shapes: M rows (pixels of all images), C channels
of the images, K = 9 C values around a pixel (filled up to a power of two), N channels of the output, P parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from twincluster.kernels.norm import FUSION, Settled, Slopes, pulled_back, settle_back

PROGRAMS = 528  # four for each multiprocessor of a large GPU
CHANNELS = 4  # of images, at most: a tile holds all values around its pixels
TILE = {"M": 128, "N": 64, **FUSION}
BACK_TILE = {"M": 64, "N": 64, **FUSION}  # twice the rows would take more shared memory than most GPUs have


def convolve(images: Tensor, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Output (N,C,H,W) in `dtype`, and its sums (P,2,C) as `norm.settle` takes them."""
    n_channels, (parts, chunk, columns) = len(weight), _division(images, len(weight), TILE)
    shape = len(images), n_channels, *images.shape[2:]
    out = torch.empty(shape, dtype=dtype, device=images.device, memory_format=torch.channels_last)
    sums = torch.empty(parts, 2, n_channels, dtype=torch.float32, device=images.device)
    _convolve_kernel[parts, columns](
        images, weight, out, sums, n_channels, chunk, *_sizes(images), **_around(images), **TILE
    )
    return out, sums


def convolve_back(slopes: Slopes, settled: Settled, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the convolution's weight, and of weight and bias of the batch-norm behind it."""
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
    """Parts of the rows, how many rows each has, and tiles side by side."""
    assert images.is_contiguous(memory_format=torch.channels_last), "neighbours along a row lie side by side"
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
    """(M,K): three pixels of the line above, of its own and of the line below, channel by channel; zero outside."""
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
