"""Applying a network: in chunks as sample by sample, for any rows in any order, and without leaving a trace."""

from typing import cast

import numpy as np
import pytest
import torch

from small_runs import KINDS, assert_equal_state, make, pictures
from twincluster.methods import base as inference
from twincluster.methods import embed
from twincluster.methods.anchored import AnchoredNetwork
from twincluster.methods.base import predict

ROWS = np.array([20, 3, 3, 7, 0, 27, 11])


def network_of(kind: str) -> AnchoredNetwork:
    """A network whose batch-norm has seen some data, in training mode."""
    trainer = make(kind)
    for _ in trainer.feed.epoch(0):
        trainer.step()
    return cast(AnchoredNetwork, trainer.method.online)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_equal_one_sample_at_a_time(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    network, pixels = network_of(kind), KINDS[kind]
    monkeypatch.setattr(inference, "CHUNK_PIXELS", {"cpu": 3 * 8 * 8})
    monkeypatch.setattr(inference, "CHUNK_ROWS", 3)
    found, features = predict(network, pixels, ROWS), embed(network, pixels, ROWS)
    network.eval()
    for position, row in enumerate(ROWS):
        image = network.prepare(torch.as_tensor(pixels[row : row + 1]))
        torch.testing.assert_close(found[position], network.log_assign(image)[0].exp().detach(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(features[position], network.embed(image)[0].detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.sum(1), torch.ones(len(ROWS)))
    assert torch.equal(found[1], found[2])
    assert found.dtype == features.dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_give_a_result_of_no_rows(kind: str) -> None:
    network, none = network_of(kind), np.array([], dtype=np.int64)
    assert predict(network, KINDS[kind], none).shape == (0, 3)
    assert embed(network, KINDS[kind], none).shape == (0, network.backbone.n_features)


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_left_as_it_was(training: bool) -> None:
    network = network_of("images").train(training)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    result = predict(network, KINDS["images"], ROWS)
    assert not result.requires_grad
    assert network.training is training
    assert_equal_state(network.state_dict(), before)  # no batch-norm statistics moved


def test_images_of_another_size_are_brought_to_the_networks_own() -> None:
    network = network_of("images")
    large, _ = pictures(28, side=20)
    assert predict(network, large, ROWS).shape == (7, 3)
    doubled = KINDS["images"].repeat(2, axis=1).repeat(2, axis=2)
    small = predict(network, KINDS["images"], ROWS)
    torch.testing.assert_close(predict(network, doubled, ROWS), small, atol=0.02, rtol=0)


def test_results_keep_their_order_over_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    network, pixels = network_of("images"), KINDS["images"]
    rows = np.random.default_rng(0).integers(0, len(pixels), 50)
    whole = embed(network, pixels, rows)
    monkeypatch.setattr(inference, "CHUNK_PIXELS", {"cpu": 3 * 8 * 8})  # 17 chunks, more than are read ahead
    torch.testing.assert_close(embed(network, pixels, rows), whole, atol=1e-5, rtol=1e-4)
    backwards = pixels[::-1]  # not one block of memory
    assert torch.equal(embed(network, backwards, len(pixels) - 1 - rows), embed(network, pixels, rows))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_gives_what_the_cpu_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    network, pixels = network_of("images"), KINDS["images"]
    rows = np.random.default_rng(0).integers(0, len(pixels), 50)
    wanted = predict(network, pixels, rows), embed(network, pixels, rows)
    monkeypatch.setattr(inference, "CHUNK_PIXELS", {"cuda": 3 * 8 * 8})
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    network.cuda()
    for found, right in zip((predict(network, pixels, rows), embed(network, pixels, rows)), wanted, strict=True):
        assert not found.is_cuda
        torch.testing.assert_close(found, right, atol=1e-4, rtol=1e-3)
