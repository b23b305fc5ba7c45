"""The paper's tables, each row with what was published and what was measured, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twincluster.bench.methods import Asked as Compared
from twincluster.bench.methods import measure
from twincluster.classic import CLASSICS, TITLES
from twincluster.disk import write_atomically
from twincluster.errors import InputError
from twincluster.evaluate import Scores
from twincluster.images.sources import open_source
from twincluster.methods import METHODS
from twincluster.reproduce.published import P_VALUES, SCORES, SETS, Published, published
from twincluster.reproduce.running import Finished, Outcomes
from twincluster.reproduce.trainings import Asked, Training, by_default, by_own_paper, by_paper

Line = Sequence[str]
OURS = "twincluster, by default"


def rows_of(table: int, data: str) -> list[Published]:
    """Those of a table, and after Table 2 what this package recommends."""
    rows = published(table)
    return [*rows, Published(OURS, "anchored", {})] if table == 2 and by_default(data) else rows


def trainings_of(table: int, data: str) -> list[Training]:
    """One for each row that there is a method for."""
    methods = [row.method for row in rows_of(table, data) if row.method in METHODS]
    ours = {training.name: training for training in by_default(data)}
    return [
        ours[method] if method in ours else by_paper(data, method) if method.startswith("tcc")
        else by_own_paper(data, method)
        for method in methods
    ]  # fmt: skip


def compare(table: int, asked: Asked, outcomes: Outcomes) -> str:
    """Table 2, 3, 4 or 5 for one data set."""
    rows = rows_of(table, asked.data)
    shown = asked.data if any(asked.data in row.scores for row in rows) else next(iter(rows[0].scores))
    classics = [row.method for row in rows if row.method in CLASSICS]
    measured = _by_methods(outcomes) | (_by_classics(classics, asked) if classics else {})
    head = ("", f"published, {SETS[shown][0]}", f"measured, {asked.data}", "epochs", "minutes", "note")
    body = [_cells(row, shown, measured.get(row.method)) for row in rows]
    seeds = "seed 0" if asked.seeds == 1 else f"seeds 0 to {asked.seeds - 1}: mean (lowest to highest)"
    return _written(asked, f"table{table}", f"ACC / NMI / ARI; measured with {seeds}", [head, *body])


@dataclass(frozen=True)
class Measured:
    """Of one row: what its seeds came to."""

    scores: tuple[tuple[float, ...], ...]  # for each seed ACC, NMI and ARI
    epochs: str = ""
    minutes: str = ""
    note: str = ""


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
    """On pixels, by `bench methods`, which keeps what it has found."""
    table = measure(Compared(asked.data, seeds=asked.seeds, methods=names, out=asked.out / "classics", root=asked.root))
    results = {row.name.partition(" on ")[0]: row for row in table.rows}
    measured = {}
    for name in names:
        row = results[TITLES[name]]
        scores = tuple((result.acc, result.nmi, result.ari) for result in row.results.values())
        measured[name] = Measured(scores, note="; ".join(filter(None, ("on pixels", row.note()))))
    return measured


def _cells(row: Published, data: str, measured: Measured | None) -> Line:
    given = row.scores.get(data, (None,) * len(SCORES))
    told = " / ".join("-" if share is None else _short(share) for share in given)
    told = told if any(share is not None for share in given) else "-"
    if measured is None:
        return row.name, told, "-", "", "", "there is no such method here, see docs/peers.md"
    return row.name, told, _spread(measured.scores), measured.epochs, measured.minutes, measured.note


def _spread(of_seeds: tuple[tuple[float, ...], ...]) -> str:
    """.906 / .790 / .733, with the lowest and the highest of several seeds."""
    parts = []
    for values in zip(*of_seeds, strict=True):
        between = f" ({_short(min(values))} to {_short(max(values))})" if len(values) > 1 else ""
        parts.append(_short(statistics.fmean(values)) + between)
    return " / ".join(parts) or "-"


def _short(share: float) -> str:
    return f"{share:.3f}".removeprefix("0")


def _three(scores: Scores) -> tuple[float, ...]:
    return scores.acc, scores.nmi, scores.ari


def data_sets(asked: Asked) -> str:
    """Table 1: what the paper says of its data sets, and what is found here."""
    head = ("data set", "images", "clusters", "pixels", "found here: images", "clusters", "pixels")
    body = [_set_line(name, asked) for name in SETS if asked.data in ("", name)]
    return _written(
        asked, "table1", "the data sets as the paper describes them, and as they are found here", [head, *body]
    )


def _set_line(name: str, asked: Asked) -> Line:
    title, images, clusters, side = SETS[name]
    told = ("-" if images is None else f"{images:,}", str(clusters or "-"), str(side or "-"))
    try:
        listing = open_source(name, root=asked.root)
    except InputError as error:
        return title, *told, f"none: {error}", "-", "-"
    found = "of many sizes" if listing.array is None else str(listing.array.shape[1])
    n_classes = len(np.unique(listing.labels)) if listing.labels is not None else 0
    return title, *told, f"{len(listing.paths):,}", str(n_classes), found


def p_values(asked: Asked) -> str:
    """Table 6, from the published accuracies of Table 2.

    The paper speaks of a paired test in its title and of a chi-squared test in its text, and does not say of which
    numbers. A one-sided paired t-test of ACC over the data sets that both systems have is taken here.
    """
    from scipy.stats import ttest_rel

    rows = {row.name: row.scores for row in published(2)}
    names = list(P_VALUES)
    lines, agreeing, pairs = [], 0, 0
    for first, printed in P_VALUES.items():
        cells = [first] + [""] * (len(names) - len(printed))
        for second, told in zip(names[len(names) - len(printed) :], printed, strict=True):
            common = [name for name in SETS if _has_acc(rows[first], name) and _has_acc(rows[second], name)]
            found = ttest_rel(*([rows[row][name][0] for name in common] for row in (first, second))).pvalue / 2
            agreeing, pairs = agreeing + (round(found, 4) == told), pairs + 1
            cells.append(f"{_p(found)} ({_p(told)})")
        lines.append(cells)
    title = f"p-values found from Table 2 (printed); {agreeing} of {pairs} agree in all four digits"
    return _written(asked, "table6", title, [("", *names), *lines])


def _has_acc(scores: object, name: str) -> bool:
    return isinstance(scores, dict) and name in scores and scores[name][0] is not None


def _p(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")


def _written(asked: Asked, name: str, title: str, lines: Sequence[Line]) -> str:
    """NAME.md and NAME.csv in the folder; returns the former."""
    head, *body = lines
    marked = [head, ["---"] * len(head), *body]
    text = "\n".join([title, "", *(f"| {' | '.join(line)} |" for line in marked)])
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(lines)
    asked.out.mkdir(parents=True, exist_ok=True)
    write_atomically(asked.out / f"{name}.md", text + "\n")
    write_atomically(asked.out / f"{name}.csv", table.getvalue())
    return text
