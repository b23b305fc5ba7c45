"""CDC: contrast first, then the loss of both heads against slow references, and how the heads begin."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import reference_peers as slow
from small_peers import KEYS, SAMPLES, N, directions, method_of, step, views_of
from small_runs import Diary, assert_equal_state, images_of, rows, train
from twincluster.methods import Batch
from twincluster.methods.peers.neighbours import ROUNDS, START, prototypes, spread
from twincluster.nn import draws


def begun(*changes: str):
    method = method_of("cdc", *changes)
    with torch.no_grad():
        method.begin(method.online.backbone_features(torch.cat(views_of(method, 3))), 0)
    return method


def entropy_of_mean(assignment: Tensor) -> float:
    shares = slow.mean_row(assignment.numpy())
    return -math.fsum(share * math.log(share) for share in shares)


def test_first_it_contrasts() -> None:
    """As MoCo does, which the heads leave alone."""
    wanted, method = method_of("moco", "own.shuffle_keys=false", "own.ema=0.99"), method_of("cdc")
    found = method.state_dict()
    wanted.load_state_dict({name: found[name] for name in wanted.state_dict()})
    for one in (wanted, method):
        one.queue.push(directions(5, 8))
    views = views_of(method, 3)
    outcome, moco = step(method, views), step(wanted, views[:2])
    torch.testing.assert_close(outcome.loss, moco.loss)
    torch.testing.assert_close(outcome.memory, moco.memory)
    outcome.loss.backward()
    assert not any(weight.grad.any() for weight in method.online.cluster_head.parameters())
    for one, of_step in ((wanted, moco), (method, outcome)):
        one.remember(of_step.memory)
    found = method.state_dict()
    for name, tensor in wanted.state_dict().items():
        if name.startswith(("momentum.", "queue.", "recent.")):
            torch.testing.assert_close(found[name], tensor)


@pytest.mark.parametrize("weight", [0.0, 1.5])
def test_then_it_learns_what_it_is_sure_of_and_how_sure_it_may_be(weight: float) -> None:
    method = begun("own.mini_clusters=0.4", f"own.entropy_weight={weight}")
    views = views_of(method, 3)
    with torch.no_grad():
        learned = method.online.cluster_head(method.online.backbone_features(views[0])).log_softmax(1)
        plain = method.online.backbone_features(views[2])
        known = method.online.cluster_head(plain).softmax(1)
        calibrated = method.online.calibration_head(plain).softmax(1)
    order = sorted(range(N), key=draws.uniform(KEYS, START, 1).squeeze(1).tolist().__getitem__)
    scaled = plain / plain.abs().sum(1, keepdim=True)
    believed = slow.mini_clusters(scaled.numpy(), known.numpy(), order[: round(0.4 * N)], ROUNDS)
    chosen = [i for i, sure in enumerate(slow.surest(calibrated.numpy())) if sure]
    assert chosen
    cluster = -math.fsum(float(learned[i, calibrated[i].argmax()]) for i in chosen) / len(chosen)
    crosses = [-math.fsum(p * math.log(float(q)) for p, q in zip(believed[i], calibrated[i], strict=True))
               for i in range(N)]  # fmt: skip
    wanted = cluster + math.fsum(crosses) / N - weight * entropy_of_mean(calibrated)
    outcome = step(method, views)
    assert outcome.loss.item() == pytest.approx(wanted, abs=1e-6)
    assert outcome.metrics["chosen"].item() == pytest.approx(len(chosen) / N)


def test_calibration_teaches_its_head_alone() -> None:
    method = begun()
    views = tuple(view.requires_grad_() for view in views_of(method, 3))
    step(method, views).loss.backward()
    assert [bool(view.grad is not None and view.grad.any()) for view in views] == [True, False, False]
    assert all(head.first.weight.grad.any() for head in (method.online.cluster_head, method.online.calibration_head))


def test_heads_begin_alike_with_clusters_of_the_features() -> None:
    method = method_of("cdc", "own.spread_steps=200").eval()
    groups = torch.arange(60) % 3
    features = 4 * torch.eye(3, method.online.backbone.n_features, dtype=torch.float64)[groups]
    features += 0.1 * torch.randn(features.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        method.begin(features, 0)
        heads = method.online.cluster_head, method.online.calibration_head
        found, same = (head(features) for head in heads)
        made = heads[0].first(features)
    assert torch.equal(found, same)
    torch.testing.assert_close(heads[0].norm.running_mean, made.mean(0))
    torch.testing.assert_close(heads[0].norm.running_var, made.var(0))
    pairs = set(zip(groups.tolist(), found.argmax(1).tolist(), strict=True))
    assert len(pairs) == len({cluster for _, cluster in pairs}) == 3


def test_weights_are_driven_apart() -> None:
    near = prototypes(1 + 0.3 * directions(30, 6), 4, 0)
    before, after = (torch.nn.functional.normalize(weights, dim=1) for weights in (near, spread(near, 300)))
    off = ~torch.eye(4, dtype=torch.bool)
    assert (after @ after.T)[off].max() < min(0.1, (before @ before.T)[off].max())


def test_the_second_stage_comes_with_its_share_of_the_run() -> None:
    method, stages = method_of("cdc", "own.cluster_start=0.5"), []
    plain = views_of(method, 1)[0].repeat(3, 1)
    batch = Batch(SAMPLES, SAMPLES, view=lambda _: plain, plain=lambda: plain)
    for epoch, progress in enumerate((0.1, 0.5, 0.9)):
        method.schedule(epoch, progress)
        stages.append(method.after_epoch(epoch, lambda: iter([batch]), None)["stage"])
        if epoch == 1:
            first = method.online.cluster_head.first.weight.clone()
    assert stages == [0, 1, 1]
    assert torch.equal(method.online.cluster_head.first.weight, first)  # it begins once
    assert method.online.training


@pytest.mark.parametrize(("start", "trained"), [(0.2, True), (0.5, False), (1.0, False)])
def test_predictions_are_calibrated_or_of_k_means(start: float, trained: bool) -> None:
    """After one of two epochs the heads begin and learn; after the last they begin too late to; or they never begin."""
    small = ("own.n_features=8", "own.hidden=16", "own.head_hidden=12", "own.spread_steps=10")
    diary = Diary()
    changes = ("method=cdc", *small, f"own.cluster_start={start}", "train.epochs=2")
    method = train(images_of(rows()), *changes, reporter=diary).eval()
    assert [row["stage"] for row in diary.rows] == {0.2: [1, 1], 0.5: [0, 1], 1.0: [0, 0]}[start]
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    calibrated = method.online.calibration_head(method.online.backbone_features(x)).log_softmax(1)
    by_centres = method.online.centres(method.online.embed(x))
    torch.testing.assert_close(method.online.log_assign(x), calibrated if trained else by_centres)
    assert (method.online.centres.scale > 0) or trained


def test_a_resumed_run_knows_that_its_heads_have_learned(tmp_path: Path) -> None:
    """Interrupted after its last step."""
    small = ("own.n_features=8", "own.hidden=16", "own.head_hidden=12", "own.spread_steps=10")
    changes = ("method=cdc", *small, "own.cluster_start=0.2", "train.epochs=2")
    once = train(images_of(rows()), *changes, folder=tmp_path / "run").eval()
    again = train(images_of(rows()), *changes, folder=tmp_path / "run", resume=True).eval()
    assert_equal_state(again.online.state_dict(), once.online.state_dict())
    assert again.online.begun


def test_heads_are_no_wider_than_the_rows_they_begin_with() -> None:
    """28 rows in batches of 8: four of an epoch's order are left out."""
    small = ("own.n_features=8", "own.hidden=16", "own.head_hidden=512", "own.spread_steps=2")
    method = train(images_of(rows(28)), "method=cdc", *small, "own.cluster_start=0.2", "train.epochs=2")
    assert method.online.begun
    assert method.online.cluster_head.first.out_features == 24
