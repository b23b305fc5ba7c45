"""Pictures to update a run with, and what its table and the command say afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from command_line import colours, worked
from twincluster.runs import Run

KINDS = ("red", "green", "blue")


def pictures(folder: Path, n: int = 45, seed: int = 0) -> Path:
    """PNG files of three colours, in a sub-folder each."""
    for number, (pixels, kind) in enumerate(zip(*colours(n, seed=seed), strict=True)):
        (folder / KINDS[kind]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / KINDS[kind] / f"{number:02d}.png")
    return folder


def rows_of(run: Path) -> dict[str, tuple[int, str]]:
    table = Run.open(run).read_assignments()
    assert len(set(table.paths)) == len(table.paths)
    return {path: (int(k), said) for path, k, said in zip(table.paths, table.clusters, table.status, strict=True)}


def updated(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(worked("update", *arguments, "--json").out, parse_constant=pytest.fail)
    return found


def counts(found: dict[str, Any]) -> tuple[int, ...]:
    return tuple(found[name] for name in ("added", "changed", "kept", "unreadable"))
