"""Contrastive Clustering: its three terms against slow references."""

import pytest
import torch
import torch.nn.functional as F

import reference_peers as slow
from small_peers import N, method_of, step, views_of


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_rows_columns_and_entropy(weight: float) -> None:
    method = method_of("cc", f"own.entropy_weight={weight}", "own.temperature=0.3", "own.cluster_temperature=0.8")
    views = views_of(method)
    with torch.no_grad():
        features = method.online.backbone_features(torch.cat(views))
        one, two = F.normalize(method.online.projector(features), dim=1).numpy().reshape(2, N, -1)
        p, q = method.online.head(features).softmax(1).numpy().reshape(2, N, -1)
    clusters = slow.nt_xent(slow.columns(p), slow.columns(q), 0.8)
    evenness = slow.marginal_entropy(p) + slow.marginal_entropy(q)
    wanted = slow.nt_xent(one, two, 0.3) + clusters - weight * evenness
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=1e-9)


def test_assignments_are_those_of_prediction() -> None:
    method = method_of("cc").eval()
    views = views_of(method)
    outcome = step(method, views)
    torch.testing.assert_close(outcome.assignment, method.online.log_assign(views[0]).exp().detach())
    torch.testing.assert_close(outcome.key_assignment, method.online.log_assign(views[1]).exp().detach())
