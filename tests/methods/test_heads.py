"""Centres of k-means as a read-out: sensible, in their old order, and careful with too few rows."""

import pytest
import torch

from small_peers import directions
from twincluster.methods.heads import Centres, mlp


def blobs(n: int = 90) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.eye(5)[torch.arange(n) % 3] + 0.1 * torch.randn(n, 5, generator=generator)


def test_before_k_means_all_clusters_are_equally_likely() -> None:
    torch.testing.assert_close(Centres(4, 5)(blobs()).exp(), torch.full((90, 4), 0.25))


@pytest.mark.parametrize("near", [0.0, 2.0])
def test_clusters_are_found_with_a_known_confidence(near: float) -> None:
    """Also of rows that have much in common."""
    centres, rows = Centres(3, 5), blobs() + near
    labels = centres.fit(rows, seed=0)
    q = centres(torch.nn.functional.normalize(rows, dim=1)).exp()
    assert torch.equal(q.argmax(1), labels)
    assert all(len(labels[kind::3].unique()) == 1 for kind in range(3))
    assert 0.85 < q.amax(1).mean() < 0.95  # a gap of three nats


def test_clusters_keep_their_numbers() -> None:
    centres = Centres(3, 5)
    first = centres.fit(blobs(), seed=0)
    for seed in range(1, 4):
        assert torch.equal(centres.fit(blobs(), seed=seed, n_init=5), first)


def test_clusters_that_are_found_anew_get_the_numbers_of_those_they_overlap() -> None:
    """The centres there are cannot get out of where they are: two in one blob, the third between the others."""
    for seed in range(4):
        centres = Centres(3, 5)
        centres.scale.fill_(1.0)
        centres.directions.copy_(torch.nn.functional.normalize(blobs()[[1, 0, 3]] + torch.eye(5)[[2, 0, 0]], dim=1))
        labels = centres.fit(blobs(), seed=seed, n_init=5)
        assert labels[0] in (1, 2)
        assert 0 in labels[1:3]
        assert len(labels[:3].unique()) == 3


def test_fewer_rows_than_clusters_change_nothing() -> None:
    centres = Centres(3, 5)
    centres.fit(blobs(2), seed=0)
    assert centres.scale == 0
    centres.fit(blobs(), seed=0)
    before = centres.directions.clone()
    centres.fit(blobs(2), seed=0)
    assert torch.equal(centres.directions, before)


@pytest.mark.parametrize("batch_norm", [True, False])
def test_perceptrons(batch_norm: bool) -> None:
    head = mlp(4, 6, 2, batch_norm=batch_norm)
    assert any(isinstance(layer, torch.nn.BatchNorm1d) for layer in head) == batch_norm
    assert (head[0].bias is None) == batch_norm  # batch-norm has one of its own
    assert head(directions(3, 4).float()).shape == (3, 2)
