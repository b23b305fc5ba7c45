"""SCAN: the loss of each stage against slow references, and when one stage follows another."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import reference_peers as slow
from small_peers import KEYS, SAMPLES, N, directions, method_of, step, views_of


def at_stage(stage: int):
    method = method_of("scan", "own.entropy_weight=0.5", "own.temperature=0.3")
    method.stage.fill_(stage)
    method.bank.copy_(directions(*method.bank.shape))
    method.nearest.copy_((torch.arange(28)[:, None] + torch.arange(1, 4)) % 28)
    return method, views_of(method, 3)


@pytest.mark.parametrize("stage", range(3))
def test_each_stage_has_its_loss(stage: int) -> None:
    method, views = at_stage(stage)
    with torch.no_grad():
        features = method.online.backbone_features(torch.cat(views))
        one, two, _ = F.normalize(method.online.projector(features), dim=1).numpy().reshape(3, N, -1)
        p, _, plain = method.online.head(features).softmax(1).numpy().reshape(3, N, -1)
        near = method.online.head(method.bank[method.neighbour(SAMPLES, KEYS)]).softmax(1).numpy()
    wanted = [
        slow.nt_xent(one, two, 0.3),
        slow.neighbours(p, near) - 0.5 * slow.marginal_entropy(p),
        slow.self_labels(p, plain, 0.4),
    ]
    assert step(method, views).loss.item() == pytest.approx(wanted[stage], abs=1e-9)


def test_neighbours_are_drawn_among_the_nearest() -> None:
    method, _ = at_stage(1)
    drawn = method.neighbour(SAMPLES.repeat(50), torch.arange(50 * N)).view(50, N)
    assert [set(column.tolist()) for column in drawn.T] == [set(method.nearest[sample].tolist()) for sample in SAMPLES]


def test_stages_follow_when_their_share_of_the_run_has_come() -> None:
    method = method_of("scan", "own.self_label_start=0.6")
    method.bank.copy_(directions(*method.bank.shape))
    stages, taught = [], []
    for epoch, progress in enumerate((0.1, 0.19, 0.3, 0.5, 0.7, 0.9)):
        method.schedule(epoch, progress)
        stages.append(method.after_epoch(epoch, lambda: iter(()), None)["stage"])
        taught.append(int(method.taught))
    assert stages == [0, 0, 1, 1, 2, 2]
    assert taught == [0, 0, 0, 1, 1, 2]  # what the epoch before has learned
    similarity = (method.bank @ method.bank.T).fill_diagonal_(-np.inf)
    torch.testing.assert_close(method.nearest, similarity.topk(3).indices)


@pytest.mark.parametrize("stage", range(2))
def test_the_bank_holds_the_first_view_and_k_means_on_it_is_recorded_at_first(stage: int) -> None:
    method, views = at_stage(stage)
    method.after_epoch(0, lambda: iter(()), None)
    method.stage.fill_(stage)
    outcome, before = step(method, views), method.bank.clone()
    with torch.no_grad():
        features = method.online.backbone_features(torch.cat(views))[:N]
        by_centres = method.centres(F.normalize(features, dim=1)).exp()
        by_head = method.online.head(features).softmax(1)
    torch.testing.assert_close(outcome.assignment, by_head if stage else by_centres)
    assert by_centres.std() > 1e-3
    method.remember(outcome.memory)
    torch.testing.assert_close(method.bank[SAMPLES], features)
    others = torch.ones(len(before), dtype=torch.bool).index_fill(0, SAMPLES, False)
    assert torch.equal(method.bank[others], before[others])


def test_labels_do_not_teach_the_images_they_come_from() -> None:
    """The gradient of self-labelling reaches strong views alone."""
    method, views = at_stage(2)
    method.eval()
    views = tuple(view.requires_grad_() for view in views)
    step(method, views).loss.backward()
    assert [bool(view.grad is not None and view.grad.any()) for view in views] == [True, False, False]


@pytest.mark.parametrize("learned", [False, True])
def test_a_head_that_has_learned_nothing_gives_way_to_kmeans(learned: bool) -> None:
    method = method_of("scan")
    features, head = directions(28, method.bank.shape[1]), method.online.head.weight.clone()
    method.stage.fill_(1)
    if learned:
        method.taught.fill_(1)
    method.finish(lambda network: features)
    assert torch.equal(method.online.head.weight, head) is learned
    if not learned:
        by_centres = method.centres(features).argmax(1)
        assert len(by_centres.unique()) == 3
        assert torch.equal(method.online.head(5 * features).argmax(1), by_centres)
