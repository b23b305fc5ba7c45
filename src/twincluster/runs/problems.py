"""problems.csv: images that may not belong into a run: copies, dark, blurred or blank ones, screenshots, odd ones.

The table has one row per image and kind: path, kind, value, copy_of. `value` is the figure that a threshold is compared
with; for copies it is how alike they are, and `copy_of` is the best image of their group, which has no row as a copy.
Images that an update adds are compared with all others; the rows of the others stay.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from twincluster.core import MANIFEST, MISMATCH, InputError, read_table, write_table
from twincluster.data import Looks
from twincluster.runs.folder import rows_of_table

PROBLEMS_FILE = "problems.csv"
COLUMNS = ("path", "kind", "value", "copy_of")
PROBLEM_KINDS = ("exact_copy", "near_copy", "dark", "bright", "blurred", "blank", "tiny", "screenshot", "odd")
RISING = ("exact_copy", "near_copy", "bright", "screenshot", "odd")  # kinds whose value rises with suspicion
_IN_WORDS = {"exact_copy": "exact copies", "near_copy": "near copies", "screenshot": "screenshots", "odd": "odd ones"}


class Problem(NamedTuple):
    path: str
    kind: str
    value: float
    copy_of: str = ""


def write_problems(folder: Path, problems: Iterable[Problem]) -> None:
    text = io.StringIO()
    rows = [(path, kind, f"{value:.4g}", copy_of) for path, kind, value, copy_of in problems]
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    write_table(folder / PROBLEMS_FILE, text.getvalue())


def read_problems(folder: Path, paths: Iterable[str]) -> tuple[Problem, ...] | None:
    """Read the problems of the rows called `paths`; None for runs without the table."""
    path = folder / PROBLEMS_FILE
    if not path.is_file():
        return None
    try:
        text, matches = read_table(path)
        if not matches:
            raise ValueError(f"{MISMATCH}, or was edited without deleting {MANIFEST}")
        problems = [
            Problem(name, kind, float(value), other) for name, kind, value, other in rows_of_table(text, COLUMNS)
        ]
        if odd := [each.kind for each in problems if each.kind not in PROBLEM_KINDS or not math.isfinite(each.value)]:
            raise ValueError(f"unexpected kind or value of {odd[0][:20]!r}")
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{path} cannot be read ({error}): delete it, and `twincluster report` writes it again"
        ) from None
    there = set(paths)
    return tuple(each for each in problems if each.path in there and (not each.copy_of or each.copy_of in there))


def in_words(problems: Iterable[Problem]) -> str:
    """Return how many problems of each kind there are, as text; "" without any."""
    counts = Counter(problem.kind for problem in problems)
    return ", ".join(f"{_IN_WORDS.get(kind, kind)} {counts[kind]:,}" for kind in PROBLEM_KINDS if counts[kind])


@dataclass(frozen=True, eq=False)
class Inspected:
    """What is known of n rows of a run, each with another path."""

    paths: Sequence[str]
    contents: Sequence[str]  # content hash of each
    looks: Looks | None  # None for rows of numbers
    features: np.ndarray | None  # (n,D) of an encoder, or rows of numbers


def find_problems(rows: Inspected, earlier: Iterable[Problem] = (), fresh: np.ndarray | None = None) -> list[Problem]:
    """Return the problems of all rows. With `fresh` (n,), only theirs are looked for, and `earlier` ones are kept."""
    wanted = np.ones(len(rows.paths), bool) if fresh is None else fresh
    asked = {path for path, is_wanted in zip(rows.paths, wanted.tolist(), strict=True) if is_wanted}
    kept = [problem for problem in earlier if problem.path not in asked] if fresh is not None else []
    found: list[Problem] = []
    flaws: Mapping[str, tuple[np.ndarray, np.ndarray]] = rows.looks.flaws() if rows.looks else {}
    for kind, (mask, values) in flaws.items():
        found += [Problem(rows.paths[row], kind, float(values[row])) for row in np.flatnonzero(mask & wanted).tolist()]
    first, same = _exact_copies(rows, wanted)
    is_copy = {problem.path for problem in kept if problem.copy_of}
    found += [Problem(rows.paths[row], "exact_copy", 1.0, rows.paths[best]) for row, best in same]
    if rows.looks:
        found += _near_copies(rows, rows.looks, flaws, first, is_copy, fresh)
    if rows.features is not None:
        found += _odd_ones(rows, first, wanted)
    order = {path: number for number, path in enumerate(rows.paths)}
    return sorted([*kept, *found], key=lambda each: (order.get(each.path, -1), PROBLEM_KINDS.index(each.kind)))


def _rank(rows: Inspected, flaws: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return (n,) the place of each row among all, best first: without flaws, large, early."""
    spoilt = sum((mask.astype(int) for mask, _ in flaws.values()), np.zeros(len(rows.paths), int))
    area = rows.looks.width * rows.looks.height if rows.looks else np.zeros(len(rows.paths))
    rank = np.empty(len(rows.paths), np.int64)
    rank[np.lexsort((-area, spoilt))] = np.arange(len(rank))
    return rank


def _exact_copies(rows: Inspected, wanted: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return a row of each content, ascending, and the other rows that are wanted (n,) with the one of theirs."""
    firsts: dict[tuple[str, float, float], int] = {}
    same = []
    for row in np.argsort(wanted, kind="stable").tolist() if not wanted.all() else range(len(rows.paths)):
        size = (float(rows.looks.width[row]), float(rows.looks.height[row])) if rows.looks else (0.0, 0.0)
        best = firsts.setdefault((rows.contents[row], *size), row)
        if best != row and wanted[row]:
            same.append((row, best))
    return np.array(sorted(firsts.values()), np.int64), same


def _near_copies(
    rows: Inspected,
    looks: Looks,
    flaws: Mapping[str, tuple[np.ndarray, np.ndarray]],
    first: np.ndarray,
    is_copy: set[str],
    fresh: np.ndarray | None,
) -> list[Problem]:
    from twincluster.clustering import find_copies, groups_of

    compared = first[looks.has_texture[first]]
    blurred, features = flaws["blurred"][0][compared], rows.features
    detailed = looks.detailed(flaws["screenshot"][0])[compared]
    copies = find_copies(
        looks.grey[compared], looks.coloured[compared], blurred, detailed,
        None if features is None else features[compared], None if fresh is None else fresh[compared],
    )  # fmt: skip
    rank = _rank(rows, flaws)[compared]
    if fresh is not None:  # the new ones come last, and those that are copies already just before
        older = np.array([rows.paths[row] in is_copy for row in compared], np.int64)
        rank = rank + len(rows.paths) * (older + 2 * fresh[compared])
    found = groups_of(copies, rank, blurred)
    return [
        Problem(rows.paths[compared[row]], "near_copy", value, rows.paths[compared[best]])
        for row, best, value in found
        if fresh is None or fresh[compared[row]]
    ]


def _odd_ones(rows: Inspected, first: np.ndarray, wanted: np.ndarray) -> list[Problem]:
    from twincluster.clustering import odd_ones

    assert rows.features is not None
    values = odd_ones(rows.features[first])
    return [
        Problem(rows.paths[row], "odd", value)
        for row, value in zip(first.tolist(), values.tolist(), strict=True)
        if value > 0 and wanted[row]
    ]
