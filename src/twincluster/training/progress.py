"""Show the progress of a run: a bar on a terminal and in a notebook, a line every few seconds elsewhere."""

from __future__ import annotations

import io
import re
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from twincluster.config import in_python
from twincluster.core import InputError, duration
from twincluster.parallel import launch
from twincluster.training.trainer import Reporter

LINE_SECONDS = 10.0  # between two lines


class Progress(Reporter):
    """Progress display; use it as a context manager around training."""

    def __init__(self, stream: TextIO | None = None, tensorboard: Path | None = None) -> None:
        self.stream = (stream or sys.stderr) if launch.first() else io.StringIO()
        tensorboard = tensorboard if launch.first() else None
        self._writer_type = _board_writer() if tensorboard else None
        self._board_folder = tensorboard or Path()  # inside a run folder
        self._board: Any = None
        self._bar: Any = None
        self._task: Any = None
        self._remaining: float | None = None
        self._row: dict[str, Any] = {}  # of the newest epoch
        self._started = self._last_line = time.monotonic()
        self._decodes_long = False
        self._counted = ("", 0, 0.0)  # what is counted, the first number, the start time
        self._warned: set[str] = set()
        self._said: dict[str, _Said] = {}  # warnings about clusters, by kind

    def __enter__(self) -> Progress:
        if self.stream.isatty() or (self.stream is sys.stderr and _in_notebook()):
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(None), TextColumn("{task.fields[note]}"))
            self._bar = Bar(*columns, console=Console(file=self.stream), transient=True, refresh_per_second=4)
            self._task = self._bar.add_task("starting", total=1.0, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
        if kind is None:
            self._look_back()
        if self._board:
            self._board.close()

    def decoding(self, done: int, total: int) -> None:
        """Show how many images are decoded. Short decodings print nothing."""
        self._count("decoding", done, total, last=self._decodes_long and done == total)
        self._decodes_long |= self._last_line > self._started

    def encoding(self, done: int, total: int) -> None:
        """Show how many images the pretrained encoder has processed."""
        self._count("encoding", done, total)

    def step(self, progress: float, remaining: float | None) -> None:
        self._remaining = remaining
        if progress < 1:  # the last epoch prints its own line
            self._show("training", progress, remaining, self._figures())

    def epoch(self, row: dict[str, Any]) -> None:
        self._to_board(row)
        self._row = row
        if row["progress"] >= 1:
            self._print(f"training: 100% in {duration(row['seconds'])}; {self._figures()}")
            if self._bar:  # the last k-means has no measurable progress
                self._bar.update(self._task, description="finishing", completed=1.0, note="")
        else:
            self.step(row["progress"], self._remaining)

    def say(self, message: str) -> None:
        self._print(message)

    def warn(self, message: str) -> None:
        kind = re.sub(r"[0-9]+", "", message)  # print each kind once, whatever its numbers
        if self._row:  # warnings before the first epoch are not about clusters
            now = self._row["epoch"]
            self._said[kind] = _Said(self._said[kind].first if kind in self._said else now, now, message)
        if kind not in self._warned:
            self._warned.add(kind)
            self._print(f"warning: {message}")

    def _look_back(self) -> None:
        """Print at the end whether earlier warnings still hold.

        Each epoch warns of one thing at most, so warnings are withdrawn only if the last epoch had none.
        """
        end = max((warning.last for warning in self._said.values()), default=-1)
        for first, last, message in self._said.values():
            if end < self._row["epoch"]:
                what = re.split(r" ?[(:;,]", message)[0]
                self._print(f"warning resolved, last seen in epoch {last + 1} of {self._row['epoch'] + 1}: {what}")
            elif first < last == end:
                self._print(f"warning still holds at the end: {message}")

    def _figures(self) -> str:
        """Return the figures of the newest epoch as text, "" before the first."""
        row = self._row
        if not row:
            return ""
        loss = "" if row["loss"] is None else f"loss {row['loss']:.3f}, "  # None: no loss yet
        return f"epoch {row['epoch'] + 1}: {loss}confidence {row['confidence']:.2f}, views agree {row['agreement']:.2f}"

    def _count(self, what: str, done: int, total: int, last: bool = False) -> None:
        """Show the progress of images; the estimate leaves out those that were done before."""
        if self._counted[0] != what:
            self._counted = (what, done, time.monotonic())
        _, first, began = self._counted
        pace = (time.monotonic() - began) / (done - first) if done > first else None
        left = None if pace is None else (total - done) * pace
        self._show(what, done / max(1, total), left, f"{done:,} of {total:,} images", last)

    def _show(self, what: str, share: float, remaining: float | None, figures: str, last: bool = False) -> None:
        left = f", {duration(remaining)} left" if remaining is not None and not last else ""
        if self._bar:
            self._bar.update(self._task, description=what, completed=share, note=f"{share:.0%}{left}")
        elif last or self._line_is_due():
            self._print(f"{what}: {share:.0%}{left}{'; ' if figures else ''}{figures}")

    def _line_is_due(self) -> bool:
        return time.monotonic() - self._last_line >= LINE_SECONDS

    def _print(self, line: str) -> None:
        self._last_line = time.monotonic()
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=self.stream, flush=True)

    def _to_board(self, row: dict[str, Any]) -> None:
        if self._writer_type is None:
            return
        if self._board is None:  # created late, because the run folder must be empty when training starts
            self._board = self._writer_type(self._board_folder)
            self._board.add_text("config.json", _indented(self._board_folder.parent / "config.json"), row["epoch"])
        for name, value in row.items():
            if isinstance(value, float):
                self._board.add_scalar(name, value, row["epoch"])
            elif isinstance(value, list):
                _add_bars(self._board, name, value, row["epoch"])


class _Said(NamedTuple):
    first: int  # epoch
    last: int
    message: str  # the last time


class Watcher(Progress):
    """Progress for the estimator: keeps the row of each epoch and the warning of the last one; prints if `verbose`."""

    def __init__(self, verbose: int) -> None:
        super().__init__(sys.stderr if verbose else io.StringIO())
        self.rows: list[dict[str, Any]] = []
        self.warning: str | None = None

    def epoch(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.warning = None  # only the last epoch's warning counts
        super().epoch(row)

    def warn(self, message: str) -> None:
        if self.rows:
            self.warning = in_python(message)
        else:  # not about clusters, so later epochs do not withdraw it
            warnings.warn(in_python(message), stacklevel=2)


def _in_notebook() -> bool:
    """Return True if a notebook can show rich's bar, which needs widgets."""
    return "ipykernel" in sys.modules and find_spec("ipywidgets") is not None


def _board_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--tensorboard needs a package: pip install 'twincluster[tensorboard]'") from None
    return SummaryWriter


def _indented(path: Path) -> str:
    """Return a file as a Markdown code block; "" if it does not exist."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return "\n".join(f"    {line}" for line in lines)


def _add_bars(board: Any, name: str, heights: list[float], epoch: int) -> None:
    """Write one bar per cluster, from k - 0.5 to k + 0.5, as a TensorBoard histogram."""
    clusters = range(len(heights))
    filled = [cluster for cluster in clusters if heights[cluster]] or [0]  # TensorBoard drops empty bars at both ends
    total, squares = (sum(k**power * heights[k] for k in clusters) for power in (1, 2))
    ends = [cluster + 0.5 for cluster in clusters]
    board.add_histogram_raw(
        name, filled[0] - 0.5, filled[-1] + 0.5, sum(heights), total, squares, ends, heights, epoch
    )  # fmt: skip
