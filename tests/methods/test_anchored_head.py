"""How k-means sets the head of the default method. Shapes: K clusters, F features."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from small_runs import KINDS, make, midway
from twincluster.clustering import GROUPS, kmeans
from twincluster.clustering import kmeans as assign
from twincluster.clustering.kmeans import Clusters
from twincluster.methods import Anchored, Batch, anchored

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


def test_an_anchored_head_draws_the_partition_of_kmeans(found: list[Clusters]) -> None:
    method = midway()
    method.bank.copy_(F.normalize(torch.randn(method.bank.shape, generator=torch.Generator().manual_seed(3)), dim=1))
    end_epoch(method)
    by_kmeans = found[0].labels
    assert len(found) == 1
    log_q = method.online.assign_features(method.bank)
    assert same_partition(log_q.argmax(1), by_kmeans)
    assert torch.equal(method.labels, log_q.argmax(1))


def test_anchoring_finds_clouds(found: list[Clusters]) -> None:
    method = midway()
    origin = cloudy_bank(method)
    end_epoch(method)
    assert same_partition(method.labels, origin)


def test_clusters_keep_their_numbers_from_epoch_to_epoch(found: list[Clusters]) -> None:
    method = midway()
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


def test_once_images_commit_kmeans_only_moves_their_clusters_on(monkeypatch: pytest.MonkeyPatch) -> None:
    method = midway()
    cloudy_bank(method)
    asked: list[int] = []
    kmeans = assign.spherical_kmeans
    monkeypatch.setattr(assign, "spherical_kmeans", lambda *a, **o: asked.append(o["n_init"]) or kmeans(*a, **o))
    for progress, fresh_starts in ((0.0, True), (1.0, False)):
        asked.clear()
        method.schedule(1, progress)
        end_epoch(method, 1)
        assert any(asked) == fresh_starts
        assert 0 in asked  # from the clusters there are


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_ends_the_one_whose_centres_serve_the_rows_best_wins(
    monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    method = midway()
    cloudy_bank(method)
    unit = assign.whiten(method.bank, method.settings.shrinkage)(method.bank)
    good = replace(assign.spherical_kmeans(unit, K, seed=0), objective=0.0)
    poor = replace(good, centres=unit[:K].roll(1, 1), objective=1.0)  # whatever k-means itself thinks of it
    ends = [good, poor]
    monkeypatch.setattr(method, "cluster", lambda *_: [ends[first], ends[1 - first]])
    method.anchor(method.bank, seed=0, warm=True, n_init=1, groups=())
    assert same_partition(method.labels, good.labels)


@pytest.mark.parametrize("progress", [0.0, 1.0])
def test_groups_move_after_every_epoch(monkeypatch: pytest.MonkeyPatch, progress: float) -> None:
    """Also once images commit, when clusters are otherwise only moved on."""
    method = midway()
    cloudy_bank(method)
    asked: list[int] = []

    def moved(unit: Tensor, rows: Tensor, sized: kmeans.Sized, balance: float, **options: int) -> kmeans.Sized:
        asked.append(options["per_cluster"])
        return replace(sized, centres=sized.centres.roll(1, 0), labels=(sized.labels + 1) % K)

    end_epoch(method)
    before = method.online.head.weight.clone()
    monkeypatch.setattr(anchored, "regroup", moved)
    for epoch in range(1, 5):
        method.schedule(epoch, progress)
        end_epoch(method, epoch)
    assert sorted(asked) == sorted(GROUPS)
    method.finish(lambda network: method.bank)
    assert asked[4:] == list(GROUPS)
    torch.testing.assert_close(method.online.head.weight, before)  # the same clusters under their old numbers


def test_at_the_end_the_head_is_set_for_the_features_that_prediction_sees(found: list[Clusters]) -> None:
    method = midway()
    plain = F.normalize(torch.randn(method.bank.shape, generator=torch.Generator().manual_seed(8)), dim=1)
    asked = []

    def embed(network: torch.nn.Module) -> Tensor:
        asked.append(network)
        return plain

    method.finish(embed)
    assert asked == [method.online]
    assert same_partition(method.online.assign_features(plain).argmax(1), found[-1].labels)


def test_fewer_clusters_may_be_chosen_than_training_had() -> None:
    method = make("images", "n_clusters=0", "clusters_between=[2, 7]").method
    assert isinstance(method, Anchored)
    method.between, before = (2, 3), method.n_clusters
    assert before > 3
    method.labels.copy_(torch.arange(len(method.labels)) % before)
    features = torch.randn(method.bank.shape, generator=torch.Generator().manual_seed(0))
    method.finish(lambda network: F.normalize(features, dim=1))
    assert method.choice is not None
    assert method.online.head.out_features == method.choice.n_clusters <= 3


@pytest.mark.parametrize("neighbours", [0, 3])
def test_rows_that_were_drawn_to_their_neighbours_do_not_tell_how_many_clusters_there_are(
    neighbours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own numbers do, as the network sees them."""
    changes = ("train.components=4", "clusters_between=[2, 5]", "n_clusters=0", "train.epochs=1")
    trainer = make("rows", *changes, f"augment.neighbours={neighbours}")
    seen: list[Tensor] = []
    choose = anchored.choose_clusters
    monkeypatch.setattr(anchored, "choose_clusters", lambda rows, *a, **k: seen.append(rows) or choose(rows, *a, **k))
    method = trainer.run()
    assert isinstance(method, Anchored)
    prepared = method.online.prepare(torch.from_numpy(KINDS["rows"]))
    expected = F.normalize(prepared, dim=1) if neighbours else method.online.embed(prepared)
    torch.testing.assert_close(seen[0], expected)
    assert method.choice is not None
    assert method.online.head.out_features == method.choice.n_clusters
    assert method.online.head.in_features == method.online.backbone.n_features  # clusters are still of what it learned


def test_few_rows_are_asked_in_few_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchored, "FEWEST_DIRECTIONS", 2)
    monkeypatch.setattr(anchored, "ROWS_PER_DIRECTION", 9)  # of 28
    network = make("rows", "train.components=5").method.online
    prepared = network.prepare(torch.from_numpy(KINDS["rows"]))
    seen = anchored._AsSeen(network, 28)
    torch.testing.assert_close(seen.embed(seen.prepare(torch.from_numpy(KINDS["rows"]))), F.normalize(prepared[:, :3]))
    assert anchored._AsSeen(network, 10).prepare(torch.from_numpy(KINDS["rows"])).shape == (28, 2)


@pytest.mark.parametrize("balance", [-1.0, 0.5, 1.0])
def test_a_head_draws_the_clusters_of_a_prior_on_their_sizes(balance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    method = midway(f"anchored.balance={balance}")
    method.bank.copy_(F.normalize(torch.randn(method.bank.shape, generator=torch.Generator().manual_seed(3)), dim=1))
    weighed = []
    weigh = kmeans.weigh_sizes
    monkeypatch.setattr(kmeans, "weigh_sizes", lambda *a: weighed.append(weigh(*a)) or weighed[-1])
    end_epoch(method)
    log_q = method.online.assign_features(method.bank)
    assert weighed[0].shift.any()
    assert same_partition(log_q.argmax(1), weighed[0].labels)
    assert torch.equal(method.labels, log_q.argmax(1))
    if balance == 1:
        assert torch.bincount(method.labels).max() <= len(method.labels) / K + 2
