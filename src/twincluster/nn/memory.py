"""What the method remembers between steps: queues of past keys and momentum copies of networks.

Both are plain buffers, so a checkpoint holds them and a captured graph updates them in place.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

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
        """(size,) bool: which rows have been written."""
        return torch.arange(len(self.rows), device=self.rows.device) < self.written

    def is_full(self) -> Tensor:
        """() bool: whether all rows have been written."""
        return self.written >= len(self.rows)

    def filled(self) -> Tensor:
        """The rows that have been written; between epochs, since it waits for the device."""
        return self.rows[self.valid()]


def queue_size(wanted: int, n_samples: int, pushed: int) -> int:
    """At most one row per sample: more could only hold images again; at least what one step pushes."""
    return max(pushed, min(wanted, n_samples))


def momentum_copy(network: Module) -> Module:
    """The hatted network of the paper: equal at the start, never reached by a gradient."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def ema_update(momentum: nn.Module, online: nn.Module, keep: float | Tensor) -> None:
    """momentum <- keep * momentum + (1 - keep) * online, for parameters; batch-norm statistics stay each network's."""
    old: list[Tensor] = [*momentum.parameters()]
    new: list[Tensor] = [*online.parameters()]
    gap = torch._foreach_sub(new, old)
    torch._foreach_mul_(gap, 1 - keep)
    torch._foreach_add_(old, gap)
