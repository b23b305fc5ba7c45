"""The switches of TCC that the slow reference does not settle: each takes effect, and on what it should alone.

Shapes: N samples of a batch, K clusters, D features.
"""

import numpy as np
import pytest
import torch

from reference_tcc import (
    KEYS,
    SAMPLES,
    D,
    K,
    N,
    build,
    close,
    fresh,
    numbers,
    pictures,
    step,
    three_views,
)
from twincluster.methods.tcc import KEY_ORDER, simplex
from twincluster.nn import draws


@pytest.mark.parametrize("n_clusters,n_features", [(2, 1), (2, 5), (3, 2), (7, 6), (10, 128), (20, 19)])
def test_simplex_is_equidistant(n_clusters: int, n_features: int) -> None:
    cosines = simplex(n_clusters, n_features) @ simplex(n_clusters, n_features).T
    wanted = np.full((n_clusters, n_clusters), -1 / (n_clusters - 1))
    np.fill_diagonal(wanted, 1.0)
    close(cosines, wanted, atol=1e-5)


def test_simplex_prototypes_are_fixed() -> None:
    method = fresh(prototypes="simplex")
    assert "prototypes" not in dict(method.online.named_parameters())
    before = method.online.prototypes.clone()
    optimiser = torch.optim.Adam([weight for weight in method.parameters() if weight.requires_grad], lr=0.1)
    outcome = method.losses(three_views()[:2], SAMPLES, KEYS)
    outcome.loss.backward()
    optimiser.step()
    method.remember(outcome.memory)
    assert torch.equal(method.online.prototypes, before)
    assert torch.equal(method.momentum.prototypes, before)
    assert torch.equal(before, simplex(K, D))


def test_trained_prototypes_start_as_different_unit_vectors() -> None:
    prototypes = fresh().online.prototypes
    close(prototypes.norm(dim=1), np.ones(K))
    assert torch.pdist(prototypes).min() > 0.1


def test_unit_norm_makes_assignments_blind_to_lengths() -> None:
    features = torch.randn(N, D)
    for settings, equal in (({"unit_norm": True}, True), ({}, False)):
        network = build(**settings).online
        before = network.assign_features(features)
        with torch.no_grad():
            network.prototypes *= 3
        after = network.assign_features(7 * features)
        assert torch.allclose(before, after, atol=1e-5) is equal


def test_assignment_temperature_divides_log_odds() -> None:
    features = torch.randn(N, D)
    odds = [
        build(assignment_temperature=temperature).online.assign_features(features).diff(dim=1)
        for temperature in (1.0, 0.25)
    ]
    torch.testing.assert_close(odds[0] / 0.25, odds[1])


def test_centred_features_have_mean_zero_and_variance_one() -> None:
    network = build(centred=True).online
    with torch.no_grad():
        network.head.bias += 5
    features = network.embed(pictures())
    close(features.mean(0), np.zeros(D))
    close(features.var(0, unbiased=False), np.ones(D), atol=1e-2)
    assert build().online.embed(pictures()).mean(0).abs().max() > 1e-2


@pytest.mark.parametrize("n", [N, N - 1])
def test_shuffled_keys_cross_batch_norm_in_two_random_halves(n: int) -> None:
    method, images = build(shuffle_keys=True), pictures(n=n)
    found = method.key_features(images, KEYS[:n])
    order = np.argsort(numbers(draws.uniform(KEYS[:n], KEY_ORDER, 1))[:, 0])
    assert sorted(order) != list(order)
    wanted = torch.empty_like(found)
    for half in (order[: (n + 1) // 2], order[(n + 1) // 2 :]):
        wanted[half] = method.momentum.embed(images[half])
    torch.testing.assert_close(found, wanted)
    together = method.momentum.embed(images)
    assert (found - together).abs().max() > 1e-3
    torch.testing.assert_close(build().key_features(images, KEYS[:n]), together)


def test_shuffled_keys_change_the_keys_of_a_step_only() -> None:
    plain, shuffled = step(build()), step(build(shuffle_keys=True))
    assert torch.equal(plain.assignment, shuffled.assignment)
    assert not torch.allclose(plain.memory["embedding"], shuffled.memory["embedding"])


def test_other_noise_changes_the_instance_track_only() -> None:
    method = build()
    one, two = step(method), step(method, keys=KEYS + 1)
    assert one.metrics["cluster_loss"] == two.metrics["cluster_loss"]
    assert one.metrics["instance_loss"] != two.metrics["instance_loss"]


def test_order_of_the_batch_does_not_matter() -> None:
    """Also not to the noise, which belongs to the sample."""
    method, order = build(), torch.randperm(N, generator=torch.Generator().manual_seed(0))
    first, second, _ = three_views()
    one, two = step(method, (first, second)), step(method, (first[order], second[order]), KEYS[order])
    close(one.loss, two.loss.item(), atol=1e-5)
    torch.testing.assert_close(one.memory["clusters"], two.memory["clusters"], atol=1e-5, rtol=0)
    torch.testing.assert_close(one.memory["embedding"][order], two.memory["embedding"], atol=1e-5, rtol=0)
