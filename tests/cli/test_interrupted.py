"""Ctrl-C at any moment ends a command with status 130 and one line, within seconds, and leaves no process behind.

Real interrupts of real processes: at random moments, and at those that have gone wrong.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import twincluster
from command_line import TINY, colours, worked
from twincluster.runs import Run

SOURCE = Path(twincluster.__file__).parents[1]
MOMENTS = 12
MANY = 150  # for `make stress`
WITHIN = 10.0  # seconds
SHORT = TINY[TINY.index("--device") :]
# Python itself starts before it says so: an interrupt until then is not ours to answer
STARTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from twincluster.cli import main
print("started", flush=True)
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", colours()[0])
    return tmp_path


@pytest.fixture
def commands() -> dict[str, list[str]]:
    """What is interrupted: a fit that decodes in several processes, and commands on a finished run."""
    for folder, seed in (("photos", 0), ("more", 1)):
        Path(folder).mkdir()
        for number, image in enumerate(colours(120, seed=seed)[0]):
            Image.fromarray(image).save(f"{folder}/{number}.png")
    fit = ["fit", "photos", "-k", "3", "--out", "run", "--epochs", "100000", *SHORT]
    worked("fit", "photos", "-k", 3, "--out", "done", *TINY)
    return {
        "fit": fit,
        "resume": [*fit, "--resume"],
        "update": ["update", "run", "more"],
        "report": ["report", "run"],
    }


class Started(subprocess.Popen[str]):
    """A command that has begun to import, with a mark that all its processes inherit."""

    def __init__(self, *words: str, program: str = STARTED) -> None:
        self.mark = f"{random.getrandbits(64):x}"
        environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}.", "MARK": self.mark}
        super().__init__(
            [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        assert self.stdout is not None
        assert self.stdout.readline() == "started\n"

    def interrupt(self, *, may_be_done: bool = False) -> str:
        """Check that it ends as it should; return what it says. What is done already may also end with status 0."""
        self.send_signal(signal.SIGINT)
        since = time.monotonic()
        try:
            _, said = self.communicate(timeout=60)
        finally:
            self.kill()
        if may_be_done and self.returncode == 0:
            return said
        assert self.returncode == 130, said
        assert time.monotonic() - since < WITHIN
        assert "Traceback" not in said
        assert said.splitlines()[-1].startswith("twincluster: interrupted")
        end = time.monotonic() + WITHIN
        while (left := list(self.processes())) and time.monotonic() < end:
            time.sleep(0.05)
        assert left == []
        return said

    def processes(self) -> Iterator[str]:
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if f"MARK={self.mark}".encode() in (place / "environ").read_bytes():
                    yield (place / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue


def interrupt_at_random(commands: dict[str, list[str]], seed: int, count: int) -> None:
    moments, hits = random.Random(seed), 0
    begun = time.monotonic()
    with Started(*commands["resume"]) as whole:
        shutil.copytree("done", "run")
        while not (len(Run("run").read_metrics()) > 1 or whole.poll() is not None):
            time.sleep(0.05)
        whole.kill()
    longest = 1.3 * (time.monotonic() - begun)
    for number in range(count):
        name = moments.choice(list(commands))
        shutil.rmtree("run", ignore_errors=True)
        if name != "fit":
            shutil.copytree("done", "run")
        elif moments.random() < 0.5:
            shutil.rmtree(os.environ["TWINCLUSTER_CACHE"])  # it decodes once more
        with Started(*commands[name]) as command:
            time.sleep(max(0.02, longest * moments.random() ** 2))
            if command.poll() is None:
                command.interrupt(may_be_done=name in ("update", "report"))
                hits += 1
        assert list(Path("run").rglob("*.partial")) == [], number
    assert hits > count / 3


def test_interrupts_at_random_moments(commands: dict[str, list[str]]) -> None:
    interrupt_at_random(commands, seed=0, count=MOMENTS)


@pytest.mark.stress
def test_many_interrupts_at_random_moments(commands: dict[str, list[str]]) -> None:
    interrupt_at_random(commands, seed=1, count=MANY)


# -- moments that have gone wrong --------------------------------------------------------------------------------------


def test_an_interrupt_before_all_is_imported() -> None:
    Path("cyclopts.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    with Started("fit", "images.npy") as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "importing\n"
        assert command.interrupt() == "twincluster: interrupted\n"


@pytest.mark.parametrize("end", ["raise", "pass"])
def test_an_interrupt_while_torch_is_imported(end: str) -> None:
    """Its own code may swallow it, or abort."""
    torch = f"import time\nprint('importing', flush=True)\ntry:\n    time.sleep(60)\nexcept BaseException:\n    {end}\n"
    Path("torch.py").write_text(torch)
    with Started("fit", "images.npy", "-k", "3", "--out", "run", *TINY) as command:
        assert command.stdout is not None
        assert command.stdout.readline().startswith("48 inputs in images.npy")
        assert command.stdout.readline() == "importing\n"
        assert command.interrupt() == "twincluster: interrupted\n"
    assert not Path("run").exists()


def test_an_interrupt_before_the_source_is_read_leaves_no_folder() -> None:
    os.mkfifo("slow.npy")
    with Started("fit", "slow.npy", "-k", "3", *TINY) as command:
        end = time.monotonic() + 60
        while not Path("runs/slow.npy").exists() and time.monotonic() < end:
            time.sleep(0.02)
        command.interrupt()
    assert not Path("runs").exists()


STUCK = """
import hashlib, signal, sys, time
from twincluster.cli.terminal import status_of
from twincluster.core import process

signal.signal(signal.SIGINT, signal.default_int_handler)
process.LIMIT = 2.0

def swallow():
    try:
        print("started", flush=True)
        time.sleep(60)
    except BaseException:
        time.sleep(60)

def compute():
    print("started", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10**9)

class Gone:
    def __del__(self):
        print("started", flush=True)
        time.sleep(60)

def drop():
    Gone()
    print("went on")
    time.sleep(60)

def start():
    process.run_child([sys.executable, "-c", '''if True:
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("started", flush=True)
        time.sleep(60)
    '''])

def spawn():
    import multiprocessing
    multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,)).start()
    print("started", flush=True)
    time.sleep(60)

sys.exit(status_of(globals()[sys.argv[1]], ends_process=True))
"""


@pytest.mark.parametrize("how", ["swallow", "compute", "drop", "start", "spawn"])
def test_a_command_ends_though_its_code_takes_no_notice(how: str) -> None:
    """Code that swallows the interrupt, does not come back from C, is a destructor, or waits for a deaf child."""
    with Started(how, program=STUCK) as command:
        assert command.interrupt() == "twincluster: interrupted\n"


def test_two_interrupts_together_are_one() -> None:
    """As `timeout` sends them, to a process and to its group: the run is saved all the same."""
    words = ["fit", "images.npy", "-k", "3", "--out", "run", "--epochs", "1000000", *SHORT]
    with Started(*words, "--set", "train.checkpoint_minutes=100") as command:
        end = time.monotonic() + 120
        while not Path("run/metrics.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.02)
        command.send_signal(signal.SIGINT)
        assert "--resume continues from the last checkpoint" in command.interrupt()
    assert Path("run/checkpoint/state.safetensors").is_file()
