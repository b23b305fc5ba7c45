"""The deconvolutional network: its cost against a slow reference, maps of which some are 0, and unit filters."""

import math

import pytest
import torch

from small_peers import N, method_of, step, views_of


@pytest.mark.parametrize("kind", ["rows", "images"])
def test_the_cost_is_what_is_not_rebuilt_and_what_it_took(kind: str) -> None:
    method = method_of("decnn", "own.sparsity=0.2", kind=kind)
    (images,) = views_of(method, 1)
    raw = method.online.head(method.online.backbone_features(images)).detach()
    maps, taken = raw.clone(), 0.0
    for place, value in enumerate(raw.flatten().tolist()):
        shrunk = math.copysign(max(0.0, abs(value) - 0.2), value)
        maps.view(-1)[place] = shrunk
        taken += abs(shrunk)
    missed = (method.filters(maps.view(N, *method.online.map_shape)) - images).flatten().tolist()
    wanted = (math.fsum(gap**2 for gap in missed) / 2 + 0.2 * taken) / images.numel()
    outcome = step(method, (images,))
    assert outcome.loss.item() == pytest.approx(wanted, abs=1e-9)
    in_use = (maps != 0).double().mean().item()
    assert outcome.metrics["in_use"].item() == pytest.approx(in_use, abs=1e-6)
    assert 0 < in_use < 1


def test_an_image_is_a_sum_of_filters() -> None:
    """One map alone draws its filters; two draw the sum, scaled as the maps are."""
    method = method_of("decnn", kind="images")
    spots = torch.zeros(3, *method.online.map_shape, dtype=torch.float64)
    spots[0, 0, 1, 1], spots[1, 2, 3, 0] = 1, 1
    spots[2] = 3 * spots[0] - spots[1]
    one, two, sum_of_both = method.filters(spots)
    torch.testing.assert_close(sum_of_both, 3 * one - two)
    assert one.any()
    assert two.any()


def test_filters_keep_their_norm() -> None:
    method = method_of("decnn", kind="images")
    outcome = step(method, views_of(method, 1))
    with torch.no_grad():
        for filters in method.filters.parameters():
            filters *= 7
    method.remember(outcome.memory)
    for filters in method.filters.parameters():
        for of_one_map in filters:
            assert of_one_map.norm().item() == pytest.approx(1, abs=1e-9)
    torch.testing.assert_close(method.recent.filled(), outcome.memory["features"])
