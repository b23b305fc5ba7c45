"""Autoencoders: what is rebuilt from what, against slow references, and what is hidden or drawn."""

import math

import pytest
import torch

import reference_losses as slow
from small_peers import KEYS, N, method_of, step, views_of
from twincluster.methods.peers.generative import CODE_NOISE, MASK
from twincluster.nn import draws

both_kinds = pytest.mark.parametrize("kind", ["rows", "images"])


def squared_error(rebuilt: torch.Tensor, images: torch.Tensor) -> float:
    pairs = zip(rebuilt.flatten().tolist(), images.flatten().tolist(), strict=True)
    return math.fsum((a - b) ** 2 for a, b in pairs) / images.numel()


@both_kinds
def test_an_autoencoder_rebuilds_what_it_sees(kind: str) -> None:
    method = method_of("ae", kind=kind)
    views = views_of(method, 1)
    outcome = step(method, views)
    rebuilt = method.decoder(method.online.code(views[0]))
    assert outcome.loss.item() == pytest.approx(squared_error(rebuilt, views[0]), abs=1e-9)
    torch.testing.assert_close(outcome.memory["features"], method.online.embed(views[0]))
    assert not outcome.memory["features"].requires_grad


def test_codes_are_standardised() -> None:
    """Clusters are told by direction, which means nothing about a mean far from 0."""
    method = method_of("ae")
    code = method.online.code(100 + views_of(method, 1)[0])
    torch.testing.assert_close(code.mean(0), torch.zeros(8, dtype=torch.float64), atol=1e-9, rtol=0)
    assert code.std(0, unbiased=False).max() <= 1


def test_views_are_the_images_themselves() -> None:
    method = method_of("ae")
    (view,) = method.views(type("Batch", (), {"plain": lambda self: "as it is"})())
    assert view == "as it is"


@both_kinds
@pytest.mark.parametrize("corruption", [0.0, 0.4])
def test_a_denoising_one_rebuilds_what_was_hidden(kind: str, corruption: float) -> None:
    method = method_of("dae", f"own.corruption={corruption}", kind=kind)
    (images,) = views_of(method, 1)
    hidden, spoilt = draws.uniform(KEYS, MASK, images[0].numel()), images.clone()
    for i, row in enumerate(hidden.tolist()):
        for place, draw in enumerate(row):
            if draw < corruption:
                spoilt[i].view(-1)[place] = 0
    assert (spoilt == 0).double().mean() == pytest.approx(corruption, abs=0.12)
    rebuilt = method.decoder(method.online.code(spoilt))
    assert step(method, (images,)).loss.item() == pytest.approx(squared_error(rebuilt, images), abs=1e-9)


def test_nothing_is_hidden_when_it_predicts() -> None:
    method = method_of("dae", "own.corruption=0.9").eval()
    (images,) = views_of(method, 1)
    unit = [slow.unit(row) for row in method.online.code(images).tolist()]
    slow.close(method.online.embed(images), unit)


@both_kinds
def test_a_variational_one_rebuilds_from_a_draw(kind: str) -> None:
    method = method_of("vae", "own.noise=0.7", kind=kind)
    (images,) = views_of(method, 1)
    mean, log_variance = method.online.posterior(images)
    noise, code, divergence = draws.normal(KEYS, CODE_NOISE, 8).double(), mean.clone(), 0.0
    for i in range(N):
        for j in range(8):
            m, v = mean[i, j].item(), log_variance[i, j].item()
            code[i, j] = m + math.sqrt(math.exp(v)) * noise[i, j].item()
            divergence += 0.5 * (m**2 + math.exp(v) - v - 1)
    wanted = squared_error(method.decoder(code), images) / (2 * 0.7**2) + divergence / images.numel()
    outcome = step(method, (images,))
    assert outcome.loss.item() == pytest.approx(wanted, abs=1e-9)
    assert outcome.metrics["divergence"].item() == pytest.approx(divergence / N, abs=1e-9)
    torch.testing.assert_close(method.online.code(images), mean)  # a prediction is not drawn


def test_the_gradient_goes_through_the_draw() -> None:
    """Without its divergence, the spread of the posterior is learned from what is rebuilt."""
    method = method_of("vae")
    (images,) = views_of(method, 1)
    outcome = step(method, (images,))
    (outcome.loss - outcome.metrics["divergence"] / images[0].numel()).backward()
    mean, log_variance = method.online.head.weight.grad.chunk(2)
    assert mean.abs().max() > 1e-6
    assert log_variance.abs().max() > 1e-6
