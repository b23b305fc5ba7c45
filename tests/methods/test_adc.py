"""ADC: the loss of each stage against slow references, what learns from which, and clusters that begin with k-means."""

from typing import Any

import pytest
import torch

import reference_peers as slow
from small_peers import SAMPLES, N, method_of, step, views_of
from small_runs import images_of, make, rows, train
from twincluster.methods import Batch

FIRST_STAGE = ("own.length=2.0", "own.length_weight=0.01", "own.cluster_start=0.5")
WEIGHTS = (*FIRST_STAGE, "own.visit_weight=0.7", "own.view_weight=0.3", "own.label_weight=0.4")


def batch_of(method: Any) -> Batch:
    (rows,) = views_of(method, 1)
    return Batch(SAMPLES, SAMPLES, view=lambda _: rows, plain=lambda: rows)


def begun(*changes: str) -> Any:
    method = method_of("adc", *changes)
    method.after_epoch(1, lambda: iter([batch_of(method)]), None)
    assert method.clustering
    return method


def test_first_augmented_images_find_their_images() -> None:
    method = method_of("adc", *FIRST_STAGE)
    views = views_of(method, 3)
    with torch.no_grad():
        z = method.online.embed(torch.cat(views)).numpy()
        centroids = method.prototypes.numpy()
    images = [*range(N), *range(N)]  # which image each augmented one is of
    wanted = slow.walks(z[N:], z[:N], images) + slow.visits(z[N:], z[:N])
    wanted += 0.01 * slow.lengths([*z, *centroids], 2.0)
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=1e-9)


def test_then_centroids_find_themselves() -> None:
    method = begun(*WEIGHTS)
    views = views_of(method, 3)
    with torch.no_grad():
        method.prototypes += 0.1 * torch.randn(6, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        z = method.online.embed(torch.cat(views)).numpy()
        centroids, logits = method.prototypes.numpy(), method.online.head(method.prototypes).numpy()
    clusters = [0, 0, 1, 1, 2, 2]
    view = slow.walks(z[N:], z[:N], [*range(N), *range(N)]) + slow.visits(z[N:], z[:N])
    wanted = slow.walks(centroids, z[:N], clusters) + 0.7 * slow.visits(centroids, z[:N]) + 0.3 * view
    wanted += 0.4 * slow.cross_entropy(torch.eye(3)[clusters].numpy(), logits)
    wanted += 0.01 * slow.lengths([*z, *centroids], 2.0)
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=1e-9)


def test_the_layer_that_predicts_learns_from_centroids_alone() -> None:
    method = begun("own.label_weight=0.0")
    step(method, views_of(method, 3)).loss.backward()
    assert not method.online.head.weight.grad.any()
    assert method.prototypes.grad.any()
    assert method.online.projector.weight.grad.any()


def test_clusters_begin_once_with_those_of_k_means() -> None:
    method = method_of("adc", "own.cluster_start=0.5")
    stages, middle = [], None
    for epoch, progress in enumerate((0.1, 0.4, 0.5, 0.9)):
        method.schedule(epoch, progress)
        stages.append(method.after_epoch(epoch, lambda: iter([batch_of(method)]), None)["stage"])
        if epoch == 2:
            method.eval()
            embedding = method.online.embed(batch_of(method).plain()).detach()
            middle = method.prototypes.detach().view(3, 2, -1).mean(1)
            nearest = torch.cdist(embedding, middle).argmin(1)
            means = torch.stack([embedding[nearest == k].mean(0) for k in range(3)])
            torch.testing.assert_close(middle, means, rtol=0, atol=1e-4)
            found = method.online.log_assign(batch_of(method).plain()).argmax(1)
            assert torch.equal(found, nearest)  # before a single step
            one, two = method.prototypes.detach().view(3, 2, -1).unbind(1)
            assert 0 < (one - two).abs().max() < 2e-4
            method.train()
    assert stages == [0, 0, 1, 1]
    torch.testing.assert_close(method.prototypes.detach().view(3, 2, -1).mean(1), middle)  # not set again


def test_more_clusters_than_samples() -> None:
    method = train(images_of(rows(15)), "method=adc", "n_clusters=12", "train.batch_size=10", "train.epochs=2")
    assert method.clustering
    assert method.prototypes.isfinite().all()


def test_centroids_of_a_cluster_begin_together() -> None:
    prototypes = make("rows", "method=adc", "n_clusters=5").method.prototypes.detach().view(5, 4, 128)
    within, between = prototypes - prototypes.mean(1, keepdim=True), prototypes.mean(1)
    assert 0.001 < within.abs().max() < 0.02
    assert between.std().item() == pytest.approx(0.3, abs=0.05)


def test_assignments_are_those_of_prediction() -> None:
    method = begun().eval()
    views = views_of(method, 3)
    outcome = step(method, views)
    torch.testing.assert_close(outcome.assignment, method.online.log_assign(views[0]).exp().detach())
    torch.testing.assert_close(outcome.key_assignment, method.online.log_assign(views[1]).exp().detach())
