"""DCGAN: who learns from which term, what is made, and whose statistics batch-norm keeps."""

import math

import pytest
import torch
from torch import Tensor

from small_peers import KEYS, method_of, step, views_of
from twincluster.methods.peers.generative import NOISE
from twincluster.nn import draws

both_kinds = pytest.mark.parametrize("kind", ["rows", "images"])


def logits(method: torch.nn.Module, images: Tensor) -> list[float]:
    return method.is_real(method.online.backbone_features(images)).flatten().tolist()


@both_kinds
def test_the_loss_is_that_of_both(kind: str) -> None:
    method = method_of("dcgan", kind=kind)
    (images,) = views_of(method, 1)
    real, made = logits(method, images), logits(method, method.made(KEYS))
    told = [math.log1p(math.exp(-a)) + math.log1p(math.exp(b)) for a, b in zip(real, made, strict=True)]
    deceived = [math.log1p(math.exp(-b)) for b in made]
    outcome = step(method, (images,))
    assert outcome.metrics["discrimination"].item() == pytest.approx(math.fsum(told) / len(told), abs=1e-9)
    assert outcome.metrics["deception"].item() == pytest.approx(math.fsum(deceived) / len(told), abs=1e-9)
    assert outcome.loss.item() == pytest.approx(math.fsum(told + deceived) / len(told), abs=1e-9)


@both_kinds
def test_each_player_learns_from_its_own_term(kind: str) -> None:
    """The gradient of the sum is what two optimisers would find, each with its own loss and the other held."""
    method = method_of("dcgan", kind=kind)
    (images,) = views_of(method, 1)
    outcome = step(method, (images,))
    generator = list(method.generator.parameters())
    discriminator = [*method.online.backbone.parameters(), *method.is_real.parameters()]
    found = torch.autograd.grad(outcome.loss, generator + discriminator)

    def logit(x: Tensor) -> Tensor:
        return method.is_real(method.online.backbone_features(x)).squeeze(1)

    made = method.made(KEYS)
    to_generator = torch.autograd.grad(-logit(made).sigmoid().log().mean(), generator)
    told = -logit(images).sigmoid().log().mean() - (1 - logit(made.detach()).sigmoid()).log().mean()
    torch.testing.assert_close(found, (*to_generator, *torch.autograd.grad(told, discriminator)))
    assert all(gradient.any() for gradient in to_generator)


def test_a_batch_in_parts_teaches_the_generator_the_same() -> None:
    found = []
    for parts in (1, 3):
        method = method_of("dcgan")
        method.online.divide(parts=parts)
        found.append(torch.autograd.grad(step(method, views_of(method, 1)).loss, list(method.generator.parameters())))
    torch.testing.assert_close(*found)


def test_what_is_made_lies_between_black_and_white() -> None:
    method = method_of("dcgan", kind="images")
    with torch.no_grad():
        for weight in method.generator.parameters():
            weight *= 30
    mean, std = method.online.mean.view(3, 1, 1), method.online.std.view(3, 1, 1)
    pixels = method.made(KEYS) * std + mean
    assert 0 <= pixels.min() < 0.05
    assert 0.95 < pixels.max() <= 1.0000001


def test_noise_is_uniform_about_0_and_depends_on_the_keys() -> None:
    method = method_of("dcgan").eval()
    noise = draws.uniform(KEYS, NOISE, 6).double()
    torch.testing.assert_close(method.made(KEYS), method.generator(2 * noise - 1))
    assert not torch.allclose(method.made(KEYS), method.made(KEYS + 1))


def test_batch_norm_remembers_real_images_alone() -> None:
    method, other = method_of("dcgan"), method_of("dcgan")
    step(method, views_of(method, 1))
    other.online.backbone_features(views_of(other, 1)[0])
    for name, buffer in method.online.backbone.named_buffers():
        torch.testing.assert_close(buffer, other.online.backbone.get_buffer(name))
