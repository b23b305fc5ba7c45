"""SwAV: swapped prediction against slow references, the queue, and prototypes that wait."""

import numpy as np
import pytest
import torch

import reference_peers as slow
from small_peers import N, directions, method_of, small, step, views_of
from small_runs import KINDS, images_of, train


@pytest.mark.parametrize("filled", [0, 5, 16])
def test_each_view_predicts_the_code_of_the_other(filled: int) -> None:
    """A queue that is not full, here of 16 rows, has no say in the codes."""
    method = method_of("swav", "own.epsilon=0.3", "own.temperature=0.5")
    for queue in method.queues:
        queue.push(directions(filled, 8))
    views = views_of(method)
    with torch.no_grad():
        scores = (method.online.embed(torch.cat(views)) @ method.online.prototypes.T).numpy().reshape(2, N, -1)
        stored = (directions(filled if filled == 16 else 0, 8) @ method.online.prototypes.T).numpy()
    codes = [slow.sinkhorn(np.concatenate([view, stored]), 0.3, 3)[:N] for view in scores]
    wanted = (slow.cross_entropy(codes[0], scores[1] / 0.5) + slow.cross_entropy(codes[1], scores[0] / 0.5)) / 2
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=1e-9)


def test_the_queue_begins_to_fill_when_its_time_has_come() -> None:
    """At queue_start, here half of the run; it holds whole batches."""
    method = method_of("swav", f"own.queue_size={2 * N + 1}")
    rows = [directions(N, 8, seed=seed) for seed in range(3)]
    for progress, batch in zip((0.4, 0.6, 0.7), rows, strict=True):
        method.schedule(1, progress)
        with torch.no_grad():
            method.remember({"first": batch, "second": batch})
    for queue in method.queues:
        assert queue.is_full()
        torch.testing.assert_close(queue.rows, torch.cat(rows[1:]))


@pytest.mark.parametrize("progress,moves", [(0.2, False), (0.31, True)])
def test_prototypes_stay_where_they_are_at_first(progress: float, moves: bool) -> None:
    method = method_of("swav")
    method.schedule(0, progress)
    step(method).loss.backward()
    assert bool(method.online.prototypes.grad.any()) == moves


def test_prototypes_learn_by_the_gradient_of_that_loss() -> None:
    method = method_of("swav", "own.temperature=0.5")
    views, prototypes = views_of(method), method.online.prototypes.detach().clone().requires_grad_()
    step(method, views).loss.backward()
    scores = (method.online.embed(torch.cat(views)).detach() @ prototypes.T).chunk(2)
    codes = [method.code(score.detach(), view) for view, score in enumerate(scores)]
    pairs = zip(scores, reversed(codes), strict=True)
    (-sum((code * (score / 0.5).log_softmax(1)).sum() for score, code in pairs) / (2 * N)).backward()
    torch.testing.assert_close(method.online.prototypes.grad, prototypes.grad)


def test_each_view_has_a_queue_and_assignments_are_those_of_prediction() -> None:
    method = method_of("swav", "own.temperature=0.5").eval()
    views = views_of(method)
    outcome = step(method, views)
    with torch.no_grad():
        for view, queue, assignment in zip(
            views, method.queues, (outcome.assignment, outcome.key_assignment), strict=True
        ):
            unit = method.online.embed(view)
            wanted = (unit @ method.online.prototypes.T / 0.5).softmax(1)
            torch.testing.assert_close(assignment, wanted)
            torch.testing.assert_close(method.online.log_assign(view).exp(), wanted)
            assert not queue.written
        method.remember(outcome.memory)
        for view, queue in zip(views, method.queues, strict=True):
            torch.testing.assert_close(queue.filled(), method.online.embed(view))


def test_prototypes_are_of_unit_norm_after_a_step() -> None:
    method = method_of("swav", "own.queue_size=0")
    with torch.no_grad():
        method.online.prototypes *= 3
        method.remember(step(method).memory)
    torch.testing.assert_close(method.online.prototypes.norm(dim=1), torch.ones(3, dtype=torch.float64))


def test_more_prototypes_than_clusters() -> None:
    """Then k-means finds the clusters."""
    method = train(images_of(KINDS["rows"]), *small("swav"), "own.n_prototypes=7", "train.epochs=2")
    assert method.online.prototypes.shape == (7, 8)
    assert method.online.log_assign(torch.zeros(2, 5)).shape == (2, 3)
