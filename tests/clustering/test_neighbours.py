"""The nearest rows, against a sort of all of them."""

import numpy as np
import pytest
import torch

from twincluster.clustering.neighbours import nearest_rows


@pytest.mark.parametrize(("n", "count"), [(2, 5), (30, 4), (2100, 3)])
def test_the_nearest_rows_by_a_sort(n: int, count: int) -> None:
    data = np.random.default_rng(n).normal(size=(n, 6))
    unit = data / np.linalg.norm(data, axis=1, keepdims=True)
    similarity = unit @ unit.T - 9 * np.eye(n)
    expected = np.argsort(-similarity, axis=1)[:, : min(count, n - 1)]
    np.testing.assert_array_equal(nearest_rows(torch.from_numpy(data), count), expected)


def test_of_many_rows_neighbours_come_from_an_even_pool() -> None:
    found = nearest_rows(torch.randn(100, 4, generator=torch.Generator().manual_seed(0)), 3, pool=40)
    assert set(found.flatten().tolist()) <= set(range(0, 100, 3))
    assert (found != torch.arange(100)[:, None]).all()
