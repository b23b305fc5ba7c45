"""GATCluster: its four tasks against slow references, where its targets come from, and its attention."""

from typing import Any

import numpy as np
import pytest
import torch

import reference_peers as slow
from small_peers import SAMPLES, method_of, small, step, views_of
from small_runs import make
from twincluster.core import InputError
from twincluster.nn import ResNet

WEIGHTS = ("own.invariance_weight=0.7", "own.entropy_weight=0.4", "own.relation_weight=0.3", "own.attention_weight=0.9")


def with_targets(*changes: str, kind: str = "rows") -> Any:
    method = method_of("gatcluster", *changes, kind=kind)
    generator = torch.Generator().manual_seed(4)
    method.log_assignment.copy_(torch.randn(method.log_assignment.shape, generator=generator).log_softmax(1))
    method.log_share.copy_(method.log_assignment.logsumexp(0))
    method.group.copy_(torch.randint(0, 3, method.group.shape, generator=generator))
    method.known.fill_(True)
    return method


@pytest.mark.parametrize("known", [True, False])
def test_the_loss_is_that_of_four_tasks(known: bool) -> None:
    method = with_targets(*WEIGHTS)
    method.known.fill_(known)
    views = views_of(method, 1)
    with torch.no_grad():
        seen, attended = method.online.backbone_features(views[0]).chunk(2, 1)
        q, by_attention = (
            head(features).softmax(1).numpy()
            for head, features in ((method.online.head, seen), (method.attended_head, attended))
        )
    old = method.log_assignment.exp().numpy()
    balanced, sharpened = (np.array(slow.even(old, old.sum(0), power))[SAMPLES] for power in (1, 2))
    group = method.group[SAMPLES].numpy()
    learned = (
        0.7 * slow.invariance(q, balanced)
        + 0.3 * slow.relation(q, group[:, None] == group)
        + 0.9 * slow.attention(by_attention, sharpened)
    )
    entropy = slow.marginal_entropy(q) + slow.marginal_entropy(by_attention)
    assert step(method, views).loss.item() == pytest.approx(known * learned - 0.4 * entropy, abs=1e-9)


@pytest.mark.parametrize("least", [0.0, 1.0])
def test_targets_are_found_between_epochs(least: float) -> None:
    trainer = make("rows", *small("gatcluster"), f"own.least={least}", "train.batch_size=7")  # of 28 rows
    method = trainer.method
    found = method.after_epoch(0, trainer._all_batches, trainer.optimiser)
    assert method.training
    assert method.known
    torch.testing.assert_close(method.log_share.exp(), method.log_assignment.exp().sum(0))
    method.eval()
    for batch in trainer._all_batches():
        torch.testing.assert_close(method.log_assignment[batch.samples], method.online.log_assign(batch.plain()))
    sizes = torch.bincount(method.group)
    assert found == {"paired": 1 - least}  # 28 rows are no three clusters of one size
    assert len(sizes) == (28 if least else 3)
    assert sizes.min() >= 1


def test_weights_that_are_lost_are_refused_in_words() -> None:
    trainer = make("rows", *small("gatcluster"))
    with torch.no_grad():
        trainer.method.online.head[0].bias.fill_(torch.nan)
    with pytest.raises(InputError, match="lower the rate"):
        trainer.method.after_epoch(0, trainer._all_batches, trainer.optimiser)


def test_attention_weighs_the_places_of_the_maps() -> None:
    method = with_targets(kind="images").eval()
    backbone, images = method.online.backbone, views_of(method)[0]
    assert isinstance(backbone.trunk, ResNet)
    assert backbone.side == 2  # of 8 pixels
    maps = backbone.narrow(backbone.trunk.maps(images))
    place = torch.sigmoid(backbone.place(backbone.look(maps).flatten(1)))
    height = torch.tensor(slow.gaussian(place.detach().numpy(), 2, 0.05), dtype=maps.dtype)
    features = backbone.label(maps)
    seen, attended = backbone(images).chunk(2, 1)
    torch.testing.assert_close(seen, features.mean((2, 3)))
    torch.testing.assert_close(attended, torch.einsum("nahw,nhw->na", features, height))


def test_rows_are_one_place() -> None:
    method = with_targets()
    assert method.online.backbone.side == 1
    assert method.online.backbone.trunk.maps(views_of(method)[0]).shape[2:] == (1, 1)


def test_assignments_are_those_of_prediction_and_need_no_attention() -> None:
    method = with_targets().eval()
    views = views_of(method, 1)
    wanted = step(method, views).assignment
    with torch.no_grad():
        method.online.backbone.place.bias.fill_(3.0)
    torch.testing.assert_close(wanted, method.online.log_assign(views[0]).exp().detach())
