"""How commands end: faults of ours, what a user can mend, interrupts, and readers that leave."""

import errno
import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from pathlib import Path

import numpy as np
import pytest

import twincluster
from command_line import TINY, colours, command, worked
from twincluster import fit as pipeline
from twincluster import model
from twincluster.runs import Run

SOURCE = Path(twincluster.__file__).parents[1]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of each test, with images.npy."""
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", colours()[0])
    return tmp_path


def test_a_fault_of_ours_has_a_traceback_and_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "fit", lambda *_, **__: 1 / 0)
    done = command("fit", "images.npy", "-k", 3, "--out", "run")
    assert done.status == 1
    assert done.err.startswith("Traceback (most recent call last):")
    assert "ZeroDivisionError" in done.err
    assert done.err.splitlines()[-1].startswith("twincluster: this is a bug in twincluster, not in your data")


def test_code_of_others_that_leaves_with_a_word_has_not_done_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "fit", lambda *_, **__: sys.exit("my method wants a GPU"))
    done = command("fit", "images.npy", "-k", 3, "--out", "run")
    assert (done.status, done.err.splitlines()[-1]) == (1, "twincluster: my method wants a GPU")


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize("error,complaint", [
    (OSError(errno.ENOSPC, "No space left", "run/model"), " is full (run/model cannot be written): free some space"),
    (OSError(errno.ENOSPC, "No space left on device"), "a disk is full: free some space"),
    (OSError(errno.ENOSPC, "No space left", "a", None, "run/b"), " is full (run/b cannot be written): free some space"),
    (OSError(errno.EACCES, "Permission denied", "run"), "run: permission denied; check the path and its permissions"),
    (OSError(errno.EACCES, "Failed to open 'Out/a.parquet'"), "Failed to open 'Out/a.parquet'; check the path and its"),
    (MemoryError(), "there is not enough memory: lower train.batch_size"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 512000000000 bytes."),
     "there is not enough memory (for an allocation of 512.0 GB): lower train.batch_size"),
    (FileNotFoundError(errno.ENOENT, "No such file", "gone/run/metrics.jsonl"), "the folder gone was deleted"),
    (OutOfMemoryError("CUDA out of memory.\nTried ..."), "the GPU memory is full: lower train.batch_size"),
], ids=str)  # fmt: skip
def test_what_a_user_can_mend_is_no_fault_of_ours(
    monkeypatch: pytest.MonkeyPatch, error: Exception, complaint: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(pipeline, "fit", fail)
    assert complaint in command("fit", "images.npy", "-k", 3, "--out", "run").complaint


def test_an_interrupt_before_training_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    worked("fit", "images.npy", "-k", 3, "--out", "run", *TINY)
    monkeypatch.setattr(pipeline, "fit", interrupt)
    monkeypatch.setattr(model, "predict", interrupt)
    done = command("fit", "images.npy", "-k", 3, "--out", "another")
    assert (done.status, done.err) == (130, "twincluster: interrupted; nothing has been trained yet\n")
    done = command("predict", "run", "images.npy", "--out", "new.csv")
    assert (done.status, done.err) == (130, "twincluster: interrupted\n")


def test_warnings_are_lines_without_code_and_come_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: object, **__: object) -> None:
        warnings.warn("a sub-folder cannot be\nread: left out", stacklevel=1)
        warnings.warn("a sub-folder cannot be\nread: left out", stacklevel=1)  # as when it is listed for the report
        raise SystemExit(0)

    monkeypatch.setattr(pipeline, "fit", warn)
    assert worked("fit", "images.npy", "-k", 3).err == "warning: a sub-folder cannot be read: left out\n"


def process(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """The command in a process of its own, which takes interrupts even where this one was told to ignore them."""
    program = """if True:
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from twincluster.cli import main
        sys.exit(main())
    """
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm", "COLUMNS": "100"}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], env=environment, **options)


def test_an_interrupted_run_on_a_terminal_says_how_to_go_on_and_can() -> None:
    outside, inside = pty.openpty()
    settings = [*TINY[TINY.index("--set") :], "--set", "train.checkpoint_minutes=0"]
    arguments = ["fit", "images.npy", "-k", "3", "--out", "run", *settings]
    child = process(*arguments, "--epochs", "1000000", stdout=subprocess.PIPE, stderr=inside)
    os.close(inside)
    try:
        shown, interrupted, end = "", False, time.monotonic() + 300
        while time.monotonic() < end:
            try:
                shown += os.read(outside, 4096).decode(errors="replace")
            except OSError:
                break  # the process has closed its side
            if not interrupted and " left" in shown and Path("run/checkpoint/state.safetensors").exists():
                child.send_signal(signal.SIGINT)
                interrupted = True
        assert child.wait(timeout=60) == 130, shown
    finally:
        child.kill()
        child.communicate()
        os.close(outside)
    assert re.search(r"training.*━.*\d+%, .* left", shown)  # the bar
    assert "Traceback" not in shown
    assert "interrupted; the same command with --out run --resume continues from the last checkpoint" in shown
    done = len(Run(Path("run")).read_metrics())  # none where the first checkpoint comes within the first epoch
    worked(*arguments, "--epochs", done + 1, "--resume")
    assert [row["epoch"] for row in Run(Path("run")).read_metrics()] == list(range(done + 1))
    assert Path("run/assignments.csv").exists()


def test_sigterm_saves_the_run_and_says_how_to_go_on() -> None:
    """As a batch queue sends it; twice, as `timeout` does to a process and to its group."""
    settings = [*TINY[TINY.index("--set") :], "--set", "train.checkpoint_minutes=100"]
    arguments = ["fit", "images.npy", "-k", "3", "--out", "run", *settings]
    with process(*arguments, "--epochs", "1000000", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
        wait_for(Path("run/metrics.jsonl"))
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGTERM)
        said = child.communicate(timeout=60)[1].decode()
    assert child.returncode == 143, said
    assert said.endswith(
        "ended by SIGTERM; the same command with --out run --resume continues from the last checkpoint\n"
    )
    assert "Traceback" not in said
    assert Path("run/checkpoint/state.safetensors").is_file()  # none was due


def test_sigterm_to_serve_ends_it_as_ctrl_c_does() -> None:
    worked("fit", "images.npy", "-k", 3, "--out", "run", *TINY)
    with process("serve", "run", "--port", "0", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        address = re.search(rb"http://\S+", child.stdout.readline())
        assert address is not None
        urllib.request.urlopen(address[0].decode(), timeout=60).close()  # it answers, and so takes signals
        child.send_signal(signal.SIGTERM)
        said = child.communicate(timeout=60)[1].decode()
    assert (child.returncode, said) == (0, "")


def wait_for(path: Path) -> None:
    end = time.monotonic() + 120
    while not path.is_file() and time.monotonic() < end:
        time.sleep(0.02)


def test_a_reader_that_leaves_is_no_fault() -> None:
    read, write = os.pipe()
    os.close(read)  # nobody will ever read
    child = process("recipes", "digits", stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert child.communicate(timeout=100)[1] == b""
    assert child.returncode == 141
