"""MoCo: one step against a slow reference, and what it remembers."""

import pytest
import torch

import reference_losses as slow
from small_peers import N, directions, method_of, step, views_of


@pytest.mark.parametrize("filled", [0, 5])
def test_the_loss_is_info_nce_among_the_rows_that_were_written(filled: int) -> None:
    method = method_of("moco", "own.temperature=0.4", "own.shuffle_keys=false")
    method.queue.push(directions(filled, 8))
    views = views_of(method)
    query = method.online.project(method.online.backbone_features(views[0])).detach()
    key = method.momentum.project(method.momentum.backbone_features(views[1]))
    stored = list(method.queue.rows[:filled])
    wanted = [-slow.info_nce(query[i], key[i], stored, 0.4) for i in range(N)]
    assert step(method, views).loss.item() == pytest.approx(sum(wanted) / N, abs=1e-9)


def test_shuffled_keys_come_back_in_order() -> None:
    """Without batch-norm's statistics nothing tells that they were apart; with them something does."""
    found = {}
    for shuffled in ("true", "false"):
        for training in (True, False):
            method = method_of("moco", f"own.shuffle_keys={shuffled}").train(training)
            found[shuffled, training] = step(method).memory["key"]
    torch.testing.assert_close(found["true", False], found["false", False])
    assert not torch.allclose(found["true", True], found["false", True])


def test_keys_go_to_the_queue_and_weights_to_the_copy() -> None:
    method = method_of("moco", "own.ema=0.75")
    before = [weight.clone() for weight in method.momentum.parameters()]
    outcome = step(method)
    method.remember(outcome.memory)
    torch.testing.assert_close(method.queue.filled(), outcome.memory["key"])
    for old, new, now in zip(before, method.online.parameters(), method.momentum.parameters(), strict=True):
        torch.testing.assert_close(now, 0.75 * old + 0.25 * new)
    assert not outcome.memory["key"].requires_grad
