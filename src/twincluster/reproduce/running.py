"""Does the trainings that are not done yet, each in a process of its own, and reads what came of all of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from twincluster.child import run_child
from twincluster.config import differences
from twincluster.derive import resolve
from twincluster.errors import InputError
from twincluster.evaluate import Scores, score
from twincluster.images.sources import Listing, open_source
from twincluster.opening import open_for, with_image_size
from twincluster.reproduce.trainings import Asked, Training
from twincluster.results import Run

# where and how a run was computed, which changes nothing in what it is a run of
ELSEWHERE = {"train.device", "train.precision", "train.compile", "train.parts", "train.checkpoint_minutes"}


@dataclass(frozen=True)
class Finished:
    run: Run
    scores: Scores
    epochs: int
    seconds: float  # of training


Outcomes = Mapping[str, Mapping[int, Finished | str]]  # by name and seed: what came of a training, or why nothing did


def carry_out(trainings: Sequence[Training], asked: Asked, say: Callable[[str], None]) -> Outcomes:
    """One after the other. A failure is noted and the next one begins."""
    listing = open_source(asked.data, root=asked.root)
    cells = [(training, seed) for training in trainings for seed in range(asked.seeds)]
    for training, seed in cells:
        _refuse_others(training, seed, asked, listing)  # before hours of work
    asked.out.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, dict[int, Finished | str]] = {}
    for number, (training, seed) in enumerate(cells, start=1):
        command = training.command(asked, seed)
        kept = is_finished(training.folder(asked, seed))
        say(f"{number} of {len(cells)}: {shlex.join(command)}{' (kept)' if kept else ''}")
        status = 0 if kept else _status_of(command, training.folder(asked, seed))
        outcome = _read(training.folder(asked, seed), listing) if status == 0 else f"failed with status {status}"
        outcomes.setdefault(training.name, {})[seed] = outcome
    return outcomes


def is_finished(folder: Path) -> bool:
    return (folder / "assignments.csv").is_file()


def _refuse_others(training: Training, seed: int, asked: Asked, listing: Listing) -> None:
    """A run that is there must be of the very training that is asked for. Wrong settings are told here, too."""
    folder, config = training.folder(asked, seed), training.config(asked, seed)
    if not (folder / "config.json").is_file():
        return
    config = with_image_size(config, listing)
    wanted = resolve(config, open_for(config, listing))
    changed = [name for name in differences(Run.open(folder).read_config()[0], wanted) if name not in ELSEWHERE]
    if changed:
        raise InputError(f"{folder} was trained with another {', '.join(changed)}: choose another --out, or delete it")


def _status_of(command: Sequence[str], folder: Path) -> int:
    begun = ["--resume"] if (folder / "config.json").is_file() else []
    try:
        return run_child([sys.executable, "-m", *command, *begun])
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; the same command goes on where it stopped") from None


def _read(folder: Path, listing: Listing) -> Finished:
    run = Run.open(folder)
    assert listing.labels is not None, "the sets of the paper, and digits, have labels"
    scores = score(listing.labels, run.read_assignments().clusters)
    metrics = run.read_metrics()
    return Finished(run, scores, len(metrics), metrics[-1]["seconds"])
