"""DCGAN, and k-means on what its discriminator sees: it learns to tell images from those that a generator makes up.

Radford et al. 2016, "Unsupervised Representation Learning with Deep Convolutional Generative Adversarial Networks";
the game is that of Goodfellow et al. 2014. Shapes: N batch, K clusters, Z noise, F backbone features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from twincluster import draws
from twincluster.config import Config, Count, own_settings
from twincluster.methods import generative_losses
from twincluster.methods.base import Batch, DataShape, Outcome
from twincluster.methods.decoder import Decoder
from twincluster.methods.heads import Centres
from twincluster.methods.kmeans_at_end import CentresNetwork, KmeansAtEnd

NOISE = 17  # stream of random numbers


@dataclass(frozen=True)
class DcganSettings:
    """As much noise as in the paper, and half as many maps."""

    n_noise: Count = 100  # Z
    width: Count = 64  # maps before the generator's last layer; twice as many before the one before it, and so on


class DcganNetwork(CentresNetwork):
    """The discriminator's backbone, and the centres of k-means on its features."""

    # differs from the paper: any backbone, and the mean over its last maps; the paper has four strided convolutions
    # with leaky units, and takes the maxima of each layer's maps in 4 x 4 fields for features
    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.centres = Centres(config.n_clusters, self.backbone.n_features)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def features_of_made(self, images: Tensor, *, frozen: bool) -> Tensor:
        """Of images that a gradient reaches, which a batch in parts does not give; `frozen` weights get none.

        They pass batch-norm by themselves, and leave its running statistics to real images.
        """
        weights = {name: weight.detach() if frozen else weight for name, weight in self.backbone.named_parameters()}
        spare = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()}
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bf16):
            own: Tensor = functional_call(self.backbone, weights | spare, (self.processes.own(images),))
        return self.processes.gather(own.float() if self.bf16 else own, len(images))


class Dcgan(KmeansAtEnd):
    """DCGAN, and k-means on its discriminator's features at the end."""

    network_type = DcganNetwork
    settings_type = DcganSettings
    online: DcganNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = own_settings(config, DcganSettings)
        self.is_real = nn.Linear(self.online.backbone.n_features, 1)
        self.generator = Decoder(self.settings.n_noise, self.online, self.settings.width)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.plain(),)  # augmented images would be what the generator learns to make

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features, made = self.online.backbone_features(views[0]), self.made(keys)
        real_logit = self.is_real(features).squeeze(1)
        made_logit = self.is_real(self.online.features_of_made(made.detach(), frozen=False)).squeeze(1)
        discrimination = generative_losses.discrimination(real_logit, made_logit)
        deception = generative_losses.deception(self.frozen_logit(made))
        unit = F.normalize(features.detach(), dim=1)
        q = self.online.centres(unit).exp()
        return Outcome(
            # differs from the paper: both players move at once and by one optimiser, not in turns. Neither term has a
            # gradient for the other player's weights.
            loss=discrimination + deception,
            assignment=q,
            key_assignment=q,  # there is no other view that could disagree
            memory={"features": unit},
            metrics={"discrimination": discrimination, "deception": deception},
        )

    def frozen_logit(self, images: Tensor) -> Tensor:
        features = self.online.features_of_made(images, frozen=True)
        return F.linear(features, self.is_real.weight.detach(), self.is_real.bias.detach()).squeeze(1)

    def made(self, keys: Tensor) -> Tensor:
        """As many images as there are keys, standardised like real ones."""
        noise = 2 * draws.uniform(keys, NOISE, self.settings.n_noise).to(self.online.mean.dtype) - 1
        decoded: Tensor = self.generator(noise)
        if not self.online.side:
            return decoded
        mean, std = self.online.mean.view(-1, 1, 1), self.online.std.view(-1, 1, 1)
        return (decoded.sigmoid() - mean) / std  # from black to white, as pixels are
