"""DEC: the loss of each stage against slow references, when clusters begin, and the targets of an epoch."""

import pytest
import torch

import reference_peers as slow
from small_peers import SAMPLES, N, method_of, step, views_of
from small_runs import images_of, make, rows, train
from twincluster.core import InputError
from twincluster.methods import Batch


def batch_of(method) -> Batch:
    rows = views_of(method, 1)[0]
    return Batch(SAMPLES, SAMPLES, view=lambda _: rows, plain=lambda: rows)


def test_first_it_reconstructs() -> None:
    method = method_of("dec")
    (rows,) = views = views_of(method, 1)
    made = method.decoder(method.online.embed(rows)).detach()
    wanted = sum(float(a - b) ** 2 for a, b in zip(made.flatten(), rows.flatten(), strict=True)) / rows.numel()
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=1e-9)


def test_then_it_follows_its_target() -> None:
    method = method_of("dec")
    method.after_epoch(1, lambda: iter([batch_of(method)]), None)
    assert method.clustering
    views = views_of(method, 1)
    q = slow.student(method.online.embed(views[0]).detach().numpy(), method.online.prototypes.detach().numpy())
    outcome = step(method, views)
    assert outcome.loss.item() == pytest.approx(slow.divergence(method.target[SAMPLES].numpy(), q), abs=1e-9)
    torch.testing.assert_close(outcome.assignment, torch.tensor(q, dtype=torch.float64))


def test_targets_are_sharpened_assignments_of_the_whole_set() -> None:
    method = method_of("dec")
    batch, before = batch_of(method), method.target.clone()
    assert method.after_epoch(1, lambda: iter([batch]), None)["relabelled"] > 0
    method.eval()
    q = method.online.log_assign(batch.plain()).exp().detach().numpy()
    torch.testing.assert_close(method.target[SAMPLES], torch.tensor(slow.sharpened(q), dtype=torch.float64))
    others = torch.ones(len(method.target), dtype=torch.bool).index_fill(0, SAMPLES, False)
    assert torch.equal(method.target[others], before[others])  # those that were not seen
    assert method.after_epoch(2, lambda: iter([batch]), None)["relabelled"] == 0


def test_centres_are_of_k_means_until_clusters_begin_and_learned_after() -> None:
    method = method_of("dec", "own.cluster_start=0.5")
    begun = []
    for epoch, progress in enumerate((0.1, 0.4, 0.5, 0.9)):
        method.schedule(epoch, progress)
        method.after_epoch(epoch, lambda: iter([batch_of(method)]), None)
        begun.append(bool(method.clustering))
        if epoch == 2:
            embedding = method.eval().online.embed(batch_of(method).plain()).detach()
            nearest = torch.cdist(embedding, method.online.prototypes).argmin(1)
            means = torch.stack([embedding[nearest == k].mean(0) for k in range(3)])
            torch.testing.assert_close(method.online.prototypes.detach(), means)
            method.train()
            with torch.no_grad():
                method.online.prototypes += 1
    assert begun == [False, False, True, True]
    torch.testing.assert_close(method.online.prototypes.detach(), means + 1)  # not set again


def test_images_are_reconstructed_pixel_by_pixel() -> None:
    method = make("images", "method=dec", "own.hidden=4").method
    assert method.decoder(torch.zeros(N, 10)).shape == (N, 3 * 8 * 8)


def test_a_rate_that_is_too_high_is_told() -> None:
    with pytest.raises(InputError, match="has diverged: lower the rate"):
        train(images_of(rows()), "method=dec", "train.epochs=2", "optimiser.learning_rate=100.0")
