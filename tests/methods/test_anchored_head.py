"""How k-means sets the head of the default method, and when it no longer does. Shapes: K clusters, F features."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from small_runs import midway
from twincluster import assign
from twincluster.assign import Clusters
from twincluster.methods.anchored import Anchored
from twincluster.methods.base import Batch

K = 3


def no_batches() -> Iterator[Batch]:
    raise AssertionError("the method needs no further look at the data")


def end_epoch(method: Anchored, epoch: int = 0) -> dict[str, float]:
    return method.after_epoch(epoch, no_batches, torch.optim.SGD(method.online.parameters(), lr=1.0))


def cloudy_bank(method: Anchored, seed: int = 0) -> Tensor:
    """Fill the bank with three clouds; returns which cloud each row is of."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(K, method.bank.shape[1], generator=torch.Generator().manual_seed(100))
    origin = torch.arange(len(method.bank)) % K
    noise = torch.randn(method.bank.shape, generator=generator)
    method.bank.copy_(F.normalize(centres[origin] + 0.02 * noise + 1, dim=1))
    return origin


def same_partition(one: Tensor, two: Tensor) -> bool:
    return len(set(zip(one.tolist(), two.tolist(), strict=True))) == len(one.unique()) == len(two.unique())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Clusters]:
    """What k-means finds, whenever it is asked; each time it numbers the clusters in another way."""
    results: list[Clusters] = []
    kmeans = assign.spherical_kmeans

    def listened(*arguments: Any, **options: Any) -> Clusters:
        clusters, shift = kmeans(*arguments, **options), len(results)
        labels, centres = (clusters.labels + shift) % K, clusters.centres.roll(shift, 0)
        results.append(replace(clusters, labels=labels, centres=centres))
        return results[-1]

    monkeypatch.setattr(assign, "spherical_kmeans", listened)
    return results


def test_anchored_heads_draw_the_partition_of_kmeans(found: list[Clusters]) -> None:
    method = midway()
    method.bank.copy_(F.normalize(torch.randn(method.bank.shape, generator=torch.Generator().manual_seed(3)), dim=1))
    method.label_weight.zero_()
    told = end_epoch(method)
    by_kmeans = found[0].labels
    assert len(found) == 1
    for network in (method.online, method.momentum):
        log_q = network.assign_features(method.bank)
        assert same_partition(log_q.argmax(1), by_kmeans)
        torch.testing.assert_close(log_q.exp(), method.belief, rtol=1e-3, atol=1e-4)
    assert torch.equal(method.online.head.weight, method.momentum.head.weight)
    assert torch.equal(method.online.head.bias, method.momentum.head.bias)
    assert torch.equal(method.labels, method.belief.argmax(1))
    assert told["belief"] == pytest.approx(method.belief.amax(1).mean().item())


def test_anchoring_finds_clouds_and_trusts_the_share_it_is_told(found: list[Clusters]) -> None:
    method = midway("anchored.label_share=0.4")
    origin = cloudy_bank(method)
    method.label_weight.zero_()
    end_epoch(method)
    assert same_partition(method.labels, origin)
    margin = method.belief.topk(2, dim=1).values.diff(dim=1).neg().squeeze(1)
    for k in range(K):
        own = method.labels == k
        trusted = own & (method.trusted > 0)
        assert int(trusted.sum()) == round(0.4 * int(own.sum()))
        assert margin[trusted].min() >= margin[own & (method.trusted == 0)].max()


def test_clusters_keep_their_numbers_from_epoch_to_epoch(found: list[Clusters]) -> None:
    method = midway()
    method.label_weight.zero_()
    cloudy_bank(method)
    end_epoch(method)
    labels = method.labels.clone()
    for epoch in range(1, 6):
        cloudy_bank(method, seed=epoch)  # other noise, other starts of k-means
        assert end_epoch(method, epoch)["relabelled"] == 0
        assert torch.equal(method.labels, labels)
    assert len({tuple(clusters.labels[:K].tolist()) for clusters in found}) > 1  # k-means did renumber
    renumbered = torch.tensor([2, 0, 1])[labels]
    method.labels.copy_(renumbered)
    assert end_epoch(method, 6)["relabelled"] == 0
    assert torch.equal(method.labels, renumbered)


def test_a_head_that_was_let_go_is_left_to_the_gradient(found: list[Clusters]) -> None:
    method = midway()
    cloudy_bank(method)
    method.schedule(1, 1.0)
    assert method.label_weight > 0
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    told = end_epoch(method, 1)
    method.finish(lambda network: method.bank)
    assert found == []
    changed = {name for name, tensor in method.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed <= {"labels", "trusted"}
    assert torch.equal(method.labels, before["belief"].argmax(1))
    assert told["relabelled"] == pytest.approx((method.labels != before["labels"]).float().mean().item())


def test_at_the_end_the_head_is_set_for_the_features_that_prediction_sees(found: list[Clusters]) -> None:
    method = midway()
    method.label_weight.zero_()
    plain = F.normalize(torch.randn(method.bank.shape, generator=torch.Generator().manual_seed(8)), dim=1)
    asked = []

    def embed(network: torch.nn.Module) -> Tensor:
        asked.append(network)
        return plain

    method.finish(embed)
    assert asked == [method.online]
    assert same_partition(method.online.assign_features(plain).argmax(1), found[-1].labels)
