"""PICA: its partition loss against a slow reference, with and without the over-clustering head."""

import math

import pytest
import torch

import reference_peers as slow
from small_peers import N, method_of, step, views_of


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
