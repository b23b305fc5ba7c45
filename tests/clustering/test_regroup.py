"""Groups that move as a whole: they leave ends where k-means stays, and no other clusters get worse."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import kmeans, regroup, spherical_kmeans
from twincluster.clustering.kmeans import Clusters, Sized, directions, weigh_sizes


def rows_around(means: list[list[float]], counts: list[int]) -> tuple[Tensor, Tensor]:
    """Rows about some means, and which mean each belongs to."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.repeat_interleave(torch.arange(len(means)), torch.tensor(counts))
    return torch.tensor(means)[kind] + 0.03 * torch.randn(len(kind), len(means[0]), generator=generator), kind


def clustered(rows: Tensor, labels: Tensor, balance: float) -> Sized:
    """Where k-means, begun with these labels, ends."""
    n_clusters = int(labels.max()) + 1
    unit = F.normalize(rows, dim=1)
    found = spherical_kmeans(unit, n_clusters, seed=0, init=directions(unit, labels, n_clusters), n_init=0)
    return weigh_sizes(rows, found, balance)


def stuck() -> tuple[Tensor, Tensor, Tensor]:
    """Rows, the labels one would want, and labels that k-means keeps, with one of eight tight groups misplaced."""
    axes = torch.eye(12)
    kinds = [axes[i] + 0.4 * axes[8 + i // 4] for i in range(8)]
    rows, group = rows_around([kind.tolist() for kind in kinds], [100] * 8)
    return rows, group // 4, torch.where(group == 0, 1, group // 4)


@pytest.mark.parametrize("balance", [0.0, 0.8, 1.0])
def test_a_group_that_k_means_leaves_in_the_wrong_cluster_moves(balance: float) -> None:
    rows, wanted, kept = stuck()
    found = spherical_kmeans(rows, 2, seed=0, init=directions(F.normalize(rows, dim=1), kept, 2), n_init=0)
    assert torch.equal(found.labels, kept)
    sized = regroup(F.normalize(rows, dim=1), rows, weigh_sizes(rows, found, balance), balance, per_cluster=5, seed=0)
    assert (sized.labels == wanted).float().mean() > 0.99


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_moves_end_where_no_single_one_is_better(balance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    unit, group = F.normalize(torch.randn(300, 6, generator=generator), dim=1), torch.arange(300) % 30
    rows = unit * torch.rand(300, 1, generator=generator)
    groups = kmeans._Groups(*(kmeans.sums(each, group, 30) / 300 for each in (unit, rows, torch.ones(300, 1))))
    before = torch.arange(30) % 4
    after = kmeans._move_groups(groups, before, 4, torch.tensor(7.0), balance)

    def objective(clusters: Tensor) -> float:
        total = 0.0
        for cluster in range(4):
            members = clusters[group] == cluster
            share = float(members.double().mean())
            total += 7.0 * float((rows[members] @ F.normalize(unit[members].sum(0), dim=0)).sum()) / 300
            total -= kmeans.MARGIN * share * math.log(max(share, 1e-9)) if balance else 0.0
        return total

    assert objective(after) > objective(before) + 1e-3
    for one in range(30):
        for cluster in range(4):
            other = after.clone()
            other[one] = cluster
            assert objective(other) <= objective(after) + 1e-5, (one, cluster)


def test_the_last_group_of_a_cluster_stays() -> None:
    """Long rows of one direction, tied to short ones of another, would be better off in a cluster of their own kind."""
    unit = torch.eye(2)[torch.tensor([0, 1] + [1] * 8)]
    rows = unit * torch.tensor([0.01, 5.0] + [1.0] * 8)[:, None]
    group = torch.tensor([0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    groups = kmeans._Groups(*(kmeans.sums(each, group, 3) / 10 for each in (unit, rows, torch.ones(10, 1))))
    alone, together = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0])
    assert torch.equal(kmeans._move_groups(groups, alone, 2, torch.tensor(3.0), 0.0)[:1], alone[:1])
    assert len(kmeans._move_groups(groups, together, 2, torch.tensor(3.0), 0.0).unique()) == 2
    with_empty = kmeans._Groups(*(F.pad(sums, (0, 0, 0, 1)) for sums in groups))  # which is no company
    after = kmeans._move_groups(with_empty, torch.tensor([0, 1, 1, 0]), 2, torch.tensor(3.0), 0.0)
    assert len(after[:3].unique()) == 2


def test_rows_that_are_alike_leave_groups_empty_and_nothing_else() -> None:
    rows, wanted, kept = (tensor[::50] for tensor in stuck())  # two of each group
    rows, wanted, kept = (tensor.repeat_interleave(50, 0) for tensor in (rows, wanted, kept))
    unit = F.normalize(rows, dim=1)
    group = kmeans._groups(unit, 80, seed=0)
    assert len(group.unique()) <= 16
    sized = regroup(unit, rows, clustered(rows, kept, 0.0), 0.0, per_cluster=40, seed=0)
    assert (sized.labels == wanted).all()


def test_a_cluster_without_the_most_of_any_group_starts_from_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, wanted, _ = stuck()
    unit = F.normalize(rows, dim=1)
    few = torch.zeros_like(wanted)
    few[::25] = 1 + wanted[::25]  # two clusters of a few rows each, which are the most of no group
    sized = Sized(directions(unit, few, 3), torch.zeros(3), few, 0.0)
    begun = []
    monkeypatch.setattr(
        kmeans, "spherical_kmeans",
        lambda unit, k, **options: begun.append(options["init"]) or spherical_kmeans(unit, k, **options),
    )  # fmt: skip
    monkeypatch.setattr(kmeans, "_move_groups", lambda groups, before, *_: before)
    regroup(unit, rows, sized, 0.0, per_cluster=10, seed=0)
    assert not begun  # nothing moved, so nothing is tried
    monkeypatch.setattr(kmeans, "_move_groups", lambda groups, before, *_: torch.ones_like(before))
    regroup(unit, rows, sized, 0.0, per_cluster=10, seed=0)
    assert torch.equal(begun[0][[0, 2]], sized.centres[[0, 2]])
    assert not torch.equal(begun[0][1], sized.centres[1])


@pytest.mark.parametrize("better", [False, True])
def test_a_round_counts_only_where_it_is_better(monkeypatch: pytest.MonkeyPatch, better: bool) -> None:
    rows, _, kept = stuck()
    unit, sized = F.normalize(rows, dim=1), clustered(rows, kept, 0.0)
    goal = regroup(unit, rows, sized, 0.0, per_cluster=5, seed=0)
    monkeypatch.setattr(kmeans, "_move_groups", lambda groups, before, *_: 1 - before if better else before.flip(0))
    monkeypatch.setattr(kmeans, "spherical_kmeans", lambda unit, k, **_: _ends(unit, k, goal, better))
    monkeypatch.setattr(kmeans, "_groups", lambda unit, n_groups, seed: torch.arange(len(unit)) % n_groups)
    after = regroup(unit, rows, sized, 0.0, per_cluster=5, seed=0)
    assert torch.equal(after.labels, goal.labels if better else kept)


def _ends(unit: Tensor, n_clusters: int, goal: Sized, better: bool) -> Clusters:
    """The clusters there are to reach, or poor ones."""
    labels = goal.labels if better else torch.arange(len(unit)) % n_clusters
    centres = directions(unit, labels, n_clusters)
    return Clusters(centres, labels, (unit * centres[labels]).sum(1), 0.0)


def test_rows_outside_the_pool_join_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, wanted, kept = stuck()
    monkeypatch.setattr(kmeans, "POOL", 100)
    sized = regroup(F.normalize(rows, dim=1), rows, clustered(rows, kept, 0.0), 0.0, per_cluster=5, seed=0)
    assert (sized.labels == wanted).float().mean() > 0.99


@pytest.mark.parametrize("balance", [0.0, 0.8])
def test_clusters_never_get_worse(balance: float) -> None:
    generator = torch.Generator().manual_seed(2)
    gained = 0
    for seed in range(6):
        rows = torch.randn(400, 8, generator=generator) * torch.rand(8, generator=generator)
        before = clustered(rows, torch.randint(5, (400,), generator=generator), balance)
        after = regroup(F.normalize(rows, dim=1), rows, before, balance, per_cluster=20, seed=seed)
        reached, was = (float((rows @ one.centres.T + one.shift).amax(1).mean()) for one in (after, before))
        assert reached >= was
        gained += reached > was
    assert gained


def test_the_same_seed_gives_the_same_clusters() -> None:
    rows, _, kept = stuck()
    unit, sized = F.normalize(rows, dim=1), clustered(rows, kept, 0.0)
    one, two = (regroup(unit, rows, sized, 0.0, per_cluster=10, seed=3) for _ in range(2))
    assert torch.equal(one.labels, two.labels)
    assert torch.equal(one.centres, two.centres)


@pytest.mark.parametrize(
    ("n_rows", "n_clusters", "balance"),
    [(200, 4, -1.0), (200, 1, 0.0), (2_000, 60, 0.0), (20, 4, 0.0)],
    ids=["sizes follow the rows", "one cluster", "many clusters", "few rows"],
)
def test_where_it_is_not_for_clusters_stay(n_rows: int, n_clusters: int, balance: float) -> None:
    rows = F.normalize(torch.randn(n_rows, 6, generator=torch.Generator().manual_seed(4)), dim=1)
    labels = torch.arange(n_rows) % n_clusters
    centres = directions(rows, labels, n_clusters)
    sized = weigh_sizes(rows, Clusters(centres, labels, (rows * centres[labels]).sum(1), 0.0), balance)
    assert regroup(rows, rows, sized, balance, per_cluster=20, seed=0) is sized
