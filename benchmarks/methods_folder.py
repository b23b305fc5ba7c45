"""What the folder of `bench methods` holds: results, failures and runs that were begun, each with the job it is of.

A result is used again by the same job alone. Those of other methods stay in the table while they share its settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.methods_table import Failure, Found
from benchmarks.one_method import Job, Result, checkpoint_of
from twincluster.clustering import TITLES
from twincluster.config import flatten
from twincluster.core import InputError
from twincluster.methods import METHODS

OWN = ("own", "tcc", "anchored", "optimiser")  # what a method takes from its recipe
MOVED = ("source", "root")  # the data is known by its fingerprint


def kept(file: Path, job: Job, folder: Path) -> Result | None:
    """What was found before; None where nothing was, or where it failed, which is tried again."""
    if not file.is_file():
        return None
    then, found = read(file)
    changed = [name for name in differing(then, job) if name not in MOVED]
    finished = isinstance(found, Result)
    if changed and (finished or checkpoint_of(folder).exists()):
        what = ", ".join(f"code of {job.config['method']}" if name == "code" else name for name in changed)
        raise InputError(
            f"{file} was {'measured' if finished else 'begun'} with another {what}: choose another --out, or delete "
            "that file and those of its other seeds, to measure again"
        )
    return found if isinstance(found, Result) else None


def earlier(
    results: Path, besides: Collection[Path], like: Callable[[Job], Job]
) -> tuple[list[tuple[Job, Found]], dict[str, list[str]]]:
    """What else is in the folder: what shares the settings of `like`, and other files by what differs in them."""
    same: list[tuple[Job, Found]] = []
    others: dict[str, list[str]] = {}
    for file in sorted(set(results.glob("*.json")) - set(besides)):
        job, found = read(file)
        if found is None:
            continue
        names = differing(job, like(job))
        changed = [name for name in names if name.partition(".")[0] not in (*MOVED, *OWN, "code", "run", "model")]
        if changed:
            others.setdefault(", ".join(changed), []).append(file.name)
        else:
            same.append((job, found))
    return same, others


def read(file: Path) -> tuple[Job, Found | None]:
    """A job and what came of it, None where it was begun and no more."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        job, why = Job(**content["job"]), str(content["failure"])
        found = Result(**content["result"]) if content["result"] else Failure(why, log_of(file)) if why else None
        if not (job.classic or "method" in job.config) or "seed" not in job.config:
            raise KeyError("method or seed")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} cannot be read as a result: delete it, and it will be measured again") from error
    return job, found


def differing(then: Job, now: Job) -> list[str]:
    """Names of what differs between two jobs; settings by their dotted names."""
    one, two = (_flat(job) for job in (then, now))
    return [name for name in {**one, **two} if one.get(name) != two.get(name)]


def _flat(job: Job) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(asdict(job)))  # lists for tuples, as in a file
    return flatten(content.pop("config")) | content


def log_of(file: Path) -> str:
    """The name of the log beside a result, as seen from the folder of the table."""
    return f"{file.parent.name}/{file.with_suffix('.log').name}"


def row_of(job: Job, rows: bool) -> str:
    """The name of its row; `rows` where the data has rows of numbers instead of pixels."""
    if not job.classic:
        return str(job.config["method"])
    what = f"features of {Path(job.run).name}" if job.run else "rows" if rows else "pixels"
    return f"{TITLES.get(job.classic, job.classic)} on {what}"


def place(row: str) -> tuple[int, str, int, str]:
    """Where a row stands: methods as METHODS has them, those of other packages, classics on pixels, on features."""
    if row in METHODS:
        return 0, "", list(METHODS).index(row), row
    title, _, what = row.partition(" on ")
    if title in TITLES.values():
        return 2, "" if what in ("rows", "pixels") else what, list(TITLES.values()).index(title), row
    return 1, "", 0, row
