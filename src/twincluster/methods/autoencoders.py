"""Autoencoders, and k-means on their codes: the plain one, the denoising one and the variational one.

Bengio et al. 2007, "Greedy Layer-Wise Training of Deep Networks"; Vincent et al. 2010, "Stacked Denoising
Autoencoders"; Kingma and Welling 2014, "Auto-Encoding Variational Bayes". Shapes: N batch, K clusters, D code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from twincluster import draws
from twincluster.config import Config, Count, Positive, Share, own_settings
from twincluster.methods import generative_losses
from twincluster.methods.base import Batch, DataShape, Outcome
from twincluster.methods.decoder import Decoder
from twincluster.methods.heads import Centres
from twincluster.methods.kmeans_at_end import CentresNetwork, KmeansAtEnd

MASK, CODE_NOISE = 15, 16  # streams of random numbers


@dataclass(frozen=True)
class AeSettings:
    """Sizes are ours."""

    n_features: Count = 64  # D
    width: Count = 64  # maps before the decoder's last layer; twice as many before the one before it, and so on


@dataclass(frozen=True)
class DaeSettings(AeSettings):
    """Of the noises of Vincent et al. 2010 the one that masks; its share is ours."""

    corruption: Share = 0.25  # share of the values that are hidden, nu


@dataclass(frozen=True)
class VaeSettings(AeSettings):
    """The deviation is ours: the larger, the fewer details a code keeps."""

    noise: Positive = 0.5  # standard deviation of a standardised pixel about what the decoder says


class AeNetwork(CentresNetwork):
    """Backbone, a linear layer to the code, and the centres of k-means on it."""

    settings_type: type[AeSettings] = AeSettings

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.n_code = own_settings(config, self.settings_type).n_features
        self.head = self.make_head(self.backbone.n_features)
        self.centres = Centres(config.n_clusters, self.n_code)

    def make_head(self, n_features: int) -> nn.Module:
        # differs from the papers: codes have a mean of 0 and a variance of 1 each, since clusters are told by direction
        return nn.Sequential(nn.Linear(n_features, self.n_code), nn.BatchNorm1d(self.n_code, affine=False))

    def code(self, images: Tensor) -> Tensor:
        code: Tensor = self.head(self.backbone_features(images))
        return code

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.code(images), dim=1)


class DaeNetwork(AeNetwork):
    """The same, with the settings of its method."""

    settings_type = DaeSettings


class VaeNetwork(AeNetwork):
    """The code is the mean of the posterior."""

    settings_type = VaeSettings

    def make_head(self, n_features: int) -> nn.Module:
        return nn.Linear(n_features, 2 * self.n_code)

    def posterior(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log of the variance, (N,D) each."""
        mean, log_variance = self.head(self.backbone_features(images)).chunk(2, dim=1)
        return mean, log_variance

    def code(self, images: Tensor) -> Tensor:
        return self.posterior(images)[0]


class Ae(KmeansAtEnd):
    """An autoencoder, and k-means on its codes at the end."""

    network_type: type[AeNetwork] = AeNetwork
    settings_type: type[AeSettings] = AeSettings
    online: AeNetwork

    # differs from the paper: all layers learn together, none is trained before the next
    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings = own_settings(config, self.settings_type)
        self.decoder = Decoder(settings.n_features, self.online, settings.width)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.plain(),)  # what is to be rebuilt is the image itself

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        code = self.online.code(views[0])
        return self.outcome(code, generative_losses.squared_error(self.decoder(code), views[0]))

    def outcome(self, code: Tensor, loss: Tensor, **metrics: Tensor) -> Outcome:
        unit = F.normalize(code.detach(), dim=1)
        q = self.online.centres(unit).exp()
        # there is no other view that could disagree
        return Outcome(loss, assignment=q, key_assignment=q, memory={"features": unit}, metrics=metrics)


class Dae(Ae):
    """A denoising autoencoder, which rebuilds what was hidden from it, and k-means on its codes at the end."""

    network_type = DaeNetwork
    settings_type = DaeSettings

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.corruption = own_settings(config, DaeSettings).corruption

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        images = views[0]
        kept = draws.uniform(keys, MASK, images[0].numel()).view(images.shape) >= self.corruption
        code = self.online.code(images * kept)  # a hidden value is 0, the mean
        return self.outcome(code, generative_losses.squared_error(self.decoder(code), images))


class Vae(Ae):
    """A variational autoencoder, and k-means on the means of its posterior at the end."""

    network_type = VaeNetwork
    settings_type = VaeSettings
    online: VaeNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.noise = own_settings(config, VaeSettings).noise

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        images = views[0]
        mean, log_variance = self.online.posterior(images)
        noise = draws.normal(keys, CODE_NOISE, mean.shape[1]).to(mean.dtype)
        rebuilt = self.decoder(mean + (log_variance / 2).exp() * noise)
        return self.outcome(
            mean,
            # differs from the paper: one Gaussian with a known deviation for all pixels, where the paper's decoder
            # tells the deviation, or has black and white pixels
            generative_losses.variational_bound(rebuilt, images, mean, log_variance, self.noise),
            divergence=generative_losses.gaussian_divergence(mean, log_variance).mean(),
        )
