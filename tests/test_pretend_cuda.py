"""Training on CUDA, without one: every method, from the rehearsal of a captured step to a prediction.

On a device that is pretended (pretend_cuda.py, which says what it cannot see); test_cuda.py is for a real one. First
the runs, then the device itself, which must refuse what CUDA refuses.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pretend_cuda import Graph, OnDevice, Refused, pretend_cuda
from small_encoders import own_weights
from small_peers import small
from small_runs import AtCall, assert_equal_state, images_of, pictures, rows, train
from twincluster.clustering import kmeans as assign
from twincluster.methods import METHODS
from twincluster.methods import base as inference
from twincluster.methods.peers.contrastive import Cc
from twincluster.nn import encode, load_encoder
from twincluster.training import cuda_graph as rehearsal
from twincluster.training import trainer as engine

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device: test_cuda.py has it")

N = 20  # samples: two steps of 8 in an epoch, and a rest
KINDS = {"images": pictures(N)[0], "rows": rows(N)}
ON_CUDA = ("train.device=cuda", "train.precision=float32", "train.compile=false", "train.epochs=2")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton is not pretended; and where nothing is lazy or tuned, one rehearsal does for several."""
    monkeypatch.setattr(rehearsal, "trouble_with_triton", lambda *_: "it is not pretended")
    monkeypatch.setattr(rehearsal, "REHEARSALS", 1)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)  # a run switches it on


def trained(kind: str, *changes: str, free: int = 1 << 40, **options: Any) -> dict[str, Tensor]:
    """All that a run on the pretended device leaves behind, and what it predicts there."""
    images = images_of(KINDS[kind])
    smallest = ("train.backbone=small",) if kind == "images" else ()
    with pretend_cuda(free):
        method = train(images, *ON_CUDA, *smallest, *changes, **options)
        assert all(tensor.is_cuda for tensor in method.state_dict().values())
        predicted = inference.predict(method.online, images.pixels, images.usable)
        return {"predicted": predicted} | {name: tensor.cpu() for name, tensor in method.state_dict().items()}


def as_plain_steps(kind: str, *changes: str, **options: Any) -> dict[str, Tensor]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "captured", lambda trainer: trainer.step)
        return trained(kind, *changes, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_run_of_captured_steps_is_the_run_of_plain_ones(name: str, kind: str) -> None:
    """Bit for bit: what a graph keeps of Python's numbers would show in the second epoch."""
    assert_equal_state(trained(kind, *small(name)), as_plain_steps(kind, *small(name)))


ADAM = ("optimiser.name=adam", "optimiser.learning_rate=0.001")
UNUSUAL = {
    "images, every augmentation": ("augment.rotate=20", "augment.blur=0.5", "augment.solarise=0.5", "augment.hole=0.4"),
    "images, in parts": ("train.parts=3",),
    "images, even sizes": (*ADAM, "anchored.balance=1.0", "anchored.instance=byol"),
    "images, sizes of the data": ("anchored.balance=-1.0", "anchored.hidden=0"),
    "images, switches": (
        *("method=tcc", "tcc.shuffle_keys=true", "tcc.unit_norm=true", "tcc.centred=true"),
        *("tcc.entropy=batch", "tcc.prototypes=simplex"),
    ),
    "rows, a number to be chosen": ("n_clusters=0", "clusters_between=[2,5]"),
    "rows, neighbours": (*ADAM, "augment.neighbours=3", "train.components=3"),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_settings_that_are_off_in_other_tests(case: str) -> None:
    kind, labels = case.split(",")[0], np.arange(N) % 3
    assert_equal_state(
        trained(kind, *UNUSUAL[case], labels=labels), as_plain_steps(kind, *UNUSUAL[case], labels=labels)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_does_not_fit_is_streamed_with_the_same_result(kind: str) -> None:
    assert_equal_state(trained(kind, free=0), trained(kind))


class Death(Exception):  # noqa: N818  (nothing went wrong)
    """Stands for the end of the process."""


def die() -> None:
    raise Death


def test_a_run_that_dies_goes_on_bit_for_bit(tmp_path: Path) -> None:
    often = "train.checkpoint_minutes=0"
    with pytest.raises(Death):
        trained("rows", often, folder=tmp_path, reporter=AtCall(4, die))  # the first step of the second epoch
    assert_equal_state(trained("rows", often, folder=tmp_path, resume=True), trained("rows", often))


def test_features_of_an_encoder_are_those_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, images = load_encoder(f"small:{own_weights(tmp_path)}@16"), images_of(KINDS["images"])
    expected = encode(images, encoder, "cpu").pixels
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(tmp_path))  # where they are not yet
    with pretend_cuda():
        found = encode(images, encoder, "cuda").pixels
        assert next(encoder.network.parameters()).is_cuda
    assert np.ptp(expected, axis=0).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_rows_are_added_up_as_on_the_cpu() -> None:
    given, labels = torch.from_numpy(rows()), torch.arange(28) % 3
    sums, expected = torch.zeros(3, 5), torch.zeros(3, 5)
    assign.add_rows(expected, labels, given)
    with pretend_cuda():
        on_device = sums.cuda()
        assign.add_rows(on_device, labels.cuda(), given.cuda())
        torch.testing.assert_close(on_device.cpu(), expected)


# -- the device ------------------------------------------------------------------------------------------------------


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.ones(3)  # not registered: it stays behind when the module moves


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * torch.arange(3)


def captured(step: Callable[[Tensor], object]) -> Graph:
    with pretend_cuda() as device:
        x, graph = torch.tensor([1.0, 2.0, 3.0], device="cuda", requires_grad=True), Graph()
        with device.capture(graph):
            step(x)
        return graph


MIXED: dict[str, Callable[[Tensor], object]] = {
    "a range without a device": lambda x: x + torch.arange(3),
    "gathered by indices of the CPU": lambda x: x.gather(0, torch.tensor([0, 1])),
    "a buffer that is not registered": lambda x: x * Forgetful().to("cuda").offset,
    "joined": lambda x: torch.cat([x, torch.zeros(2)]),
    "a scalar where none is taken": lambda x: torch.stack([x.sum(), torch.tensor(1.0)]),
    "into a tensor on the CPU": lambda x: torch.zeros(()).add_(x.sum()),
    "the CPU's rows by indices of the device": lambda x: torch.ones(3)[x.long() - 1],
    "in the backward pass": lambda x: Backwards.apply(x).sum().backward(),
    "a product of integers": lambda x: x.long()[None] @ x.long(),
}
NOT_CAPTURED: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "a branch": lambda x: bool(x.sum() > 0),
    "an index": lambda x: x[x.argmax()],
    "tolist": lambda x: x.tolist(),
    "to the CPU": lambda x: x.detach().cpu(),
    "copied to the CPU": lambda x: torch.zeros(3).copy_(x.detach()),
    "from the CPU": lambda x: torch.arange(3).to(x.device),
    "copied from the CPU": lambda x: torch.zeros_like(x).copy_(torch.arange(3)),
    "a list of numbers": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "indices from the CPU": lambda x: x[torch.tensor([0, 1])],
    "a mask": lambda x: x[x > 1],
    "written through a mask": lambda x: x.detach().__setitem__(x > 1, x.detach()[:2] + 1),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x.masked_select(x > 1),
    "unique": lambda x: x.detach().unique(),
    "repeat_interleave": lambda x: x.detach().repeat_interleave(x.long()),
    "bincount": lambda x: x.long().bincount(minlength=9),
    "equal": lambda x: torch.equal(x, x + 1),
    "eigenvalues": lambda x: torch.linalg.eigh(torch.diag(x.detach())),
    "an inverse": lambda x: torch.linalg.inv(torch.diag(x.detach())),
    "a draw": lambda x: torch.rand(3, device=x.device),
    "dropout": lambda x: nn.functional.dropout(x),
}
FINE: dict[str, Callable[[Tensor], object]] = {
    "a range": lambda x: x + torch.arange(3, device=x.device),
    "a scalar of the CPU": lambda x: x * torch.tensor(2.0) + torch.where(x > 1, x, torch.tensor(0.0)),
    "filled": lambda x: x.detach().masked_fill_(x > 1, 0).fill_(torch.tensor(1.0)),
    "indices": lambda x: x[x.argsort()],
    "repeat_interleave": lambda x: x.detach().repeat_interleave(x.long(), output_size=6),
    "one_hot": lambda x: nn.functional.one_hot(x.long(), 4),
    "backward": lambda x: x.square().sum().backward(),
    "where it is already": lambda x: x.to("cuda"),
    "the CPU by itself": lambda x: torch.arange(3)[torch.arange(3) > 1].tolist(),
}


@pytest.mark.parametrize("case", MIXED)
def test_two_devices_do_not_mix(case: str) -> None:
    with pretend_cuda(), pytest.raises(Refused, match="mixes devices|of integers"):
        MIXED[case](torch.tensor([1.0, 2.0, 3.0], device="cuda", requires_grad=True))


@pytest.mark.parametrize("case", NOT_CAPTURED)
def test_what_waits_for_the_device_is_not_captured(case: str) -> None:
    with pytest.raises(Refused, match="captured"):
        captured(NOT_CAPTURED[case])
    with pretend_cuda():  # nobody minds between epochs
        NOT_CAPTURED[case](torch.tensor([1.0, 2.0, 3.0], device="cuda", requires_grad=True))


@pytest.mark.parametrize("case", FINE)
def test_what_cuda_does_is_done(case: str) -> None:
    captured(FINE[case])


@pytest.mark.parametrize("case", ["item", "a mask", "from the CPU"])
def test_a_method_that_waits_in_its_step_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = Cc.losses

    def waiting(method: Cc, *given: Any) -> Any:
        outcome = losses(method, *given)
        NOT_CAPTURED[case](outcome.assignment[0])
        return outcome

    monkeypatch.setattr(Cc, "losses", waiting)
    as_plain_steps("rows", *small("cc"))
    with pytest.raises(Refused, match="captured"):
        trained("rows", *small("cc"))


def test_a_graph_repeats_what_it_has_seen_with_the_numbers_of_then() -> None:
    with pretend_cuda() as device:
        x, total = torch.ones(2, device="cuda"), torch.zeros(2, device="cuda")
        graph, factor = Graph(), torch.tensor(3.0)
        with device.capture(graph):
            total += (x.view(2, 1) * factor)[:, 0].clone()
        x.fill_(10.0)
        factor.fill_(100.0)
        graph.replay()
        assert total.tolist() == [33.0, 33.0]


def test_numbers_are_those_of_the_cpu_and_numpy_does_not_get_at_them() -> None:
    with pretend_cuda():
        x = torch.arange(4.0).to("cuda")
        assert isinstance(x, OnDevice)
        assert (x.device.type, x.is_cuda, x.to("cuda") is x) == ("cuda", True, True)
        assert x.square().cpu().tolist() == [0.0, 1.0, 4.0, 9.0]
        with pytest.raises((TypeError, RuntimeError)):
            x.numpy()
    with pytest.raises(Refused, match="not there any more"):
        x + 1
