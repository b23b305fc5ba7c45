"""The table of the benchmark `methods`: a row per method with mean and spread over seeds, as Markdown, CSV and a plot.

Notes of several seeds become one: seeds whose notes differ only in numbers share a note with the range of each number.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.one_method import Failure, Found, Result
from twincluster.core import write_atomically

SCORES = ("acc", "nmi", "ari")
RATES = ("images_per_second", "epochs", "seconds")
HEAD = ("method", "ACC", "NMI", "ARI", "images/s", "epochs", "seconds", "memory", "note")
NUMBER = re.compile(r"(?<![\w./-])\d+(?:,\d{3})*(?:\.\d+)?%?(?![\w/]|[.-]\w)")  # not those in names of files


@dataclass(frozen=True)
class Row:
    name: str
    results: dict[int, Result]  # by seed
    failures: dict[int, Failure]  # by seed: why there is none

    def cells(self) -> list[str]:
        """As HEAD names them; a dash where nothing was measured."""
        scores = [self._spread(score) for score in SCORES]
        gpu = " GPU" * any(result.on_gpu for result in self.results.values())
        return [
            self.name,
            *scores,
            self._text("images_per_second", ",.0f"),
            self._text("epochs", ",.1f"),
            self._text("seconds", ",.1f"),
            self._text("memory", "", lambda size: f"{size / 1e9:.2f} GB{gpu}", max),
            self.note(),
        ]

    def note(self) -> str:
        """Why seeds failed, and what those that did not were warned of; seeds that say alike say it once."""
        told = {seed: (f"failed: {failure.why}", failure.log) for seed, failure in self.failures.items()}
        told |= {seed: (result.note, "") for seed, result in self.results.items()}
        return joined(told)

    def as_dict(self) -> dict[str, Any]:
        """A line of methods.csv, whose figures are not rounded."""
        line: dict[str, Any] = {"method": self.name, "seeds": len(self.results), "failed": len(self.failures)}
        for score in SCORES:
            for kind, of in (("mean", statistics.fmean), ("std", _std), ("min", min), ("max", max)):
                line[f"{score}_{kind}"] = self.over_seeds(score, of)
        for name in RATES:
            line[name] = self.over_seeds(name)
        on_gpu = "gpu" if any(result.on_gpu for result in self.results.values()) else "resident"
        return line | {"memory_bytes": self.over_seeds("memory", max), "memory_of": on_gpu, "note": self.note()}

    def seed_lines(self) -> list[dict[str, Any]]:
        """Lines of methods-seeds.csv: one for each seed, without figures where it failed."""
        return [
            {"method": self.name, "seed": seed} | _figures(self.results.get(seed) or self.failures[seed])
            for seed in self.seeds()
        ]

    def seeds(self) -> list[int]:
        """Those that there is something of."""
        return sorted({*self.results, *self.failures})

    def over_seeds(self, name: str, of: Callable[[list[float]], float | None] = statistics.fmean) -> float | None:
        """The mean, or another figure, of one measure; None where there is none."""
        values = [value for result in self.results.values() if (value := getattr(result, name)) is not None]
        return of(values) if values else None

    def _spread(self, score: str) -> str:
        low, high = self.over_seeds(score, min), self.over_seeds(score, max)
        between = f" ({low:.3f} to {high:.3f})" if len(self.results) > 1 else ""
        return self._text(score, ".3f") + between

    def _text(
        self,
        name: str,
        form: str,
        write: Callable[[float], str] | None = None,
        of: Callable[[list[float]], float] = statistics.fmean,
    ) -> str:
        value = self.over_seeds(name, of)
        return "-" if value is None else write(value) if write else format(value, form)


@dataclass(frozen=True)
class Table:
    title: str
    rows: tuple[Row, ...]
    folder: Path = Path()  # that its files are in

    def to_markdown(self) -> str:
        lines = [[*HEAD], ["---"] * len(HEAD), *(row.cells() for row in self.rows)]
        return "\n".join([self.title, "", *(f"| {' | '.join(map(_in_cell, line))} |" for line in lines)])

    def to_csv(self) -> str:
        return _csv([row.as_dict() for row in self.rows])

    def seeds_to_csv(self) -> str:
        return _csv([line for row in self.rows for line in row.seed_lines()])

    def write(self) -> None:
        """methods.md, methods.csv and methods-seeds.csv."""
        write_atomically(self.folder / "methods.md", self.to_markdown() + "\n")
        write_atomically(self.folder / "methods.csv", self.to_csv())
        write_atomically(self.folder / "methods-seeds.csv", self.seeds_to_csv())

    def failed(self) -> str:
        """Which methods failed and where to read why; empty where none did."""
        some = [row for row in self.rows if row.failures]
        if not some:
            return ""
        named = ", ".join(
            row.name + (f" ({len(row.failures)} of {len(row.seeds())} seeds)" if row.results else "") for row in some
        )
        return f"failed: {named}; the logs that the notes name are in {self.folder}"

    def plot(self, path: Path) -> None:
        """Bars for the means of ACC, NMI and ARI, lines from the lowest to the highest of the seeds."""
        from matplotlib.figure import Figure

        shown = [row for row in self.rows if row.results][::-1]  # the first row comes out on top
        figure = Figure(figsize=(7, 1 + 0.45 * len(self.rows)), layout="constrained")
        axes = figure.subplots()
        for place, score in enumerate(SCORES):
            low, mean, high = (
                [row.over_seeds(score, of) or 0.0 for row in shown] for of in (min, statistics.fmean, max)
            )
            spread = [
                [max(0.0, middle - end) for middle, end in zip(mean, low, strict=True)],
                [max(0.0, end - middle) for middle, end in zip(mean, high, strict=True)],
            ]
            heights = [number + 0.27 * (1 - place) for number in range(len(shown))]
            axes.barh(heights, mean, height=0.25, xerr=spread, label=score.upper())
        axes.set_yticks(range(len(shown)), [row.name for row in shown])
        axes.set(xlim=(0, 1), title=self.title.replace("; ", "\n"))
        axes.title.set_fontsize("small")
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=120)


def _std(values: list[float]) -> float | None:
    """Of the sample, with n - 1; one value has none."""
    return statistics.stdev(values) if len(values) > 1 else None


def _figures(found: Found) -> dict[str, Any]:
    names = (*SCORES, *RATES)
    if isinstance(found, Failure):
        note = joined({0: (f"failed: {found.why}", found.log)})
        return dict.fromkeys((*names, "memory_bytes", "memory_of")) | {"note": note}
    memory = {"memory_bytes": found.memory, "memory_of": "gpu" if found.on_gpu else "resident"}
    return {name: getattr(found, name) for name in names} | memory | {"note": found.note}


def _csv(lines: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _in_cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def joined(told: Mapping[int, tuple[str, str]]) -> str:
    """By seed what is told, "" for nothing, and the log to see, "" for none; of several logs the first is named.

    >>> joined({0: ("4 of 10 are empty", ""), 1: ("1 of 10 is empty", "")})
    'both seeds: 1 to 4 of 10 are empty'
    """
    kinds: dict[str, list[int]] = {}
    for seed, (text, _) in sorted(told.items()):
        if text:
            kinds.setdefault(_kind(text), []).append(seed)
    notes = []
    for seeds in kinds.values():
        texts, log = [told[seed][0] for seed in seeds], told[seeds[0]][1]
        alike = len(seeds) == len(told) and len(set(texts)) == 1
        who = "" if alike else f"{_named(seeds, len(told))}: "
        notes.append(f"{who}{_merged(texts)}{f' (see {log})' if log else ''}")
    return "; ".join(notes)


def _kind(text: str) -> str:
    return re.sub(r"\bis empty", "are empty", NUMBER.sub("\0", text))


def _named(seeds: Sequence[int], count: int) -> str:
    """Of `count` seeds in all."""
    if len(seeds) == count > 1:
        return "both seeds" if count == 2 else f"all {count} seeds"
    *others, last = map(str, seeds)
    return f"seeds {', '.join(others)} and {last}" if others else f"seed {last}"


def _merged(texts: Sequence[str]) -> str:
    """One of texts that differ in their numbers alone, with the lowest and the highest of each."""
    spans = iter([sorted(set(found), key=_value) for found in zip(*map(NUMBER.findall, texts), strict=True)])

    def span(_: re.Match[str]) -> str:
        found = next(spans)
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    return NUMBER.sub(span, max(texts, key=lambda text: [_value(number) for number in NUMBER.findall(text)]))


def _value(number: str) -> float:
    return float(number.replace(",", "").rstrip("%"))
