"""The kernels that train residual networks on a GPU, interpreted on the CPU, against torch's own layers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fused_networks import NAMES
from twincluster.rehearsal import trouble_with_triton

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """From a process of its own: Triton decides once, when it is imported, whether it interprets."""
    script = Path(__file__).with_name("fused_networks.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    differences: dict[str, Any] = json.loads(done.stdout)
    return differences


@pytest.mark.parametrize("network", [*NAMES, "small tiles"])
@pytest.mark.parametrize("what", ["output", "gradient", "statistics"])
def test_they_compute_what_the_layers_do(found: dict[str, Any], network: str, what: str) -> None:
    assert found["networks"][network][what] < 2e-5


@pytest.mark.parametrize("network", NAMES)
def test_made_images_get_the_gradient_that_the_layers_give(found: dict[str, Any], network: str) -> None:
    assert found["images"][network] < 2e-5


def test_a_large_mean_does_not_drown_a_small_deviation(found: dict[str, Any]) -> None:
    assert found["deviation"] < 1e-4


def test_steps_of_the_default_method_stay_the_same(found: dict[str, Any]) -> None:
    plain, fused = found["losses"]
    assert fused == pytest.approx(plain, rel=1e-5)


def test_where_there_is_no_gpu_the_trouble_is_told_and_not_raised() -> None:
    assert trouble_with_triton(torch.device("cpu"))
