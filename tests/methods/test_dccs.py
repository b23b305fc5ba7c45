"""DCCS: its terms against slow references, who learns from which, the critic's slopes, and the prior of codes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference_peers as slow
from small_peers import KEYS, N, method_of, step, views_of
from twincluster.methods.peers.dccs import BETWEEN, ORDER, Critic
from twincluster.nn import draws

WEIGHTS = (
    *("own.information_weight=0.7", "own.augmentation_weight=0.9"),
    *("own.prior_weight=0.6", "own.slope_weight=3.0"),
)
both_kinds = pytest.mark.parametrize("kind", ["rows", "images"])


def codes(method: Any, views: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Maps and codes of the images, their assignments, and those of their augmentations."""
    maps = method.online.backbone_features(torch.cat(views))
    style, log_q = method.online.code(maps)
    plain, augmented = log_q.exp().chunk(2)
    return maps[:N], torch.cat([style[:N], plain], 1), plain, augmented


def penalty(method: Any, code: Tensor) -> Tensor:
    """By a second backward pass, as the authors have it."""
    share = draws.uniform(KEYS, BETWEEN, 1).double()
    between = (share * method.prior(KEYS) + (1 - share) * code.detach()).requires_grad_()
    (slopes,) = torch.autograd.grad(method.critic(between).sum(), between, create_graph=True)
    return (slopes.norm(dim=1) - 1).square().mean()


@both_kinds
def test_the_loss_is_the_sum_of_its_terms(kind: str) -> None:
    method = method_of("dccs", *WEIGHTS, kind=kind)
    views = views_of(method)
    maps, code, plain, augmented = codes(method, views)
    order = np.argsort(draws.uniform(KEYS, ORDER, 1).flatten().numpy()).tolist()
    terms = []
    for i, other in enumerate(order):
        true = method.discriminator(torch.cat([maps[i], code[i]])).item()
        false = method.discriminator(torch.cat([maps[i], code[other]])).item()
        terms.append((math.log1p(math.exp(-true)) + math.log1p(math.exp(false))) / 2)
    information = math.fsum(terms) / N
    invariance = slow.divergence(plain.detach().numpy(), augmented.detach().numpy())
    prior, said = method.critic(method.prior(KEYS).double()).tolist(), method.critic(code).tolist()
    distance = math.fsum(prior) / N - math.fsum(said) / N
    outcome = step(method, views)
    assert outcome.metrics["information_loss"].item() == pytest.approx(information, abs=1e-9)
    assert outcome.metrics["invariance_loss"].item() == pytest.approx(invariance, abs=1e-9)
    assert outcome.metrics["distance"].item() == pytest.approx(distance, abs=1e-9)
    adversaries = -distance + 3.0 * penalty(method, code).item() - math.fsum(said) / N
    assert outcome.loss.item() == pytest.approx(0.7 * information + 0.9 * invariance + 0.6 * adversaries, abs=1e-9)


@both_kinds
def test_each_side_learns_from_its_own_terms(kind: str) -> None:
    """The gradient of the sum is what two optimisers would find, each with its own loss and the other held."""
    method = method_of("dccs", *WEIGHTS, kind=kind)
    views = views_of(method)
    critic = list(method.critic.parameters())
    rest = [*method.online.parameters(), *method.discriminator.parameters()]
    found = torch.autograd.grad(step(method, views).loss, rest + critic)
    maps, code, plain, augmented = codes(method, views)
    invariance = (plain * (plain.log() - augmented.log())).sum(1).mean()
    encoder = 0.7 * method.information(maps, code, KEYS) + 0.9 * invariance - 0.6 * method.critic(code).mean()
    gap = method.critic(code.detach()).mean() - method.critic(method.prior(KEYS).double()).mean()
    to_rest = torch.autograd.grad(encoder, rest, retain_graph=True)
    to_critic = torch.autograd.grad(0.6 * (gap + 3.0 * penalty(method, code)), critic)
    torch.testing.assert_close(found, (*to_rest, *to_critic))
    assert all(gradient.any() for gradient in (*to_rest, *to_critic))


@pytest.mark.parametrize("pace", [1.0, 5.0])
@pytest.mark.parametrize("n,d,hidden", [(1, 2, 1), (6, 3, 8), (4, 7, 5)])
def test_slopes_are_the_gradient_of_what_the_critic_says(n: int, d: int, hidden: int, pace: float) -> None:
    torch.manual_seed(n)
    critic = Critic(d, hidden, pace).double()
    rows = torch.randn(n, d, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(critic(rows).sum(), rows)
    torch.testing.assert_close(critic.slope(rows), wanted)


def test_a_critic_says_the_same_at_any_pace_and_moves_as_many_times_further() -> None:
    said, moved = [], []
    for pace in (1.0, 4.0):
        torch.manual_seed(0)
        critic, rows = Critic(3, 8, pace).double(), torch.randn(5, 3, dtype=torch.float64)
        before = critic.weights(frozen=True)
        said.append(critic(rows))
        optimiser = torch.optim.Adam(critic.parameters(), lr=0.01)
        said[-1].mean().backward()
        optimiser.step()
        moved.append({name: weight - before[name] for name, weight in critic.weights(frozen=True).items()})
    torch.testing.assert_close(*said)
    for name, by_one in moved[0].items():  # but for what keeps Adam from dividing by 0
        torch.testing.assert_close(
            moved[1][name], 4 * by_one, atol=1e-4, rtol=1e-3
        )  # but for what keeps Adam from dividing by 0


def test_codes_of_the_prior_have_one_category_and_a_small_style() -> None:
    method = method_of("dccs", "own.style_deviation=0.2", "n_clusters=4")
    keys = draws.sample_keys(0, torch.tensor(1), torch.arange(4000))
    style, category = method.prior(keys).split([3, 4], 1)
    assert set(category.unique().tolist()) == {0, 1}
    assert category.sum(1).eq(1).all()
    torch.testing.assert_close(category.mean(0), torch.full((4,), 0.25), atol=0.03, rtol=0)
    torch.testing.assert_close(style.std(0), torch.full((3,), 0.2), atol=0.01, rtol=0)
    torch.testing.assert_close(style.mean(0), torch.zeros(3), atol=0.01, rtol=0)
    assert torch.equal(method.prior(keys), method.prior(keys))
    assert not torch.equal(method.prior(keys), method.prior(keys + 1))


def test_the_discriminator_sees_the_places_of_the_maps_and_the_head_their_mean() -> None:
    method = method_of("dccs", kind="images").eval()
    images = views_of(method)[0]
    maps = method.online.backbone.trunk.maps(images)
    assert maps.shape[2:] == (2, 2)
    assert method.discriminator[0].in_features == maps[0].numel() + 3 + 3
    torch.testing.assert_close(method.online.pooled(method.online.backbone_features(images)), maps.mean((2, 3)))


def test_assignments_are_those_of_prediction() -> None:
    method = method_of("dccs").eval()
    views = views_of(method)
    outcome = step(method, views)
    for found, images in zip((outcome.assignment, outcome.key_assignment), views, strict=True):
        torch.testing.assert_close(found, method.online.log_assign(images).exp().detach())
