"""What methods optimise that rebuild or make up images, or have adversaries: pure functions of float32 tensors.

Costs that their papers add up over the values of an image are divided by the number of values: the minimum is the
same, and one learning rate serves all image sizes. Shapes: N batch, ... one image or row, D code.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def squared_error(rebuilt: Tensor, images: Tensor) -> Tensor:
    """What an autoencoder descends, a number: the mean over images and their values, both (N,...)."""
    return (rebuilt - images).square().mean()


def gaussian_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)) of codes (N,D), in nats, (N,): Kingma and Welling 2014, Appendix B."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1)


def variational_bound(rebuilt: Tensor, images: Tensor, mean: Tensor, log_variance: Tensor, noise: float) -> Tensor:
    """The negative of Eq. 10 of Kingma and Welling 2014, in nats per value but for a constant, a number.

    An image is the decoder's (N,...) with Gaussian noise of a known standard deviation; codes are (N,D).
    """
    divergence = gaussian_divergence(mean, log_variance).mean() / images[0].numel()
    return squared_error(rebuilt, images) / (2 * noise**2) + divergence


def sparse_cost(rebuilt: Tensor, images: Tensor, maps: Tensor, sparsity: float) -> Tensor:
    """The cost of Zeiler et al. 2010 with p = 1, per value and divided by its lambda, whose inverse is `sparsity`.

    Half the squared error of what the maps (N,D) rebuild, and the sum of their magnitudes; a number.
    """
    return squared_error(rebuilt, images) / 2 + sparsity * maps.abs().sum(1).mean() / images[0].numel()


def discrimination(real: Tensor, made: Tensor) -> Tensor:
    """What the discriminator of a pair of adversaries descends, a number, from the logits (N,) that images are real.

    The negative of Eq. 1 of Goodfellow et al. 2014.
    """
    return F.softplus(-real).mean() + F.softplus(made).mean()


def deception(made: Tensor) -> Tensor:
    """What the generator descends, a number: -log D of what it made, which keeps a slope where D is sure (Sec. 3)."""
    return F.softplus(-made).mean()


def critic_gap(prior: Tensor, made: Tensor) -> Tensor:
    """What a critic descends, a number, from what it says (N,) of samples of a prior and of those made to match it.

    Its negative is the Wasserstein distance of both, once the critic has done its best (Arjovsky et al. 2017, Eq. 2).
    """
    return made.mean() - prior.mean()


def slope_penalty(slopes: Tensor) -> Tensor:
    """How far the critic's gradients (N,D) are from unit norm, a number: Gulrajani et al. 2017, Eq. 3."""
    lengths = (slopes.square().sum(1) + 1e-12).sqrt()  # a root of 0 has no finite gradient
    return (lengths - 1).square().mean()
