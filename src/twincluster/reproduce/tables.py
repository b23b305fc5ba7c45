"""The paper's comparisons, Tables 2 to 5: each row with what was published and what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from twincluster import provenance
from twincluster.bench.methods import Asked as Compared
from twincluster.bench.methods import measure
from twincluster.clusters.classic import CLASSICS, TITLES
from twincluster.evaluate import Scores
from twincluster.methods import METHODS
from twincluster.reproduce.published import SCORES, SETS, Published, published
from twincluster.reproduce.running import Finished, Outcomes
from twincluster.reproduce.trainings import Asked, Training, by_default, by_own_paper, by_paper
from twincluster.reproduce.writing import Line, short, write_table

OURS = "twincluster, by default"
NUMBERS = (
    "name", *(f"published_{score}" for score in SCORES), "seeds",
    *(f"{score}_{kind}" for score in SCORES for kind in ("mean", "min", "max")), "epochs", "minutes", "note",
)  # fmt: skip
Given = Sequence[float | None]  # ACC, NMI and ARI, as far as they were published
NO_SCORES = (None,) * len(SCORES)


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
    of_rows = [(row.name, row.scores.get(shown, NO_SCORES), measured.get(row.method, UNKNOWN)) for row in rows]
    seeds = "seed 0" if asked.seeds == 1 else f"seeds 0 to {asked.seeds - 1}: mean (lowest to highest)"
    title = f"ACC / NMI / ARI; measured with {seeds}{_hardware(outcomes)}"
    lines, numbers = [head, *(_cells(*one) for one in of_rows)], [NUMBERS, *(_numbers(*one) for one in of_rows)]
    return write_table(asked, f"table{table}", title, lines, numbers)


def _hardware(outcomes: Outcomes) -> str:
    """What the runs were trained on, as far as they know."""
    runs = [one.run for by_seed in outcomes.values() for one in by_seed.values() if isinstance(one, Finished)]
    told = dict.fromkeys(provenance.read(run.folder).told().get("hardware") for run in runs)
    return "".join(f", on {hardware}" for hardware in told if hardware)


@dataclass(frozen=True)
class Measured:
    """Of one row: what its seeds came to."""

    scores: tuple[tuple[float, ...], ...]  # for each seed ACC, NMI and ARI
    epochs: str = ""
    minutes: str = ""
    note: str = ""


UNKNOWN = Measured((), note="there is no such method here, see docs/peers.md")


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
    job = Compared(asked.data, seeds=asked.seeds, methods=names, out=asked.out / "classics", root=asked.root)
    table = measure(job, partial(print, flush=True))
    rows = {row.name.partition(" on ")[0]: row for row in table.rows}
    measured = {}
    for name in names:
        row = rows[TITLES[name]]
        results = (row.results[seed] for seed in range(asked.seeds) if seed in row.results)  # it may have more of them
        scores = tuple((result.acc, result.nmi, result.ari) for result in results)
        measured[name] = Measured(scores, note="; ".join(filter(None, ("on pixels", row.note()))))
    return measured


def _cells(name: str, given: Given, measured: Measured) -> Line:
    """For readers."""
    told = " / ".join("-" if share is None else short(share) for share in given) if any(given) else "-"
    return name, told, _spread(measured.scores), measured.epochs, measured.minutes, measured.note


def _numbers(name: str, given: Given, measured: Measured) -> list[object]:
    """The same for programs: not rounded, and one in each cell. None is an empty cell."""
    by_score = list(zip(*measured.scores, strict=True)) or [()] * len(SCORES)
    over_seeds = [of(values) if values else None for values in by_score for of in (statistics.fmean, min, max)]
    seeds = len(measured.scores)
    return [name, *given, seeds, *over_seeds, measured.epochs, measured.minutes, measured.note]


def _spread(of_seeds: tuple[tuple[float, ...], ...]) -> str:
    """.906 / .790 / .733, with the lowest and the highest of several seeds."""
    parts = []
    for values in zip(*of_seeds, strict=True):
        between = f" ({short(min(values))} to {short(max(values))})" if len(values) > 1 else ""
        parts.append(short(statistics.fmean(values)) + between)
    return " / ".join(parts) or "-"


def _three(scores: Scores) -> tuple[float, ...]:
    return scores.acc, scores.nmi, scores.ari
