"""The same seed on the same machine gives the same result, to the last bit, whatever lies in the cache."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import twincluster
from command_line import TINY, colours, command, worked
from twincluster.runs import Run

SOURCE = str(Path(twincluster.__file__).parents[1])
WORDS = ("fit", "photos", "-k", 3, "--seed", 5, *TINY[2:], "--epochs", 3)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number, image in enumerate(colours(90)[0]):
        Image.fromarray(image).save(f"photos/{number}.png")


def fit(out: str, threads: int = 1, *more: object) -> None:
    """A fit in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, "-m", "twincluster", *map(str, (*WORDS, "--out", out, *more))]
    subprocess.run(words, check=True, capture_output=True, env=environment)


def assert_same(one: str, two: str) -> None:
    weights = [load_file(Path(run, "model.safetensors")) for run in (one, two)]
    assert weights[0].keys() == weights[1].keys()
    assert [name for name in weights[0] if not np.array_equal(weights[0][name], weights[1][name])] == []
    assert Path(one, "assignments.csv").read_bytes() == Path(two, "assignments.csv").read_bytes()
    losses = [[row["loss"] for row in Run(run).read_metrics()] for run in (one, two)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("threads", [1, 2])
def test_two_processes_give_the_same_result(threads: int) -> None:
    fit("one", threads)
    fit("two", threads)
    assert_same("one", "two")


def test_another_number_of_threads_gives_the_same_clusters() -> None:
    fit("one", 1)
    fit("two", 2)
    tables = [Run(run).read_assignments() for run in ("one", "two")]
    assert np.array_equal(tables[0].clusters, tables[1].clusters)
    assert np.allclose(tables[0].confidence, tables[1].confidence, atol=0.01)


def test_another_seed_gives_another_result() -> None:
    fit("one")
    worked(*WORDS[:4], "--seed", 6, *WORDS[6:], "--out", "two")
    assert Path("one", "assignments.csv").read_bytes() != Path("two", "assignments.csv").read_bytes()


def test_a_full_cache_and_files_of_others_in_it_change_nothing(own_cache: Path) -> None:
    fit("one")
    for number, folder in enumerate([own_cache, *(path for path in own_cache.rglob("*") if path.is_dir())]):
        (folder / "notes.txt").write_text("of another program\n")
        np.save(folder / f"{number}.npy", np.zeros(5))
        (folder / "0123456789abcdef.npy").write_bytes(b"no array")
        (folder / "0123456789abcdef.json").write_text("[]")
    fit("cached")
    assert_same("one", "cached")


def test_a_resumed_run_has_the_result_of_one_that_was_not_interrupted() -> None:
    every_step = ("--set", "train.checkpoint_minutes=0")
    fit("one", 1, *every_step)
    words = [sys.executable, "-m", "twincluster", *map(str, (*WORDS, "--out", "two", *every_step))]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as process:
        while not Path("two/checkpoint/state.safetensors").exists() and process.poll() is None:
            pass
        process.kill()
    assert command(*WORDS, "--out", "two", *every_step, "--resume").status == 0
    assert_same("one", "two")
