"""ProPos: alignment and scattering against slow references, its pseudo-labels, and who predicts at the end."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import reference_losses
import reference_peers as slow
from small_peers import SAMPLES, N, method_of, small, step, views_of
from small_runs import KINDS, images_of, make, train


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1, 2, 0, 0], [0, 0, 2, 2, 2, 0, 0, 2], [1] * N], ids=str)
def test_alignment_and_scattering(labels: list[int]) -> None:
    method = method_of("propos", "own.noise=0", "own.temperature=0.7", "own.cluster_weight=0.3")
    method.labels[SAMPLES] = torch.tensor(labels)
    views = views_of(method)
    with torch.no_grad():
        query, key = method.online.project(torch.cat(views)), method.momentum.embed(torch.cat(views))
        prediction = F.normalize(method.predictor(query), dim=1)
    other = torch.cat([key[N:], key[:N]])
    gaps = [
        sum((a - b) ** 2 for a, b in zip(prediction[i].tolist(), other[i].tolist(), strict=True)) for i in range(2 * N)
    ]
    members = np.eye(3)[labels][:, sorted(set(labels))]
    terms = []
    for half in (slice(0, N), slice(N, 2 * N)):
        pairs = [reference_losses.clusters(rows[half].numpy(), members) for rows in (F.normalize(query, dim=1), other)]
        terms.append(slow.scatter(*pairs, [True] * members.shape[1], 0.7))
    outcome = step(method, views)
    assert outcome.metrics["instance_loss"].item() == pytest.approx(np.mean(gaps), abs=1e-9)
    assert outcome.loss.item() == pytest.approx(np.mean(gaps) + 0.3 * np.mean(terms), abs=1e-9)


def test_noise_and_scattering_begin_together_and_not_in_the_first_epoch() -> None:
    method = method_of("propos", "own.noise=0.5")
    losses = []
    for epoch, progress in ((0, 1.0), (1, 0.2), (1, 0.4)):
        method.schedule(epoch, progress)
        losses.append(step(method).loss.item())
    assert losses[0] == losses[1]
    assert losses[2] != losses[1]
    spread = method.noise(torch.arange(5000), torch.zeros(10_000, 8, dtype=torch.float64)).std()
    assert spread.item() == pytest.approx(0.5, abs=0.02)


def test_pseudo_labels_come_from_plain_images_in_the_momentum_network() -> None:
    trainer = make("rows", *small("propos"))
    method = trainer.method
    statistics = [buffer.clone() for buffer in method.momentum.buffers()]
    method.after_epoch(0, trainer._all_batches, trainer.optimiser)
    seen = trainer.feed.order(0)[:24]
    plain = method.momentum.eval().embed(method.momentum.prepare(torch.tensor(KINDS["rows"])))
    torch.testing.assert_close(method.bank[seen], plain[seen])
    assert all(torch.equal(old, new) for old, new in zip(statistics, method.momentum.buffers(), strict=True))
    assert torch.equal(method.labels, (method.bank @ method.online.centres.directions.T).argmax(1))
    assert len(method.labels.unique()) == 3


def test_the_momentum_network_follows_and_goes_on_with_the_statistics_of_batches() -> None:
    trainer = make("rows", *small("propos"), "own.ema=0.75")
    method, before = trainer.method, [weight.clone() for weight in trainer.method.momentum.parameters()]
    for weight in method.online.parameters():
        weight.data += 1
    method.remember({})
    for old, new, now in zip(before, method.online.parameters(), method.momentum.parameters(), strict=True):
        torch.testing.assert_close(now, 0.75 * old + 0.25 * new)
    method.after_epoch(0, trainer._all_batches, trainer.optimiser)
    assert all(part.training for part in method.modules())


def test_the_momentum_network_predicts() -> None:
    method = train(images_of(KINDS["rows"]), *small("propos"), "train.epochs=2")
    for ours, theirs in zip(method.online.parameters(), method.momentum.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert method.online.centres.scale > 0
