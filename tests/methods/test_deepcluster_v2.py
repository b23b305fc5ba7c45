"""DeepCluster-v2: an epoch that only looks, then classes that k-means made of what it saw."""

import pytest
import torch

import reference_peers as slow
from small_peers import SAMPLES, N, method_of, step, views_of


def test_the_first_epoch_teaches_nothing_but_fills_the_bank() -> None:
    method = method_of("deepcluster_v2")
    method.schedule(0, 0.0)
    outcome = step(method)
    outcome.loss.backward()
    assert not any(weight.grad.any() for weight in method.parameters() if weight.grad is not None)
    before = method.bank.clone()
    method.remember(outcome.memory)
    changed = (method.bank != before).any(1).nonzero()[:, 0].tolist()
    assert changed == SAMPLES.tolist()


def test_views_learn_the_prototype_of_their_image_in_every_clustering() -> None:
    method = method_of("deepcluster_v2", "own.temperature=0.5")
    method.after_epoch(0, lambda: iter(()), None)
    assert method.prototypes.shape == (2, 4, 8)
    for head in range(2):
        nearest = (method.bank @ method.prototypes[head].T).argmax(1)
        assert (nearest == method.labels[head]).double().mean() > 0.8  # k-means may stop a round before it settles
    views = views_of(method)
    unit = method.online.embed(torch.cat(views)).detach()
    terms = []
    for head in range(2):
        target = torch.eye(4, dtype=torch.float64)[method.labels[head, SAMPLES]].repeat(2, 1)
        terms.append(slow.cross_entropy(target.numpy(), (unit @ method.prototypes[head].T / 0.5).numpy()))
    assert step(method, views).loss.item() == pytest.approx(sum(terms) / 2, abs=1e-9)


def test_the_bank_holds_the_mean_of_the_two_views() -> None:
    method = method_of("deepcluster_v2")
    views = views_of(method)
    first, second = method.online.embed(torch.cat(views)).detach().split(N)
    method.remember(step(method, views).memory)
    wanted = torch.nn.functional.normalize(first + second, dim=1)
    torch.testing.assert_close(method.bank[SAMPLES], wanted)
