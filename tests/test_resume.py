"""Resuming: a run that was interrupted, at any moment and more than once, ends like one that never was, bit for bit.

Some processes here are really killed; the moments that a kill might hit are also gone through one by one.
"""

import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import twincluster
from small_runs import (
    SMALL,
    AtCall,
    assert_equal_state,
    images_of,
    pictures,
    rows,
    small_config,
    train,
    without_seconds,
)
from twincluster import fit as pipeline
from twincluster.cli import app as cli
from twincluster.config import Config, make_config, parse_overrides
from twincluster.core import InputError
from twincluster.data import Listing, open_source
from twincluster.runs import Run
from twincluster.training import CHECKPOINT_FILE, Trainer, has_checkpoint, load_checkpoint, save_checkpoint

METHODS = ("anchored", "tcc")
OFTEN = "train.checkpoint_minutes=0"  # a checkpoint after every step


# -- a real kill -----------------------------------------------------------------------------------------------------


def command(source: Path, out: Path, method: str, *more: str) -> list[str]:
    settings = ["train.batch_size=16", "train.image_size=8", "train.backbone=small", OFTEN, f"method={method}"]
    own = {
        "anchored": ["hidden=16", "n_features=8", "commit_weight=1.0", "instance=infonce"],
        "tcc": ["n_features=8", "cluster_queue=12", "instance_queue=64"],
    }
    settings += [f"{method}.{setting}" for setting in own[method]]
    pairs = [part for setting in settings for part in ("--set", setting)]
    fixed = ["--clusters", "3", "--epochs", "12", "--seed", "3", "--device", "cpu"]
    return ["fit", str(source), "--out", str(out), *fixed, *pairs, *more]


def kill_after(arguments: list[str], out: Path, step: int, delay: float) -> dict[str, Any]:
    """Start a run in a process of its own, wait for a checkpoint of `step` or later, and kill it; returns where."""
    environment = {**os.environ, "PYTHONPATH": str(Path(twincluster.__file__).parents[1])}
    program = [sys.executable, "-m", "twincluster", *arguments]
    child = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while child.poll() is None and saved_step(out) < step:
            time.sleep(0.01)
        time.sleep(delay)
    finally:
        child.send_signal(signal.SIGKILL)
        errors = child.communicate()[1]
    assert child.returncode == -signal.SIGKILL, errors
    return load_checkpoint(out / "checkpoint")[1]


def saved_step(out: Path) -> int:
    """Of the newest checkpoint, from its header alone; whenever there is one, it is whole."""
    if not has_checkpoint(out / "checkpoint"):
        return 0
    # not as torch's, for which the file is opened twice: in between it may become the next one
    with safe_open(out / "checkpoint" / CHECKPOINT_FILE, framework="np") as file:
        return int(json.loads(file.metadata()["progress"])["step"])


def outputs(folder: Path) -> dict[str, Any]:
    files = {name: (folder / name).read_bytes() for name in ("model.safetensors", "assignments.csv")}
    return {**files, "metrics": without_seconds(Run(folder).read_metrics())}


@pytest.mark.parametrize(("method", "kills"), [("anchored", 2), ("tcc", 1)])
def test_a_killed_process_resumes_bit_for_bit(tmp_path: Path, method: str, kills: int) -> None:
    array, labels = pictures(90)  # 5 steps an epoch
    source, whole, out = tmp_path / "data", tmp_path / "whole", tmp_path / "killed"
    source.mkdir()
    np.save(source / "images.npy", array)
    np.save(source / "labels.npy", labels)
    assert cli.main(command(source, whole, method)) == 0
    moment, step, seconds = random.Random(method), 0, 0.0
    for number in range(kills):
        options = ["--resume"] if number else []
        wait = moment.uniform(0, 0.05)
        progress = kill_after(command(source, out, method, *options), out, step + moment.randint(3, 9), wait)
        assert step < progress["step"] < 60
        assert progress["seconds"] > seconds
        step, seconds = progress["step"], progress["seconds"]
        assert not (out / "model.safetensors").exists()
        (out / "checkpoint" / f"{CHECKPOINT_FILE}.0123abcd.partial").write_bytes(b"of a writer that died")
    assert cli.main(command(source, out, method, "--resume")) == 0
    assert outputs(out) == outputs(whole)
    assert len(outputs(out)["metrics"]) == 12
    assert list(out.rglob("*.partial")) == []


# -- every moment ----------------------------------------------------------------------------------------------------


class Interruption(Exception):  # noqa: N818  (nothing went wrong)
    """Stands for the death of the process."""


def die() -> None:
    raise Interruption


def assert_same_end(folder: Path, wanted: Path) -> None:
    (found, progress), (state, wanted_progress) = (load_checkpoint(run / "checkpoint") for run in (folder, wanted))
    assert_equal_state(found, state)
    assert progress | {"seconds": 0} == wanted_progress | {"seconds": 0}
    assert without_seconds(Run(folder).read_metrics()) == without_seconds(Run(wanted).read_metrics())


@pytest.mark.parametrize("minutes", [OFTEN, "train.checkpoint_minutes=100"], ids=["often", "never"])
@pytest.mark.parametrize("changes", [("method=anchored",), ("method=tcc", "optimiser.name=adam")], ids=str)
def test_dying_at_any_moment_between_steps(tmp_path: Path, changes: tuple[str, ...], minutes: str) -> None:
    images, labels = images_of(rows()), np.arange(28) % 3
    changes = (*changes, minutes, "train.epochs=3")
    train(images, *changes, folder=tmp_path / "whole", labels=labels)
    for moment in range(1, 13):  # 3 epochs of 3 steps and a row each
        folder = tmp_path / str(moment)
        with pytest.raises(Interruption):
            train(images, *changes, folder=folder, labels=labels, reporter=AtCall(moment, die))
        train(images, *changes, folder=folder, labels=labels, resume=True)
        assert_same_end(folder, tmp_path / "whole")


@pytest.mark.parametrize("method", METHODS)
def test_dying_right_after_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """One run that lives for a single checkpoint at a time."""
    images, changes = images_of(rows()), (f"method={method}", OFTEN, "train.epochs=3")
    train(images, *changes, folder=tmp_path / "whole")
    save, lives = save_checkpoint, 0

    def save_and_die(*arguments: Any) -> None:
        save(*arguments)
        raise Interruption

    monkeypatch.setattr("twincluster.training.trainer.save_checkpoint", save_and_die)
    while not has_checkpoint(tmp_path / "run" / "checkpoint") or lives < 9:
        with pytest.raises(Interruption):
            train(images, *changes, folder=tmp_path / "run", resume=lives > 0)
        lives += 1
    monkeypatch.setattr("twincluster.training.trainer.save_checkpoint", save)
    train(images, *changes, folder=tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_a_finished_run_resumes_to_the_same_end(tmp_path: Path) -> None:
    for changes in (("anchored.commit_weight=0",), ()):  # with a head that is set at the end, and one that is not
        folder = tmp_path / str(len(changes))
        method = train(images_of(rows()), *changes, folder=folder)
        again = train(images_of(rows()), *changes, folder=folder, resume=True)
        assert_equal_state(again.state_dict(), method.state_dict())
        assert [row["epoch"] for row in Run(folder).read_metrics()] == [0, 1, 2, 3]


def test_a_half_written_row_of_metrics_is_written_again(tmp_path: Path) -> None:
    images = images_of(rows())
    train(images, OFTEN, folder=tmp_path / "whole")
    with pytest.raises(Interruption):
        train(images, OFTEN, folder=tmp_path / "run", reporter=AtCall(10, die))
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "steps": 3, "lo')
    train(images, OFTEN, folder=tmp_path / "run", resume=True)
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_by_minutes_the_time_already_spent_counts(tmp_path: Path) -> None:
    images = images_of(rows())
    config = small_config(images, "train.minutes=0.1", OFTEN)
    run = Run(tmp_path)
    with pytest.raises(Interruption):
        Trainer(config, images, run=run, reporter=AtCall(7, die)).run()
    state, progress = load_checkpoint(run.checkpoint)
    assert progress["step_in_epoch"] > 0
    save_checkpoint(run.checkpoint, state, progress | {"seconds": 6.0})  # all of it
    trainer = Trainer(config, images, run=run)
    trainer.run(resume=True)
    assert trainer.clock.step <= progress["step"] + 1
    assert [row["epoch"] for row in run.read_metrics()] == [0, 1]  # the epoch under way has its row
    assert run.read_metrics()[-1]["seconds"] >= 6


# -- refusals --------------------------------------------------------------------------------------------------------


def fit(listing: Listing, out: Path, *changes: str, resume: bool = False, split: pipeline.Split = "all") -> None:
    config: Config = make_config(parse_overrides(("train.epochs=2", *changes)), SMALL)
    pipeline.fit(listing, config, out, resume=resume, split=split)


def content(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is asked again and again to go on with other settings."""
    folder = tmp_path_factory.mktemp("begun")
    fit(open_source(pictures()[0]), folder / "run", "train.epochs=1")
    return folder


@pytest.mark.parametrize(
    "change",
    ["seed=1", "n_clusters=2", "method=tcc", "optimiser.learning_rate=0.2", "train.batch_size=7", "augment.flip=0.1",
     "anchored.temperature=0.3", "anchored.shrinkage=0.1", "train.image_size=6"],
)  # fmt: skip
def test_other_settings_are_refused_by_name(begun: Path, change: str) -> None:
    before = content(begun)
    with pytest.raises(InputError, match=f"was started with .*{change.split('=')[0]}.*: resume with the same"):
        fit(open_source(pictures()[0]), begun / "run", change, resume=True)
    assert content(begun) == before


def test_only_what_differs_is_named(tmp_path: Path) -> None:
    listing = open_source(rows())
    fit(listing, tmp_path / "run", "train.epochs=1")
    with pytest.raises(InputError) as refusal:
        fit(listing, tmp_path / "run", "seed=4", "augment.noise=0.9", resume=True)
    assert re.search("seed.*augment.noise.*: resume with the same settings", str(refusal.value))
    assert "train." not in str(refusal.value)


def test_length_and_checkpoints_may_change(tmp_path: Path) -> None:
    listing = open_source(rows())
    fit(listing, tmp_path / "run")
    fit(listing, tmp_path / "run", "train.epochs=5", OFTEN, resume=True)
    assert [row["epoch"] for row in Run(tmp_path / "run").read_metrics()] == [0, 1, 2, 3, 4]
    assert Run(tmp_path / "run").config.train.epochs == 5


def test_other_data_is_refused_and_the_same_data_elsewhere_is_not(tmp_path: Path) -> None:
    array, _ = pictures()
    fit(open_source(array), tmp_path / "run", "train.epochs=1")
    before = content(tmp_path / "run")
    other = array.copy()
    other[5, 2, 2, 0] ^= 1
    for changed in (other, array[:-1], np.concatenate([array, array[:1]])):
        with pytest.raises(InputError, match="was started on other data: resume with the same source"):
            fit(open_source(changed), tmp_path / "run", resume=True)
    assert content(tmp_path / "run") == before
    np.save(tmp_path / "copy.npy", array)
    fit(open_source(tmp_path / "copy.npy"), tmp_path / "run", resume=True)


def test_another_split_is_refused(tmp_path: Path) -> None:
    listing = dataclasses.replace(open_source(rows()), split=(np.arange(28) % 2).astype(np.int8))
    fit(listing, tmp_path / "run", "train.epochs=1", split="train")
    for split in ("test", "all"):
        with pytest.raises(InputError, match="was started with --split train.*: resume with the same"):
            fit(listing, tmp_path / "run", resume=True, split=split)


def test_only_a_run_can_be_resumed(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=".* contains no run to resume: omit --resume"):
            fit(open_source(rows()), folder, resume=True)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    listing = open_source(rows())
    fit(listing, tmp_path / "run", "train.epochs=1")
    (tmp_path / "run" / "checkpoint" / CHECKPOINT_FILE).write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="is not a checkpoint of twincluster"):
        fit(listing, tmp_path / "run", resume=True)


@pytest.mark.parametrize("change", ["gone", "another shape"])
def test_the_checkpoint_of_another_method_of_that_name_is_refused(tmp_path: Path, change: str) -> None:
    """One's own class may have changed since; weights that the checkpoint lacks would begin as zeros."""
    images, name = images_of(rows()), "method.online.backbone.layers.0.weight"
    train(images, "train.epochs=1", folder=tmp_path)
    tensors, progress = load_checkpoint(Run(tmp_path).checkpoint)
    weight = tensors.pop(name)
    save_checkpoint(Run(tmp_path).checkpoint, tensors | ({} if change == "gone" else {name: weight[:1]}), progress)
    with pytest.raises(InputError, match=re.escape(name)):
        train(images, "train.epochs=2", folder=tmp_path, resume=True)
