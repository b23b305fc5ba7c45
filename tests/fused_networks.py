"""Residual networks with the fused kernels and with torch's layers, and how far apart their results are.

As a script, which kernels/test_fused.py runs in a process of its own, it prints that for the CPU: Triton interprets.
"""

import copy
import json
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from small_runs import make
from twincluster.nn import BatchNorm2d, ResNet, build_backbone
from twincluster.nn.backbones import BasicBlock, Bottleneck, _stem

NAMES = ("small", "bottleneck", "odd stem")
WITH_POOL = 96  # px from which the stem has a max-pooling


def build(name: str) -> tuple[ResNet, int]:
    """A network, and the side of the images it is shown."""
    if name == "bottleneck":
        blocks = nn.Sequential(Bottleneck(64, 8, 1), Bottleneck(32, 8, 2), Bottleneck(32, 8, 1))
        return ResNet(_stem(WITH_POOL, 3), blocks, n_features=32), 16
    if name == "odd stem":  # which is not what the kernel for stems computes
        stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, bias=False), BatchNorm2d(8), nn.ReLU(inplace=True))
        return ResNet(stem, nn.Sequential(BasicBlock(8, 8, 1)), n_features=8), 9
    small = build_backbone(name, side=8, n_inputs=3)
    assert isinstance(small, ResNet)
    return small, 8


def difference(name: str, device: str) -> dict[str, float]:
    """Relative, of output, gradients and running statistics after two batches, from what torch's layers give."""
    torch.manual_seed(0)
    network, side = build(name)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)  # else weights are 1 and biases 0
    plain = copy.deepcopy(network.to(device, memory_format=torch.channels_last))  # type: ignore[call-overload]
    network.fused = True
    for _ in range(2):
        images = torch.randn(5, 3, side, side).to(device, memory_format=torch.channels_last)
        outs = [one(images) for one in (network, plain)]
        slope = torch.randn_like(outs[0])
        for one, out in zip((network, plain), outs, strict=True):
            one.zero_grad()
            out.backward(slope)
    return {
        "output": apart([outs[0]], [outs[1]]),
        "gradient": apart(*([weight.grad for weight in one.parameters()] for one in (network, plain))),
        "statistics": apart(network.buffers(), plain.buffers()),
    }


def difference_for_images(name: str, device: str) -> float:
    """Relative, of the gradient of images that somebody has made."""
    torch.manual_seed(0)
    network, side = build(name)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    made, gradients = torch.randn(5, 3, side, side, device=device, requires_grad=True), []
    for fused in (True, False):
        network.fused, made.grad = fused, None
        network(made.contiguous(memory_format=torch.channels_last)).square().sum().backward()
        assert made.grad is not None
        gradients.append(made.grad.clone())
    return apart(gradients[:1], gradients[1:])


def use_small_tiles() -> None:
    """So that each kernel has to go round its loop, as it does for images in earnest."""
    from twincluster.nn.kernels import fused as stem  # which import Triton
    from twincluster.nn.kernels import norm

    stem.PROGRAMS, stem.TILE["M"], stem.BACK_TILE["M"] = 3, 16, 16
    norm.PROGRAMS, norm.SUM_TILE["M"], norm.PARTS_TILE["P"] = 3, 16, 2


def deviation(mean: float) -> float:
    """Relative difference of the deviation by channel where it is small beside the mean."""
    from twincluster.nn import settle

    x = (mean + torch.randn(16, 8, 4, 4)).contiguous(memory_format=torch.channels_last)
    return apart([1 / settle(x, nn.BatchNorm2d(8, eps=0)).channels[1]], [x.double().std((0, 2, 3), correction=0)])


def apart(some: Iterable[Tensor], others: Iterable[Tensor]) -> float:
    """The largest relative difference between tensors of two lists."""
    return max(float((a - b).double().norm() / b.double().norm()) for a, b in zip(some, others, strict=True))


def losses(fused: bool) -> list[float]:
    """Of three steps of the default method."""
    trainer = make("images")
    for network in (trainer.method.online, trainer.method.momentum):
        network.backbone.fused = fused
    found = []
    for _ in zip(range(3), trainer.feed.epoch(0), strict=False):
        trainer.schedule()
        trainer.step()
        found.append(float(trainer.record.totals["loss"]))
    return found


if __name__ == "__main__":
    found = {name: difference(name, "cpu") for name in NAMES}
    use_small_tiles()
    found["small tiles"] = difference("small", "cpu")
    told: dict[str, object] = {"images": {name: difference_for_images(name, "cpu") for name in NAMES}}
    told |= {"networks": found, "losses": [losses(fused) for fused in (False, True)], "deviation": deviation(1000.0)}
    print(json.dumps(told))
