"""The tree of clusters: one level is the given partition, the others refine and join it, and halves tell how sure."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage
from sklearn.metrics import adjusted_rand_score

from twincluster.clustering import Tree, grow_tree
from twincluster.clustering.tree import MOST_LEAVES, _rand, ward


def blobs(groups: int, parts: int, each: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Groups far apart, of parts less far apart: features and the part of each row."""
    random = np.random.default_rng(seed)
    middles = np.repeat(random.normal(size=(groups, 16)) * 6, parts, axis=0) + random.normal(size=(groups * parts, 16))
    part = np.repeat(np.arange(groups * parts), each)
    return (middles[part] + random.normal(size=(len(part), 16)) * 0.1).astype(np.float32), part


def at(tree: Tree, count: int) -> np.ndarray:
    return tree.leaves_in(tree.cut(count))[tree.leaf]


def test_the_given_clusters_are_a_level_and_all_other_levels_refine_or_join_them() -> None:
    features, part = blobs(4, 3, 40)
    clusters = part // 3
    clusters[:7] = 3  # odd ones stay where they were put
    tree = grow_tree(features, clusters)
    assert adjusted_rand_score(at(tree, 4), clusters) == 1
    assert adjusted_rand_score(at(grow_tree(features, part // 3), 12), part) == 1
    for count in range(1, tree.n_leaves):
        coarse, fine = at(tree, count), at(tree, count + 1)
        assert len(np.unique(coarse)) == count
        assert len(np.unique(np.stack([coarse, fine]), axis=1).T) == count + 1  # each part lies in one cluster
    assert (np.diff(tree.height) >= 0).all()
    assert tree.n_leaves <= MOST_LEAVES + 4


def test_ward_joins_as_scipy_does() -> None:
    rows = np.random.default_rng(1).normal(size=(40, 5))
    joins, height = ward(rows, np.ones(40))
    expected = linkage(rows, "ward")
    assert (np.sort(joins, 1) == np.sort(expected[:, :2].astype(int), 1)).all()
    assert np.allclose(np.sqrt(2 * height), expected[:, 2])


def test_halves_agree_on_the_true_levels() -> None:
    features, part = blobs(4, 3, 60)
    tree = grow_tree(features, part // 3)
    assert 12 in tree.natural()
    assert 12 in tree.best()
    assert tree.natural()[12] > 0.95
    noise = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
    assert max(grow_tree(noise, part[:600] % 4).agreement) < 0.6


def test_stability_tells_a_true_branch_from_an_arbitrary_one() -> None:
    features, part = blobs(3, 1, 100)
    tree = grow_tree(features, part)
    true, halves = tree.cut(3), tree.cut(6)
    assert tree.stability[true].min() > 0.95
    assert tree.stability[halves].min() < 0.8


def test_the_rand_index_is_scikit_learns() -> None:
    random = np.random.default_rng(2)
    one, two = random.integers(0, 5, 200), random.integers(0, 5, 200)
    assert _rand(one, two, 5) == pytest.approx(adjusted_rand_score(one, two))


@pytest.mark.parametrize(
    ("features", "clusters"),
    [
        (np.ones((1, 3)), [0]),
        (np.ones((2, 3)), [0, 4]),
        (np.ones((30, 3)), [0] * 15 + [1] * 15),  # all the same
        (np.zeros((30, 3)), [0] * 30),
        (np.arange(40.0)[:, None], [0] * 20 + [7] * 20),  # a single direction
    ],
)
def test_little_and_odd_data_have_a_tree(features: np.ndarray, clusters: list[int]) -> None:
    tree = grow_tree(features.astype(np.float32), np.array(clusters))
    assert adjusted_rand_score(at(tree, len(set(clusters))), clusters) == 1
    assert np.isfinite(tree.height).all()
    Tree.from_tensors(tree.tensors())


def test_dead_leaves_do_not_count() -> None:
    features, part = blobs(3, 2, 20)
    tree = grow_tree(features, part)
    alive = ~np.isin(np.arange(tree.n_leaves), tree.leaf[part == 0])
    level = tree.cut(5, alive)
    assert len(level) == 5
    assert sorted(np.flatnonzero(np.any([tree.members[node] & alive for node in level], 0))) == sorted(
        np.flatnonzero(alive)
    )
    assert all((tree.members[node] & alive).any() for node in level)


@pytest.mark.parametrize("name", ["joins", "leaf", "centres", "stability", "height"])
def test_arrays_that_are_no_tree_are_refused(name: str) -> None:
    features, part = blobs(3, 2, 20)
    arrays = grow_tree(features, part).tensors()
    arrays[name] = arrays[name][1:] if name not in ("leaf", "height") else np.full_like(arrays[name], np.float32(1e9))
    if name == "height":
        arrays[name][0] = np.nan
    with pytest.raises(ValueError, match="fit together"):
        Tree.from_tensors(arrays)
