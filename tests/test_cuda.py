"""Training on a GPU: the captured step is the plain step, every method can be captured, and a run can be resumed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fused_networks
from small_runs import images_of, make, pictures, train
from twincluster.methods import METHODS
from twincluster.nn import ResNet
from twincluster.training import Trainer
from twincluster.training import cuda_graph as rehearsal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

RATES = {"dccs": 1e-3}  # made for Adam at 1e-4: with SGD at .05 its critic diverges, captured or not
ON_CUDA = ("train.device=cuda", "train.precision=float32", "train.compile=false")


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full float32 and one order of sums, so that what differs is what was done, not how it was rounded."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)  # a run switches it on


def take_steps(trainer: Trainer, captured: bool) -> dict[str, torch.Tensor]:
    """Two epochs of steps at the full rate, and all that they leave behind."""
    for network in trainer.method.modules():
        if isinstance(network, ResNet):
            network.fused = True
    take = rehearsal.captured(trainer) if captured else trainer.step
    for group in trainer.optimiser.param_groups:
        group["lr"].fill_(RATES.get(trainer.config.method, 0.05))
    for epoch in range(2):
        trainer.epoch_on_device.fill_(epoch)
        for _ in trainer.feed.epoch(epoch):
            take()
    return {name: tensor.clone() for name, tensor in trainer.state().items()}


@pytest.mark.parametrize("name", METHODS)
def test_a_captured_step_does_what_the_plain_step_does(name: str) -> None:
    plain = take_steps(make("images", f"method={name}", *ON_CUDA), captured=False)
    graph = take_steps(make("images", f"method={name}", *ON_CUDA), captured=True)
    assert plain.keys() == graph.keys()
    assert all(tensor.isfinite().all() for tensor in plain.values() if tensor.is_floating_point())
    for key, tensor in plain.items():
        torch.testing.assert_close(graph[key], tensor, rtol=1e-3, atol=1e-3, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("network", fused_networks.NAMES)
def test_fused_kernels_compute_what_the_layers_do(network: str) -> None:
    found = fused_networks.difference(network, "cuda")
    found["images"] = fused_networks.difference_for_images(network, "cuda")
    assert max(found.values()) < 2e-5, found


def test_without_a_c_compiler_a_run_says_so_and_takes_longer(tmp_path: Path) -> None:
    environment = os.environ | {"CC": "/nowhere/cc", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    words = f"-m twincluster fit digits -k 10 --epochs 2 --out {tmp_path / 'run'}".split()
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Triton" in done.stderr


@pytest.mark.parametrize("name", ["anchored", "tcc"])
def test_bf16_losses_are_close_to_float32(name: str) -> None:
    sums = {}
    for precision in ("float32", "bf16"):
        trainer = make("images", f"method={name}", *ON_CUDA, f"train.precision={precision}")
        next(trainer.feed.epoch(0))
        trainer.step()
        sums[precision] = float(trainer.record.totals["loss"])
    assert sums["bf16"] == pytest.approx(sums["float32"], rel=0.05)


@pytest.mark.parametrize("name", ["anchored", "tcc"])
def test_a_resumed_run_ends_like_one_that_was_not_interrupted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = (f"method={name}", *ON_CUDA, "train.epochs=6")
    images = images_of(pictures()[0])
    whole = train(images, *changes, folder=tmp_path / "whole").state_dict()

    end_epoch = Trainer._end_epoch

    def interrupt(trainer: Trainer, steps: int) -> None:
        end_epoch(trainer, steps)
        trainer._save(0)
        if trainer.epoch == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_end_epoch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(images, *changes, folder=tmp_path / "cut")
    resumed = train(images, *changes, folder=tmp_path / "cut", resume=True).state_dict()
    for key, tensor in whole.items():
        if key != "labels":
            torch.testing.assert_close(
                resumed[key], tensor, rtol=1e-2, atol=1e-2, msg=lambda text, key=key: f"{key}: {text}"
            )
