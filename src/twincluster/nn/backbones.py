"""Backbones that encode images or rows as features, batch-norm over divided batches, FLOPs, queues and momentum copies.

Every network is written for batch-norm: convolutions have no bias, and the stem fits the size of the images. Queues and
momentum copies are plain buffers, so checkpoints contain them and a captured graph updates them in place. Shapes: N
batch, C channels, S side in pixels, D features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.core import InputError
from twincluster.parallel import ALONE, Processes

SMALL_STEM_SIDE = 64  # up to this many pixels the stem keeps the resolution; above, it reduces it by four


class Backbone(nn.Module):
    """An encoder from images (N,C,S,S) or rows (N,C) to features (N, n_features)."""

    n_features: int  # D

    def maps(self, x: Tensor) -> Tensor:
        """Return the feature maps (N,D,H,W) whose mean is `forward`; 1 x 1 for networks without maps."""
        features: Tensor = self(x)
        return features[:, :, None, None]


def build_backbone(name: str, *, side: int, n_inputs: int) -> Backbone:
    """Return the backbone called `name`, for images of `side` pixels with `n_inputs` channels, or rows with that many
    columns.
    """
    if name not in BACKBONES:
        raise InputError(f"there is no backbone '{name}': choose one of {', '.join(BACKBONES)}")
    return BACKBONES[name](side, n_inputs)


def flops(backbone: nn.Module, side: int) -> int:
    """Return the floating-point operations of one forward pass of one image: 2 x the multiply-adds of layers with
    weights.
    """
    model = copy.deepcopy(backbone).to("meta").eval()  # computes shapes only, on a copy of the caller's network
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    total = 0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        total += 2 * output.numel() * layer.weight[0].numel()  # each output value is a dot product with one filter

    for layer in layers:
        layer.register_forward_hook(count)
    first = layers[0]
    shape = (1, first.in_channels, side, side) if isinstance(first, nn.Conv2d) else (1, first.in_features)
    with torch.no_grad():
        model(torch.empty(shape, device="meta", dtype=first.weight.dtype))
    return total


class ResNet(Backbone):
    """A stem, stages of residual blocks, and the mean over the remaining pixels."""

    fused = False  # whether to train with kernels/fused.py, which needs a GPU and channels-last

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
            from twincluster.nn.kernels.fused import pixels  # imports Triton

            x = pixels(self, x)
        else:
            x = self.stages(self.stem(x))
        return x


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, with `width` output channels."""

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
    """Return the identity if the shapes allow it, otherwise a 1x1 convolution."""
    if stride == 1 and n_inputs == n_outputs:
        return nn.Identity()
    return nn.Sequential(conv(n_inputs, n_outputs, 1, stride), BatchNorm2d(n_outputs))


def conv(n_inputs: int, n_outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a padded convolution without bias, because a batch-norm follows."""
    return nn.Conv2d(n_inputs, n_outputs, size, stride, padding=size // 2, bias=False)


class Mlp(Backbone):
    """Two layers for rows (N,C). `signed` drops the last ReLU: for embeddings of another network instead of tables."""

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
    """Return three blocks for tiny images (8 to 28 px) on a CPU; larger images work but are slow."""
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


class Statistics(NamedTuple):
    """The batch-norm statistics of a whole batch."""

    mean: Tensor  # (C,)
    variance: Tensor  # (C,), biased
    size: Tensor  # (), values per channel


class _Shared(nn.modules.batchnorm._BatchNorm):
    """Torch's layer, with the same parameters and buffers, whose statistics also cover a divided batch."""

    processes: Processes = ALONE
    observing = False  # whether to keep the statistics in `seen`, for the backward pass in parts
    seen: Statistics | None = None
    given: Statistics | None = None  # used instead of the input's own, when the input is a part of the batch

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
        """Return the statistics of the batch over all processes.

        Each process contributes its mean and the squared deviations from it; plain sums of squares would lose small
        variances.
        """
        x, across = _wide(x, self), [0, *range(2, x.dim())]
        count = x.new_full((), x.numel() // x.shape[1])  # of this process; may be 0
        mean = x.sum(across) / count.clamp(min=1)
        squares = (x - _along(mean, x)).square().sum(across)
        every = x.new_zeros(self.processes.count, 2 * len(mean) + 1)
        every[self.processes.rank] = torch.cat([count[None], mean, squares])
        every = self.processes.all_reduce(every)  # (W,1+2C) for W processes
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
    """Batch-norm for rows."""


class BatchNorm2d(_Shared, nn.BatchNorm2d):
    """Batch-norm for images."""


def share_batch_norm(backbone: nn.Module, processes: Processes) -> None:
    """Compute the batch-norm statistics of a backbone over the rows of all these processes."""
    for layer in backbone.modules():
        if isinstance(layer, _Shared):
            layer.processes = processes


def is_divided(backbone: nn.Module) -> bool:
    """Return True if the backbone sees only a part of each batch."""
    return any(isinstance(layer, _Shared) and layer.divided for layer in backbone.modules())


def in_parts(encode: Callable[[Tensor], Tensor], backbone: nn.Module, x: Tensor, parts: int) -> Tensor:
    """Return `encode`, which calls `backbone`, of all rows; the backward pass holds 1/`parts` of them in memory.

    The forward pass keeps only the statistics of each batch-norm. The backward pass encodes each part again with those
    statistics. So features, losses and running statistics are those of the undivided batch. The gradient differs in one
    respect: batch-norm subtracts the mean of the incoming gradient, and its mean along the output, over the part
    instead of the whole batch.
    """
    if parts == 1 or not torch.is_grad_enabled():
        return encode(x)
    weights = [weight for weight in backbone.parameters() if weight.requires_grad]
    if not weights:
        return encode(x)
    features: Tensor = _InParts.apply(x, encode, backbone, parts, *weights)
    return features


def in_shuffled_halves(encode: Callable[[Tensor], Tensor], x: Tensor, draw: Tensor) -> Tensor:
    """Return `encode` of two random halves of the rows, divided by `draw` (N,), so that no statistics reveal a pair."""
    order = draw.argsort()
    halves = x[order].chunk(1 if x.dim() == 2 and len(x) < 4 else 2)  # a single row has no variance, a single image has
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
        ctx.seen = [layer.seen for layer in layers]  # now: another batch may come before the backward pass
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
                # a pretrained network may have unused weights, such as a token for masked patches
                slopes = torch.autograd.grad(features, weights, gradient, allow_unused=True, materialize_grads=True)
                torch._foreach_add_(sums, list(slopes))
                del features  # frees the graph of this part
        return None, None, None, None, *sums


@contextmanager
def _observing(layers: list[_Shared]) -> Iterator[None]:
    for layer in layers:
        layer.observing = True
    try:
        yield
    finally:  # after an out-of-memory error smaller parts are tried
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
    """Batch-norm by given statistics. Its gradient flows through them if `processes` hold the whole batch."""

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
        total = ctx.processes.all_reduce(torch.cat([own.flatten(), count]))
        to_bias, to_weight = (total[:-1] / total[-1].clamp(min=1)).chunk(2)
        back = (slope - _along(to_bias, x) - unit * _along(to_weight, x)) * _along(weight * scale, x)
        return back.to(x.dtype), own[1], own[0], None, None, None


def _wide(x: Tensor, layer: _Shared) -> Tensor:
    assert layer.running_mean is not None
    return x.to(layer.running_mean.dtype)  # sum bf16 input in float32


def _along(channels: Tensor, x: Tensor) -> Tensor:
    return channels.view(1, -1, *[1] * (x.dim() - 2))


Module = TypeVar("Module", bound=nn.Module)


class Queue(nn.Module):
    """A ring of `size` rows; the newest overwrite the oldest. Rows never written are not valid."""

    rows: Tensor  # (size, n_features)
    written: Tensor  # (), how many rows were ever pushed

    def __init__(self, size: int, n_features: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(size, n_features))
        self.register_buffer("written", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, rows: Tensor) -> None:
        size = len(self.rows)
        if len(rows) > size:
            raise ValueError(f"{len(rows)} rows do not fit into a queue of {size}")
        slots = (self.written + torch.arange(len(rows), device=rows.device)) % size
        self.rows.index_copy_(0, slots, rows)
        self.written += len(rows)

    def valid(self) -> Tensor:
        """Return (size,) bool: which rows have been written."""
        return torch.arange(len(self.rows), device=self.rows.device) < self.written

    def is_full(self) -> Tensor:
        """Return () bool: whether all rows have been written."""
        return self.written >= len(self.rows)

    def filled(self) -> Tensor:
        """Return the rows that have been written; between epochs, since it waits for the device."""
        return self.rows[self.valid()]


def queue_size(wanted: int, n_samples: int, pushed: int) -> int:
    """At most one row per sample: more could only hold images again; at least what one step pushes."""
    return max(pushed, min(wanted, n_samples))


def momentum_copy(network: Module) -> Module:
    """Return the hatted network of the paper: equal at the start, never reached by a gradient."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def ema_update(momentum: nn.Module, online: nn.Module, keep: float | Tensor) -> None:
    """momentum <- keep * momentum + (1 - keep) * online, for parameters; batch-norm statistics stay each network's."""
    old: list[Tensor] = [*momentum.parameters()]
    new: list[Tensor] = [*online.parameters()]
    gap = torch._foreach_sub(new, old)
    torch._foreach_mul_(gap, 1 - keep)
    torch._foreach_add_(old, gap)
