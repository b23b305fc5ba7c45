"""Starting real processes with torchrun on the CPU, and waiting for their end."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

import twincluster

COUNT = 2


def torchrun(*program: str | Path, folder: Path) -> subprocess.Popen[bytes]:
    """`torchrun PROGRAM`, all that it and the processes print in `folder`/log."""
    source = Path(twincluster.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parents[1]}"}
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(COUNT), "--rdzv-backend", "c10d"]
    command = [sys.executable, *launcher, "--rdzv-endpoint", "localhost:0", *map(str, program)]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def end_of(child: subprocess.Popen[bytes], folder: Path, seconds: float = 300) -> tuple[int, str]:
    """Status and log; whoever hangs is ended, and said to have hung."""
    try:
        status = child.wait(seconds)
    except subprocess.TimeoutExpired:
        for process in [*psutil.Process(child.pid).children(recursive=True), child]:
            process.kill()
        child.wait()
        pytest.fail(f"the processes hang:\n{(folder / 'log').read_text()}")
    return status, (folder / "log").read_text(errors="replace")


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor], far: float) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=far, atol=far, msg=lambda text, name=name: f"{name}: {text}"
        )
