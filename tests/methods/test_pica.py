"""PICA: its partition loss against a slow reference, with and without the over-clustering head."""

import math

import pytest
import torch
import torchvision.transforms.v2.functional as tv

import reference_peers as slow
from small_peers import KEYS, SAMPLES, N, method_of, step, views_of
from twincluster.methods import Batch
from twincluster.methods.peers.information import random_part


@pytest.mark.parametrize("epoch,over_clusters", [(0, 5), (1, 5), (0, 0)])
def test_the_head_whose_turn_it_is_has_the_loss(epoch: int, over_clusters: int) -> None:
    method = method_of("pica", "own.balance_weight=0.7", f"own.over_clusters={over_clusters}")
    method.schedule(epoch, 0.5)
    views = views_of(method, 3)
    with torch.no_grad():
        features = method.online.backbone_features(torch.cat(views))
        head = method.online.over_head if over_clusters and epoch == 0 else method.online.head
        q = head(features).softmax(1).numpy()
    uncertainty = slow.partition_uncertainty([*q[:N], *q[:N]], q[N:])  # the image with each view
    unevenness = math.log(q.shape[1]) - slow.marginal_entropy(q[:N])
    assert step(method, views).loss.item() == pytest.approx(uncertainty + 0.7 * unevenness, abs=1e-9)


def test_assignments_are_those_of_prediction() -> None:
    method = method_of("pica").eval()
    views = views_of(method, 3)
    outcome = step(method, views)
    torch.testing.assert_close(outcome.assignment, method.online.log_assign(views[0]).exp().detach())
    torch.testing.assert_close(outcome.key_assignment, method.online.log_assign(views[1]).exp().detach())


@pytest.mark.parametrize("corner", [(0, 0), (8, 3), (5, 8)])
def test_the_part_is_that_of_an_enlarged_image(corner: tuple[int, int]) -> None:
    """As the authors have it: enlarged from 32 to 40 pixels, and 32 of these."""
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    top, left = corner
    wanted = tv.crop(tv.resize(images, [40, 40], antialias=False), top, left, 32, 32)
    draw = torch.tensor([[left / 8, top / 8]]).expand(2, 2)
    torch.testing.assert_close(random_part(images, draw, 0.8), wanted, rtol=0, atol=1e-5)


def test_the_first_view_is_a_part_of_the_image() -> None:
    whole = torch.rand(N, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batch = Batch(SAMPLES, KEYS, view=lambda i: whole + i + 1, plain=lambda: whole)
    for share in (1.0, 0.5):
        method = method_of("pica", f"own.crop={share}", kind="images")
        first, *others = method.views(batch)
        assert torch.allclose(first, whole) == (share == 1)
        assert first.min() >= whole.min()
        assert [float((other - whole).mean()) for other in others] == pytest.approx([1, 2])
