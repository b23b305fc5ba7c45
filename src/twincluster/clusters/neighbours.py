"""Which rows are nearest to each other. Shapes: n rows, M of them in the pool that neighbours come from, k of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

POOL = 20_000  # rows that neighbours, and directions, are found among: all pairs of more take longer than training
CHUNK = 2048  # rows compared with the pool at once


@torch.no_grad()
def nearest_rows(rows: Tensor, count: int, pool: int = POOL) -> Tensor:
    """(n,k) positions of the `count` rows of highest cosine, or of as many as there are, the row itself left out."""
    unit = F.normalize(rows, dim=1)
    everyone = torch.arange(len(rows), device=rows.device)
    among = everyone[:: -(-len(rows) // pool)]  # (M,)
    count = min(count, len(among) - 1)
    found = []
    for part in torch.split(everyone, CHUNK):
        similarity = unit[part] @ unit[among].T  # (chunk,M)
        similarity.masked_fill_(part[:, None] == among, -torch.inf)
        found.append(among[similarity.topk(count, dim=1).indices])
    return torch.cat(found)
