"""The prior on sizes: its two ends against slow references, what a linear head makes of it, and when it is strained."""

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.cluster import hierarchy
from scipy.cluster.hierarchy import linkage
from torch import Tensor

from small_runs import Diary, images_of, train
from twincluster.clustering import check_parts, kmeans, spherical_kmeans
from twincluster.clustering import kmeans as assign
from twincluster.clustering.kmeans import Clusters, joined_parts, match_labels, weigh_sizes
from twincluster.clustering.metrics import STRAIN
from twincluster.config import make_config
from twincluster.core import InputError
from twincluster.resolve import check_method


def blobs(counts: list[int], spread: float = 1.0, d: int = 32, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of several lengths around random directions, so many of each, and where they came from."""
    generator = torch.Generator().manual_seed(seed)
    middle = F.normalize(torch.randn(len(counts), d, generator=generator), dim=1)
    origin = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    rows = F.normalize(middle[origin] + spread * torch.randn(len(origin), d, generator=generator) / d**0.5, dim=1)
    return rows * (0.8 + 0.4 * torch.rand(len(rows), 1, generator=generator)), origin


def share_right(labels: Tensor, origin: Tensor, n_clusters: int) -> float:
    return float((match_labels(origin, labels, n_clusters)[labels] == origin).float().mean())


def spread_of(labels: Tensor, n_clusters: int) -> float:
    """Of the largest cluster to the smallest."""
    counts = torch.bincount(labels, minlength=n_clusters)
    return float(counts.max() / counts.min())


def test_no_prior_leaves_what_kmeans_found() -> None:
    rows, _ = blobs([100, 60, 20], spread=2.0)
    found = spherical_kmeans(rows, 3, seed=0)
    sized = weigh_sizes(rows, found, 0.0)
    assert torch.equal(sized.centres, found.centres)
    assert torch.equal(sized.labels, found.labels)
    assert not sized.shift.any()
    assert sized.strain == 0


@pytest.mark.parametrize("balance", [-1.0, -0.4, 0.3, 0.9, 1.0])
def test_labels_are_the_argmax_of_a_linear_function(balance: float) -> None:
    rows, _ = blobs([300, 100, 60, 40], spread=2.0)
    sized = weigh_sizes(rows, spherical_kmeans(rows, 4, seed=0), balance)
    for row, label in zip(rows.double(), sized.labels.tolist(), strict=True):
        values = [float(row @ c + s) for c, s in zip(sized.centres.double(), sized.shift.double(), strict=True)]
        assert max(values) - values[label] < 1e-5


def test_full_balance_makes_sizes_equal_and_less_of_it_less_so() -> None:
    rows, _ = blobs([400, 150, 100, 50], spread=2.0)
    found = spherical_kmeans(rows, 4, seed=0)
    spreads = [spread_of(weigh_sizes(rows, found, balance).labels, 4) for balance in (0.0, 0.3, 0.6, 1.0)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] > 1.5
    assert spreads[-1] < 1.1


def test_a_soft_prior_is_where_shifts_and_shares_agree() -> None:
    """The optimum of similarity + weight * entropy has shifts of -weight times the log of the shares, up to a
    constant; found here by following the gradient of the dual, which has nothing of Sinkhorn's steps."""
    logits = 2 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[:, 0] += 2
    shift = torch.zeros(4, dtype=torch.float64)
    weight = kmeans.MARGIN * 0.4 / 0.6
    for _ in range(500):
        share = ((logits + shift) / kmeans.SHARPNESS).softmax(1).mean(0)
        shift -= 0.5 * (share - (-shift / weight).softmax(0))
    found = kmeans._shifts(logits, torch.zeros(4, dtype=torch.float64), 0.4)
    for _ in range(20):
        found = kmeans._shifts(logits, found, 0.4)
    torch.testing.assert_close(found, shift - shift.mean(), rtol=0, atol=0.02)


def test_uneven_sizes_are_the_weights_of_a_mixture() -> None:
    """Expectation and maximisation, row by row, with components that stay as they are."""
    logits = torch.randn(300, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits[:200, 1] += 2
    weights = [1 / 3] * 3
    for _ in range(300):
        total = [0.0] * 3
        for row in logits.tolist():
            terms = [
                math.exp((value + math.log(3 * w)) / kmeans.SHARPNESS) for value, w in zip(row, weights, strict=True)
            ]
            total = [t + term / sum(terms) for t, term in zip(total, terms, strict=True)]
        weights = [max(t / 300, 1e-9) for t in total]
    shift = torch.zeros(3, dtype=torch.float64)
    for _ in range(20):
        shift = kmeans._shifts(logits, shift, -1.0)
    wanted = torch.tensor(weights, dtype=torch.float64).log()
    torch.testing.assert_close(shift, wanted - wanted.mean(), rtol=0, atol=0.05)


def test_kinds_of_different_size_are_found_where_kmeans_cuts_the_large_ones_up() -> None:
    counts = [600, 300, 150, 80, 40, 30, 20, 20]
    plain, uneven, equal = [], [], []
    for seed in range(4):
        rows, origin = blobs(counts, seed=seed)
        found = spherical_kmeans(rows, 8, seed=seed)
        parts = joined_parts(F.normalize(rows, dim=1), 8, seed=seed, n_init=3)
        plain.append(share_right(found.labels, origin, 8))
        uneven.append(share_right(weigh_sizes(rows, parts, -1.0).labels, origin, 8))
        equal.append(share_right(weigh_sizes(rows, found, 1.0).labels, origin, 8))
    assert min(uneven) > 0.97
    assert sum(equal) < sum(plain) < sum(uneven) - 0.4


def test_strain_tells_equal_kinds_from_unequal_ones() -> None:
    def strain(counts: list[int], balance: float) -> float:
        rows, _ = blobs(counts)
        return weigh_sizes(rows, spherical_kmeans(rows, len(counts), seed=0, n_init=10), balance).strain

    assert strain([100] * 6, 1.0) < STRAIN / 2
    assert strain([400, 80, 40, 30, 25, 25], 1.0) > STRAIN
    assert strain([400, 80, 40, 30, 25, 25], 0.0) == strain([400, 80, 40, 30, 25, 25], -1.0) == 0


@pytest.mark.parametrize("balance", [-1.0, 1.0])
def test_no_cluster_is_emptied(balance: float) -> None:
    rows, _ = blobs([12] * 5 + [2] * 45, spread=0.5)
    unit = F.normalize(rows, dim=1)
    found = joined_parts(unit, 50, seed=0, n_init=2) if balance < 0 else spherical_kmeans(unit, 50, seed=0)
    assert len(weigh_sizes(rows, found, balance).labels.unique()) == 50


def test_parts_of_the_same_few_rows_fall_back_on_kmeans() -> None:
    unit = F.normalize(torch.eye(6).repeat(20, 1), dim=1)
    found = joined_parts(unit, 8, seed=0, n_init=1)
    assert len(found.centres) == 8
    torch.testing.assert_close(found.centres.norm(dim=1), torch.ones(8))
    assert found.objective == pytest.approx(1.0)


def test_few_rows_give_no_parts() -> None:
    rows, _ = blobs([4] * 10)
    found: Clusters = joined_parts(F.normalize(rows, dim=1), 10, seed=0, n_init=1)
    assert len(found.centres) == 10


def test_the_memory_for_joining_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    monkeypatch.setattr(kmeans, "MOST_PARTS", 20)
    monkeypatch.setattr(
        hierarchy, "linkage", lambda centres, method: joined.append(len(centres)) or linkage(centres, method)
    )
    rows, _ = blobs([40] * 10)
    assert len(joined_parts(F.normalize(rows, dim=1), 10, seed=0, n_init=1).centres) == 10
    assert joined == [20]
    check_parts(10, -1.0)
    check_parts(11, 0.0)
    with pytest.raises(InputError, match="allows at most 10 clusters, not 11: choose fewer, or a balance of 0"):
        check_parts(11, -0.5)


def test_too_many_uneven_clusters_are_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans, "MOST_PARTS", 8)
    rows, _ = blobs([10] * 6)
    with pytest.raises(InputError, match="allows at most 4 clusters, not 6"):
        train(images_of(rows.numpy()), "n_clusters=6", "anchored.balance=-1", "train.epochs=1")


def test_a_sample_of_the_rows_is_enough_to_tell_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = blobs([400, 150, 100, 50], spread=2.0)
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    found = spherical_kmeans(rows, 4, seed=0)
    monkeypatch.setattr(assign, "CELLS", len(rows) * 4 // 3)
    assert spread_of(weigh_sizes(rows, found, 1.0).labels, 4) < 1.4


@pytest.mark.parametrize("value", [-1.5, 2.0])
def test_a_balance_beyond_its_ends_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"anchored\.balance is .*: expected a number from -1 to 1"):
        check_method(make_config({"anchored": {"balance": value}}))


def test_a_run_warns_when_the_prior_fights_the_data_and_only_then() -> None:
    def warnings(counts: list[int], balance: float) -> list[str]:
        rows, _ = blobs(counts, spread=0.5)
        diary = Diary()
        settings = ("n_clusters=6", "train.epochs=3", "train.batch_size=64", f"anchored.balance={balance}")
        train(images_of(rows.numpy()), *settings, "anchored.shrinkage=1e6", reporter=diary)
        return [message for _, message in diary.warnings if "the prior on sizes" in message]

    assert warnings([400, 80, 40, 30, 25, 25], 1.0)
    assert not warnings([400, 80, 40, 30, 25, 25], 0.0)
    assert not warnings([400, 80, 40, 30, 25, 25], -1.0)
    assert not warnings([100] * 6, 1.0)
