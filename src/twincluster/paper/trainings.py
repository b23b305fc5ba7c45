"""One training of a table or a figure: its recipe, its changes to the recipe, and the command that runs it.

`carry_out` runs the trainings that are not finished, each in its own process, and reads the results of all.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from twincluster.clustering import Scores, score
from twincluster.config import (
    Config,
    configure,
    differences,
    how_long,
    load_recipe,
    make_config,
    parse_overrides,
    recipe_names,
)
from twincluster.core import InputError, duration, explained, run_child
from twincluster.data import Listing, open_source
from twincluster.model import open_for
from twincluster.paper.course import Course, Plan, announcement, expected_seconds
from twincluster.resolve import check_method, resolve, with_image_size
from twincluster.runs import Run


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    data: str
    out: Path
    seeds: int = 1
    epochs: int | None = None
    minutes: float | None = None
    device: str | None = None
    settings: Sequence[str] = ()
    root: Path | None = None


@dataclass(frozen=True)
class Training:
    name: str  # of its folder, which the seed follows
    recipe: str
    method: str = ""  # replaces that of the recipe
    settings: tuple[str, ...] = ()  # as for --set

    def folder(self, asked: Asked, seed: int) -> Path:
        return asked.out / f"{self.name}-{seed}"

    def command(self, asked: Asked, seed: int) -> list[str]:
        """Return the command that a user would type."""
        given = {
            "--recipe": self.recipe, "--method": self.method, "--epochs": asked.epochs, "--minutes": asked.minutes,
            "--device": asked.device, "--data-root": asked.root, "--seed": seed, "--out": self.folder(asked, seed),
        }  # fmt: skip
        words = [word for name, value in given.items() if value not in (None, "") for word in (name, str(value))]
        changes = [word for setting in (*self.settings, *asked.settings) for word in ("--set", setting)]
        return ["twincluster", "fit", asked.data, *words, *changes]

    def config(self, asked: Asked, seed: int) -> Config:
        """Return the settings that this command stands for."""
        changes: dict[str, Any] = {"method": self.method} if self.method else {}
        changes |= parse_overrides((*self.settings, *asked.settings))
        train: Mapping[str, Any] = {**how_long(asked.epochs, asked.minutes), "device": asked.device}
        return check_method(configure(self.recipe, changes, {"seed": seed, "train": train}), changes)


def by_paper(data: str, method: str = "tcc", name: str = "", settings: tuple[str, ...] = ()) -> Training:
    """Use the paper's settings for this set, also for ablations and for other methods that the paper ran with them."""
    recipe = paper_recipe(data)
    return Training(name or method, recipe, "" if method == "tcc" else method, settings)


# sets whose recipe suits best if a method has none for this set
ALIKE = {"imagenet10": ("stl10",), "imagenet_dogs": ("imagenet10", "stl10")}


def by_own_paper(data: str, method: str) -> Training:
    """Use the settings of a method's own paper, at the size and number of clusters of this set."""
    known = recipe_names()
    names = [f"{method}-{other}".replace("_", "-") for other in (data, *ALIKE.get(data, ()), "cifar10")]
    recipe = next(name for name in names if name in known)
    if data == "digits":  # the set is too small for the rest of the recipe
        optimiser = asdict(make_config(load_recipe(recipe).settings).optimiser)
        return Training(method, data, method, tuple(f"optimiser.{name}={value}" for name, value in optimiser.items()))
    paper = load_recipe(paper_recipe(data)).settings
    fitting = (f"n_clusters={paper['n_clusters']}", f"train.image_size={paper['train']['image_size']}")
    return Training(method, recipe, settings=() if recipe == names[0] else fitting)


def by_default(data: str) -> list[Training]:
    """Use the recipe that twincluster recommends for a set, if there is one."""
    return [Training("anchored", data)] if data in recipe_names() else []


def paper_recipe(data: str) -> str:
    return f"paper-{data.replace('_', '-')}"


# how a run was computed, which does not change its result
ELSEWHERE = {"train.device", "train.precision", "train.compile", "train.parts", "train.checkpoint_minutes"}


@dataclass(frozen=True)
class Finished:
    run: Run
    scores: Scores
    epochs: int
    seconds: float  # of training


Outcomes = Mapping[str, Mapping[int, Finished | str]]  # by name and seed: the result of a training, or why it failed


def carry_out(jobs: Sequence[tuple[Sequence[Training], Asked]], say: Callable[[str], None]) -> list[Outcomes]:
    """Run the trainings of each job in its folder, one after another. A failure is recorded, and the next one begins.

    One line shows the progress of all. The output of a training goes to a .log file beside its folder.
    """
    cells = [_checked(trainings, asked) for trainings, asked in jobs]  # check all before the first begins
    listings = [open_source(asked.data, root=asked.root) for _, asked in jobs]
    course = _course(jobs, cells, listings, say)
    outcomes: list[Outcomes] = []
    for (_, asked), of_job, listing in zip(jobs, cells, listings, strict=True):
        asked.out.mkdir(parents=True, exist_ok=True)
        found: dict[str, dict[int, Finished | str]] = {}
        outcomes.append(found)
        for training, seed in of_job:
            found.setdefault(training.name, {})[seed] = _carry_out_one(training, seed, asked, listing, course)
    return outcomes


def _course(
    jobs: Sequence[tuple[Sequence[Training], Asked]], cells: Sequence[Sequence[tuple[Training, int]]],
    listings: Sequence[Listing], say: Callable[[str], None],
) -> Course:  # fmt: skip
    """Return the progress of the trainings, after announcing how long the unfinished ones will take."""
    plans = []
    for (_, asked), of_job, listing in zip(jobs, cells, listings, strict=True):
        for training, seed in of_job:
            finished = _is_finished(training.folder(asked, seed))
            plans.append(Plan(training.name, training.config(asked, seed), len(listing.paths), finished))
    seconds = expected_seconds(plans)
    if any(not plan.finished for plan in plans):
        say(announcement(plans, seconds))
    return Course(seconds)


def _carry_out_one(training: Training, seed: int, asked: Asked, listing: Listing, course: Course) -> Finished | str:
    folder, command = training.folder(asked, seed), _command(training, asked, seed)
    name = f"{training.name} on {asked.data}, seed {seed}"
    if _is_finished(folder):
        course.end(f"{name}: kept")
        return _read(folder, listing)
    log = folder.with_name(f"{folder.name}.log")
    with course.training(name, folder):
        status = _status_of(command, log)
    if status:
        outcome = f"failed with status {status}, see {log.name}"
        course.end(f"{name}: {outcome}")
        return outcome
    found = _read(folder, listing)
    scores = f"ACC {found.scores.acc:.3f}  NMI {found.scores.nmi:.3f}  ARI {found.scores.ari:.3f}"
    course.end(f"{name}: {scores} in {duration(found.seconds)}")
    return found


def commands_left(trainings: Sequence[Training], asked: Asked) -> list[list[str]]:
    """Return the commands of unfinished trainings. Raise InputError as `carry_out` would; the data need not be here."""
    return [
        _command(training, asked, seed)
        for training, seed in _checked(trainings, asked)
        if not _is_finished(training.folder(asked, seed))
    ]


def _checked(trainings: Sequence[Training], asked: Asked) -> list[tuple[Training, int]]:
    """Return each training with each seed, after checks that prevent hours of useless work."""
    configs = [training.config(asked, 0) for training in trainings]  # raises InputError for wrong settings
    for number, config in enumerate(configs):
        if (first := configs.index(config)) != number:
            same = f"{trainings[number].name} the same as {trainings[first].name}"
            raise InputError(f"--set makes {same}: leave out the setting in which they differ")
    cells = [(training, seed) for training in trainings for seed in range(asked.seeds)]
    begun = [cell for cell in cells if _is_begun(cell[0].folder(asked, cell[1]))]
    if begun:
        listing = open_source(asked.data, root=asked.root)
        for training, seed in begun:
            _refuse_other(training.folder(asked, seed), training.config(asked, seed), listing)
    return cells


def _refuse_other(folder: Path, config: Config, listing: Listing) -> None:
    """Raise InputError if the folder holds a run of another training."""
    config = with_image_size(config, listing)
    wanted = resolve(config, open_for(config, listing))
    changed = [name for name in differences(check_method(Run.open(folder).config), wanted) if name not in ELSEWHERE]
    if changed:
        raise InputError(f"{folder} was trained with another {', '.join(changed)}: choose another --out, or delete it")


def _is_begun(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _is_finished(folder: Path) -> bool:
    return (folder / "assignments.csv").is_file()


def _command(training: Training, asked: Asked, seed: int) -> list[str]:
    """Return the command to type now; an interrupted run is resumed."""
    folder = training.folder(asked, seed)
    goes_on = _is_begun(folder) and not _is_finished(folder)
    return [*training.command(asked, seed), *(["--resume"] if goes_on else [])]


def _status_of(command: Sequence[str], log: Path) -> int:
    with (
        explained(lambda: "the same `twincluster reproduce` goes on where it stopped"),
        log.open("a", encoding="utf-8") as file,
    ):
        print(shlex.join(command), file=file, flush=True)
        return run_child([sys.executable, "-m", *command], log=file)


def _read(folder: Path, listing: Listing) -> Finished:
    run = Run.open(folder)
    assert listing.labels is not None, "the sets of the paper, and digits, have labels"
    scores = score(listing.labels, run.read_assignments().clusters)
    metrics = run.read_metrics()
    return Finished(run, scores, len(metrics), metrics[-1]["seconds"])
