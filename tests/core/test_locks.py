"""Two processes that want to write one run: which may, which is refused, and what a process that was killed leaves.

Real processes, stopped and killed where it matters.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import twincluster
from command_line import TINY, colours, command, worked
from twincluster.core import LOCK_FILE, HeldError, InputError, hold, hold_new, settle
from twincluster.data import open_source
from twincluster.runs import Edits, Run
from twincluster.update import undo_update, update

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(twincluster.__file__).parents[1])}
SHORT = [argument for argument in TINY if argument not in ("--epochs", "1")]

HOLDING = """
import pathlib, sys
from twincluster.core import hold

with hold(pathlib.Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read(1)
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of each test, with images.npy and more.npy."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    np.save("images.npy", colours()[0])
    np.save("more.npy", colours(9, seed=1)[0])
    return tmp_path / "work"


@pytest.fixture
def run() -> Run:
    worked("fit", "images.npy", "-k", 3, "--out", "run", *TINY)
    return Run(Path("run"))


@contextmanager
def holder(folder: Path | str, doing: str = "training") -> Iterator[subprocess.Popen[str]]:
    """A process that holds a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder), doing], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=ENVIRONMENT,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def start(*arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "twincluster", *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def wait_for(path: Path | str) -> None:
    end = time.monotonic() + 120
    while not Path(path).is_file() and time.monotonic() < end:
        time.sleep(0.02)
    assert Path(path).is_file()


# -- a folder that is held ---------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_told_which_one_writes(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as first:
        with pytest.raises(HeldError) as refused:
            hold(tmp_path / "run", "training", "choose another --out")
        assert str(refused.value) == (
            f"{tmp_path / 'run'} is being written by process {first.pid} (python {tmp_path / 'run'} training): wait "
            "until it ends, or choose another --out"
        )
        first.communicate("x")
    with hold(tmp_path / "run", "training"):
        pass
    assert os.listdir(tmp_path) == ["work"]  # neither the folder, which is empty, nor a lock


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with holder(tmp_path / "run") as dead:
        os.kill(dead.pid, signal.SIGSTOP)  # it does not answer, but it is there
        with pytest.raises(HeldError, match=f"process {dead.pid} "):
            hold(tmp_path / "run", "training")
        dead.kill()
    assert os.listdir(tmp_path / "run") == [LOCK_FILE]
    with hold(tmp_path / "run", "training"):
        assert json.loads((tmp_path / "run" / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path / "run") == []  # it was there before


def test_of_many_processes_that_want_one_folder_one_gets_it(tmp_path: Path) -> None:
    """Each adds one to a number, read and written without a lock of its own, whenever it gets the folder."""
    count = """if True:
        import pathlib, sys
        from twincluster.core import HeldError, hold
        folder, done = pathlib.Path(sys.argv[1]), 0
        number = folder.with_name("number")
        while done < 40:
            try:
                with hold(folder, "training"):
                    number.write_text(str(int(number.read_text()) + 1))
                    done += 1
            except HeldError:
                pass
    """
    (tmp_path / "number").write_text("0")
    words = [sys.executable, "-c", count, str(tmp_path / "run")]
    processes = [subprocess.Popen(words, env=ENVIRONMENT) for _ in range(4)]
    assert [process.wait(timeout=120) for process in processes] == [0] * 4
    assert (tmp_path / "number").read_text() == "160"
    assert list((tmp_path / "run").glob(".*")) == []


def test_what_holds_a_folder_may_take_it_again(tmp_path: Path) -> None:
    with hold(tmp_path / "run", "training"):
        with hold(tmp_path / "run", "training"):
            pass
        assert os.listdir(tmp_path / "run") == [LOCK_FILE]


def test_what_cannot_be_made_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "run", Path("/proc/nothing/run")):
        with pytest.raises(InputError, match=r"^\S+ cannot be created or written to \(.+\): choose another --out$"):
            hold(place, "training", "choose another --out")


def test_of_new_folders_each_process_gets_its_own(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").touch()
    with hold_new(tmp_path / "runs" / "a", "training") as second, hold_new(second.with_name("a"), "training") as third:
        assert (second.name, third.name) == ("a-2", "a-3")
    with holder(tmp_path / "runs" / "a-2") as dead:
        dead.kill()
    with hold_new(tmp_path / "runs" / "a", "training") as again:
        assert again.name == "a-2"


# -- fits --------------------------------------------------------------------------------------------------------------


def test_of_two_that_resume_one_run_the_second_is_refused_at_once() -> None:
    words = ("fit", "images.npy", "-k", 3, "--out", "run", *SHORT, "--set", "train.checkpoint_minutes=0")
    with start(*words, "--epochs", 100_000) as first:
        wait_for("run/metrics.jsonl")
        first.kill()
    with start(*words, "--epochs", 100_000, "--resume") as resumed:
        wait_for(f"run/{LOCK_FILE}")
        time.sleep(random.random())  # nothing depends on when
        before = Run(Path("run")).read_metrics()
        for source in ("images.npy", "nowhere"):  # the source is not even looked at
            said = command("fit", source, *words[2:], "--epochs", 100_000, "--resume").complaint
            assert re.fullmatch(rf"run is being written by process {resumed.pid} \(.+\): wait until it ends", said)
        assert command("update", "run", "more.npy").status == 2
        resumed.kill()
    epochs = [row["epoch"] for row in Run(Path("run")).read_metrics()]
    assert epochs == list(range(len(epochs)))
    worked(*words, "--epochs", max(len(epochs), len(before)) + 1, "--resume")  # the lock of the dead is taken over
    assert not Path("run", LOCK_FILE).exists()


def test_fits_that_start_together_without_a_name_take_a_folder_each() -> None:
    processes = [start("fit", "images.npy", "-k", 3, *TINY, "--seed", seed) for seed in range(3)]
    for process in processes:
        said, complaint = process.communicate(timeout=240)
        assert process.returncode == 0, (said, complaint)
    assert sorted(os.listdir("runs")) == ["images", "images-2", "images-3"]
    seeds = {Run(Path("runs", name)).config.seed for name in os.listdir("runs")}
    assert seeds == {0, 1, 2}
    assert all(len(Run(folder).read_metrics()) == 1 for folder in Path("runs").iterdir())


def test_a_name_is_reserved_before_anything_is_read() -> None:
    os.mkfifo("slow.npy")  # which a fit waits for
    with start("fit", "slow.npy", "-k", 3, "--out", "run", *TINY) as slow:
        wait_for(f"run/{LOCK_FILE}")
        said = command("fit", "images.npy", "-k", 3, "--out", "run", *TINY).complaint
        assert re.fullmatch(
            rf"run is being written by process {slow.pid} \(twincluster fit slow.npy .+\): wait until it ends, or "
            "choose another --out",
            said,
        )
        slow.kill()
    worked("fit", "images.npy", "-k", 3, "--out", "run", *TINY)


@pytest.mark.parametrize("out", [(), ("--out", "runs/a/b")])
def test_a_fit_that_is_refused_leaves_no_folder(out: tuple[str, ...]) -> None:
    before = sorted(os.listdir("."))
    assert command("fit", "nowhere", "-k", 3, *out, *TINY).status == 2
    assert command("fit", "images.npy", "-k", 3, *out, *TINY, "--split", "train").status == 2
    assert sorted(os.listdir(".")) == before
    Path("empty").mkdir()
    assert command("fit", "nowhere", "-k", 3, "--out", "empty", *TINY).status == 2
    assert os.listdir("empty") == []


def test_there_is_nothing_to_resume_before_anything_is_read() -> None:
    said = command("fit", "nowhere", "-k", 3, "--out", "run", *TINY, "--resume").complaint
    assert said == "run contains no run to resume: omit --resume"
    assert not Path("run").exists()


# -- a finished run ----------------------------------------------------------------------------------------------------


def test_edits_and_updates_are_refused_while_a_run_is_trained_further(run: Run) -> None:
    edits = Edits(run)
    with holder("run") as training:
        named = rf"^run is being written by process {training.pid} \(.+\): wait until it ends$"
        with pytest.raises(InputError, match=named):
            edits.rename(0, "boats")
        with pytest.raises(InputError, match=named):
            update(run, open_source("more.npy"), location="more.npy", device="cpu")
        with pytest.raises(InputError, match=named):
            undo_update(run)
        assert not Path("run/edits.jsonl").exists()
        worked("predict", "run", "more.npy", "--out", "new.csv")  # whoever only reads goes on
        training.kill()
    edits.rename(0, "boats")


def test_edits_go_on_while_an_update_is_under_way_and_a_resume_is_refused(run: Run) -> None:
    with holder("run", "rows") as updating:
        assert Edits(run).rename(0, "boats").names[0] == "boats"
        words = ("fit", "images.npy", "-k", 3, "--out", "run", *SHORT, "--epochs", 2, "--resume")
        assert f"process {updating.pid} " in command(*words).complaint
        updating.kill()


def test_an_edit_does_not_slip_into_an_undo(run: Run) -> None:
    update(run, open_source("more.npy"), location="more.npy", device="cpu")
    rows = [len(run.read_assignments().paths) - 1]
    edits = Edits(run)
    with holder("run", "undo") as undoing:
        with pytest.raises(InputError, match=f"process {undoing.pid} "):
            edits.mark_junk(rows)
        undoing.kill()
    undo_update(run)
    with pytest.raises(InputError, match="there is no image 56"):
        edits.mark_junk(rows)


def test_an_undo_waits_for_an_edit_that_has_begun(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    import fcntl

    path = tmp_path / "edits.jsonl"
    settle(path)  # there is none
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        words = f"import pathlib; from twincluster.core import settle; settle(pathlib.Path({str(path)!r}))"
        waiting = subprocess.Popen([sys.executable, "-c", words], env=ENVIRONMENT)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=2)
    assert waiting.wait(timeout=60) == 0
