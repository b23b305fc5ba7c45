"""A batch in parts: the same features, losses and statistics as at once; and a device that is out of memory."""

import copy

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from small_runs import Diary, assert_equal_state, images_of, make, pictures, rows, small_config, train
from twincluster.core import InputError
from twincluster.methods import Network
from twincluster.nn import BACKBONES, BatchNorm2d, build_backbone, in_parts
from twincluster.nn.backbones import BatchNorm1d
from twincluster.training import Reporter, Trainer
from twincluster.training.cuda_graph import rehearsed, within_memory

PARTS = (2, 3, 5, 16)  # of 10 rows: even, uneven, one row with a batch-norm to itself, more than there are


def encoded(backbone: nn.Module, x: Tensor, parts: int) -> tuple[Tensor, list[Tensor]]:
    """Features, and the gradients of a loss that depends on all rows together."""
    features = in_parts(lambda rows: backbone(rows), backbone, x, parts)
    loss = (features.sum(0).square() * torch.linspace(0, 1, features.shape[1])).sum()
    return features.detach(), list(torch.autograd.grad(loss, list(backbone.parameters())))


@pytest.fixture(params=["small", "mlp"])
def backbone_and_rows(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    side = 0 if request.param == "mlp" else 8
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((10, 3, 8, 8) if side else (10, 3), generator=generator, dtype=torch.float64)
    return build_backbone(request.param, side=side, n_inputs=3).double(), x


@pytest.mark.parametrize("parts", PARTS)
def test_with_fixed_statistics_all_is_the_same(backbone_and_rows: tuple[nn.Module, Tensor], parts: int) -> None:
    backbone, x = backbone_and_rows
    backbone.eval()
    (whole, gradients), (divided, others) = encoded(backbone, x, 1), encoded(backbone, x, parts)
    torch.testing.assert_close(divided, whole)
    torch.testing.assert_close(others, gradients)
    assert any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("parts", PARTS)
def test_features_and_running_statistics_are_those_of_the_whole_batch(
    backbone_and_rows: tuple[nn.Module, Tensor], parts: int
) -> None:
    backbone, x = backbone_and_rows
    twin = copy.deepcopy(backbone)
    (whole, _), (divided, _) = encoded(backbone, x, 1), encoded(twin, x, parts)
    torch.testing.assert_close(divided, whole)
    torch.testing.assert_close(twin.state_dict(), backbone.state_dict())  # moved once, not again in the backward pass


def test_weights_that_no_image_passes_stay_as_they_are(backbone_and_rows: tuple[nn.Module, Tensor]) -> None:
    """Pretrained networks have some: DINOv2 a token for masked patches."""
    backbone, x = backbone_and_rows
    backbone.mask_token = nn.Parameter(torch.ones(3, dtype=torch.float64))
    in_parts(backbone, backbone, x, 2).square().sum().backward()
    assert not backbone.mask_token.grad.any()
    assert all(weight.grad.any() for name, weight in backbone.named_parameters() if name.endswith("0.weight"))


@pytest.mark.parametrize("method", ["anchored", "tcc"])
def test_the_gradient_is_close_to_that_of_the_whole_batch(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]], method: str
) -> None:
    """After a few steps on digits, in the backbone's weights, as the angle between the two."""
    images = images_of(digits[0][:1280])
    queues = ("anchored.instance=byol", "anchored.instance_queue=256", "tcc.instance_queue=256")

    def gradient(parts: int) -> Tensor:
        trainer = Trainer(small_config(images, f"method={method}", "train.batch_size=256", *queues), images)
        for rate, _ in zip((0.03, 0.03, 0.03, 0.03, 0.0), trainer.feed.epoch(0), strict=True):
            trainer.divide(trainer.processes, 1 if rate else parts)
            for group in trainer.optimiser.param_groups:
                group["lr"] = rate
            trainer.step()
        slopes = [weight.grad for weight in trainer.method.online.backbone.parameters()]
        return torch.cat([slope.flatten() for slope in slopes if slope is not None])

    whole = gradient(1)
    for parts, closeness in ((2, 0.99), (4, 0.98), (16, 0.93)):
        assert torch.cosine_similarity(gradient(parts), whole, dim=0) > closeness


def test_batches_may_cross_before_the_backward_pass(backbone_and_rows: tuple[nn.Module, Tensor]) -> None:
    """As where a method encodes two views one after the other: each has the statistics of its own."""
    backbone, x = backbone_and_rows
    weights = list(backbone.parameters())

    def gradients(first: Tensor, second: Tensor) -> list[Tensor]:
        features = [in_parts(lambda rows: backbone(rows), backbone, batch, 2) for batch in (first, second)]
        return list(torch.autograd.grad(features[0].square().sum(), weights))

    torch.testing.assert_close(gradients(x, 5 * x + 3), gradients(x, x))


@pytest.mark.parametrize("kind", [BatchNorm1d, BatchNorm2d])
def test_our_batch_norm_is_that_of_torch(kind: type[BatchNorm1d | BatchNorm2d]) -> None:
    """Divided or not, and with the gradient through its statistics."""
    shape = (6, 4) if kind is BatchNorm1d else (6, 4, 3, 3)
    generator = torch.Generator().manual_seed(0)
    x = (100 + torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()
    slope = torch.randn(shape, generator=generator, dtype=torch.float64)
    ours = kind(4).double()
    assert isinstance(ours, nn.BatchNorm1d | nn.BatchNorm2d)
    nn.init.normal_(ours.weight, generator=generator)
    plain = copy.deepcopy(ours)
    ours.observing = True  # takes the way of a divided batch
    results = [torch.autograd.grad(layer(x), (x, layer.weight, layer.bias), slope) for layer in (ours, plain)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict())
    assert list(ours.state_dict()) == list(nn.BatchNorm1d(4).state_dict())


# -- in a run --------------------------------------------------------------------------------------------------------


def first_losses(*changes: str) -> tuple[float, dict[str, Tensor]]:
    trainer = make("images", "anchored.instance=byol", *changes)
    next(trainer.feed.epoch(0))
    trainer.step()
    return float(trainer.record.totals["loss"]), {k: v.clone() for k, v in trainer.method.state_dict().items()}


@pytest.mark.parametrize("method", ["anchored", "tcc", "tcc-without-image-augmentation"])
def test_a_divided_step_has_the_losses_and_the_memory_of_a_whole_one(method: str) -> None:
    whole, state = first_losses(f"method={method}")
    divided, other = first_losses(f"method={method}", "train.parts=2")
    assert divided == pytest.approx(whole, abs=1e-5)
    for name in state:
        if "queue" in name or "bank" in name or "running" in name:
            torch.testing.assert_close(other[name], state[name], msg=lambda text, name=name: f"{name}: {text}")


def test_a_run_in_parts_repeats_itself_and_finds_the_clouds() -> None:
    images = images_of(rows(90))
    changes = ("train.epochs=30", "train.batch_size=30", "train.parts=3")
    first, second = train(images, *changes), train(images, *changes)
    assert_equal_state(first.state_dict(), second.state_dict())
    clusters = first.online.log_assign(first.online.prepare(torch.as_tensor(rows(90)))).argmax(1)
    assert len(set(zip(clusters.tolist(), [n % 3 for n in range(90)], strict=True))) == 3
    assert (first.online.parts, first.online.processes.count) == (1, 1)  # a finished network is an ordinary one


# -- out of memory ---------------------------------------------------------------------------------------------------


class Listener(Reporter):
    def __init__(self) -> None:
        self.told: list[str] = []

    def warn(self, message: str) -> None:
        self.told.append(message)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A device that holds so many rows for a backward pass: the one thing that cannot be real without a GPU."""
    limit, encode = {"rows": 10**9}, Network._encode

    def scarce(network: Network, images: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(images) > limit["rows"]:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return encode(network, images)

    monkeypatch.setattr(Network, "_encode", scarce)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return limit


@pytest.mark.parametrize("limit,parts", [(16, 1), (15, 2), (5, 4), (1, 16)])
def test_parts_are_made_until_they_fit(memory: dict[str, int], limit: int, parts: int) -> None:
    listener, images = Listener(), images_of(pictures()[0])
    settings = ("train.batch_size=8", "train.epochs=2")
    trainer = Trainer(small_config(images, *settings), images, reporter=listener)
    before = {name: tensor.clone() for name, tensor in trainer.method.state_dict().items()}
    memory["rows"] = limit  # both views of a batch of 8 pass together
    within_memory(trainer, rehearsed)
    assert {network.parts for network in trainer.method.modules() if isinstance(network, Network)} == {parts}
    assert_equal_state(trainer.method.state_dict(), before)
    said = f"a batch of 8 does not fit in the GPU memory: it is processed in {parts} parts"
    assert listener.told == ([said] if parts > 1 else [])
    trainer.reporter = diary = Diary()
    trainer.run()
    memory["rows"] = 10**9
    set_by_hand = Diary()
    train(images, *settings, f"train.parts={parts}", reporter=set_by_hand)
    assert [row["loss"] for row in diary.rows] == [row["loss"] for row in set_by_hand.rows]


def test_a_batch_that_does_not_fit_in_any_parts_is_refused(memory: dict[str, int]) -> None:
    trainer = make("rows")
    memory["rows"] = 0
    with pytest.raises(
        InputError, match="a batch of 8 does not fit in the GPU memory, not even in 16 parts: .*train.batch_size=4"
    ):
        within_memory(trainer, rehearsed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_that_is_too_small() -> None:
    """The allocator is given half of what the batch needs: a real failure, in a rehearsal or during the capture."""
    images = images_of(pictures(2048, 32)[0])
    changes = ("train.device=cuda", "train.compile=false", "train.batch_size=2048", "train.epochs=2",
               "train.backbone=resnet18", "train.precision=float32")  # fmt: skip
    total = needed = torch.cuda.get_device_properties(0).total_memory
    told = []
    for share in (1.0, 0.5):
        listener = Listener()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            torch.cuda.set_per_process_memory_fraction(share * needed / total)
            Trainer(small_config(images, *changes), images, reporter=listener).run()
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        needed = torch.cuda.max_memory_reserved()
        told.append([said for said in listener.told if "does not fit in the GPU memory" in said])
    assert told[0] == []
    assert len(told[1]) == 1


def test_backbones_have_no_batch_norm_but_ours() -> None:
    for name in BACKBONES:
        with torch.device("meta"):
            backbone = build_backbone(name, side=0 if name.startswith("mlp") else 32, n_inputs=3)
        layers = [layer for layer in backbone.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        assert layers
        assert all(isinstance(layer, BatchNorm1d | BatchNorm2d) for layer in layers)
