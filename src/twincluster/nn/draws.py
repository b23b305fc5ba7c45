"""Random numbers that depend only on seed, epoch and sample, computed on the device without a generator.

Neither the number of processes nor a resume changes a draw, and there is no state to save: each number is an integer
hash of (seed, epoch, sample, stream, column). Shapes: N samples, C columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def sample_keys(seed: int, epoch: Tensor, samples: Tensor) -> Tensor:
    """Return one 32-bit key per sample, (N,) int64; `epoch` is a tensor, so that a captured graph reads its changes."""
    run = _mix(torch.full_like(epoch, seed & _MASK))
    start = _mix((epoch + run) & _MASK)
    return _mix(_mix((samples + start) & _MASK) ^ start)  # mixed twice, so that epochs do not share shifted keys


def uniform(keys: Tensor, stream: int | Tensor, count: int) -> Tensor:
    """Return (N,C) float32, strictly between 0 and 1. Different streams of one key are independent."""
    columns = _mix(torch.arange(1, count + 1, device=keys.device))
    rows = _mix((keys + (stream + 1) * 0x85EBCA6B) & _MASK)
    bits = _mix((rows[:, None] + columns) & _MASK) >> 9
    return (bits.to(torch.float32) + 0.5) * 2.0**-23


def normal(keys: Tensor, stream: int | Tensor, count: int) -> Tensor:
    """Return (N,C) standard normal numbers by the Box-Muller transform."""
    both = uniform(keys, stream, 2 * count)
    return (-2 * both[:, ::2].log()).sqrt() * (2 * math.pi * both[:, 1::2]).cos()


def gumbel(keys: Tensor, stream: int, count: int) -> Tensor:
    """Return (N,C) Gumbel(0, 1) numbers."""
    return -(-uniform(keys, stream, count).log()).log()


def _mix(values: Tensor) -> Tensor:
    """Apply a bijection of 32-bit integers in int64: two rounds of xor-shift and multiply, modulo 2^32."""
    values = ((values ^ (values >> 16)) * 0x7FEB352D) & _MASK
    values = ((values ^ (values >> 15)) * 0x846CA68B) & _MASK
    return values ^ (values >> 16)
