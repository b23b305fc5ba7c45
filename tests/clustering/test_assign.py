"""Read-outs: k-means against scikit-learn, and matching against brute force."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from torch import Tensor

from twincluster.clustering import kmeans as assign
from twincluster.clustering import spherical_kmeans
from twincluster.clustering.kmeans import Clusters, match_labels, whiten
from twincluster.core import InputError


def blobs(n: int, n_clusters: int, d: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows around random directions, with lengths that a cosine must not see, and where they came from."""
    generator = torch.Generator().manual_seed(seed)
    middle = F.normalize(torch.randn(n_clusters, d, generator=generator), dim=1)
    origin = torch.arange(n) % n_clusters
    rows = F.normalize(middle[origin] + spread * torch.randn(n, d, generator=generator) / d**0.5, dim=1)
    return rows * (0.1 + 5 * torch.rand(n, 1, generator=generator)), origin


def objective_of(features: Tensor, labels: Tensor) -> float:
    """Mean cosine to the mean direction of one's cluster, one cluster after the other."""
    unit, total = F.normalize(features.double(), dim=1), 0.0
    for label in labels.unique():
        members = unit[labels == label]
        total += float((members @ F.normalize(members.sum(0), dim=0)).sum())
    return total / len(features)


def check_consistent(features: Tensor, result: Clusters, n_clusters: int) -> None:
    unit = F.normalize(features.float(), dim=1)
    assert result.centres.shape == (n_clusters, features.shape[1])
    assert result.labels.dtype == torch.int64
    torch.testing.assert_close(result.centres.norm(dim=1), torch.ones(n_clusters))
    similarity = unit @ result.centres.T
    own = similarity.gather(1, result.labels[:, None])[:, 0]
    torch.testing.assert_close(own, similarity.max(dim=1).values, rtol=0, atol=1e-5)  # the nearest centre, up to ties
    torch.testing.assert_close(result.similarity, own, rtol=0, atol=1e-5)
    assert result.objective == pytest.approx(own.mean().item(), abs=1e-5)


@pytest.mark.parametrize(
    ("n", "n_clusters", "d", "spread"), [(300, 3, 8, 0.5), (2000, 10, 32, 0.8), (1000, 40, 16, 0.6), (1500, 7, 64, 2.0)]
)
def test_as_good_as_scikit_learn_on_unit_vectors(n: int, n_clusters: int, d: int, spread: float) -> None:
    ours, theirs = [], []
    for seed in range(4):
        features, _ = blobs(n, n_clusters, d, spread, seed)
        reference = KMeans(n_clusters, n_init=3, random_state=seed).fit(F.normalize(features, dim=1).numpy())
        theirs.append(1 - objective_of(features, torch.as_tensor(reference.labels_)))
        result = spherical_kmeans(features, n_clusters, seed=seed)
        check_consistent(features, result, n_clusters)
        ours.append(1 - result.objective)
    assert np.mean(ours) <= 1.02 * np.mean(theirs)


def test_as_good_as_scikit_learn_on_digits() -> None:
    features = torch.as_tensor(load_digits().data)
    reference = KMeans(10, n_init=10, random_state=0).fit(F.normalize(features, dim=1).numpy())
    expected = objective_of(features, torch.as_tensor(reference.labels_))
    assert 1 - spherical_kmeans(features, 10, seed=0).objective <= 1.01 * (1 - expected)


def test_finds_separated_blobs_and_ignores_lengths() -> None:
    features, origin = blobs(400, 8, 16, 0.2, seed=3)
    labels = spherical_kmeans(features, 8, seed=0).labels
    assert len(set(zip(labels.tolist(), origin.tolist(), strict=True))) == 8
    assert torch.equal(labels, spherical_kmeans(features * 1e-30, 8, seed=0).labels)
    assert torch.equal(labels, spherical_kmeans(features.double() * 1e30, 8, seed=0).labels)


def test_the_same_seed_gives_the_same_clusters_and_leaves_global_draws_alone() -> None:
    features, _ = blobs(500, 12, 16, 1.5, seed=0)
    state = torch.get_rng_state()
    first, second = (spherical_kmeans(features, 12, seed=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.labels, second.labels)
    assert torch.equal(first.centres, second.centres)
    starts = {spherical_kmeans(features, 12, seed=seed, n_init=1, n_iter=0).objective for seed in range(5)}
    assert len(starts) == 5


@pytest.mark.parametrize("cells", [1, 40, 1000])
def test_small_chunks_give_the_same_answer(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    features, _ = blobs(120, 6, 8, 1.0, seed=1)
    whole = spherical_kmeans(features, 6, seed=0)
    monkeypatch.setattr(assign, "CELLS", cells)
    chunked = spherical_kmeans(features, 6, seed=0)
    assert torch.equal(chunked.labels, whole.labels)
    torch.testing.assert_close(chunked.centres, whole.centres)


def test_starts_from_a_sample_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assign, "SEEDING_POOL", 100)
    features, origin = blobs(3000, 5, 16, 0.3, seed=2)
    result = spherical_kmeans(features, 5, seed=0)
    check_consistent(features, result, 5)
    assert len(set(zip(result.labels.tolist(), origin.tolist(), strict=True))) == 5


def test_a_warm_start_is_one_more_start() -> None:
    features, _ = blobs(600, 15, 8, 1.5, seed=4)
    runs = [spherical_kmeans(features, 15, seed=seed, n_init=1) for seed in range(6)]
    objectives = [run.objective for run in runs]
    best, poor_seed = runs[int(np.argmax(objectives))], int(np.argmin(objectives))
    assert best.objective > objectives[poor_seed]
    warm = spherical_kmeans(features, 15, seed=poor_seed, n_init=1, init=best.centres * 3)
    assert warm.objective >= best.objective - 1e-6
    only = spherical_kmeans(features, 15, seed=poor_seed, n_init=0, init=best.centres)
    assert match_labels(best.labels, only.labels, 15).tolist() == list(range(15))  # numbers stay where they were
    same_place = features[:1].expand(15, -1)
    both = spherical_kmeans(features, 15, seed=poor_seed, n_init=1, init=same_place)
    assert both.objective >= objectives[poor_seed]


def test_lost_clusters_return_to_rows_that_are_served_worst() -> None:
    features, origin = blobs(200, 4, 8, 0.2, seed=6)
    same_place = features[:1].expand(4, -1)  # three clusters get no row in the first round
    after_one = spherical_kmeans(features, 4, seed=0, n_init=0, init=same_place, n_iter=1)
    assert len(after_one.labels.unique()) == 4  # all three at once, each at another place
    result = spherical_kmeans(features, 4, seed=0, n_init=0, init=same_place)
    assert torch.bincount(result.labels, minlength=4).tolist() == [50] * 4
    assert len(set(zip(result.labels.tolist(), origin.tolist(), strict=True))) == 4


def test_members_that_cancel_out_still_leave_unit_centres() -> None:
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    for n_clusters in range(1, 5):
        check_consistent(features, spherical_kmeans(features, n_clusters, seed=0), n_clusters)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_as_many_clusters_as_rows(n: int) -> None:
    features = torch.randn(n, 6, generator=torch.Generator().manual_seed(n))
    result = spherical_kmeans(features, n, seed=0)
    assert sorted(result.labels.tolist()) == list(range(n))
    assert result.objective == pytest.approx(1.0)


def test_duplicates_and_zero_rows_are_no_obstacle() -> None:
    features = torch.tensor([[1.0, 2.0]] * 5 + [[2.0, -1.0]] * 5 + [[0.0, 0.0]] * 2)
    result = spherical_kmeans(features, 4, seed=0)
    assert result.objective == pytest.approx(1.0, abs=1e-6)
    assert len(set(result.labels[:5].tolist())) == len(set(result.labels[5:10].tolist())) == 1
    assert result.labels[0] != result.labels[5]
    torch.testing.assert_close(result.centres.norm(dim=1), torch.ones(4))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 10**6), st.data())
def test_every_result_is_consistent_and_no_cluster_is_empty(n: int, d: int, seed: int, data: st.DataObject) -> None:
    n_clusters = data.draw(st.integers(1, n if d > 1 else min(n, 2)))  # on a line there are two directions
    features = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    result = spherical_kmeans(features, n_clusters, seed=seed, n_init=2, n_iter=100)
    check_consistent(features, result, n_clusters)
    if d > 2:
        assert len(result.labels.unique()) == n_clusters


def test_half_precision_and_autocast_do_not_blunt_the_clusters() -> None:
    features, _ = blobs(200, 4, 8, 0.2, seed=6)
    assert spherical_kmeans(features.bfloat16(), 4, seed=0).centres.dtype == torch.float32
    expected = spherical_kmeans(features, 4, seed=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = spherical_kmeans(features, 4, seed=0)
    assert torch.equal(actual.centres, expected.centres)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_takes_the_decisions_of_the_cpu_and_repeats_them() -> None:
    features, _ = blobs(2000, 10, 32, 0.6, seed=0)
    expected = spherical_kmeans(features, 10, seed=0)
    first, second = (spherical_kmeans(features.cuda(), 10, seed=0) for _ in range(2))
    assert torch.equal(first.centres, second.centres)
    assert torch.equal(first.labels.cpu(), expected.labels)
    torch.testing.assert_close(first.centres.cpu(), expected.centres, rtol=1e-3, atol=1e-3)
    warm = spherical_kmeans(features.cuda(), 10, seed=0, n_init=0, init=expected.centres)
    assert torch.equal(match_labels(first.labels, warm.labels, 10).cpu(), torch.arange(10))


def test_no_gradient_is_kept() -> None:
    features = torch.randn(20, 4, requires_grad=True)
    assert not spherical_kmeans(features, 2, seed=0).centres.requires_grad


@pytest.mark.parametrize("n_clusters", [0, 6])
def test_impossible_numbers_of_clusters_are_refused(n_clusters: int) -> None:
    with pytest.raises(InputError, match=f"5 rows cannot form {n_clusters} clusters: choose 1 to 5"):
        spherical_kmeans(torch.randn(5, 3), n_clusters, seed=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_numbers_are_refused(value: float) -> None:
    features = torch.randn(5, 3)
    features[2, 1] = value
    with pytest.raises(InputError, match="lower the learning rate"):
        spherical_kmeans(features, 2, seed=0)


def test_a_start_is_required_and_must_fit() -> None:
    with pytest.raises(ValueError, match="n_init"):
        spherical_kmeans(torch.randn(5, 3), 2, seed=0, n_init=0)
    with pytest.raises(ValueError, match="shape"):
        spherical_kmeans(torch.randn(5, 3), 2, seed=0, init=torch.randn(3, 3))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.data())
def test_matching_equals_brute_force(n_clusters: int, data: st.DataObject) -> None:
    label = st.integers(-1, n_clusters - 1)
    pairs = data.draw(st.lists(st.tuples(label, label), min_size=1, max_size=30))
    old, new = torch.tensor(pairs).T
    permutation = match_labels(old, new, n_clusters)
    assert sorted(permutation.tolist()) == list(range(n_clusters))

    def agreement(p: tuple[int, ...]) -> int:
        return sum(a == p[b] for a, b in pairs if a >= 0 and b >= 0)

    best = max(agreement(p) for p in itertools.permutations(range(n_clusters)))
    assert agreement(tuple(permutation.tolist())) == best


def test_matching_undoes_a_renumbering() -> None:
    old = torch.arange(50) % 10
    shuffle = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    assert torch.equal(match_labels(old, shuffle[old], 10)[shuffle[old]], old)


def test_whitening_finds_clusters_beside_a_direction_of_large_variance() -> None:
    features, origin = blobs(300, 3, 16, 0.2, seed=1)
    features = F.normalize(features, dim=1)
    nuisance = F.normalize(torch.randn(16, generator=torch.Generator().manual_seed(2)), dim=0)
    features += torch.randn(300, 1, generator=torch.Generator().manual_seed(3)) * 2 * nuisance
    plain = spherical_kmeans(features, 3, seed=0).labels
    whitened = spherical_kmeans(whiten(features, shrinkage=0.1)(features), 3, seed=0).labels
    agreements = [
        float((match_labels(origin, labels, 3)[labels] == origin).float().mean()) for labels in (plain, whitened)
    ]
    assert agreements[0] < 0.7 < 0.95 < agreements[1]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_surest_are_chosen_within_each_cluster(share: float) -> None:
    generator = torch.Generator().manual_seed(5)
    gap, labels = torch.rand(60, generator=generator), torch.randint(0, 4, (60,), generator=generator) * 2
    chosen = assign.widest_gaps(gap, labels, share)
    for cluster in labels.unique():
        members = (labels == cluster).nonzero()[:, 0].tolist()
        best = sorted(members, key=lambda i: -gap[i])[: math.ceil(share * len(members))]
        assert sorted(best) == [i for i in members if chosen[i]]
