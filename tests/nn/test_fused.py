"""The kernels that train residual networks on a GPU, interpreted on the CPU, against torch's own layers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fused_networks
from fused_networks import NAMES, build
from twincluster.training.cuda_graph import trouble_with_triton

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from twincluster.nn.kernels import fused, norm  # noqa: E402


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """From a process of its own: Triton decides once, when it is imported, whether it interprets."""
    script = Path(fused_networks.__file__)
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
    assert trouble_with_triton([], torch.device("cpu"), False)


def test_what_a_network_needs_is_tried_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also going back: the kernel that wants most of a GPU is of the backward pass."""
    network, tried = build("small")[0], []

    class Told(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, images: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            tried.append(images.shape[1])
            return images.mean() * weight

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            raise OSError("out of shared memory")

    monkeypatch.setattr(norm, "settle", lambda *_: None)
    monkeypatch.setattr(fused, "pixels", lambda one, images: Told.apply(images, next(one.parameters())))
    assert trouble_with_triton([network], torch.device("cpu"), False) == "out of shared memory"
    assert tried == [3]
    assert all(weight.grad is None for weight in network.parameters())


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("masked", [True, False])
def test_kernels_of_the_stem_fit_small_gpus(precision: str, masked: bool) -> None:
    """Compiled here for a GPU of 99 KiB of shared memory for each block, as an RTX 3090 or an A10 has."""
    small = GPUTarget("cuda", 86, 32)
    sizes = dict.fromkeys(("n_channels", "chunk", "n_rows", "height", "width"), "i32")
    forth = {"images": "*fp32", "weight": "*fp32", "out": f"*{precision}", "sums": "*fp32", **sizes}
    back = {"slope": f"*{precision}", "x": f"*{precision}", "settled": "*fp32", "back": "*fp32", "images": "*fp32"}
    back |= {"of_weight": "*fp32", **sizes}
    for kernel, arguments, given in (
        (fused._convolve_kernel, forth, fused.TILE),
        (fused._convolve_back_kernel, back, {"MASKED": masked, **fused.BACK_TILE}),
    ):
        constants = {"C": 3, "K": 32, **given}
        fusion = {"enable_fp_fusion": constants.pop("enable_fp_fusion")}
        aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(arguments))}
        signature = arguments | dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, signature, constants, aligned)
        assert triton.compile(source, target=small, options=fusion).metadata.shared <= 99 * 1024
