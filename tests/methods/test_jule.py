"""JULE: its triplets against a slow reference, how groups are merged between epochs, and the clusters at the end."""

from typing import Any

import numpy as np
import pytest
import torch

import reference_peers as slow
from small_peers import KEYS, SAMPLES, N, method_of, small, step, views_of
from small_runs import images_of, make, pictures, rows, train
from twincluster.clustering import neighbours as agglomerate
from twincluster.clustering import score
from twincluster.core import InputError
from twincluster.methods.peers import jule
from twincluster.methods.peers.jule import OTHERS
from twincluster.nn import draws

GROUPS = [0, 0, 6, 0, 6, 15, 18, 6]  # of SAMPLES


def grouped(*changes: str, kind: str = "rows") -> Any:
    method = method_of("jule", *changes, kind=kind)
    method.group[SAMPLES] = torch.tensor(GROUPS)
    return method


@pytest.mark.parametrize("negatives", [1, 3, 20])
@pytest.mark.parametrize("kind", ["rows", "images"])
def test_the_loss_is_that_of_triplets(kind: str, negatives: int) -> None:
    method = grouped(f"own.negatives={negatives}", "own.margin=0.7", "own.pair_weight=1.5", kind=kind)
    views, draw = views_of(method, 1), draws.uniform(KEYS, OTHERS, N).tolist()
    triplets = []
    for i, group in enumerate(GROUPS):
        others = sorted((j for j in range(N) if GROUPS[j] != group), key=lambda j: -draw[i][j])[:negatives]
        partners = [j for j in range(N) if GROUPS[j] == group and j != i]
        triplets += [(i, partner, other) for partner in partners for other in others]
    wanted = slow.triplets(method.online.embed(views[0]).detach().numpy(), triplets, 0.7, 1.5)
    assert wanted > 0
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=1e-9)


def test_images_that_are_groups_by_themselves_teach_nothing() -> None:
    method = method_of("jule")
    outcome = step(method, views_of(method, 1))
    outcome.loss.backward()
    assert outcome.loss.item() == 0
    assert not any(weight.grad.any() for weight in method.online.parameters() if weight.grad is not None)


def test_the_first_groups_are_neighbours_by_their_pixels() -> None:
    trainer = make("images", *small("jule"), "train.batch_size=7")  # of 28 images
    method = trainer.method
    found = method.after_epoch(0, trainer._all_batches, trainer.optimiser)
    batches = list(trainer._all_batches())
    samples, images = torch.cat([b.samples for b in batches]), torch.cat([b.plain() for b in batches])
    wanted = torch.empty(28, dtype=torch.int64)
    for group in set(first := agglomerate.first_groups(torch.nn.functional.normalize(images.flatten(1), dim=1))):
        members = samples[torch.as_tensor(first == group)]
        wanted[members] = members.min()
    assert torch.equal(method.group, wanted)
    assert method.training
    assert found == {"groups": len(set(wanted.tolist()))}
    assert 3 <= found["groups"] < 15


def test_groups_are_merged_when_their_epochs_are_over() -> None:
    trainer = make("rows", *small("jule"), "own.merge_epochs=2", "own.merge_share=0.4", "train.batch_size=7")
    method, counts = trainer.method, []
    for epoch in range(7):
        before = method.group.clone()
        counts.append(method.after_epoch(epoch, trainer._all_batches, trainer.optimiser)["groups"])
        for group in before.unique():
            assert len(method.group[before == group].unique()) == 1  # nobody leaves a group
    assert counts[0] == counts[1] > counts[2] == counts[3] > counts[4]
    assert min(counts) >= 3


def test_samples_that_were_not_seen_follow_their_group() -> None:
    method = grouped()
    method.group.copy_(torch.arange(28))
    method.group[:9] = torch.tensor([0, 0, 2, 2, 2, 5, 6, 6, 8])
    method.regroup(torch.tensor([1, 3, 7, 8]), torch.tensor([1, 0, 0, 1]))  # 0 and 8 are one now, and 2 and 6
    assert method.group.tolist() == [0, 0, 2, 2, 2, 5, 2, 2, 0, *range(9, 28)]


def test_no_more_images_are_compared_than_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jule, "LARGEST", 15)
    trainer = make("rows", *small("jule"), "train.batch_size=7")
    samples, unit = trainer.method.embed_some(trainer._all_batches, pixels=False)
    assert len(set(samples.tolist())) == len(unit) == 21
    trainer.method.finish(lambda network: unit)
    assert trainer.method.online.centres.scale > 0


def test_at_the_end_the_means_of_the_clusters_predict() -> None:
    method = method_of("jule", "own.neighbours=5")
    labels = np.arange(60) % 3
    cloud = torch.eye(8)[torch.tensor(labels)] + 0.1 * torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(cloud.double(), dim=1)
    method.finish(lambda network: unit)
    found = method.online.centres(unit).argmax(1).numpy()
    assert score(labels, found).acc == 1
    for cluster in range(3):
        mean = torch.nn.functional.normalize(unit[found == cluster].sum(0), dim=0)
        torch.testing.assert_close(method.online.centres.directions[cluster], mean)


def test_pictures_in_three_colours_are_told_apart() -> None:
    pixels, labels = pictures(60)
    changes = ("own.merge_epochs=2", "own.merge_share=0.5", "train.epochs=8", "optimiser.learning_rate=0.05")
    method = train(images_of(pixels), *small("jule"), *changes)
    found = method.online.log_assign(method.online.prepare(torch.as_tensor(pixels))).argmax(1)
    assert score(labels, found.numpy()).acc > 0.9


def test_weights_that_are_lost_are_refused_in_words() -> None:
    trainer = make("rows", *small("jule"))
    with torch.no_grad():
        trainer.method.online.projector.bias.fill_(torch.nan)
    with pytest.raises(InputError, match="lower the rate"):
        trainer.method.embed_some(trainer._all_batches, pixels=False)


def test_fewer_samples_than_clusters_end_without_any() -> None:
    method = train(images_of(rows(2)), *small("jule"), "train.epochs=1", "n_clusters=2")
    method.n_clusters = 3
    before = method.online.centres.directions.clone()
    method.finish(lambda network: torch.eye(8)[:2])
    assert torch.equal(method.online.centres.directions, before)
