"""Memory and time of `fit` on more and more rows of numbers: separated groups, default settings, a child for each size.

Time is processor time, which other programs on the machine change little, and the time on the clock.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import CHUNK, SEED
from benchmarks.memory import Peak, watch
from twincluster.clustering import score
from twincluster.runs import Run

SPREAD = 0.7  # standard deviation inside a group; that of the centres is 1


@dataclass(frozen=True)
class Size:
    rows: int
    peak: Peak
    cpu_seconds: float
    ari: float


@dataclass(frozen=True)
class Scale:
    columns: int
    clusters: int
    epochs: int | None
    sizes: tuple[Size, ...]

    def to_text(self) -> str:
        length = "default settings" if self.epochs is None else f"--epochs {self.epochs}"
        lines = [
            f"fit, from the array to rows and report: rows of {self.columns} numbers in {self.clusters} groups, "
            f"{length}",
            f"{'rows':>12}{'GB':>8}{'own':>8}{'CPU s':>8}{'seconds':>9}{'ARI':>8}",
        ]
        for size in self.sizes:
            resident, own = size.peak.resident / 1e9, size.peak.anonymous / 1e9
            lines.append(
                f"{size.rows:12,}{resident:8.2f}{own:8.2f}{size.cpu_seconds:8.0f}{size.peak.seconds:9.0f}{size.ari:8.3f}"
            )
        if len(self.sizes) > 1:
            memory, cpu = (self.exponent(of) for of in (lambda size: size.peak.resident, lambda size: size.cpu_seconds))
            lines.append(f"growth with the number of rows n: memory n^{memory:.2f}, processor time n^{cpu:.2f}")
        return "\n".join(lines)

    def exponent(self, of: Callable[[Size], float]) -> float:
        """Return the slope of a quantity over the rows, both as logarithms."""
        rows, values = (np.log([value(size) for size in self.sizes]) for value in (lambda size: size.rows, of))
        return float(np.polyfit(rows, values, 1)[0])


def measure(
    rows: Sequence[int], columns: int, clusters: int, epochs: int | None, say: Callable[[str], None] = lambda line: None
) -> Scale:
    """Cluster each number of made-up rows in a child process, in a temporary folder."""
    sizes = []
    for count in rows:
        with tempfile.TemporaryDirectory() as folder:
            sizes.append(_measure(Path(folder), count, columns, clusters, epochs))
        say(f"{count:,} rows in {sizes[-1].peak.seconds:.0f} s")
    return Scale(columns, clusters, epochs, tuple(sizes))


def _measure(folder: Path, count: int, columns: int, clusters: int, epochs: int | None) -> Size:
    labels = write_groups(folder / "rows.npy", count, columns, clusters)
    command = [sys.executable, "-m", "twincluster", "fit", str(folder / "rows.npy"), "--clusters", str(clusters)]
    command += ["--device", "cpu", "--out", str(folder / "run"), *(["--epochs", str(epochs)] if epochs else [])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = watch(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Size(count, peak, used, score(labels, Run.open(folder / "run").read_assignments().clusters).ari)


def write_groups(path: Path, count: int, columns: int, clusters: int) -> np.ndarray:
    """Write rows (count,columns) float32 of separated groups as a .npy file; return the group of each."""
    random = np.random.default_rng(SEED)
    centres = random.normal(size=(clusters, columns))
    labels = random.integers(0, clusters, count)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, columns))
    for start in range(0, count, CHUNK):
        group = labels[start : start + CHUNK]
        rows[start : start + CHUNK] = centres[group] + SPREAD * random.normal(size=(len(group), columns))
    rows.flush()
    return labels
