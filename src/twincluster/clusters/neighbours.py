"""Which rows are nearest to each other. Shapes: n rows, M of them in the pool that neighbours come from, k of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

POOL = 20_000  # rows that neighbours, and directions, are found among: all pairs of more take longer than training
CHUNK = 2048  # rows compared with the pool at once


def nearest_rows(rows: Tensor, count: int, pool: int = POOL) -> Tensor:
    """(n,k) positions of the `count` rows of highest cosine, or of as many as there are, the row itself left out."""
    step = pool_step(len(rows), pool)
    return step * nearest_in_pool(torch.split(rows, CHUNK), rows[::step], step, count)


def pool_step(n_rows: int, pool: int = POOL) -> int:
    """How far apart the rows of the pool lie."""
    return -(-n_rows // pool)


@torch.no_grad()
def nearest_in_pool(parts: Iterable[Tensor], pool: Tensor, step: int, count: int) -> Tensor:
    """The same as places in the pool (M,d), which is every `step`-th of the rows that come in parts."""
    unit, members, found, start = F.normalize(pool, dim=1), step * torch.arange(len(pool)).to(pool.device), [], 0
    for part in parts:
        similarity = F.normalize(part, dim=1) @ unit.T  # (chunk,M)
        own = torch.arange(start, start + len(part), device=pool.device)
        similarity.masked_fill_(own[:, None] == members, -torch.inf)
        found.append(similarity.topk(min(count, len(pool) - 1), dim=1).indices)
        start += len(part)
    return torch.cat(found)
