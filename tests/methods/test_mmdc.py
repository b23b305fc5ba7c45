"""MMDC: its loss against a slow reference, corners that are exchanged at the least cost, and turned images."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import reference_peers as slow
from small_peers import SAMPLES, N, directions, method_of, small, step, views_of
from small_runs import make
from twincluster.core import InputError
from twincluster.methods.peers.mmdc import TURNS, exchanged


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ["rows", "images"])
def test_the_loss_is_the_distance_from_corners_and_that_of_turns(kind: str, known: bool) -> None:
    method = method_of("mmdc", "own.rotation_weight=0.4", kind=kind)
    method.known.fill_(known)
    views = views_of(method, 1 + TURNS if kind == "images" else 1)
    with torch.no_grad():
        features = method.online.backbone_features(torch.cat(views))
        points = F.normalize(method.online.head(features[:N]), dim=1).numpy()
        turns = method.turn_head(features[N:]).numpy() if kind == "images" else []
    wanted = known * slow.corner_distance(points, method.corner[SAMPLES].tolist())
    if kind == "images":
        wanted += 0.4 * slow.cross_entropy(np.eye(TURNS).repeat(N, 0), turns)
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=1e-9)


def test_images_are_turned_by_right_angles() -> None:
    trainer = make("images", *small("mmdc"))
    next(trainer.feed.epoch(0))
    upright = torch.arange(3 * 64.0).view(1, 3, 8, 8)
    batch = trainer._batch(trainer.feed.samples, trainer.feed.images, trainer.feed.samples)
    batch = type(batch)(batch.samples, batch.keys, lambda view: upright + view, batch.plain)
    first, *turned = trainer.method.views(batch)
    assert torch.equal(first, upright)
    for turn, images in enumerate(turned):
        assert torch.equal(torch.rot90(images, -turn, (2, 3)), upright + 1)


@pytest.mark.parametrize("corner", [[0, 0, 0], [0, 1, 2], [2, 0, 2, 1, 0, 1], [1]])
def test_corners_are_exchanged_at_the_least_cost(corner: list[int]) -> None:
    points = directions(len(corner), 3)
    found = exchanged(points, torch.tensor(corner)).tolist()
    assert sorted(found) == sorted(corner)
    cost = math.fsum(math.dist(row, np.eye(3)[own]) for row, own in zip(points.tolist(), found, strict=True))
    assert cost == pytest.approx(slow.exchanges(points.tolist(), corner))


def test_between_epochs_each_batch_exchanges_its_corners() -> None:
    trainer = make("rows", *small("mmdc"), "train.batch_size=7")  # of 28 rows
    method = trainer.method
    old = method.corner.clone()
    assert set(old.tolist()) == {0, 1, 2}
    found = method.after_epoch(0, trainer._all_batches, trainer.optimiser)
    assert method.training
    assert method.known
    assert found == {"relabelled": pytest.approx((method.corner != old).float().mean().item())}
    assert found["relabelled"] > 0
    method.eval()
    for batch in trainer._all_batches():
        points = method.online.point(method.online.backbone_features(batch.plain()))
        assert torch.equal(method.corner[batch.samples], exchanged(points.detach(), old[batch.samples]))


def test_at_last_kmeans_says_which_corner_it_is() -> None:
    """Images in the cluster of most that were in a corner are in it now."""
    method = method_of("mmdc")
    points, old = torch.eye(3)[[0, 0, 0, 1, 1, 2, 2, 2]], torch.tensor([2, 2, 0, 0, 0, 1, 1, 2])
    assert method.refined(points, old, seed=0).tolist() == [2, 2, 2, 0, 0, 1, 1, 1]
    assert method.refined(points[:2], old[:2], seed=0).tolist() == [2, 2]  # too few


def test_refinement_begins_with_its_share_of_the_run() -> None:
    trainer = make("rows", *small("mmdc"))
    method, called = trainer.method, []
    method.refined = lambda points, old, seed: called.append(len(points)) or old
    for progress in (0.5, 0.7):
        method.schedule(0, progress)
        method.after_epoch(0, trainer._all_batches, trainer.optimiser)
    assert called == [28]  # all rows, in batches of 8, 8, 6 and 6


def test_weights_that_are_lost_are_refused_in_words() -> None:
    trainer = make("rows", *small("mmdc"))
    with torch.no_grad():
        trainer.method.online.head.bias.fill_(torch.nan)
    with pytest.raises(InputError, match="lower the rate"):
        trainer.method.after_epoch(0, trainer._all_batches, trainer.optimiser)


def test_assignments_are_those_of_prediction() -> None:
    method = method_of("mmdc").eval()
    views = views_of(method, 1)
    outcome = step(method, views)
    torch.testing.assert_close(outcome.assignment, method.online.log_assign(views[0]).exp().detach())
    assert torch.equal(outcome.key_assignment.argmax(1), method.corner[SAMPLES])
