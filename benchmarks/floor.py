"""The least time that a training step can take on a device, and what its parts take.

Arithmetic runs at the speed of a large matrix product, bytes at the speed of a large copy, one after the other. The
bytes of convolutions are not counted: their arithmetic hides them. Those of batch-norm cannot hide, for it must have
seen the whole batch before it can normalise any of it.
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from twincluster.config import Config
from twincluster.nn.backbones import BasicBlock, Bottleneck
from twincluster.training import Trainer
from twincluster.training.cuda_graph import REHEARSALS, Step, graph

# Passes over each value that batch-norm puts out. Forward it is read for the statistics, read again and written, with
# the activation on the way; backward, value and gradient are read for two sums, read again, and a gradient is written.
FORWARD, BACKWARD = 3, 5
JOIN_FORWARD, JOIN_BACKWARD = 1, 1  # the shortcut is read where it joins; its gradient is written where they part
WEIGHT_BYTES = 4
OPTIMISER = {"sgd": 6, "adam": 8}  # passes over the weights and what is kept of each, clearing the gradient included
MOMENTUM = 3  # both networks' weights are read, one written

PRODUCT_SIDE = {"cuda": 8192, "cpu": 2048}  # of the square matrices whose product is the yardstick
PRODUCT_TYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}
COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}
TRIES = 5


@dataclass(frozen=True)
class Traffic:
    """Values of one image in one forward pass."""

    normalised: int  # that batch-norm puts out
    joined: int  # that residual blocks put out


@dataclass(frozen=True)
class Floor:
    """Of one step, in seconds."""

    arithmetic: float
    activations: float
    optimiser: float

    @property
    def seconds(self) -> float:
        return self.arithmetic + self.activations + self.optimiser


def floor(
    config: Config, backbone: nn.Module, flops: int, online: int, momentum: int, product: float, copying: float
) -> Floor:
    """`flops` of one image in all its passes, of which `online` are with and `momentum` without a backward pass;
    `product` in FLOP/s, `copying` in bytes moved per second."""
    train = config.train
    values = traffic(backbone, train.image_size)
    forward = FORWARD * values.normalised + JOIN_FORWARD * values.joined
    backward = BACKWARD * values.normalised + JOIN_BACKWARD * values.joined
    value_bytes = 2 if train.precision == "bf16" else 4
    activations = value_bytes * train.batch_size * ((online + momentum) * forward + online * backward)
    weights = sum(weight.numel() for weight in backbone.parameters())
    passes = OPTIMISER[config.optimiser.name] + (MOMENTUM if momentum else 0)
    return Floor(
        arithmetic=train.batch_size * flops / product,
        activations=activations / copying,
        optimiser=WEIGHT_BYTES * weights * passes / copying,
    )


def traffic(backbone: nn.Module, side: int) -> Traffic:
    model = copy.deepcopy(backbone).to("meta").eval()  # only shapes flow
    counted = {"normalised": 0, "joined": 0}

    def count(kind: str) -> None:
        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            counted[kind] += output.numel()

        for module in model.modules():
            if isinstance(module, _BatchNorm if kind == "normalised" else BasicBlock | Bottleneck):
                module.register_forward_hook(add)

    for kind in counted:
        count(kind)
    first = next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d))
    with torch.no_grad():
        model(torch.empty(1, first.in_channels, side, side, device="meta"))
    return Traffic(**counted)


def passes_alone(trainer: Trainer, online: int, momentum: int, repeats: int) -> float:
    """Seconds of a step's forward and backward passes through the backbones, and of nothing else; median of TRIES."""
    method, train = trainer.method.train(), trainer.config.train
    online_network, momentum_network = method.online, getattr(method, "momentum", method.online)
    shape = (train.batch_size * max(online, momentum), 3, train.image_size, train.image_size)
    images = torch.randn(shape, device=trainer.device).contiguous(memory_format=torch.channels_last)
    seen, momentum_seen = (images[: views * train.batch_size] for views in (online, momentum))
    gradient = torch.randn(len(seen), online_network.backbone.n_features, device=trainer.device)

    def encode() -> Tensor:
        if momentum:
            with torch.no_grad():
                momentum_network.backbone_features(momentum_seen)
        features: Tensor = online_network.backbone_features(seen)
        return features

    compiled = torch.compile(encode) if train.compile and trainer.device.type == "cuda" else encode

    def step() -> None:
        compiled().backward(gradient)  # type: ignore[no-untyped-call]

    run = graph(step, lambda: timed(step, REHEARSALS, train.device)) if trainer.device.type == "cuda" else step
    return statistics.median(timed(run, repeats, train.device) / repeats for _ in range(TRIES))


def product_speed(device: str) -> float:
    """FLOP/s of the product of two large square matrices, the best of several tries."""
    side, products = PRODUCT_SIDE[device], 10 if device == "cuda" else 1
    left, right = (torch.randn(side, side, device=device, dtype=PRODUCT_TYPE[device]) for _ in range(2))
    return 2 * side**3 * products / _best(lambda: left @ right, products, device)


def copy_speed(device: str) -> float:
    """Bytes read and written per second while a large tensor is copied, the best of several tries."""
    source = torch.zeros(COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) / _best(lambda: target.copy_(source), 1, device)


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


def timed(run: Step, repeats: int, device: str) -> float:
    start = now(device)
    for _ in range(repeats):
        run()
    return now(device) - start


def _best(run: Step, repeats: int, device: str) -> float:
    return min(timed(run, repeats, device) for _ in range(TRIES + 1))  # the first one also starts the library
