"""DAC: its pairs against a slow reference, and thresholds that meet when the run ends."""

import pytest
import torch

import reference_peers as slow
from small_peers import N, method_of, step, views_of


@pytest.mark.parametrize("progress", [0.0, 0.6, 1.0])
def test_pairs_are_known_by_images_and_learned_by_views(progress: float) -> None:
    method = method_of("dac", "own.upper=0.9", "own.lower=0.35")
    method.schedule(0, progress)
    views = views_of(method)
    with torch.no_grad():
        features = method.online.backbone_features(torch.cat(views))
        learned, known = method.online.head(features).softmax(1).numpy().reshape(2, N, -1)
    shift = progress * 0.5
    wanted = slow.pairs_by_threshold(learned, known, 0.9 - shift, 0.35 + 0.1 * shift)
    outcome = step(method, views)
    assert outcome.loss.item() == pytest.approx(wanted, abs=2e-6)
    assert (outcome.metrics["chosen"].item() == 1) == (progress == 1)  # at the end no pair is left out
    assert 1 / N <= outcome.metrics["alike"].item() < outcome.metrics["chosen"].item()


def test_images_that_give_labels_do_not_learn_them() -> None:
    method = method_of("dac").eval()
    views = tuple(view.requires_grad_() for view in views_of(method))
    step(method, views).loss.backward()
    assert [bool(view.grad is not None and view.grad.any()) for view in views] == [True, False]


def test_assignments_are_those_of_prediction() -> None:
    method = method_of("dac").eval()
    views = views_of(method)
    outcome = step(method, views)
    torch.testing.assert_close(outcome.assignment, method.online.log_assign(views[0]).exp().detach())
    torch.testing.assert_close(outcome.key_assignment, method.online.log_assign(views[1]).exp().detach())
