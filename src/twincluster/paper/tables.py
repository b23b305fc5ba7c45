"""The paper's tables, computed again and written as Markdown and CSV.

Published numbers are in published.csv, in per cent as printed.

Table 1: the data sets. Tables 2 to 5: published and measured scores of each system. Table 6: p-values of the
differences between systems, by a one-sided paired t-test of ACC in Table 2; docs/reproduce.md says how the test and the
cells that Table 2 lacks were found.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.stats import ttest_rel

from twincluster.clustering import CLASSICS, Scores, cluster_by, pixel_rows, score
from twincluster.config import load_recipe, make_config
from twincluster.core import InputError, write_atomically
from twincluster.data import open_images, open_source
from twincluster.methods import METHODS, READINGS
from twincluster.paper.trainings import (
    Asked,
    Finished,
    Outcomes,
    Training,
    by_default,
    by_own_paper,
    by_paper,
    paper_recipe,
)
from twincluster.runs import provenance

SCORES = ("acc", "nmi", "ari")
SETS = {  # of Table 1 and Appendix D: title, images, clusters, pixels a side
    "cifar10": ("CIFAR-10", 60_000, 10, 32),
    "cifar100": ("CIFAR-100", 60_000, 20, 32),
    "stl10": ("STL-10", 13_000, 10, 96),
    "imagenet10": ("ImageNet-10", 13_000, 10, 96),
    "imagenet_dogs": ("ImageNet-Dog", 19_500, 15, 96),
    "tiny_imagenet": ("Tiny ImageNet", None, None, None),  # the paper has only results for it
}
P_VALUES = {  # Table 6, without its lower half, which is equal
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
    method: str  # ours, or a classic one; "" if neither implements it
    scores: Mapping[str, tuple[float | None, ...]]  # by data set: ACC, NMI and ARI as shares, None if not published
    note: str = ""


def published(table: int) -> list[Published]:
    """Return the rows of Table 2, 3, 4 or 5 in the paper's order, including those that are comments in its LaTeX
    source."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        return [_row(line) for line in csv.DictReader(file) if int(line["table"]) == table]


def _row(line: Mapping[str, str]) -> Published:
    by_set = {name: tuple(_share(line[f"{name}_{score}"]) for score in SCORES) for name in SETS}
    given = {name: scores for name, scores in by_set.items() if any(score is not None for score in scores)}
    return Published(line["name"], line["method"], given, line["note"])


def _share(text: str) -> float | None:
    return round(float(text) / 100, 3) if text else None


Line = Sequence[str]


def write_table(
    asked: Asked, name: str, title: str, lines: Sequence[Line], numbers: Sequence[Sequence[object]] | None = None
) -> str:
    """Write NAME.md and NAME.csv into the folder; return the text of NAME.md.

    The first line is the head. `numbers` replace the lines in the CSV file if a cell holds several of them.
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
    """Format .906 and -.012, without a sign for what rounds to zero."""
    return f"{share:z.{digits}f}".replace("0.", ".", 1)


def _in_cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def data_sets(asked: Asked) -> str:
    """Make Table 1: the paper's description of its data sets, and what is found here."""
    head = ("data set", "images", "clusters", "pixels", "found here: images", "clusters", "pixels")
    body, missing = [], []
    for name in [asked.data] if asked.data else SETS:
        title, images, clusters, side = SETS.get(name, (name, None, None, None))  # the paper does not have digits
        told = ("-" if images is None else f"{images:,}", str(clusters or "-"), str(side or "-"))
        try:
            body.append((title, *told, *_found(name, asked)))
        except InputError as error:
            body.append((title, *told, "-", "-", "-"))
            missing.append(str(error))
    about = "the data sets as the paper describes them, and as they are found here"
    return "\n\n".join([write_table(asked, "table1", about, [head, *body]), *missing])


def _found(name: str, asked: Asked) -> Line:
    """Return images, clusters and pixels a side."""
    listing = open_source(name, root=asked.root)
    side = "of many sizes" if listing.array is None else str(listing.array.shape[1])
    n_classes = len(np.unique(listing.labels)) if listing.labels is not None else 0
    return f"{len(listing.paths):,}", str(n_classes), side


DIGITS = 4  # as printed
FILLED_IN = {  # our reconstruction, per cent of ACC: with these cells Table 2 reproduces all of Table 6
    "IIC": {"imagenet10": 58.0, "imagenet_dogs": 39.0},
    "PICA": {"stl10": 65.0},
    "MoCo baseline": {"imagenet10": 70.0},
    "MiCE": {"imagenet10": 71.0},
    "TCC": {"stl10": 87.1, "imagenet10": 92.7, "imagenet_dogs": 58.6},  # instead of the printed 81.4, 89.7, 59.5
}
Accuracies = Mapping[str, float]  # by data set


def p_values(asked: Asked) -> str:
    """Make Table 6: each pair of systems as printed, computed from the tables, and computed with the cells of
    FILLED_IN."""
    pairs = list(_pairs())
    agreeing = sum(round(filled, DIGITS) == printed for _, _, printed, _, filled in pairs)
    title = f"one-sided p-values of ACC: filled_in agrees with {agreeing} of {len(pairs)} in all {DIGITS} digits"
    head = ("first", "second", "printed", "tables_alone", "filled_in")
    lines = [head, *((one, other, *(short(p, DIGITS) for p in ps)) for one, other, *ps in pairs)]
    return write_table(asked, "table6", title, lines, [head, *pairs])


def _pairs() -> Iterator[tuple[str, str, float, float, float]]:
    alone = {row.name: _accuracies(row) for row in published(2)}
    filled = {name: {**row, **_shares(FILLED_IN.get(name, {}))} for name, row in alone.items()}
    names = list(P_VALUES)
    for place, (first, printed) in enumerate(P_VALUES.items()):
        for second, p in zip(names[place + 1 :], printed, strict=True):
            yield first, second, p, p_value(alone[first], alone[second]), p_value(filled[first], filled[second])


def _accuracies(row: Published) -> Accuracies:
    return {name: scores[0] for name, scores in row.scores.items() if scores[0] is not None}


def _shares(per_cent: Mapping[str, float]) -> Accuracies:
    return {name: value / 100 for name, value in per_cent.items()}


def p_value(first: Accuracies, second: Accuracies) -> float:
    """Return the one-sided p of a paired t-test over the data sets that both systems have."""
    both = [name for name in first if name in second]
    return float(ttest_rel([first[name] for name in both], [second[name] for name in both]).pvalue) / 2


OURS = "twincluster, by default"
NUMBERS = (
    "name", *(f"published_{score}" for score in SCORES), "seeds",
    *(f"{score}_{kind}" for score in SCORES for kind in ("mean", "min", "max")), "epochs", "minutes", "note",
)  # fmt: skip
Given = Sequence[float | None]  # ACC, NMI and ARI, None if not published
NO_SCORES = (None,) * len(SCORES)


def rows_of(table: int, data: str) -> list[Published]:
    """Return the rows of a table; Table 2 also has the default method of this package."""
    rows = published(table)
    return [*rows, Published(OURS, "anchored", {})] if table == 2 and by_default(data) else rows


def trainings_of(table: int, data: str) -> list[Training]:
    """Return the training of each row that has a method."""
    methods = [row.method for row in rows_of(table, data) if row.method in METHODS and row.method not in READINGS]
    ours = {training.name: training for training in by_default(data)}
    return [
        ours[method] if method in ours else by_paper(data, method) if method.startswith("tcc")
        else by_own_paper(data, method)
        for method in methods
    ]  # fmt: skip


def compare(table: int, asked: Asked, outcomes: Outcomes) -> str:
    """Make Table 2, 3, 4 or 5 for one data set."""
    rows = rows_of(table, asked.data)
    shown = asked.data if any(asked.data in row.scores for row in rows) else next(iter(rows[0].scores))
    classics = [row.method for row in rows if row.method in CLASSICS]
    measured = _by_methods(outcomes) | (_by_classics(classics, asked) if classics else {})
    head = ("", f"published, {SETS[shown][0]}", f"measured, {asked.data}", "epochs", "minutes", "note")
    of_rows = [(row.name, row.scores.get(shown, NO_SCORES), _noted(row, measured)) for row in rows]
    seeds = "seed 0" if asked.seeds == 1 else f"seeds 0 to {asked.seeds - 1}: mean (lowest to highest)"
    title = f"ACC / NMI / ARI; measured with {seeds}{_hardware(outcomes)}"
    lines, numbers = [head, *(_cells(*one) for one in of_rows)], [NUMBERS, *(_numbers(*one) for one in of_rows)]
    return write_table(asked, f"table{table}", title, lines, numbers)


def _hardware(outcomes: Outcomes) -> str:
    """Return the hardware that the runs recorded."""
    runs = [one.run for by_seed in outcomes.values() for one in by_seed.values() if isinstance(one, Finished)]
    told = dict.fromkeys(provenance.read(run.folder).facts().get("hardware") for run in runs)
    return "".join(f", on {hardware}" for hardware in told if hardware)


@dataclass(frozen=True)
class Measured:
    """The results of all seeds of one row."""

    scores: tuple[tuple[float, ...], ...]  # per seed ACC, NMI and ARI
    epochs: str = ""
    minutes: str = ""
    note: str = ""


NOT_COMPARED = "its formulas were not found: --method {} is our reading, which is not compared"


def _noted(row: Published, measured: Mapping[str, Measured]) -> Measured:
    found = measured.get(row.method) or Measured((), note=NOT_COMPARED.format(row.method))
    return replace(found, note="; ".join(filter(None, (row.note, found.note))))


def _by_methods(outcomes: Outcomes) -> dict[str, Measured]:
    measured = {}
    for name, by_seed in outcomes.items():
        finished = [outcome for outcome in by_seed.values() if isinstance(outcome, Finished)]
        notes = [f"seed {seed} {outcome}" for seed, outcome in by_seed.items() if isinstance(outcome, str)]
        if not finished:
            measured[name] = Measured((), note="; ".join(notes))
            continue
        epochs = statistics.fmean(outcome.epochs for outcome in finished)
        minutes = statistics.fmean(outcome.seconds for outcome in finished) / 60
        scores = tuple(_three(outcome.scores) for outcome in finished)
        measured[name] = Measured(scores, f"{epochs:.0f}", f"{minutes:.1f}", "; ".join(notes))
    return measured


def _by_classics(names: Sequence[str], asked: Asked) -> dict[str, Measured]:
    """Cluster the pixels by a classic method. It takes seconds, so that nothing is stored."""
    listing = open_source(asked.data, root=asked.root)
    config = make_config(load_recipe(paper_recipe(asked.data)).settings)
    images = open_images(listing, side=config.train.image_size)
    rows, labels = pixel_rows(images.pixels, images.usable), listing.labels
    assert labels is not None, "the sets of the paper, and digits, have labels"
    measured = {}
    for name in names:
        by_seed = [cluster_by(name, rows, config.n_clusters, seed) for seed in range(asked.seeds)]
        scores = tuple(_three(score(labels[images.usable], clusters)) for clusters in by_seed)
        left = sum(int((clusters < 0).sum()) for clusters in by_seed[:1])
        notes = ("on pixels", f"of {len(rows) - left:,} drawn at random" if left else "")
        measured[name] = Measured(scores, note="; ".join(filter(None, notes)))
    return measured


def _cells(name: str, given: Given, measured: Measured) -> Line:
    """Format scores for readers."""
    told = " / ".join("-" if share is None else short(share) for share in given) if any(given) else "-"
    return name, told, _spread(measured.scores), measured.epochs, measured.minutes, measured.note


def _numbers(name: str, given: Given, measured: Measured) -> list[object]:
    """Return the same as numbers, not rounded and one per cell. None is an empty cell."""
    by_score = list(zip(*measured.scores, strict=True)) or [()] * len(SCORES)
    over_seeds = [of(values) if values else None for values in by_score for of in (statistics.fmean, min, max)]
    seeds = len(measured.scores)
    return [name, *given, seeds, *over_seeds, measured.epochs, measured.minutes, measured.note]


def _spread(of_seeds: tuple[tuple[float, ...], ...]) -> str:
    """Format .906 / .790 / .733, with the range over several seeds."""
    parts = []
    for values in zip(*of_seeds, strict=True):
        between = f" ({short(min(values))} to {short(max(values))})" if len(values) > 1 else ""
        parts.append(short(statistics.fmean(values)) + between)
    return " / ".join(parts) or "-"


def _three(scores: Scores) -> tuple[float, ...]:
    return scores.acc, scores.nmi, scores.ari
