"""GPU kernels for batch-norm, shortcut and ReLU of a residual network, with few passes over memory.

The forward pass reads the output of a convolution once for its statistics and once to normalise it, add the shortcut
and apply ReLU. The backward pass adds and masks the incoming gradients while it sums them for batch-norm; a second pass
computes the gradient. Sums are float32 and always added in the same order. Shapes: M values per channel (rows; images
are channels-last), C channels, P parts of the rows that are summed separately.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

PROGRAMS = 1056  # that sum in parallel: eight per multiprocessor of a large GPU
FUSION = {"enable_fp_fusion": True}  # fused multiply-add; later versions of Triton need the flag
TILE = {"M": 64, "N": 64, **FUSION}  # rows and channels
SUM_TILE = {"M": 32, "N": 64, **FUSION}  # smaller, because sums take registers
PARTS_TILE = {"P": 512, "N": 8, "num_warps": 8, **FUSION}  # few channels, so that more programs add in parallel


class Settled(NamedTuple):
    """The input of a batch-norm and the coefficients that the batch statistics give."""

    x: Tensor  # its input
    channels: Tensor  # (4,C): mean, 1/deviation, and the scale and offset that normalise


class Slopes(NamedTuple):
    """The gradient before ReLU, and its sums per channel."""

    gradient: Tensor  # unchanged if not `masked`: then the kernels recompute from the input where ReLU was zero
    masked: bool
    sums: Tensor  # (P,3,C): of the gradient, and of its products with the centred inputs


def settle(x: Tensor, layer: nn.Module, sums: Tensor | None = None) -> Settled:
    """Compute the statistics of `x` and update the layer's running ones; `sums` skips the first pass."""
    rows, n_channels = _shape(x)
    if rows == 1:
        raise ValueError(f"batch-norm needs more than one value per channel, got a batch of shape {tuple(x.shape)}")
    sums = _sums(x) if sums is None else sums
    channels = torch.empty(4, n_channels, dtype=torch.float32, device=x.device)
    _settle_kernel[_few(n_channels)](
        x, sums, layer.running_mean, layer.running_var, layer.num_batches_tracked, layer.weight, layer.bias, channels,
        len(sums), rows, n_channels, layer.momentum, layer.eps, **PARTS_TILE,
    )  # fmt: skip
    return Settled(x, channels)


def activate(settled: Settled, shortcut: Tensor | Settled | None) -> Tensor:
    """Return ReLU of the normalised input plus an optional shortcut."""
    rows, n_channels = _shape(settled.x)
    out = torch.empty_like(settled.x)
    join, other, other_channels = _joined(settled, shortcut)
    _activate_kernel[_tiles(rows, n_channels)](
        settled.x, settled.channels, other, other_channels, out, rows, n_channels, JOIN=join, **TILE
    )
    return out


def slopes(gradients: list[Tensor], out: Tensor | None, settled: Settled, shortcut: Settled | None) -> Slopes:
    """Return the gradient before ReLU, of one incoming gradient or the sum of two.

    `out` is the output of ReLU, which masks the gradient; if None, the mask is recomputed from the input.
    """
    rows, n_channels = _shape(settled.x)
    parts, chunk, columns = _division(rows, n_channels)
    sums = torch.empty(parts, 3, n_channels, dtype=torch.float32, device=settled.x.device)
    two, masked = len(gradients) == 2, out is not None or len(gradients) == 2
    kept = torch.empty_like(settled.x) if masked else gradients[0]
    _, other, other_channels = _joined(settled, shortcut)
    _slope_kernel[parts, columns](
        gradients[0], gradients[-1], settled.x if out is None else out, settled.x, settled.channels, other,
        other_channels, kept, sums, rows, n_channels, chunk,
        TWO=two, OUT=out is not None, OTHER=shortcut is not None, KEEP=masked, **SUM_TILE,
    )  # fmt: skip
    return Slopes(kept, masked, sums)


def pull_back(slopes: Slopes, settled: Settled, which: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the input (which = 1) or the shortcut (2), of the layer's weight and of its bias."""
    rows, n_channels = _shape(settled.x)
    channels = settle_back(slopes, settled, which)
    back = torch.empty_like(settled.x)
    _pull_back_kernel[_tiles(rows, n_channels)](
        slopes.gradient, settled.x, settled.channels, channels, back, rows, n_channels, MASKED=slopes.masked, **TILE
    )
    return back, channels[0], channels[1]


def settle_back(slopes: Slopes, settled: Settled, which: int) -> Tensor:
    """Return (4,C): the gradients of weight and bias, and factor and offset of x in the gradient of the input."""
    rows, n_channels = _shape(settled.x)
    channels = torch.empty(4, n_channels, dtype=torch.float32, device=settled.x.device)
    _settle_back_kernel[_few(n_channels)](
        slopes.sums, settled.channels, channels, len(slopes.sums), rows, n_channels, which, **PARTS_TILE
    )
    return channels


def _sums(x: Tensor) -> Tensor:
    """Return the sums (P,2,C) of the differences from the first row and of their squares."""
    rows, n_channels = _shape(x)
    parts, chunk, columns = _division(rows, n_channels)
    sums = torch.empty(parts, 2, n_channels, dtype=torch.float32, device=x.device)
    _sum_kernel[parts, columns](x, sums, rows, n_channels, chunk, **SUM_TILE)
    return sums


def _shape(x: Tensor) -> tuple[int, int]:
    assert x.is_contiguous(memory_format=torch.channels_last), "channels-last tensor expected"
    return x.numel() // x.shape[1], x.shape[1]


def _division(rows: int, n_channels: int) -> tuple[int, int, int]:
    """Return the number of parts, the rows in each, and the number of tiles along the channels."""
    columns = triton.cdiv(n_channels, SUM_TILE["N"])
    chunk = SUM_TILE["M"] * triton.cdiv(rows, SUM_TILE["M"] * max(1, PROGRAMS // columns))
    return triton.cdiv(rows, chunk), chunk, columns


def _tiles(rows: int, n_channels: int) -> tuple[int, int]:
    return triton.cdiv(rows, TILE["M"]), triton.cdiv(n_channels, TILE["N"])


def _few(n_channels: int) -> tuple[int]:
    return (triton.cdiv(n_channels, PARTS_TILE["N"]),)


def _joined(settled: Settled, shortcut: Tensor | Settled | None) -> tuple[int, Tensor, Tensor]:
    """Return the mode of the shortcut (0: none, 1: as it is, 2: normalised) and the tensors for the kernels."""
    if isinstance(shortcut, Settled):
        return 2, shortcut.x, shortcut.channels
    return (0, settled.x, settled.channels) if shortcut is None else (1, shortcut, settled.channels)


@triton.jit
def _tile(row, n_left, n_channels, N: tl.constexpr):
    """Return the channels of this program, the offsets of the rows from `row` on, and a mask of valid entries."""
    channel = tl.program_id(1) * N + tl.arange(0, N)
    return channel, row[:, None] * n_channels + channel, (row < n_left)[:, None] & (channel < n_channels)


@triton.jit
def _first_row(x, channel, n_channels):
    return tl.load(x + channel, channel < n_channels, 0.0).to(tl.float32)


@triton.jit
def _sum_kernel(x, sums, n_rows, n_channels, chunk, M: tl.constexpr, N: tl.constexpr):
    part = tl.program_id(0)
    channel = tl.program_id(1) * N + tl.arange(0, N)
    centre = _first_row(x, channel, n_channels)  # subtracted, so that a large mean does not cancel a small deviation
    x += part.to(tl.int64) * chunk * n_channels
    first, second = tl.zeros((M, N), tl.float32), tl.zeros((M, N), tl.float32)
    for start in tl.range(0, chunk, M, loop_unroll_factor=2):  # two reads in flight
        channel, place, exists = _tile(start + tl.arange(0, M), n_rows - part * chunk, n_channels, N)
        value = tl.load(x + place, exists, 0.0).to(tl.float32)
        value = tl.where(exists, value - centre, 0.0)
        first += value
        second += value * value
    sums += part * 2 * n_channels + channel
    tl.store(sums, tl.sum(first, 0), channel < n_channels)
    tl.store(sums + n_channels, tl.sum(second, 0), channel < n_channels)


@triton.jit
def _added(sums, which, kinds, n_parts, n_channels, P: tl.constexpr, N: tl.constexpr):
    """Sum the first and another kind of sums over all parts, for the channels of this program."""
    channel = tl.program_id(0) * N + tl.arange(0, N)
    first, other = tl.zeros((P, N), tl.float32), tl.zeros((P, N), tl.float32)
    for start in range(0, n_parts, P):
        part = start + tl.arange(0, P)
        exists = (part < n_parts)[:, None] & (channel < n_channels)
        place = sums + part[:, None] * kinds * n_channels + channel
        first += tl.load(place, exists, 0.0)
        other += tl.load(place + which * n_channels, exists, 0.0)
    return tl.sum(first, 0), tl.sum(other, 0)


@triton.jit
def _settle_kernel(
    x, sums, running_mean, running_var, tracked, weight, bias, settled,
    n_parts, n_rows, n_channels, momentum, eps, P: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * N + tl.arange(0, N)
    exists = channel < n_channels
    total, of_squares = _added(sums, 1, 2, n_parts, n_channels, P, N)
    off = total / n_rows
    variance = tl.maximum(of_squares / n_rows - off * off, 0.0)
    mean = _first_row(x, channel, n_channels) + off
    old_mean, old_var = tl.load(running_mean + channel, exists, 0.0), tl.load(running_var + channel, exists, 0.0)
    tl.store(running_mean + channel, old_mean + momentum * (mean - old_mean), exists)
    unbiased = variance * (n_rows / (n_rows - 1))
    tl.store(running_var + channel, old_var + momentum * (unbiased - old_var), exists)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + 1)
    inverse = 1.0 / tl.sqrt(variance + eps)
    scale = tl.load(weight + channel, exists, 0.0) * inverse
    tl.store(settled + channel, mean, exists)
    tl.store(settled + n_channels + channel, inverse, exists)
    tl.store(settled + 2 * n_channels + channel, scale, exists)
    tl.store(settled + 3 * n_channels + channel, tl.load(bias + channel, exists, 0.0) - mean * scale, exists)


@triton.jit
def _read(settled, channel, n_channels):
    """Return mean, scale and offset of these channels."""
    exists = channel < n_channels
    mean = tl.load(settled + channel, exists, 0.0)
    scale = tl.load(settled + 2 * n_channels + channel, exists, 0.0)
    return mean, scale, tl.load(settled + 3 * n_channels + channel, exists, 0.0)


@triton.jit
def _activate_kernel(
    x, settled, other, other_settled, out, n_rows, n_channels,
    JOIN: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    before = tl.program_id(0).to(tl.int64) * M
    channel, place, exists = _tile(tl.arange(0, M), n_rows - before, n_channels, N)
    ahead = before * n_channels
    _, scale, offset = _read(settled, channel, n_channels)
    value = tl.load(x + ahead + place, exists, 0.0).to(tl.float32) * scale + offset
    if JOIN == 1:
        value += tl.load(other + ahead + place, exists, 0.0).to(tl.float32)
    if JOIN == 2:
        _, scale, offset = _read(other_settled, channel, n_channels)
        value += tl.load(other + ahead + place, exists, 0.0).to(tl.float32) * scale + offset
    tl.store(out + ahead + place, tl.where(value < 0, 0.0, value), exists)  # keeps nan


@triton.jit
def _slope_kernel(
    one, two, out, x, settled, other, other_settled, kept, sums,
    n_rows, n_channels, chunk,
    TWO: tl.constexpr, OUT: tl.constexpr, OTHER: tl.constexpr, KEEP: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    channel = tl.program_id(1) * N + tl.arange(0, N)
    is_channel = channel < n_channels
    ahead = part.to(tl.int64) * chunk * n_channels
    mean, scale, offset = _read(settled, channel, n_channels)
    other_mean, _, _ = _read(other_settled, channel, n_channels)
    of_bias, of_weight = tl.zeros((M, N), tl.float32), tl.zeros((M, N), tl.float32)
    of_other = tl.zeros((M, N), tl.float32)
    for start in range(0, chunk, M):
        channel, place, exists = _tile(start + tl.arange(0, M), n_rows - part * chunk, n_channels, N)
        slope = tl.load(one + ahead + place, exists, 0.0).to(tl.float32)
        if TWO:
            slope += tl.load(two + ahead + place, exists, 0.0).to(tl.float32)
        value = tl.load(x + ahead + place, exists, 0.0).to(tl.float32)
        if OUT:
            passed = tl.load(out + ahead + place, exists, 0.0).to(tl.float32) > 0
        else:
            passed = value * scale + offset > 0
        slope = tl.where(passed & exists, slope, 0.0)
        if KEEP:
            tl.store(kept + ahead + place, slope, exists)
        of_bias += slope
        of_weight += slope * (value - mean)
        if OTHER:
            of_other += slope * (tl.load(other + ahead + place, exists, 0.0).to(tl.float32) - other_mean)
    sums += part * 3 * n_channels + channel
    tl.store(sums, tl.sum(of_bias, 0), is_channel)
    tl.store(sums + n_channels, tl.sum(of_weight, 0), is_channel)
    if OTHER:
        tl.store(sums + 2 * n_channels, tl.sum(of_other, 0), is_channel)


@triton.jit
def _settle_back_kernel(
    sums, settled, back, n_parts, n_rows, n_channels, which,
    P: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * N + tl.arange(0, N)
    exists = channel < n_channels
    of_bias, of_centred = _added(sums, which, 3, n_parts, n_channels, P, N)
    mean, inverse = tl.load(settled + channel, exists, 0.0), tl.load(settled + n_channels + channel, exists, 0.0)
    scale = tl.load(settled + 2 * n_channels + channel, exists, 0.0)
    by_input = (
        -scale * inverse * inverse * of_centred / n_rows
    )  # gradient = scale * slope + by_input * x + the last row
    tl.store(back + channel, of_centred * inverse, exists)
    tl.store(back + n_channels + channel, of_bias, exists)
    tl.store(back + 2 * n_channels + channel, by_input, exists)
    tl.store(back + 3 * n_channels + channel, -scale * of_bias / n_rows - by_input * mean, exists)


@triton.jit
def pulled_back(gradient, value, settled, back, channel, n_channels, MASKED: tl.constexpr):
    """Return the gradient of the input of batch-norm from that of its output."""
    _, scale, offset = _read(settled, channel, n_channels)
    if not MASKED:
        gradient = tl.where(value * scale + offset > 0, gradient, 0.0)
    by_input = tl.load(back + 2 * n_channels + channel, channel < n_channels, 0.0)
    rest = tl.load(back + 3 * n_channels + channel, channel < n_channels, 0.0)
    return scale * gradient + by_input * value + rest


@triton.jit
def _pull_back_kernel(
    slope, x, settled, back, out, n_rows, n_channels,
    MASKED: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    before = tl.program_id(0).to(tl.int64) * M
    channel, place, exists = _tile(tl.arange(0, M), n_rows - before, n_channels, N)
    ahead = before * n_channels
    gradient = tl.load(slope + ahead + place, exists, 0.0).to(tl.float32)
    value = tl.load(x + ahead + place, exists, 0.0).to(tl.float32)
    tl.store(out + ahead + place, pulled_back(gradient, value, settled, back, channel, n_channels, MASKED), exists)
