"""What the paper's tables say, read from published.csv, where the numbers stand in per cent as they are printed."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SCORES = ("acc", "nmi", "ari")
SETS = {  # of Table 1 and Appendix D: title, images, clusters, pixels a side
    "cifar10": ("CIFAR-10", 60_000, 10, 32),
    "cifar100": ("CIFAR-100", 60_000, 20, 32),
    "stl10": ("STL-10", 13_000, 10, 96),
    "imagenet10": ("ImageNet-10", 13_000, 10, 96),
    "imagenet_dogs": ("ImageNet-Dog", 19_500, 15, 96),
    "tiny_imagenet": ("Tiny ImageNet", None, None, None),  # of which the paper gives results alone
}
P_VALUES = {  # Table 6, without its lower half, which is the same
    "IIC": (0.3213, 0.0955, 0.1895, 0.01, 0.0313, 0.0048, 0.0014, 0.0005),
    "MMDC": (0.1649, 0.4746, 0.0105, 0.1111, 0.068, 0.0228, 0.0075),
    "PICA": (0.024, 0.0048, 0.2876, 0.1219, 0.0046, 0.0023),
    "GATCluster": (0.0015, 0.0551, 0.0202, 0.0003, 0.0002),
    "CC": (0.0243, 0.1843, 0.2563, 0.0191),
    "MoCo baseline": (0.0199, 0.0456, 0.0023),
    "MiCE": (0.121, 0.0073),
    "IDFD": (0.0778,),
    "TCC": (),
}


@dataclass(frozen=True)
class Published:
    """A row of one of the tables."""

    name: str  # as printed
    method: str  # ours, or a classic system; of some that the paper compares with there is none
    scores: Mapping[str, tuple[float | None, ...]]  # by data set: ACC, NMI and ARI as shares, None where not given


def published(table: int) -> list[Published]:
    """The rows of Table 2, 3, 4 or 5, in the paper's order."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        return [_row(line) for line in csv.DictReader(file) if int(line["table"]) == table]


def _row(line: Mapping[str, str]) -> Published:
    by_set = {name: tuple(_share(line[f"{name}_{score}"]) for score in SCORES) for name in SETS}
    given = {name: scores for name, scores in by_set.items() if any(score is not None for score in scores)}
    return Published(line["name"], line["method"], given)


def _share(text: str) -> float | None:
    return round(float(text) / 100, 3) if text else None
