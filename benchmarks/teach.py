"""Accuracy against answers, with a simulated person who names the true class of each image asked about.

A set is clustered as `fit --backbone pretrained` does; its space is that of `Teacher`. Labels answer questions and
score the result. Shapes: n rows, D dimensions, C classes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twincluster.clustering import (
    NO_EXAMPLE,
    Lesson,
    Space,
    choose_questions,
    clusters_for_labels,
    score,
    teach,
)
from twincluster.config import Config, load_recipe, make_config, parse_overrides
from twincluster.core import check_writable
from twincluster.data import location_of, open_source
from twincluster.fit import fit
from twincluster.run_images import RunImages
from twincluster.runs import Run

ROUND = 10  # answers after which everything is learned anew
RANDOM_EVERY = 5  # on the page Teach every fifth question is random
OURS, ON_PAGE = "ours", "ours, every fifth question random"
ROWS_ONLY, HEAD_ONLY, RANDOM = "answered rows only", "linear head on the answers alone", "ours, random questions"
DIRECTIONS = 384  # of the made-up rows of `measure_scale`: 256 of the encoder, 128 learned
RIGHT, ANSWERED = 0.7, 320  # of the made-up rows: share in the right cluster, and answers
STRENGTH = 16.0  # C of the linear head on answers alone
Choose = Callable[[Lesson | None, np.ndarray, int], np.ndarray]  # by examples, so many rows


@dataclass(frozen=True)
class Case:
    """A clustered set with its true classes."""

    name: str
    space: Space
    clusters: np.ndarray  # (n,) of the run
    truth: np.ndarray  # (n,)


@dataclass(frozen=True)
class Curves:
    """Mean accuracy over the seeds, per set and way of learning."""

    answers: tuple[int, ...]
    seeds: int
    start: dict[str, float]  # by set: of the clusters alone
    acc: dict[tuple[str, str], np.ndarray]  # by set and way
    seconds: dict[str, float]  # of a round by set: learning and the choice of the next questions, median

    def to_text(self) -> str:
        lines = [f"ACC after so many answers, mean of {self.seeds} seeds; start: the clusters alone"]
        lines += [
            f"| | start | {' | '.join(map(str, self.answers))} | s a round |",
            "|---" * (len(self.answers) + 3) + "|",
        ]
        for (name, way), values in self.acc.items():
            cells = " | ".join(f"{value:.3f}" for value in values)
            lines.append(f"| {name}: {way} | {self.start[name]:.3f} | {cells} | {self._seconds(name, way)} |")
        return "\n".join(lines)

    def _seconds(self, name: str, way: str) -> str:
        return f"{self.seconds[name]:.2f}" if way == OURS else ""

    def plot(self, path: Path) -> None:
        """One panel per set."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(3.2 * len(self.start), 3.4), layout="constrained")
        panels = figure.subplots(1, len(self.start), sharey=True, squeeze=False)[0]
        for panel, (name, start) in zip(panels, self.start.items(), strict=True):
            for (other, way), values in self.acc.items():
                if other == name:
                    panel.plot(self.answers, values, marker="o", markersize=3, label=way)
            panel.axhline(start, color="grey", linestyle=":", label="the clusters alone")
            panel.set(title=name, xlabel="answers", xscale="log", xticks=self.answers, xticklabels=self.answers)
            panel.minorticks_off()
        panels[0].set_ylabel("ACC")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path)


def measure(
    sources: Sequence[str],
    clusters: int,
    answers: Sequence[int],
    seeds: int,
    *,
    recipe: str = "pretrained",
    settings: Sequence[str] = (),
    runs: Path | None = None,
    root: Path | None = None,
    say: Callable[[str], None] = print,
) -> Curves:
    """Cluster each set with each seed, and let a simulated person teach it in every way; runs are kept in `runs`."""
    answers = tuple(sorted(set(answers)))
    start: dict[str, list[float]] = {}
    acc: dict[tuple[str, str], list[list[float]]] = {}
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = runs or Path(place)
        check_writable(folder)
        for source in sources:
            for seed in range(seeds):
                case = cluster(source, clusters, seed, folder, recipe, settings, root)
                start.setdefault(case.name, []).append(score(case.truth, case.clusters).acc)
                for way, (curve, times) in all_ways(case, answers, seed).items():
                    acc.setdefault((case.name, way), []).append(curve)
                    if way == OURS:
                        seconds.setdefault(case.name, []).extend(times)
                say(f"{case.name}, seed {seed}: {acc[case.name, OURS][-1]}")
    return Curves(
        answers,
        seeds,
        {name: float(np.mean(values)) for name, values in start.items()},
        {key: np.mean(curves, axis=0) for key, curves in acc.items()},
        {name: float(np.median(values)) for name, values in seconds.items()},
    )


def cluster(
    source: str, clusters: int, seed: int, folder: Path, recipe: str, settings: Sequence[str], root: Path | None
) -> Case:
    """Fit a run, or open the one in `folder`, and make its space."""
    listing = open_source(source, root=root)
    if listing.labels is None:
        listing = open_source(source, root=root, labels="folders")
    assert listing.labels is not None
    name = Path(source).name
    place = folder / f"{name}-{seed}"
    if not (place / "assignments.csv").exists():
        base = make_config(load_recipe(recipe).settings, Config())
        n_clusters = clusters or int(listing.labels.max()) + 1
        config = make_config({"n_clusters": n_clusters, "seed": seed}, make_config(parse_overrides(settings), base))
        fit(listing, config, place, location=location_of(source), root=root)
    images = RunImages(Run.open(place), root)
    rows, space = images.space
    return Case(name, space, images.assignments.clusters[rows], listing.labels[rows])


# -- the simulated person ----------------------------------------------------------------------------------------------


def all_ways(case: Case, answers: Sequence[int], seed: int) -> dict[str, tuple[list[float], list[float]]]:
    """By way of learning, the accuracy after so many answers and the seconds of each round."""
    rng = np.random.default_rng(seed)
    chance = rng.permutation(len(case.truth))

    def useful(lesson: Lesson | None, examples: np.ndarray, count: int) -> np.ndarray:
        return choose_questions(case.space, lesson, case.clusters, examples, count, seed)

    def random(lesson: Lesson | None, examples: np.ndarray, count: int) -> np.ndarray:
        return np.asarray(chance[examples[chance] == NO_EXAMPLE][:count])

    def mixed(lesson: Lesson | None, examples: np.ndarray, count: int) -> np.ndarray:
        drawn = random(lesson, examples, count // RANDOM_EVERY)
        taken = examples.copy()
        taken[drawn] = 0
        return np.concatenate([drawn, useful(lesson, taken, count - len(drawn))])

    ours, times, asked = simulate(case, useful, answers, seed)
    return {
        OURS: (ours, times),
        ON_PAGE: simulate(case, mixed, answers, seed)[:2],
        RANDOM: simulate(case, random, answers, seed)[:2],
        HEAD_ONLY: ([head_only(case, asked[:count]) for count in answers], []),
        ROWS_ONLY: ([rows_only(case, asked[:count]) for count in answers], []),
    }


def simulate(
    case: Case, choose: Choose, answers: Sequence[int], seed: int
) -> tuple[list[float], list[float], np.ndarray]:
    """Accuracy after so many answers, the seconds of each round, and the rows asked about."""
    asked, lesson, seconds, acc = np.empty(0, np.int64), None, [], []
    for count in sorted({*range(ROUND, max(answers), ROUND), *answers}):
        begun = time.perf_counter()
        asked = np.concatenate([asked, choose(lesson, examples_of(case, asked), count - len(asked))])
        lesson = teach(case.space, case.clusters, examples_of(case, asked), seed=seed)
        seconds.append(time.perf_counter() - begun)
        if count in answers:
            acc.append(accuracy(case, lesson.clusters))
    return acc, seconds, asked


def examples_of(case: Case, asked: np.ndarray) -> np.ndarray:
    """(n,) the answers as clusters: the person named classes, as in a file that `twincluster teach` reads."""
    labels = {int(row): str(case.truth[row]) for row in asked}
    found = clusters_for_labels(labels, {}, case.clusters)
    new = int(case.clusters.max()) + 1
    examples = np.full(len(case.truth), NO_EXAMPLE)
    ids = {label: new + place if cluster is None else cluster for place, (label, cluster) in enumerate(found.items())}
    for row, label in labels.items():
        examples[row] = ids[label]
    return examples


def rows_only(case: Case, asked: np.ndarray) -> float:
    """Nothing but the answered rows changes."""
    examples = examples_of(case, asked)
    return accuracy(case, np.where(examples == NO_EXAMPLE, case.clusters, examples))


def head_only(case: Case, asked: np.ndarray) -> float:
    """Scikit-learn's logistic regression on the answered rows of the space, answers to the same questions."""
    from sklearn.linear_model import LogisticRegression

    kinds, rows = case.truth[asked], case.space.rows
    if len(set(kinds)) == 1:
        return accuracy(case, np.full(len(rows), kinds[0]))
    found = LogisticRegression(C=STRENGTH, max_iter=1000).fit(rows[asked], kinds).predict(rows)
    found[asked] = kinds
    return accuracy(case, found)


def accuracy(case: Case, clusters: np.ndarray) -> float:
    return float(score(case.truth, np.unique(clusters, return_inverse=True)[1]).acc)


# -- scale -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Processor seconds on made-up rows."""

    rows: int
    classes: int
    space: float  # neighbours of all rows, once per run
    graph: float  # once per process
    lesson: float  # from a correction to the proposals
    questions: float  # ten of them


def measure_scale(counts: Sequence[int], classes: Sequence[int]) -> list[Step]:
    """Time lessons on made-up rows in overlapping groups, as many as there can be classes."""
    steps = []
    for count in counts:
        rng = np.random.default_rng(0)
        group = rng.integers(max(classes), size=count)
        rows = rng.standard_normal((count, DIRECTIONS), dtype=np.float32)
        rows += 2 * rng.standard_normal((max(classes), DIRECTIONS), dtype=np.float32)[group]
        times = [time.process_time()]
        space = Space.of(rows)
        times.append(time.process_time())
        space.affinity  # noqa: B018  made when it is first read
        times.append(time.process_time())
        of_space, of_graph = times[1] - times[0], times[2] - times[1]
        for number in classes:
            lesson, questions = _lesson_times(space, group % number, rng)
            steps.append(Step(count, number, of_space, of_graph, lesson, questions))
    return steps


def _lesson_times(space: Space, truth: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Of a lesson with its proposals, and of the next questions."""
    clusters = np.where(rng.random(len(truth)) < RIGHT, truth, rng.permutation(truth))
    examples = np.full(len(truth), NO_EXAMPLE)
    asked = rng.permutation(len(truth))[:ANSWERED]
    examples[asked] = truth[asked]
    begun = time.process_time()
    lesson = teach(space, clusters, examples)
    lesson.proposals(clusters)
    learned = time.process_time()
    choose_questions(space, lesson, clusters, examples, ROUND)
    return learned - begun, time.process_time() - learned


def scale_text(steps: Sequence[Step]) -> str:
    lines = [
        "Processor seconds",
        "",
        "| rows | classes | space | graph | lesson and proposals | ten questions |",
        "|---" * 6 + "|",
    ]
    for step in steps:
        cells = (f"{value:.2f}" for value in (step.space, step.graph, step.lesson, step.questions))
        lines.append(f"| {step.rows:,} | {step.classes} | {' | '.join(cells)} |")
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return "\n".join([*lines, f"{os.cpu_count()} cores{load}"])
