"""Batch-norm over all of a batch of which this process, or this moment, sees only a part.

Several processes add up their statistics. A batch that does not fit into memory passes the backbone in parts, each of
which is normalised by the statistics of the whole. Shapes: N rows, C channels, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.parallel import ALONE, Processes


class Statistics(NamedTuple):
    """Of the batch that the rows at hand are some of."""

    mean: Tensor  # (C,)
    variance: Tensor  # (C,), biased
    size: Tensor  # (), values per channel


class _Shared(nn.modules.batchnorm._BatchNorm):
    """What torch's layer does, with the same parameters and buffers, unless the batch is divided."""

    processes: Processes = ALONE
    observing = False  # whether to keep `seen`: parts of the batch will come again
    seen: Statistics | None = None
    given: Statistics | None = None  # instead of those of the rows that come, which are a part of the batch

    @property
    def divided(self) -> bool:
        return self.processes.count > 1 or self.observing or self.given is not None

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.divided):
            return super().forward(x)
        if self.given is not None:
            return _normalised(x, self, self.given, ALONE)
        batch = self._statistics(x)
        self.seen = batch if self.observing else None
        self._move_running(batch)
        return _normalised(x, self, batch, self.processes)

    @torch.no_grad()
    def _statistics(self, x: Tensor) -> Statistics:
        """Each process has its mean and the squares around it: plain sums of squares would lose small variances."""
        x, across = _wide(x, self), [0, *range(2, x.dim())]
        count = x.new_full((), x.numel() // x.shape[1])  # of this process; may be 0
        mean = x.sum(across) / count.clamp(min=1)
        squares = (x - _along(mean, x)).square().sum(across)
        every = x.new_zeros(self.processes.count, 2 * len(mean) + 1)
        every[self.processes.rank] = torch.cat([count[None], mean, squares])
        every = self.processes.add_up(every)  # (W,1+2C) for W processes
        counts, (means, squares) = every[:, :1], every[:, 1:].chunk(2, dim=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        return Statistics(mean, (squares + counts * (means - mean).square()).sum(0) / total, total)

    @torch.no_grad()
    def _move_running(self, batch: Statistics) -> None:
        assert self.running_mean is not None, "backbones keep running statistics"
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        unbiased = batch.variance * (batch.size / (batch.size - 1).clamp(min=1))
        self.num_batches_tracked += 1
        self.running_mean.lerp_(batch.mean, self.momentum)
        self.running_var.lerp_(unbiased, self.momentum)


class BatchNorm1d(_Shared, nn.BatchNorm1d):
    """For rows."""


class BatchNorm2d(_Shared, nn.BatchNorm2d):
    """For images."""


def share_batch_norm(backbone: nn.Module, processes: Processes) -> None:
    """Let the batch-norm of a backbone take its statistics over the rows of all these processes."""
    for layer in backbone.modules():
        if isinstance(layer, _Shared):
            layer.processes = processes


def is_divided(backbone: nn.Module) -> bool:
    """Whether the rows that come are only some of a batch."""
    return any(isinstance(layer, _Shared) and layer.divided for layer in backbone.modules())


def in_parts(encode: Callable[[Tensor], Tensor], backbone: nn.Module, x: Tensor, parts: int) -> Tensor:
    """`encode`, which calls `backbone`, on all rows, in memory for the backward pass of 1/`parts` of them.

    The features are computed at once, nothing being kept but the statistics of each batch-norm. The backward pass
    comes part by part, each encoded again with those statistics. So features, losses and running statistics are
    those of the undivided batch. The gradient differs in one respect: batch-norm takes off the mean of the incoming
    gradient, and its mean along the output, over the part instead of the whole.
    """
    if parts == 1 or not torch.is_grad_enabled():
        return encode(x)
    weights = [weight for weight in backbone.parameters() if weight.requires_grad]
    if not weights:
        return encode(x)
    features: Tensor = _InParts.apply(x, encode, backbone, parts, *weights)
    return features


def in_shuffled_halves(encode: Callable[[Tensor], Tensor], x: Tensor, draw: Tensor) -> Tensor:
    """`encode` on two halves of the rows, which `draw` (N,) divides at random: no statistics give a pair away."""
    order = draw.argsort()
    halves = x[order].chunk(1 if x.dim() == 2 and len(x) < 4 else 2)  # one row has no statistics, one image has
    return torch.cat([encode(half) for half in halves])[order.argsort()]


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, encode: Callable[[Tensor], Tensor], backbone: nn.Module, parts: int, *weights: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, *weights)
        layers = [layer for layer in backbone.modules() if isinstance(layer, _Shared) and layer.training]
        ctx.encode, ctx.layers, ctx.parts = encode, layers, parts
        with _observing(layers):
            features = encode(x)
        ctx.seen = [layer.seen for layer in layers]  # here: before the backward pass another batch may come
        return features

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        sums = [torch.zeros_like(weight) for weight in weights]
        size = max(1, -(-len(x) // ctx.parts))
        with _given(ctx.layers, ctx.seen):
            for rows, gradient in zip(torch.split(x, size), torch.split(gradients[0], size), strict=True):
                with torch.enable_grad():
                    features = ctx.encode(rows)
                # a pretrained network may have weights that no image passes, such as a token for masked patches
                slopes = torch.autograd.grad(features, weights, gradient, allow_unused=True, materialize_grads=True)
                torch._foreach_add_(sums, list(slopes))
                del features  # and with it what was kept for the backward pass of this part
        return None, None, None, None, *sums


@contextmanager
def _observing(layers: list[_Shared]) -> Iterator[None]:
    for layer in layers:
        layer.observing = True
    try:
        yield
    finally:  # memory may run out meanwhile, and smaller parts be tried
        for layer in layers:
            layer.observing = False


@contextmanager
def _given(layers: list[_Shared], seen: list[Statistics]) -> Iterator[None]:
    for layer, statistics in zip(layers, seen, strict=True):
        layer.given = statistics
    try:
        yield
    finally:
        for layer in layers:
            layer.given = None


def _normalised(x: Tensor, layer: _Shared, batch: Statistics, processes: Processes) -> Tensor:
    arguments = layer.weight, layer.bias, batch, layer.eps, processes
    normalised: Tensor = _Normalise.apply(x, *arguments)
    return normalised


class _Normalise(torch.autograd.Function):
    """Batch-norm by given statistics, with the gradient that goes through them where `processes` hold the batch."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, batch: Statistics, eps: float, processes: Processes
    ) -> Tensor:
        ctx.save_for_backward(x, weight, batch.mean, (batch.variance + eps).rsqrt())
        ctx.processes = processes
        return F.batch_norm(x, batch.mean, batch.variance, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        across = [0, *range(2, x.dim())]
        slope = gradients[0].to(mean.dtype)
        unit = (x.to(mean.dtype) - _along(mean, x)) * _along(scale, x)  # the output before weight and bias
        own = torch.stack([slope.sum(across), (slope * unit).sum(across)])  # (2,C): of bias and weight
        count = mean.new_full((1,), x.numel() // x.shape[1])
        total = ctx.processes.add_up(torch.cat([own.flatten(), count]))
        to_bias, to_weight = (total[:-1] / total[-1].clamp(min=1)).chunk(2)
        back = (slope - _along(to_bias, x) - unit * _along(to_weight, x)) * _along(weight * scale, x)
        return back.to(x.dtype), own[1], own[0], None, None, None


def _wide(x: Tensor, layer: _Shared) -> Tensor:
    assert layer.running_mean is not None
    return x.to(layer.running_mean.dtype)  # bf16 comes in, float32 is added up


def _along(channels: Tensor, x: Tensor) -> Tensor:
    return channels.view(1, -1, *[1] * (x.dim() - 2))
