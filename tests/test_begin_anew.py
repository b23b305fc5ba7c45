"""A run that ended before anything of its training was kept: what is said of it, and how it begins anew."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from command_line import TINY, Done, colours, command, worked
from small_runs import AtCall, Diary, rows
from twincluster import fit as pipeline
from twincluster.cli.terminal import resumable
from twincluster.config import make_config
from twincluster.core import InputError
from twincluster.data import open_source
from twincluster.estimator import TwinContrastClustering
from twincluster.runs import Run, provenance
from twincluster.training import Trainer

QUICK = make_config({"n_clusters": 3, "train": {"epochs": 2, "batch_size": 8, "device": "cpu"}})


class Told(Diary):
    """Warnings that come before the first epoch too."""

    def warn(self, message: str) -> None:
        self.warnings.append((-1, message))


class Dead(Exception):  # noqa: N818  (nothing went wrong)
    """Stands for the death of the process."""


def die() -> None:
    raise Dead


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The folder of a run that died after its first step."""
    with pytest.raises(Dead):
        pipeline.fit(open_source(rows()), QUICK, tmp_path / "run", reporter=AtCall(1, die))
    return tmp_path / "run"


@pytest.mark.parametrize("changes", [{}, {"seed": 4, "train": {"epochs": 1}, "optimiser": {"learning_rate": 0.02}}])
def test_it_begins_anew_with_what_is_given_now_and_says_so(bare: Path, changes: dict[str, object]) -> None:
    config, listing, told = make_config(changes, QUICK), open_source(rows(seed=1)), Told()
    pipeline.fit(listing, config, bare, resume=True, reporter=told)
    assert told.warnings[0][1] == f"{bare} has no checkpoint yet, so training starts from the beginning"
    pipeline.fit(listing, config, bare.with_name("fresh"))
    for name in ("config.json", "model.safetensors", "assignments.csv"):
        assert (bare / name).read_bytes() == (bare.with_name("fresh") / name).read_bytes()
    assert len(provenance.read(bare).sittings) == 1


def test_a_run_with_a_checkpoint_goes_on_without_a_word(tmp_path: Path) -> None:
    often, told = make_config({"train": {"checkpoint_minutes": 0}}, QUICK), Told()
    with pytest.raises(Dead):
        pipeline.fit(open_source(rows()), often, tmp_path / "run", reporter=AtCall(3, die))
    pipeline.fit(open_source(rows()), often, tmp_path / "run", resume=True, reporter=told)
    assert not any("anew" in message for _, message in told.warnings)
    with pytest.raises(InputError, match="was started with another seed"):
        pipeline.fit(open_source(rows()), make_config({"seed": 4}, often), tmp_path / "run", resume=True)


def test_a_finished_run_without_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    TwinContrastClustering(3, epochs=1, random_state=0, device="cpu").fit(rows()).save(tmp_path / "saved")
    pipeline.fit(open_source(rows()), QUICK, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    for name in ("saved", "run"):
        before = (tmp_path / name / "metrics.jsonl").read_bytes()
        with pytest.raises(InputError, match="has a model but no checkpoint to continue from: fit into another --out"):
            pipeline.fit(open_source(rows()), QUICK, tmp_path / name, resume=True)
        assert (tmp_path / name / "metrics.jsonl").read_bytes() == before


def test_what_the_commands_say_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "images.npy", colours()[0])
    run = tmp_path / "run"

    def fit(*more: object) -> Done:
        return command("fit", tmp_path / "images.npy", "-k", 3, "--out", run, *TINY, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", lambda trainer: die())
        assert fit().status == 1
    assert sorted(path.name for path in run.iterdir()) == ["config.json", "provenance.json"]
    assert fit().complaint == f"{run} exists and is not empty: choose another --out, or continue it with --resume"
    for words in (("report", run), ("evaluate", run), ("predict", run, tmp_path / "images.npy", "--out", "new.csv")):
        assert "yet: continue the run with " in command(*words).complaint
    done = fit("--resume", "--seed", 3)
    assert done.status == 0
    assert f"warning: {run} has no checkpoint yet, so training starts from the beginning\n" in done.err
    assert json.loads((run / "config.json").read_text())["config"]["seed"] == 3
    worked("evaluate", run)


def test_an_interrupt_says_whether_there_is_something_to_go_on_from(bare: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt, match="--resume starts again: there is no checkpoint yet$"),
        resumable(bare, "it"),
    ):
        raise KeyboardInterrupt
    pipeline.fit(open_source(rows()), QUICK, bare, resume=True)
    with pytest.raises(KeyboardInterrupt, match="continues from the last checkpoint$"), resumable(bare, "it"):
        raise KeyboardInterrupt
    assert Run(bare).read_metrics()
