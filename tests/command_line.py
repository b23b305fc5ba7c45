"""The command line for tests: commands run in this process, settings that make a run take a moment, and small data."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np

from twincluster.cli import main

TINY = (
    "--epochs", "1", "--device", "cpu", "--set", "train.backbone=small", "--set", "train.image_size=16",
    "--set", "train.batch_size=16", "--set", "anchored.hidden=16", "--set", "anchored.n_features=8",
    "--set", "anchored.instance_queue=64",
)  # fmt: skip
COLOURS = ("red", "green", "blue")


class Done(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line that bad input is answered with, after checking that it is one line and bad input."""
        assert self.status == 2, (self.status, self.out, self.err)
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("twincluster: ")
        return lines[0].removeprefix("twincluster: ")


def command(*arguments: object) -> Done:
    """`twincluster ARGUMENTS` in this process, with its streams on no terminal."""
    return _done(main, arguments)


def benchmark(*arguments: object) -> Done:
    """`python -m benchmarks ARGUMENTS` in this process, with its streams on no terminal."""
    from benchmarks.__main__ import main

    return _done(main, arguments)


def worked(*arguments: object) -> Done:
    return _checked(command(*arguments))


def benchmark_worked(*arguments: object) -> Done:
    return _checked(benchmark(*arguments))


def _done(main: Callable[[list[str]], int], arguments: tuple[object, ...]) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main([str(argument) for argument in arguments])
    return Done(status, out.getvalue(), err.getvalue())


def _checked(done: Done) -> Done:
    assert done.status == 0, done.err
    return done


def colours(n: int = 48, side: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures in three colours, uint8 (n,s,s,3), and which colour each has."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    pixels = random.integers(0, 120, (n, side, side, 3))
    pixels[np.arange(n), :, :, labels] += 120
    return pixels.astype(np.uint8), labels


def colours_file(folder: Path) -> Path:
    """`colours.npz` with images, the names of their colours, and a split of every third image for testing."""
    images, labels = colours()
    np.savez(folder / "colours.npz", images=images, labels=np.array(COLOURS)[labels], split=np.arange(48) // 3 % 3 == 0)
    return folder / "colours.npz"
