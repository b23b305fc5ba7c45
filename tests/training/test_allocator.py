"""What a step frees stays with a process that trains on a CPU."""

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import TINY, colours, worked
from small_encoders import own_weights
from twincluster.nn import encode

# pages that the system had to give while as much memory was taken and freed again and again as a small step takes
FAULTS = """
import resource, torch
from twincluster.core import keep_freed
keep_freed()
def steps():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        [torch.ones(2**21) for _ in range(16)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
steps()
print(steps())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is set is glibc's")
def test_memory_is_taken_from_the_system_once() -> None:
    found = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    assert int(found.stdout) < 33_000  # 327,360 without; some on a machine short of memory


def test_an_encoder_finds_it_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for place in ("fit", "model"):
        monkeypatch.setattr(f"twincluster.{place}.keep_freed", lambda: asked.append("kept"))
    monkeypatch.setattr("twincluster.model.encode", lambda *given: asked.append("encoded") or encode(*given))
    np.save(tmp_path / "images.npy", colours()[0])
    encoder = ("--backbone", f"small:{own_weights(tmp_path)}", "--set", "train.batch_size=16")
    worked("fit", tmp_path / "images.npy", "-k", 3, "--out", tmp_path / "run", "--epochs", 1, *encoder)
    assert asked[:2] == ["kept", "encoded"]
    asked.clear()
    worked("predict", tmp_path / "run", tmp_path / "images.npy", "--out", tmp_path / "new.csv", "--device", "cpu")
    assert asked == ["kept", "encoded"]


def test_training_on_a_cpu_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("twincluster.fit.keep_freed", lambda: asked.append(True))
    np.save(tmp_path / "images.npy", colours()[0])
    worked("fit", tmp_path / "images.npy", "--clusters", 3, "--out", tmp_path / "run", *TINY)
    assert asked == [True]
