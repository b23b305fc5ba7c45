"""How several processes end: killed, interrupted or refused, with one line from all of them, and how they go on."""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.torch import load_file
from several_processes import COUNT, assert_near, end_of, torchrun

from small_runs import pictures
from twincluster.cli import app as cli
from twincluster.parallel import launch
from twincluster.runs import Run
from twincluster.training import has_checkpoint, load_checkpoint


def fit_command(source: Path, out: Path, *more: str) -> list[str]:
    settings = ["train.batch_size=15", "train.image_size=8", "train.backbone=small", "train.checkpoint_minutes=0",
                "method=tcc", "tcc.n_features=8", "tcc.cluster_queue=12", "tcc.instance_queue=64",
                "optimiser.name=sgd", "optimiser.learning_rate=0.01", "optimiser.schedule=constant",
                "optimiser.warmup=0.0"]  # fmt: skip
    pairs = [part for setting in settings for part in ("--set", setting)]
    return ["fit", str(source), "--out", str(out), "--clusters", "3", "--device", "cpu", *pairs, *more]


def saved_step(out: Path) -> int:
    return int(load_checkpoint(out / "checkpoint")[1]["step"]) if has_checkpoint(out / "checkpoint") else 0


def reaches(child: subprocess.Popen[bytes], out: Path, step: int) -> bool:
    """Whether the run gets so far; if not, its log will tell why."""
    end = time.monotonic() + 300
    while child.poll() is None and saved_step(out) < step and time.monotonic() < end:
        time.sleep(0.05)
    return child.poll() is None and saved_step(out) >= step


def process_of(child: subprocess.Popen[bytes], rank: int) -> psutil.Process:
    ours = psutil.Process(child.pid).children()
    return next(process for process in ours if process.environ().get("RANK") == str(rank))


def our_lines(log: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith("twincluster: ")]


@pytest.mark.parametrize("victim", range(COUNT))
def test_a_killed_process_ends_all_and_one_process_goes_on(tmp_path: Path, victim: int) -> None:
    source, whole, out = tmp_path / "images.npy", tmp_path / "whole", tmp_path / "run"
    np.save(source, pictures(90)[0])  # 6 steps an epoch
    child = torchrun("-m", "twincluster", *fit_command(source, out, "--epochs", "400"), folder=tmp_path)
    if reaches(child, out, step=8):
        os.kill(process_of(child, victim).pid, signal.SIGKILL)
    status, log = end_of(child, tmp_path)
    assert status != 0, log
    how = f"the same command with --out {out} --resume continues from the last checkpoint"
    assert our_lines(log) == [f"twincluster: process {victim} ended, so the run stopped; {how}"], log
    assert "bug in twincluster" not in log
    assert log.splitlines().count("90 inputs in images.npy, 3 clusters") == 1  # said by one
    epochs = str(saved_step(out) // 6 + 2)
    assert cli.main(fit_command(source, out, "--epochs", epochs, "--resume")) == 0  # alone
    assert cli.main(fit_command(source, whole, "--epochs", epochs)) == 0
    losses = [[row["loss"] for row in Run(folder).read_metrics()] for folder in (out, whole)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    weights = [load_file(folder / "model.safetensors") for folder in (out, whole)]
    assert_near(*weights, 1e-3)


def test_a_bad_command_is_answered_once(tmp_path: Path) -> None:
    status, log = end_of(torchrun("-m", "twincluster", "fit", tmp_path / "nowhere", folder=tmp_path), tmp_path)
    assert status != 0
    assert len(our_lines(log)) == 1, log
    assert "no such file" in our_lines(log)[0]


@pytest.mark.parametrize("command", ["predict", "update", "serve"])
def test_what_only_one_process_does_is_refused_to_several(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[int] = []
    monkeypatch.setattr(launch, "leave", ends.append)  # which would end this process
    monkeypatch.setattr(launch, "_watch", lambda *_: None)  # and so would this, seconds after a test of interrupts
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    assert cli.main([command, "run", "photos"]) == 2
    said = f"twincluster: twincluster {command} works in one process: start it without torchrun\n"
    assert capsys.readouterr().err == said
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert cli.main([command, "run", "photos"]) == 2
    assert capsys.readouterr().err == ""
    assert ends == [2, 2]


def test_an_interrupt_is_answered_once_and_two_go_on(tmp_path: Path) -> None:
    source, out = tmp_path / "images.npy", tmp_path / "run"
    np.save(source, pictures(90)[0])
    child = torchrun("-m", "twincluster", *fit_command(source, out, "--epochs", "400"), folder=tmp_path)
    if reaches(child, out, step=3):
        child.send_signal(signal.SIGINT)
    _, log = end_of(child, tmp_path)
    how = f"the same command with --out {out} --resume continues from the last checkpoint"
    assert our_lines(log) == [f"twincluster: interrupted; {how}"], log
    epochs = saved_step(out) // 6 + 2
    resumed = fit_command(source, out, "--epochs", str(epochs), "--resume")
    status, log = end_of(torchrun("-m", "twincluster", *resumed, folder=tmp_path), tmp_path)
    assert status == 0, log
    assert [row["epoch"] for row in Run(out).read_metrics()] == list(range(epochs))
    assert len(Run(out).read_assignments().paths) == 90
    assert sum(line.startswith("sizes ") for line in log.splitlines()) == 1
