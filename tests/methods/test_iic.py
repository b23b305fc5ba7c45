"""IIC: its information against a slow reference, which head has its turn, and which sub-head predicts."""

import pytest
import torch

import reference_peers as slow
from small_peers import N, method_of, step, views_of


@pytest.mark.parametrize("over", [False, True])
def test_the_head_whose_turn_it_is_has_the_loss(over: bool) -> None:
    method = method_of("iic", "own.entropy_weight=1.3")
    method.over.fill_(over)
    views = views_of(method, 3)
    with torch.no_grad():
        features = method.online.backbone_features(torch.cat(views))
        head = method.online.over_heads if over else method.online.heads
        by_head = head(features).view(3 * N, 2, -1).softmax(2).numpy()
    wanted = [
        slow.paired_information([*by_head[:N, h], *by_head[:N, h]], by_head[N:, h], 1.3)  # the image with each view
        for h in range(2)
    ]
    outcome = step(method, views)
    assert outcome.loss.item() == pytest.approx(-sum(wanted) / 2, abs=1e-9)
    assert outcome.metrics["over_loss" if over else "cluster_loss"].item() == pytest.approx(outcome.loss.item())


def test_heads_take_turns() -> None:
    method = method_of("iic", "own.over_epochs=1", "own.cluster_epochs=2")
    turns = []
    for epoch in range(6):
        method.schedule(epoch, 0.5)
        turns.append(bool(method.over))
    assert turns == [True, False, False, True, False, False]


def test_the_sub_head_with_the_least_loss_predicts() -> None:
    method = method_of("iic")
    for losses in ([-1.0, -0.5], [0.2, -0.9]):
        method.remember({"losses": torch.tensor(losses)})
    assert method.after_epoch(0, lambda: iter(()), None) == {"best_head": 1.0}
    assert not method.totals.any()  # the next epoch begins anew
    method.eval()
    views = views_of(method, 3)
    outcome = step(method, views)
    logits = method.online.heads(method.online.backbone_features(views[0])).view(N, 2, -1)[:, 1]
    torch.testing.assert_close(outcome.assignment, logits.softmax(1).detach())
    torch.testing.assert_close(method.online.log_assign(views[0]).exp(), logits.softmax(1))
    torch.testing.assert_close(outcome.key_assignment, method.online.log_assign(views[1]).exp().detach())
