"""Ablation (vii), L1 on the whole set between epochs: the gradient of one big graph, a batch at a time."""

import copy
import weakref

import pytest
import torch
from torch import Tensor

from reference_tcc import (
    KEYS,
    SAMPLES,
    batches,
    build,
    close,
    sides,
    slow_l2,
    step,
)
from small_runs import make
from twincluster.methods import Batch, Tcc, losses
from twincluster.methods.tcc_variants import WithoutSubsetting


def optimiser_of(method: Tcc) -> torch.optim.Optimizer:
    weights = [weight for weight in method.parameters() if weight.requires_grad]
    for weight in weights:
        weight.grad = torch.ones_like(weight)  # what the last step of the epoch left behind
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True)


def test_whole_set_step_equals_one_big_backward() -> None:
    """Each batch crosses batch-norm by itself, in training mode; then all features meet in one graph."""
    method = build("tcc-without-subsetting")
    twin = copy.deepcopy(method)
    optimiser, twin_optimiser = optimiser_of(method), optimiser_of(twin)
    for one in (optimiser, twin_optimiser):
        one.step()  # momentum of an earlier step, which must live on
    noted = method.after_epoch(0, batches, optimiser)

    features = torch.cat([twin.online.embed(batch.view(0)) for batch in batches()])
    clusters = losses.cluster_representations(features, twin.online.assign_features(features).exp())
    with torch.no_grad():
        key_features = torch.cat([twin.momentum.embed(batch.view(1)) for batch in batches()])
        key_clusters = losses.cluster_representations(key_features, twin.momentum.assign_features(key_features).exp())
    queue = twin.cluster_queue
    loss = losses.cluster_loss(clusters, key_clusters, queue.rows, queue.valid(), twin.settings.temperature)
    twin_optimiser.zero_grad()
    loss.backward()
    for (name, weight), other in zip(method.online.named_parameters(), twin.online.parameters(), strict=True):
        wanted = torch.zeros_like(other) if other.grad is None else other.grad
        torch.testing.assert_close(weight.grad, wanted, atol=1e-6, rtol=1e-4, msg=name)
        other.grad = wanted
    assert method.online.head.weight.grad.abs().max() > 1e-4
    assert method.online.prototypes.grad.abs().max() > 1e-5

    twin_optimiser.step()
    twin.remember({"clusters": key_clusters, "embedding": key_clusters[:0]})
    assert noted == {"cluster_loss": pytest.approx(loss.item(), abs=1e-5)}
    for (name, tensor), other in zip(method.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(tensor, other, atol=1e-6, rtol=1e-4, msg=name)
    torch.testing.assert_close(method.cluster_queue.state_dict(), twin.cluster_queue.state_dict())
    torch.testing.assert_close(method.instance_queue.state_dict(), twin.instance_queue.state_dict(), atol=0, rtol=0)


def test_whole_set_step_sees_the_samples_that_fill_no_batch() -> None:
    """Of 28 images in batches of 8, the step of L1 between epochs aggregates all 28."""
    trainer = make("images", "method=tcc-without-subsetting", "n_clusters=3")
    method, sums = trainer.method, []
    assert isinstance(method, WithoutSubsetting)
    cluster_sums = method.cluster_sums
    method.cluster_sums = lambda network, images: sums.append(len(images)) or cluster_sums(network, images)
    method.after_epoch(0, trainer._all_batches, trainer.optimiser)
    assert sum(sums) == 3 * 28  # online and momentum without gradient, then online with gradient


def test_whole_set_step_does_not_depend_on_the_cut_when_batch_norm_does_not() -> None:
    method = build("tcc-without-subsetting").eval()
    twin = copy.deepcopy(method)
    together = Batch(
        SAMPLES, KEYS, lambda i: torch.cat([batch.view(i) for batch in batches()]), plain=lambda: torch.empty(0)
    )
    found = method.after_epoch(0, batches, optimiser_of(method))
    wanted = twin.after_epoch(0, lambda: iter([together]), optimiser_of(twin))
    assert found == {"cluster_loss": pytest.approx(wanted["cluster_loss"], abs=1e-5)}
    for (name, weight), other in zip(method.online.named_parameters(), twin.online.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad, atol=1e-6, rtol=1e-3, msg=name)


def test_whole_set_step_holds_one_graph_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    method = build("tcc-without-subsetting")
    alive: list[weakref.ref[Tensor]] = []
    embed = method.online.embed

    def watched(images: Tensor) -> Tensor:
        assert not any(reference() is not None for reference in alive), "an earlier batch is still held"
        features = embed(images)
        if features.requires_grad:
            alive.append(weakref.ref(features))
        return features

    monkeypatch.setattr(method.online, "embed", watched)
    method.after_epoch(0, batches, optimiser_of(method))
    assert len(alive) == 4


def test_whole_set_step_keeps_the_tensors_of_a_captured_step() -> None:
    method = build("tcc-without-subsetting")
    optimiser = optimiser_of(method)
    optimiser.step()
    weights = [weight for weight in method.parameters() if weight.requires_grad]
    before = [(weight.data_ptr(), weight.grad.data_ptr()) for weight in weights]
    momenta = [optimiser.state[weight]["momentum_buffer"].data_ptr() for weight in weights]
    method.after_epoch(0, batches, optimiser)
    assert [(weight.data_ptr(), weight.grad.data_ptr()) for weight in weights] == before
    assert [optimiser.state[weight]["momentum_buffer"].data_ptr() for weight in weights] == momenta


def test_without_subsetting_descends_l2_within_the_epoch() -> None:
    method = build("tcc-without-subsetting", alpha=0.7)
    outcome = step(method)
    close(outcome.loss, slow_l2(method, *sides(method)))
    queue = copy.deepcopy(method.cluster_queue.state_dict())
    method.remember(outcome.memory)
    torch.testing.assert_close(method.cluster_queue.state_dict(), queue, atol=0, rtol=0)
