"""How a table is written: as Markdown to be read, and as CSV to be used."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from twincluster.disk import write_atomically
from twincluster.reproduce.trainings import Asked

Line = Sequence[str]


def write_table(
    asked: Asked, name: str, title: str, lines: Sequence[Line], numbers: Sequence[Sequence[object]] | None = None
) -> str:
    """NAME.md and NAME.csv in the folder, the first line their head; returns the former.

    `numbers` go into the latter where the lines have several of them in one cell.
    """
    head, *body = lines
    marked = [head, ["---"] * len(head), *body]
    text = "\n".join([title, "", *(f"| {' | '.join(map(_in_cell, line))} |" for line in marked)])
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(numbers or lines)
    asked.out.mkdir(parents=True, exist_ok=True)
    write_atomically(asked.out / f"{name}.md", text + "\n")
    write_atomically(asked.out / f"{name}.csv", table.getvalue())
    return text


def short(share: float, digits: int = 3) -> str:
    """.906, and -.012; no sign before what rounds to nothing."""
    return f"{share:z.{digits}f}".replace("0.", ".", 1)


def _in_cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
