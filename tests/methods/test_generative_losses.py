"""What methods optimise that rebuild or make up images, or have a critic: value and gradient against slow references.

Shapes: N samples of a batch, P values of an image, D values of a code.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from reference_losses import TOLERANCES, Array, arrays, close, tensor
from twincluster.methods.peers import peer_losses as generative_losses

both_dtypes = pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])
shapes = pytest.mark.parametrize("n,image,d", [(1, (2,), 3), (4, (3, 2, 2), 1), (3, (1, 5, 5), 6)])


# -- once more, slowly -----------------------------------------------------------------------------------------------


def squared_error(rebuilt: Array, images: Array) -> float:
    """Over all images the sum of squares, per image and value."""
    gaps = [float(a) - float(b) for a, b in zip(rebuilt.ravel(), images.ravel(), strict=True)]
    return math.fsum(gap * gap for gap in gaps) / len(gaps)


def divergence(mean: float, variance: float) -> float:
    """The integral of N(mean, variance) times the log of its ratio to N(0, 1), by a sum over many narrow strips."""
    deviation, total, strip = math.sqrt(variance), 0.0, 2e-3
    for place in np.arange(-9, 9, strip):
        z = mean + deviation * float(place)
        ratio = (-(float(place) ** 2) - math.log(variance) + z * z) / 2
        total += strip * math.exp(-(float(place) ** 2) / 2) / math.sqrt(2 * math.pi) * ratio
    return total


def binary_entropy(logit: float, real: bool) -> float:
    probability = 1 / (1 + math.exp(-logit))
    return -math.log(probability if real else 1 - probability)


# -- value and gradient ----------------------------------------------------------------------------------------------


@both_dtypes
@shapes
def test_squared_error(n: int, image: tuple[int, ...], d: int, dtype: torch.dtype) -> None:
    rebuilt, images = arrays((n, *image), (n, *image), seed=n)
    found = generative_losses.squared_error(tensor(rebuilt, dtype), tensor(images, dtype))
    close(found, squared_error(rebuilt, images), dtype)


@pytest.mark.parametrize("n,d", [(1, 1), (2, 3)])
def test_divergence_is_the_integral(n: int, d: int) -> None:
    mean, log_variance = arrays((n, d), (n, d), seed=d)
    wanted = np.zeros(n)
    for i, j in itertools.product(range(n), range(d)):
        wanted[i] += divergence(float(mean[i, j]), math.exp(float(log_variance[i, j])))
    found = generative_losses.gaussian_divergence(tensor(mean), tensor(log_variance))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-9)


def test_the_prior_does_not_diverge_from_itself() -> None:
    zeros = torch.zeros(3, 4)
    assert not generative_losses.gaussian_divergence(zeros, zeros).any()


@both_dtypes
@pytest.mark.parametrize("noise", [0.5, 2.0])
@shapes
def test_variational_bound(n: int, image: tuple[int, ...], d: int, noise: float, dtype: torch.dtype) -> None:
    """Log-likelihoods of a Gaussian, value by value, without the part that no weight changes."""
    rebuilt, images, mean, log_variance = arrays((n, *image), (n, *image), (n, d), (n, d), seed=n)
    total = 0.0
    for i in range(n):
        for said, seen in zip(rebuilt[i].ravel(), images[i].ravel(), strict=True):
            total += (float(said) - float(seen)) ** 2 / (2 * noise**2)
        for m, v in zip(mean[i], log_variance[i], strict=True):
            total += (float(m) ** 2 + math.exp(float(v)) - float(v) - 1) / 2
    inputs = (tensor(array, dtype) for array in (rebuilt, images, mean, log_variance))
    close(generative_losses.variational_bound(*inputs, noise), total / images.size, dtype)


@both_dtypes
@shapes
def test_sparse_cost(n: int, image: tuple[int, ...], d: int, dtype: torch.dtype) -> None:
    """As printed, with lambda = 4, and then divided by lambda and the number of values."""
    rebuilt, images, maps = arrays((n, *image), (n, *image), (n, d), seed=n)
    cost = 4 / 2 * squared_error(rebuilt, images) * images.size + math.fsum(abs(float(z)) for z in maps.ravel())
    found = generative_losses.sparse_cost(*(tensor(array, dtype) for array in (rebuilt, images, maps)), 1 / 4)
    close(found, cost / 4 / images.size, dtype)


@both_dtypes
@pytest.mark.parametrize("n", [1, 5])
def test_two_adversaries(n: int, dtype: torch.dtype) -> None:
    real, made = (3 * array for array in arrays((n,), (n,), seed=n))
    wanted = [binary_entropy(float(a), True) + binary_entropy(float(b), False) for a, b in zip(real, made, strict=True)]
    found = generative_losses.discrimination(tensor(real, dtype), tensor(made, dtype))
    close(found, math.fsum(wanted) / n, dtype)
    deceived = math.fsum(binary_entropy(float(b), True) for b in made) / n
    close(generative_losses.deception(tensor(made, dtype)), deceived, dtype)


def test_a_generator_that_is_found_out_still_has_a_slope() -> None:
    logit = torch.tensor([-200.0], requires_grad=True)
    generative_losses.deception(logit).backward()
    assert logit.grad.item() == pytest.approx(-1)


@both_dtypes
@pytest.mark.parametrize("n,d", [(1, 1), (5, 3), (2, 6)])
def test_a_critic_of_two_distributions(n: int, d: int, dtype: torch.dtype) -> None:
    prior, made, slopes = arrays((n,), (n,), (n, d), seed=n)
    gap = math.fsum(float(b) - float(a) for a, b in zip(prior, made, strict=True)) / n
    close(generative_losses.critic_gap(tensor(prior, dtype), tensor(made, dtype)), gap, dtype)
    wanted = [(math.sqrt(math.fsum(float(x) ** 2 for x in row)) - 1) ** 2 for row in slopes]
    close(generative_losses.slope_penalty(tensor(slopes, dtype)), math.fsum(wanted) / n, dtype)


def test_a_critic_without_any_slope_has_a_finite_penalty() -> None:
    slopes = torch.zeros(2, 3, requires_grad=True)
    loss = generative_losses.slope_penalty(slopes)
    loss.backward()
    assert loss.item() == pytest.approx(1, abs=1e-5)
    assert slopes.grad.isfinite().all()


DIFFERENTIABLE: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "squared_error": (generative_losses.squared_error, ((2, 3), (2, 3))),
    "gaussian_divergence": (generative_losses.gaussian_divergence, ((2, 3), (2, 3))),
    "variational_bound": (
        lambda *inputs: generative_losses.variational_bound(*inputs, 0.5),
        ((2, 4), (2, 4), (2, 3), (2, 3)),
    ),
    "sparse_cost": (lambda *inputs: generative_losses.sparse_cost(*inputs, 0.3), ((2, 4), (2, 4), (2, 3))),
    "discrimination": (generative_losses.discrimination, ((3,), (3,))),
    "deception": (generative_losses.deception, ((3,),)),
    "critic_gap": (generative_losses.critic_gap, ((3,), (3,))),
    "slope_penalty": (generative_losses.slope_penalty, ((3, 2),)),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str) -> None:
    function, shapes = DIFFERENTIABLE[name]
    assert gradcheck(function, tuple(tensor(array).requires_grad_() for array in arrays(*shapes, seed=len(shapes))))
