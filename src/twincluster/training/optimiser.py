"""The optimiser of a run, made so that a captured graph and a checkpoint find all of its state in place."""

from __future__ import annotations

import torch

from twincluster.config import Config
from twincluster.methods.base import Method


def make_optimiser(config: Config, method: Method, device: torch.device) -> torch.optim.Optimizer:
    """The optimiser with all its state in place. Decay spares biases, batch-norm and prototypes."""
    settings, cuda = config.optimiser, device.type == "cuda"
    trained = [(name, weight) for name, weight in method.named_parameters() if weight.requires_grad]
    spared = [weight for name, weight in trained if weight.dim() < 2 or name.endswith("prototypes")]
    decayed = [weight for name, weight in trained if weight.dim() >= 2 and not name.endswith("prototypes")]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    rate = torch.zeros((), device=device) if cuda else 0.0
    optimiser: torch.optim.Optimizer
    if settings.name == "adam":
        optimiser = torch.optim.Adam(groups, lr=rate, fused=cuda, capturable=cuda)
    else:
        keep = settings.momentum
        optimiser = torch.optim.SGD(groups, lr=rate, momentum=keep, nesterov=keep > 0, fused=cuda)
    for _, weight in trained:
        weight.grad = torch.zeros_like(weight)
    optimiser.step()  # at rate 0: creates momentum and moments now, so that checkpoints and graphs find them
    for slots in optimiser.state.values():
        for slot in slots.values():
            slot.zero_()
    return optimiser
