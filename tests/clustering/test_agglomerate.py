"""Agglomeration on a graph of neighbours: graph, affinities and the order of merging against slow references."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from reference_losses import Array, units
from twincluster.clustering import neighbours as agglomerate
from twincluster.clustering.neighbours import Agglomeration


def unit_rows(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.tensor(units((n, d), seed=seed)[0])


def partition(group: Array) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(group == one).tolist()) for one in np.unique(group)}


# -- once more, slowly -----------------------------------------------------------------------------------------------


def slow_graph(unit: Tensor, k: int) -> Array:
    rows = unit.tolist()
    squares = [[math.dist(a, b) ** 2 for b in rows] for a in rows]
    nearest = [sorted(set(range(len(rows))) - {i}, key=lambda j: squares[i][j])[:k] for i in range(len(rows))]
    distances = [squares[i][j] for i, found in enumerate(nearest) for j in found]
    variance = math.fsum(distances) / len(distances)
    weights = np.zeros((len(rows), len(rows)))
    for i, found in enumerate(nearest):
        for j in found:
            weights[i, j] = math.exp(-squares[i][j] / variance)
    return weights


def slow_links(weights: Array, group: Array) -> Array:
    """1^T W_ai W_ia 1 of each pair of clusters."""
    count = group.max() + 1
    links = np.zeros((count, count))
    for a, i in itertools.permutations(range(count), 2):
        in_a, in_i = np.flatnonzero(group == a), np.flatnonzero(group == i)
        links[a, i] = (weights[np.ix_(in_a, in_i)] @ weights[np.ix_(in_i, in_a)]).sum()
    return links


def slow_merging(links: Array, sizes: list[int], wanted: int, near: int, few: int) -> set[frozenset[int]]:
    """All affinities anew for each merger; members of a cluster are the first clusters that it consists of."""
    members, sizes, links = [{i} for i in range(len(sizes))], list(sizes), links.copy()
    while len(members) > wanted:
        pairs = links / np.square(sizes)[:, None]
        affinity = pairs + pairs.T
        scores = []
        for i in range(len(members)):
            others = sorted((affinity[i, j] for j in range(len(members)) if j != i), reverse=True)
            others = (others + [0.0] * near)[:near]
            stands_out = math.fsum(others[0] - value for value in others[1:]) / (near - 1)
            scores.append(others[0] + (stands_out if len(members) > few else 0.0))
        one = int(np.argmax(scores))
        np.fill_diagonal(affinity, -1)
        one, two = sorted((one, int(affinity[one].argmax())))
        links[one] += links[two]
        links[:, one] += links[:, two]
        links[one, one] = 0
        links = np.delete(np.delete(links, two, 0), two, 1)
        members[one] |= members.pop(two)
        sizes[one] += sizes.pop(two)
    return {frozenset(member) for member in members}


# -- against them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [10, 2**26])
@pytest.mark.parametrize("n,d,k", [(2, 3, 1), (7, 2, 3), (20, 5, 6), (4, 3, 9)])
def test_the_graph_of_neighbours(n: int, d: int, k: int, cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agglomerate, "CELLS", cells)  # in chunks, and at once
    unit = unit_rows(n, d)
    np.testing.assert_allclose(agglomerate.graph(unit, k).toarray(), slow_graph(unit, k), atol=1e-12)


@pytest.mark.parametrize("n,count,k", [(6, 2, 2), (15, 5, 3), (25, 4, 6), (12, 12, 3)])
def test_links_of_clusters(n: int, count: int, k: int) -> None:
    unit, group = unit_rows(n, 3), np.arange(n) % count
    weights = agglomerate.graph(unit, k)
    wanted, found = slow_links(weights.toarray(), group), agglomerate.linked(weights, group)
    for a, i in itertools.permutations(range(count), 2):
        assert found[a].get(i, 0.0) == pytest.approx(wanted[a, i], abs=1e-12)
        assert (i in found[a]) == (a in found[i])


@pytest.mark.parametrize("few", [4, 25, 100])
@pytest.mark.parametrize("near", [2, 5])
@pytest.mark.parametrize("n,k,wanted", [(12, 4, 2), (30, 8, 3), (30, 8, 29), (40, 12, 5), (60, 20, 10)])
def test_clusters_are_merged_in_the_order_of_a_full_search(
    n: int, k: int, wanted: int, near: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agglomerate, "FEW", few)
    weights = agglomerate.graph(unit_rows(n, 4, seed=k), k)
    links = agglomerate.linked(weights, np.arange(n))
    into = Agglomeration(links, np.ones(n), np.ones((n, 2)), near).run(wanted)
    assert partition(into) == slow_merging(slow_links(weights.toarray(), np.arange(n)), [1] * n, wanted, near, few)


@pytest.mark.parametrize("n", [2, 9, 40])
def test_first_groups_follow_the_nearest_neighbour(n: int) -> None:
    unit = unit_rows(n, 3)
    group = agglomerate.first_groups(unit)
    nearest = slow_graph(unit, 1).argmax(1)
    joined = {i: {i} for i in range(n)}
    for _ in range(n):
        for i, other in enumerate(nearest):
            both = joined[i] | joined[other]
            joined |= dict.fromkeys(both, both)
    assert partition(group) == set(map(frozenset, joined.values()))
    assert set(group) == set(range(group.max() + 1))


# -- what it is used for ---------------------------------------------------------------------------------------------


def test_a_share_of_the_groups_is_merged_but_never_too_many() -> None:
    unit, group = unit_rows(40, 3), np.arange(40) // 2
    for share, n_clusters, left in ((0.5, 3, 10), (0.9, 3, 3), (0.9, 1, 2), (0.01, 3, 19), (0.9, 25, 20)):
        found = agglomerate.merged(unit, group, n_clusters, share=share, neighbours=5, near=3)
        assert found.max() + 1 == len(set(found)) == left
        assert all(found[i] == found[i + 1] for i in range(0, 40, 2))  # nobody leaves a group


def test_three_clouds_are_found_whatever_their_sizes() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    rows = torch.eye(3)[labels] + 0.1 * torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    found = agglomerate.all_merged(torch.nn.functional.normalize(rows), 3, share=0.5, neighbours=5, near=3)
    assert partition(found) == partition(labels)


def test_clusters_without_affinity_go_by_their_means() -> None:
    """Two neighbours are all that each has, so that four clouds cannot reach each other; two are on one side."""
    middle = torch.tensor([[1.0, 0, 0.3], [1.0, 0, -0.3], [-1.0, 0, 0.3], [-1.0, 0, -0.3]])
    rows = middle.repeat_interleave(6, 0) + 0.01 * torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    found = agglomerate.all_merged(torch.nn.functional.normalize(rows), 2, share=0.9, neighbours=2, near=3)
    assert partition(found) == {frozenset(range(12)), frozenset(range(12, 24))}


@pytest.mark.parametrize("n,n_clusters", [(1, 1), (2, 2), (3, 2), (5, 5)])
def test_few_rows_are_as_many_clusters_as_wanted(n: int, n_clusters: int) -> None:
    found = agglomerate.all_merged(unit_rows(n, 3), n_clusters, share=0.9, neighbours=20, near=5)
    assert found.max() + 1 == len(set(found)) == n_clusters


def test_rows_that_are_all_the_same_can_be_clustered() -> None:
    found = agglomerate.all_merged(torch.ones(10, 4) / 2, 3, share=0.9, neighbours=4, near=5)
    assert len(set(found)) == 3
