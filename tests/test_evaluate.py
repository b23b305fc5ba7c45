"""Scores against brute force and scikit-learn; health warnings at the edges of their thresholds."""

import itertools
import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from twincluster import evaluate
from twincluster.config import Config, make_config, parse_overrides
from twincluster.errors import InputError
from twincluster.evaluate import Health, health, knn_accuracy, score, silhouette


def brute_force_accuracy(labels: list[int], clusters: list[int]) -> float:
    """The best share of agreement over every one-to-one map between numbers, padded to the same count."""
    n = max(max(labels), max(clusters)) + 1
    return max(sum(p[c] == y for y, c in zip(labels, clusters, strict=True)) for p in itertools.permutations(range(n)))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40))
def test_scores_equal_brute_force_and_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, clusters = np.array(pairs).T
    scores = score(labels, clusters)
    assert scores.acc == pytest.approx(brute_force_accuracy(labels.tolist(), clusters.tolist()) / len(pairs))
    assert scores.nmi == pytest.approx(normalized_mutual_info_score(labels, clusters))
    assert scores.ari == pytest.approx(adjusted_rand_score(labels, clusters))
    assert scores.confusion.shape == (clusters.max() + 1, labels.max() + 1)
    for cluster, label in itertools.product(range(clusters.max() + 1), range(labels.max() + 1)):
        assert scores.confusion[cluster, label] == ((clusters == cluster) & (labels == label)).sum()
    matched = scores.matching[scores.matching >= 0]
    assert len(set(matched)) == len(matched)
    assert scores.acc == pytest.approx((scores.matching[clusters] == labels).mean())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40), st.permutations(range(4)))
def test_scores_do_not_depend_on_the_numbers_of_clusters(pairs: list[tuple[int, int]], names: list[int]) -> None:
    labels, clusters = np.array(pairs).T
    first, second = score(labels, clusters), score(labels, np.array(names)[clusters])
    assert (first.acc, first.nmi, first.ari) == pytest.approx((second.acc, second.nmi, second.ari))


def test_more_clusters_than_classes_and_the_other_way_round() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1])
    split = score(labels, np.array([0, 0, 0, 2, 1, 1]))  # class 0 falls into two clusters
    assert split.acc == pytest.approx(5 / 6)
    assert split.matching.tolist() == [0, 1, -1]
    merged = score(labels, np.zeros(6, dtype=int))
    assert merged.acc == pytest.approx(4 / 6)
    assert merged.matching.tolist() == [0]
    assert merged.confusion.tolist() == [[4, 2]]
    assert merged.nmi == merged.ari == 0.0


def test_an_empty_cluster_matches_nothing() -> None:
    scores = score(np.array([0, 1, 2]), np.array([0, 0, 2]))
    assert scores.matching.tolist()[1] == -1
    assert scores.confusion[1].tolist() == [0, 0, 0]


def test_unknown_labels_and_unreadable_rows_do_not_count() -> None:
    labels, clusters = np.array([0, 0, 1, 1, -1, 0]), np.array([1, 1, 0, 0, 0, -1])
    scores = score(labels, clusters)
    assert (scores.acc, scores.nmi, scores.ari) == pytest.approx((1.0, 1.0, 1.0))
    assert scores.confusion.sum() == 4


def test_scores_become_json() -> None:
    scores = score(np.array([0, 0, 1], dtype=np.uint8), np.array([1, 1, 0], dtype=np.int32))
    assert json.loads(json.dumps(scores.as_dict())) == {
        "acc": 1.0,
        "nmi": 1.0,
        "ari": 1.0,
        "confusion": [[0, 1], [2, 0]],
        "matching": [1, 0],
    }


@pytest.mark.parametrize(
    ("labels", "clusters", "message"),
    [
        ([0, 1], [0, 1, 1], "one label per row"),
        ([-1, 0], [0, -1], "no row has both"),
        ([], [], "no row has both"),
        ([0.5, 1.0], [0, 1], "whole numbers"),
        ([0, -2], [0, 1], "number them from 0"),
        ([0, 10**9], [0, 1], "without gaps"),
        ([[0, 1]], [0, 1], "one per row"),
    ],
)
def test_labels_that_cannot_be_scored_are_refused(labels: list[int], clusters: list[int], message: str) -> None:
    kind = np.int64 if not labels else None
    with pytest.raises(InputError, match=message):
        score(np.array(labels, dtype=kind), np.array(clusters, dtype=np.int64))


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return images - images.mean(0), labels, np.arange(len(labels)) % 4 == 0


@pytest.mark.parametrize(("neighbours", "temperature"), [(1, 0.1), (20, 0.1), (5, 0.01)])
def test_knn_equals_scikit_learn(monkeypatch: pytest.MonkeyPatch, neighbours: int, temperature: float) -> None:
    images, labels, is_test = digits()
    reference = KNeighborsClassifier(
        neighbours, metric="cosine", algorithm="brute", weights=lambda d: np.exp((1 - d) / temperature)
    ).fit(images[~is_test], labels[~is_test])
    expected = reference.score(images[is_test], labels[is_test])
    assert expected > 0.95
    features = torch.as_tensor(images)
    assert knn_accuracy(features, labels, is_test.astype(np.uint8), neighbours, temperature) == pytest.approx(expected)
    if torch.cuda.is_available():
        assert knn_accuracy(features.cuda(), labels, is_test, neighbours, temperature) == pytest.approx(expected)
    monkeypatch.setattr(evaluate, "CELLS", 5000)  # a few rows at a time
    assert knn_accuracy(features, labels, is_test, neighbours, temperature) == pytest.approx(expected)


def test_knn_weighs_neighbours_by_similarity() -> None:
    angle = np.radians([0.0, 10.0, 50.0, 55.0])  # the first row asks; one near row of class 1, two far ones of class 0
    features = torch.as_tensor(np.stack([np.cos(angle), np.sin(angle)], axis=1))
    labels, is_test = np.array([1, 1, 0, 0]), np.array([True, False, False, False])
    assert knn_accuracy(features, labels, is_test, neighbours=3, temperature=0.1) == 1.0
    assert knn_accuracy(features, labels, is_test, neighbours=3, temperature=10.0) == 0.0


def test_knn_without_a_split_tests_every_fifth_row_the_same_each_time() -> None:
    labels = np.arange(100) % 2
    features = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    accuracy = knn_accuracy(features, labels, None)
    assert (accuracy * 20) == pytest.approx(round(accuracy * 20))  # of 100 rows, 20 are tested
    np.random.seed(1)
    assert knn_accuracy(features, labels, None) == accuracy
    assert knn_accuracy(torch.eye(2)[labels], labels, None) == 1.0


def test_knn_leaves_out_unlabelled_rows_and_says_nan_when_nothing_is_left() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [1.0, 0.0]])
    is_test = np.array([True, False, False, False])
    assert knn_accuracy(features, np.array([0, 0, 1, -1]), is_test, neighbours=1) == 1.0
    assert math.isnan(knn_accuracy(features, np.array([-1, 0, 1, 1]), is_test))
    assert math.isnan(knn_accuracy(features, np.array([0, -1, -1, -1]), is_test))
    assert math.isnan(knn_accuracy(features[:1], np.array([0]), None))


def test_silhouette_equals_scikit_learn() -> None:
    rows, clusters = make_blobs(500, centers=4, random_state=0)
    assert silhouette(rows, clusters) == pytest.approx(silhouette_score(rows, clusters))
    sampled = silhouette(rows, clusters, sample=200, seed=1)
    assert sampled == silhouette(rows, clusters, sample=200, seed=1) != silhouette(rows, clusters, sample=200, seed=2)
    assert sampled == pytest.approx(silhouette_score(rows, clusters), abs=0.05)


def test_silhouette_of_nothing_to_compare_is_nan() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 2))
    assert math.isnan(silhouette(rows, np.zeros(6, dtype=int)))
    assert math.isnan(silhouette(rows, np.arange(6)))  # each row alone
    assert math.isnan(silhouette(rows, np.full(6, -1)))
    assert math.isnan(silhouette(rows[:0], np.zeros(0, dtype=int)))


def test_silhouette_leaves_out_rows_without_a_cluster_and_broken_rows() -> None:
    rows, clusters = make_blobs(40, centers=3, random_state=0)
    expected = silhouette_score(rows[2:], clusters[2:])
    rows[0], clusters[1] = np.nan, -1
    assert silhouette(rows, clusters) == pytest.approx(expected)


def peaked(labels: Tensor, n_clusters: int, top: float) -> Tensor:
    """q with `top` on the given cluster and the rest shared by the others."""
    q = torch.full((len(labels), n_clusters), (1 - top) / (n_clusters - 1))
    q[torch.arange(len(labels)), labels] = top
    return q


def balanced(n_clusters: int, n: int = 1000) -> Tensor:
    return torch.arange(n) % n_clusters


def warning_of(sizes: list[int], confidence: float = 0.9, agreement: float | None = None) -> str:
    return Health(sizes, confidence, marginal_entropy=1.0, agreement=agreement).warning("tcc") or ""


def test_health_measures_what_it_says() -> None:
    q = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.5, 0.3]])
    other = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.2, 0.5, 0.3]])
    state = health(q, other)
    mean = [1.6 / 4, 1.8 / 4, 0.6 / 4]
    assert state.sizes == [2, 2, 0]
    assert state.confidence == pytest.approx(2.6 / 4)
    assert state.marginal_entropy == pytest.approx(-sum(p * math.log(p) for p in mean) / math.log(3))
    assert state.agreement == pytest.approx(0.75)
    assert health(q).agreement is None


def test_health_of_extremes() -> None:
    one_cluster = health(peaked(torch.zeros(50, dtype=torch.int64), 4, 1.0))
    assert str(one_cluster.marginal_entropy) == "0.0"
    assert one_cluster.confidence == 1.0
    assert health(peaked(balanced(4), 4, 1.0)).marginal_entropy == pytest.approx(1.0)
    assert health(peaked(balanced(4), 4, 0.9).bfloat16()).confidence == pytest.approx(0.9, abs=0.01)
    with pytest.raises(ValueError, match="at least one row"):
        health(torch.zeros(0, 3))


@pytest.mark.parametrize("n_clusters", [2, 10, 20, 200])
def test_a_healthy_assignment_gives_no_warning(n_clusters: int) -> None:
    labels = balanced(n_clusters, n=20 * n_clusters)
    q = peaked(labels, n_clusters, 0.8)
    assert health(q, q).warning("tcc") is None
    slightly_off = labels.clone()
    slightly_off[::5] = (slightly_off[::5] + 1) % n_clusters
    assert health(q, peaked(slightly_off, n_clusters, 0.8)).warning("tcc") is None
    uneven = torch.cat([labels, torch.zeros(len(labels), dtype=torch.int64)])  # one cluster holds half and more
    assert health(peaked(uneven, n_clusters, 0.8)).warning("tcc") is None


def test_an_untrained_assignment_is_called_uniform() -> None:
    assert "uniform" in (health(peaked(balanced(10), 10, 0.125)).warning("tcc") or "")
    small_logits = 0.1 * torch.randn(2000, 10, generator=torch.Generator().manual_seed(0))
    assert "uniform" in (health(small_logits.softmax(1)).warning("tcc") or "")
    assert "uniform" in (health(torch.full((100, 10), 0.1)).warning("tcc") or "")  # though argmax puts all rows in one
    # bounded logits, as of unit vectors at temperature 1, peak at .25 and are no fault
    assert health(peaked(balanced(10), 10, 0.25)).warning("tcc") is None


@pytest.mark.parametrize(("n_clusters", "edge"), [(2, 0.525), (3, 0.3667), (10, 0.145), (100, 0.015), (1000, 0.0015)])
def test_the_edge_of_uniform(n_clusters: int, edge: float) -> None:
    sizes = [100] * n_clusters
    assert "stay uniform" in warning_of(sizes, confidence=edge * 0.999)
    assert warning_of(sizes, confidence=edge * 1.001) == ""


def test_the_edge_of_one_cluster_holding_everything() -> None:
    assert "one of 10 holds 91% of the images" in warning_of([910] + [10] * 9)
    assert warning_of([900, 20] + [10] * 8) == ""
    assert "one of 2 holds 95%" in warning_of([950, 50])
    assert warning_of([900, 100]) == ""


def test_empty_clusters_warn_unless_there_are_too_few_rows_to_tell() -> None:
    assert "1 of 10 is empty" in warning_of([100] * 9 + [0])
    assert "4 of 10 are empty" in warning_of([100] * 6 + [0] * 4)
    # 100 rows thrown at 100 clusters leave 36.6 empty, give or take; three deviations above is 54.8
    assert warning_of([2] * 46 + [0] * 54) == ""
    assert "55 of 100 are empty" in warning_of([2] * 10 + [3] * 10 + [2] * 25 + [0] * 55)


def test_few_rows_drawn_evenly_rarely_raise_a_false_alarm() -> None:
    generator = torch.Generator().manual_seed(0)
    for n_clusters, n in [(10, 40), (10, 100), (100, 128), (1000, 320)]:
        alarms = 0
        for _ in range(100):
            sizes = torch.bincount(torch.randint(n_clusters, (n,), generator=generator), minlength=n_clusters).tolist()
            alarms += bool(warning_of(sizes))
        assert alarms <= 5, (n_clusters, n)


def test_the_edge_of_views_that_do_not_agree() -> None:
    # balanced over K clusters chance is 1/K, and the edge lies a quarter of the way up
    assert "do not agree" in warning_of([100] * 10, agreement=0.324)
    assert warning_of([100] * 10, agreement=0.326) == ""
    assert "do not agree" in warning_of([500] * 2, agreement=0.624)
    assert warning_of([500] * 2, agreement=0.626) == ""
    # uneven clusters agree more by chance: .5^2 + 5 * .1^2 = .3
    assert "by chance 30%" in warning_of([500] + [100] * 5, agreement=0.47)
    assert warning_of([500] + [100] * 5, agreement=0.48) == ""


def test_broken_assignments_are_said_to_be_broken() -> None:
    assert "not numbers" in (health(torch.full((5, 3), float("nan"))).warning("tcc") or "")


@pytest.mark.parametrize("method", ["anchored", "tcc"])
@pytest.mark.parametrize(
    "health_state",
    [
        Health([100] * 10, 0.1, 1.0, None),
        Health([1000, 0], 1.0, 0.0, 1.0),
        Health([500, 500, 0], 0.9, 0.6, 1.0),
        Health([500, 500], 0.9, 1.0, 0.5),
        Health([1, 1], math.nan, math.nan, None),
    ],
)
def test_every_warning_is_one_line_that_says_what_to_try(health_state: Health, method: str) -> None:
    sentence = health_state.warning(method) or "\n"
    assert "\n" not in sentence
    assert any(word in sentence for word in ("lower", "train longer", "fewer"))
    changed = make_config(parse_overrides(re.findall(r"--set (\S+=[\w.]+)", sentence)))  # there are such settings
    assert (changed != Config()) == ("--set" in sentence)
    assert ("anchored." if method == "tcc" else "tcc.") not in sentence
