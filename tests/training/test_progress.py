"""Progress: few lines on a pipe, a bar with the remaining time on a terminal, and event files for TensorBoard."""

import io
import os
import pty
import re
import sys
import threading
import tty
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import TINY, colours, command, worked
from twincluster.core import InputError, duration
from twincluster.runs import Run
from twincluster.training import Progress, progress
from twincluster.training.progress import LINE_SECONDS

LINE = r"training: \d+%, (\d+ min )?\d+ s left; epoch \d+: loss [\d.]+, confidence [\d.]+, views agree [\d.]+"


class Clock:
    """Stands for the module `time`: it moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def row(epoch: int, share: float, **more: Any) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "progress": share,
        "loss": 1.25,
        "confidence": 0.5,
        "agreement": 0.75,
        "seconds": 65.0,
    } | more


# -- on a pipe -------------------------------------------------------------------------------------------------------


def test_a_pipe_gets_a_line_now_and_then_and_the_last(clock: Clock) -> None:
    """500 steps of a second each, an epoch every five of them: 50 lines, never two at once."""
    stream, times = io.StringIO(), []
    with Progress(stream) as shown:
        for step in range(1, 501):
            clock.now += 1
            before = len(stream.getvalue().splitlines())
            shown.step(step / 500, 500.0 - step)
            if step % 5 == 0:
                shown.epoch(row(step // 5 - 1, step / 500))
            new = len(stream.getvalue().splitlines()) - before
            assert new <= 1
            times += [clock.now] * new
    gaps = np.diff(times)
    assert (gaps[:-1] >= LINE_SECONDS).all()
    assert (gaps <= LINE_SECONDS + 1).all()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 50
    assert lines[-1] == "training: 100% in 1 min 5 s; epoch 100: loss 1.250, confidence 0.50, views agree 0.75"
    assert all(re.fullmatch(LINE, line) for line in lines[1:-1])
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_an_epoch_without_a_loss_tells_the_rest(clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(stream) as shown:
        shown.epoch(row(0, 1.0, loss=None))
    assert stream.getvalue() == "training: 100% in 1 min 5 s; epoch 1: confidence 0.50, views agree 0.75\n"


def test_a_long_epoch_is_not_silent_and_says_how_long_it_will_take(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress(stream)
    shown.step(0.001, None)
    clock.now += LINE_SECONDS
    shown.step(0.1, 90.0)
    clock.now += LINE_SECONDS
    shown.epoch(row(0, 0.2))
    assert stream.getvalue().splitlines() == [
        "training: 10%, 1 min 30 s left",
        "training: 20%, 1 min 30 s left; epoch 1: loss 1.250, confidence 0.50, views agree 0.75",
    ]


def test_long_decoding_tells_its_end(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress(stream)
    for done in range(0, 2001):
        clock.now += 0.0101
        shown.decoding(done, 2000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "decoding: 50%, 10 s left; 990 of 2,000 images"
    assert lines[-1] == "decoding: 100%; 2,000 of 2,000 images"


def test_what_was_there_before_does_not_shorten_the_estimate(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress(stream)
    for done in range(1000, 1101):
        shown.encoding(done, 2000)
        clock.now += 1
    assert stream.getvalue().splitlines()[0] == "encoding: 50%, 16 min 30 s left; 1,010 of 2,000 images"


def test_decoding_that_is_over_at_once_is_not_worth_a_line(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress(stream)
    shown.decoding(0, 3)
    clock.now += 0.5
    shown.decoding(3, 3)
    shown.decoding(0, 0)  # nothing to divide by
    assert stream.getvalue() == ""


def test_a_warning_comes_once_however_its_numbers_change(clock: Clock) -> None:
    stream = io.StringIO()
    shown = Progress(stream)
    for share in (91, 92, 100):
        shown.warn(f"one of 10 holds {share}% of the images")
    shown.warn("2 of 10 are empty")
    assert stream.getvalue().splitlines() == [
        "warning: one of 10 holds 91% of the images", "warning: 2 of 10 are empty",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "troubled, wanted",
    [
        (
            4,
            [
                "warning resolved, last seen in epoch 4 of 5: two views of an image do not agree on its cluster",
                "warning resolved, last seen in epoch 2 of 5: the clusters collapsed",
            ],
        ),
        (  # whether they are still collapsed nobody has said: an epoch is warned of one thing
            5,
            [
                "warning still holds at the end: two views of an image do not agree on its cluster (the same in 4%); "
                "train longer"
            ],
        ),
    ],
)
def test_at_the_end_warnings_hold_or_are_withdrawn(troubled: int, wanted: list[str], clock: Clock) -> None:
    stream = io.StringIO()
    with Progress(stream) as shown:
        shown.warn("a batch of 512 does not fit in the GPU memory: it is processed in 2 parts")
        for epoch in range(5):
            shown.epoch(row(epoch, (epoch + 1) / 5))
            if epoch == 1:
                shown.warn("the clusters collapsed: one of 10 holds 91% of the images; ask for fewer")
            elif epoch < troubled:
                shown.warn(f"two views of an image do not agree on its cluster (the same in {epoch}%); train longer")
    assert stream.getvalue().splitlines()[-len(wanted) :] == wanted
    assert stream.getvalue().count("memory") == 1


def test_an_interrupted_run_has_no_end_to_look_back_from(clock: Clock) -> None:
    stream = io.StringIO()
    with suppress(KeyboardInterrupt), Progress(stream) as shown:
        shown.epoch(row(0, 0.5))
        shown.warn("the clusters collapsed: all of them")
        shown.epoch(row(1, 0.6))
        raise KeyboardInterrupt
    assert stream.getvalue().splitlines() == ["warning: the clusters collapsed: all of them"]


@pytest.mark.parametrize("seconds,text", [
    (0, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (90, "1 min 30 s"), (3599.9, "1 h 0 min"),
    (7260, "2 h 1 min"), (100 * 3600, "100 h 0 min"),
])  # fmt: skip
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# -- on a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """A pseudo-terminal: `stream` is its inside, `text` what a person would have been shown so far."""

    def __init__(self) -> None:
        self.outside, inside = pty.openpty()
        tty.setraw(inside)
        self.stream = os.fdopen(inside, "w")
        self.text = ""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self.outside, 4096):
                self.text += chunk.decode()
        except OSError:
            pass  # how a pseudo-terminal says that its inside was closed

    def close(self) -> str:
        self.stream.close()
        self.reader.join(timeout=30)
        os.close(self.outside)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_a_terminal_gets_a_bar_with_the_remaining_time(terminal: Terminal) -> None:
    with Progress(terminal.stream) as shown:
        for done in range(101):
            shown.decoding(done, 100)
        shown.step(0.25, 75.0)
        shown._bar.refresh()
        shown.warn("[bold]the clusters collapsed[/bold]: one of 10 holds 91% of the images, and so on " + "x" * 60)
        shown.epoch(row(0, 0.5))
        shown.step(1.0, 0.0)
        shown.epoch(row(1, 1.0))
    text = terminal.close()
    assert "25%, 1 min 15 s left" in text
    assert "━" in text
    assert "warning: [bold]the clusters collapsed[/bold]: one of 10 holds 91% of the images" in text
    assert "epoch 1:" not in text  # the bar shows it
    assert "training: 100% in 1 min 5 s; epoch 2: loss" in text


def test_a_whole_run_on_a_terminal(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    from twincluster.cli import main

    arguments = ["fit", str(tmp_path / "images.npy"), "--clusters", "3", "--out", str(tmp_path / "run"), *TINY]
    assert main(arguments) == 0
    assert main(arguments) == 2  # and a bar that never started does not disturb the complaint
    text = terminal.close()
    assert "; epoch 1: loss " in text
    assert "exists and is not empty" in text
    assert "Traceback" not in text


def test_a_fault_leaves_the_terminal_usable(terminal: Terminal) -> None:
    with suppress(RuntimeError), Progress(terminal.stream) as shown:
        shown.step(0.5, None)
        raise RuntimeError
    terminal.close()
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h") == 1  # the cursor is shown again


# -- TensorBoard -----------------------------------------------------------------------------------------------------


def test_tensorboard_gets_every_number_of_every_epoch(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    np.save(tmp_path / "images.npy", colours()[0])
    settings = TINY[TINY.index("--set") :]
    fit = ("fit", tmp_path / "images.npy", "--clusters", 3, "--out", tmp_path / "run", *settings, "--tensorboard")
    worked(*fit, "--epochs", 2)
    worked(*fit, "--epochs", 3, "--resume")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), {"histograms": 0}).Reload()  # 0: keep all
    rows = Run(tmp_path / "run").read_metrics()
    assert len(rows) == 3
    expected = {name for row in rows for name, value in row.items() if isinstance(value, float)}
    assert set(events.Tags()["scalars"]) == expected >= {"loss", "confidence", "agreement"}
    for name in ("histogram", "mean_assignment"):
        bars = [(event.step, event.histogram_value) for event in events.Histograms(name)]
        assert [(step, bar.bucket) for step, bar in bars] == [(row["epoch"], row[name]) for row in rows]
        filled = [np.flatnonzero(row[name]) for row in rows]
        assert [(bar.min, bar.max) for _, bar in bars] == [(some[0] - 0.5, some[-1] + 0.5) for some in filled]
        assert all(bar.bucket_limit == [0.5, 1.5, 2.5] for _, bar in bars)
    (shown, *_) = events.Tensors("config.json/text_summary")
    assert '"learning_rate": ' in shown.tensor_proto.string_val[0].decode()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(row["epoch"], pytest.approx(row["loss"], rel=1e-6)) for row in rows]


def test_tensorboard_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard" or "utils.tensorboard" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not there
    with pytest.raises(InputError, match=r"pip install 'twincluster\[tensorboard\]'"):
        Progress(tensorboard=tmp_path / "board")
    np.save(tmp_path / "images.npy", colours()[0])
    done = command("fit", tmp_path / "images.npy", "-k", 3, "--out", tmp_path / "run", *TINY, "--tensorboard")
    assert done.complaint == "--tensorboard needs a package: pip install 'twincluster[tensorboard]'"
    assert not (tmp_path / "run").exists()
