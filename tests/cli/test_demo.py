"""The demo: scores beside three classics, a run folder, and what to do next."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from command_line import Done, command, worked
from twincluster.cli.app import _classic_scores
from twincluster.runs import Run


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    out = tmp_path_factory.mktemp("demo") / "a run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "twincluster.clustering.neighbours.FEWEST", 10**9
        )  # a map by PCA: t-SNE takes longer than all the rest
        return out, worked("demo", "--out", out, "--epochs", 1, "--seed", 3)


def test_prints_a_table_of_four_methods(demonstrated: tuple[Path, Done]) -> None:
    _, done = demonstrated
    lines = done.out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split() == ["method", "ACC", "NMI", "ARI"])
    rows = [
        re.fullmatch(r"(\S.*?) +(\d\.\d{3}) +(\d\.\d{3}) +(\d\.\d{3})", line) for line in lines[head + 1 : head + 5]
    ]
    assert [row and row[1] for row in rows] == [
        "k-means on pixels", "Ward on pixels", "spectral on pixels", "twincluster",
    ]  # fmt: skip
    assert len({len(line) for line in lines[head : head + 5]}) == 1  # columns stand under each other
    assert "Traceback" not in done.err


def test_leaves_a_run_and_says_what_to_do_next(demonstrated: tuple[Path, Done]) -> None:
    out, done = demonstrated
    assert f"the run is in {out}" in done.out
    assert str(out / "assignments.csv") in done.out
    assert f"next: twincluster evaluate '{out}'  " in done.out  # the name has a blank
    assert "twincluster fit FOLDER --clusters K --out runs/mine" in done.out
    config, data = Run.open(out).config, Run.open(out).data
    assert (config.train.epochs, config.seed, data.source, data.inputs) == (1, 3, "digits", 1797)
    printed = re.search(r"^twincluster +(\S+) +(\S+) +(\S+)$", done.out, re.MULTILINE)
    evaluated = re.search(r"ACC (\S+)  NMI (\S+)  ARI (\S+)", worked("evaluate", out).out)
    assert printed
    assert evaluated
    assert [float(value) for value in printed.groups()] == [
        pytest.approx(float(value), abs=6e-4) for value in evaluated.groups()
    ]


def test_a_folder_in_use_is_refused_at_once(demonstrated: tuple[Path, Done]) -> None:
    out, _ = demonstrated
    before = (out / "model.safetensors").read_bytes()
    done = command("demo", "--out", out)
    assert done.complaint.startswith(f"{out} exists and is not empty: choose another --out")
    assert done.out == ""
    assert (out / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("option,value", [("--epochs", 0), ("--epochs", -1), ("--seed", -1), ("--seed", 2**32)])
def test_bad_options(tmp_path: Path, option: str, value: int) -> None:
    complaint = command("demo", "--out", tmp_path / "run", option, value).complaint
    assert f"{option}: expected a whole number" in complaint
    assert f", not {value}; see twincluster demo --help" in complaint
    assert not (tmp_path / "run").exists()


def test_the_classics_score_as_is_known_of_them(digits: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> None:
    scores = _classic_scores(*digits, seed=0)
    assert scores["k-means on pixels"].acc == pytest.approx(0.79, abs=0.01)
    assert scores["Ward on pixels"].acc == pytest.approx(0.84, abs=0.01)
    assert scores["spectral on pixels"].acc == pytest.approx(0.81, abs=0.015)


def test_an_interrupt_names_the_length_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(out: Path, config: object) -> None:
        out.mkdir(exist_ok=True)
        (out / "config.json").write_text("{}")  # a run that has begun
        raise KeyboardInterrupt

    monkeypatch.setattr("twincluster.cli.app._run_demo", interrupted)
    done = command("demo", "--epochs", 3, "--seed", 1, "--out", tmp_path / "demo")
    assert done.status == 130
    assert "twincluster fit digits --recipe digits --seed 1 --epochs 3 --out" in done.err
