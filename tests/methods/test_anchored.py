"""The default method's step against slow loops: its losses, its gradients, its memory and its schedule.

Shapes: N samples of a batch, K clusters, D projection.
"""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import reference_losses as slow
from small_runs import FILLED, midway
from twincluster.methods import Anchored, Outcome
from twincluster.nn import draws

N = 8
SAMPLES = torch.arange(N) * 3
VARIANTS = [("anchored.instance=infonce",), ("anchored.instance=byol",), ("anchored.hidden=0",)]


def two_views(method: Anchored, seed: int = 0) -> tuple[Tensor, Tensor]:
    shape = (N, 3, 8, 8) if method.online.side else (N, 5)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def step(method: Anchored, views: tuple[Tensor, Tensor] | None = None) -> Outcome:
    keys = draws.sample_keys(0, torch.tensor(0), SAMPLES)
    return method.losses(views or two_views(method), SAMPLES, keys)


# -- the step --------------------------------------------------------------------------------------------------------


def projections(method: Anchored, views: tuple[Tensor, Tensor]) -> tuple[slow.Array, slow.Array]:
    """Queries and keys (2N,D) of both views."""
    images = torch.cat(views)
    query = method.predicted_key(method.online.project(method.online.backbone_features(images)))
    key = method.momentum.project(method.momentum.backbone_features(images))
    return tuple(F.normalize(rows, dim=1).detach().double().numpy() for rows in (query, key))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_instance_loss_contrasts_each_view_with_the_key_of_the_other(variant: tuple[str, ...]) -> None:
    method = midway(*variant, "anchored.temperature=0.4")
    query, key = projections(method, two_views(method))
    stored = [] if method.queue is None else method.queue.rows[:FILLED].double().numpy()
    terms = []
    for i in range(2 * N):
        other = key[(i + N) % (2 * N)]
        if method.settings.instance == "byol":
            terms.append(sum((a - b) ** 2 for a, b in zip(query[i], other, strict=True)))
        else:
            terms.append(-slow.info_nce(query[i], other, list(stored), 0.4))
    assert step(method).metrics["instance_loss"].item() == pytest.approx(np.mean(terms), abs=1e-4)


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1, 2, 0, 0], [0, 0, 2, 2, 2, 0, 0, 2], [1] * 8], ids=str)
def test_cluster_loss_contrasts_the_clusters_that_the_batch_holds(labels: list[int]) -> None:
    method = midway("anchored.cluster_temperature=0.7")
    method.labels[SAMPLES] = torch.tensor(labels)
    query, key = projections(method, two_views(method))
    present = sorted(set(labels))
    members = [[float(label == k) for k in present] for label in labels * 2]
    other = np.concatenate([key[N:], key[:N]])
    clusters, keys = slow.clusters(query, members), slow.clusters(other, members)
    wanted = np.mean(slow.cluster_terms(clusters, keys, list(enumerate(keys)), 0.7))
    assert step(method).metrics["cluster_loss"].item() == pytest.approx(wanted, abs=1e-4)


def test_commitment_is_the_cross_entropy_of_the_sure_images_to_the_prototypes() -> None:
    method = midway("anchored.commit_temperature=0.4")
    query, _ = projections(method, two_views(method))
    logits = query @ method.prototypes.double().numpy().T / 0.4
    terms = []
    for i, row in enumerate(logits):
        sample = SAMPLES[i % N]
        if method.sure[sample]:
            terms.append(np.log(np.exp(row).sum()) - row[method.labels[sample]])
    assert 0 < len(terms) < 2 * N
    assert step(method).metrics["commit_loss"].item() == pytest.approx(np.mean(terms), abs=1e-4)


def test_where_nobody_is_sure_there_is_nothing_to_commit_to() -> None:
    method = midway()
    method.sure.zero_()
    method.commit_weight.fill_(1.0)
    outcome = step(method)
    assert outcome.metrics["commit_loss"].item() == 0
    outcome.loss.backward()
    assert all(weight.grad.isfinite().all() for weight in method.online.backbone.parameters())


def test_prototypes_are_the_mean_projections_of_the_sure_over_an_epoch() -> None:
    method = midway()
    method.sums.zero_()
    key = step(method).memory["key"]
    wanted = torch.zeros_like(method.sums)
    for i in range(2 * N):
        if method.sure[SAMPLES[i % N]]:
            wanted[method.labels[SAMPLES[i % N]]] += key[i]
    method.remember(step(method).memory)
    torch.testing.assert_close(method.sums, wanted)
    method.after_epoch(1, iter, None)
    torch.testing.assert_close(method.prototypes, F.normalize(wanted, dim=1))
    assert not method.sums.any()


def test_the_loss_weighs_its_parts_by_what_the_schedule_says() -> None:
    method = midway()
    for cluster, commit in itertools.product((0.0, 0.3), (0.0, 2.0)):
        method.cluster_weight.fill_(cluster)
        method.commit_weight.fill_(commit)
        outcome = step(method)
        parts = {name: value.item() for name, value in outcome.metrics.items()}
        wanted = parts["instance_loss"] + cluster * parts["cluster_loss"] + commit * parts["commit_loss"]
        assert outcome.loss.item() == pytest.approx(wanted, abs=1e-5)


def test_assignments_are_those_of_both_views_and_carry_no_gradient() -> None:
    method = midway()
    outcome = step(method)
    features = F.normalize(method.online.backbone_features(torch.cat(two_views(method))), dim=1)
    wanted = method.online.head(features).softmax(1)
    torch.testing.assert_close(torch.cat([outcome.assignment, outcome.key_assignment]), wanted.detach())
    others = [outcome.assignment, outcome.key_assignment, *outcome.memory.values()]
    assert not any(tensor.requires_grad for tensor in others)


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["images", "rows"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_gradients_reach_what_they_should_and_a_step_descends(variant: tuple[str, ...], kind: str) -> None:
    method = midway(*variant, kind=kind)
    method.commit_weight.fill_(0.0)
    weights = {name: weight for name, weight in method.named_parameters() if weight.requires_grad}
    momentum = [weight for name, weight in method.named_parameters() if name.startswith("momentum.")]
    before = step(method).loss
    before.backward()
    reached = {name for name, weight in weights.items() if weight.grad is not None and weight.grad.any()}
    assert any(name.startswith("online.backbone") for name in reached)
    assert any(name.startswith("online.projector") for name in reached) == (method.settings.hidden > 0)
    assert any(name.startswith("predictor") for name in reached) == (method.settings.instance == "byol")
    assert not any(name.startswith("online.head") for name in reached)
    assert all(weight.grad is None and not weight.requires_grad for weight in momentum)
    with torch.no_grad():
        for weight in weights.values():
            weight -= 1e-3 * (torch.zeros_like(weight) if weight.grad is None else weight.grad)
    assert step(method).loss < before


def test_commitment_moves_the_features_and_leaves_the_head_to_kmeans() -> None:
    method = midway()
    gradients = []
    for commit in (0.0, 1.0):
        method.zero_grad()
        method.commit_weight.fill_(commit)
        step(method).loss.backward()
        gradients.append(method.online.backbone.stem[0].weight.grad.clone())
    assert (gradients[1] - gradients[0]).abs().max() > 1e-4
    assert method.online.head.weight.grad is None
    assert all(weight.grad is None for weight in method.momentum.parameters())


# -- memory ----------------------------------------------------------------------------------------------------------


def test_the_bank_equals_a_slow_reference() -> None:
    method = midway()
    bank = [row.tolist() for row in method.bank]
    for number in range(3):
        outcome = step(method, two_views(method, number))
        f = outcome.memory["features"].tolist()
        for i, sample in enumerate(SAMPLES.tolist()):
            bank[sample] = slow.unit([a + b for a, b in zip(f[i], f[i + N], strict=True)])
        method.remember(outcome.memory)
        torch.testing.assert_close(method.bank, torch.tensor(bank))


def test_memory_holds_what_the_momentum_network_saw() -> None:
    method = midway()
    images = torch.cat(two_views(method))
    memory = step(method).memory
    features = F.normalize(method.momentum.backbone_features(images), dim=1)
    torch.testing.assert_close(memory["features"], features)
    method.remember(memory)
    torch.testing.assert_close(method.queue.rows[FILLED : FILLED + 2 * N], memory["key"])
    assert int(method.queue.written) == FILLED + 2 * N


def test_momentum_follows_every_weight_of_the_online_network() -> None:
    method = midway()
    method.keep.fill_(0.9)
    old = {name: weight.clone() for name, weight in method.momentum.named_parameters()}
    outcome = step(method)
    with torch.no_grad():
        for weight in method.online.parameters():
            weight += 0.3
    method.remember(outcome.memory)
    online = dict(method.online.named_parameters())
    assert online.keys() == old.keys() >= {"head.weight", "head.bias"}
    for name, weight in method.momentum.named_parameters():
        torch.testing.assert_close(weight, 0.9 * old[name] + 0.1 * online[name])


# -- schedule --------------------------------------------------------------------------------------------------------


def test_tracks_begin_when_they_are_told_to_and_never_in_the_first_epoch() -> None:
    method = midway("anchored.cluster_weight=0.25", "anchored.cluster_start=0.3", "anchored.commit_start=0.6")
    for epoch, progress, cluster, commit in [
        (0, 0.0, 0, 0), (0, 0.9, 0, 0), (3, 0.29, 0, 0), (3, 0.3, 0.25, 0), (6, 0.59, 0.25, 0), (6, 0.6, 0.25, 1),
        (9, 1.0, 0.25, 1),
    ]:  # fmt: skip
        method.schedule(epoch, progress)
        assert (method.cluster_weight.item(), method.commit_weight.item()) == (cluster, commit)


def test_momentum_rises_from_its_first_to_its_last_value() -> None:
    method = midway("anchored.ema=[0.9, 0.99]")
    found = []
    for progress in np.linspace(0, 1, 11):
        method.schedule(1, float(progress))
        found.append(method.keep.item())
    assert found[0] == pytest.approx(0.9)
    assert found[-1] == pytest.approx(0.99)
    assert found == sorted(found)
