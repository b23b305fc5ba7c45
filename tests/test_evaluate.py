"""Scores, k nearest neighbours and silhouettes against brute force and scikit-learn."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score
from sklearn.neighbors import KNeighborsClassifier

from twincluster.clustering import knn_accuracy, score, silhouette
from twincluster.clustering import metrics as evaluate
from twincluster.core import InputError


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
