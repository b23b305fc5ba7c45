"""Methods that generate images: autoencoders, deconvolutional networks and DCGAN, each with k-means.

`Decoder` turns a code into an image or a row: a few small maps are enlarged by a factor of two until they have the size
of the image. It is the generator of Radford et al. 2016, for any size. Shapes: N batch, D code, M maps, B side of the
first maps, C channels, S side of an image.

Autoencoders, with k-means on their codes: plain, denoising and variational. Bengio et al. 2007, "Greedy Layer-Wise
Training of Deep Networks"; Vincent et al. 2010, "Stacked Denoising Autoencoders"; Kingma and Welling 2014,
"Auto-Encoding Variational Bayes". Shapes: N batch, K clusters, D code.

A deconvolutional network, with k-means on its maps: an image is a sum of a few filters. Zeiler et al. 2010,
"Deconvolutional Networks". Shapes: N batch, K clusters, M maps, B their side, D = M B B.

DCGAN, with k-means on the features of its discriminator, which learns to tell real images from generated ones. Radford
et al. 2016, "Unsupervised Representation Learning with Deep Convolutional Generative Adversarial Networks"; the game is
that of Goodfellow et al. 2014. Shapes: N batch, K clusters, Z noise, F backbone features.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.methods.base import Batch, Network, Outcome
from twincluster.methods.heads import Centres, CentresNetwork, KmeansAtEnd
from twincluster.methods.peers import peer_losses
from twincluster.nn import draws

FIRST_SIDE = 4  # of maps, at most
MOST_MAPS = 512


class Decoder(nn.Module):
    """Turn codes (N,D) into the input of `network`: standardised images (N,C,S,S) or rows (N,C)."""

    def __init__(self, n_code: int, network: Network, width: int) -> None:
        super().__init__()
        self.shape = map_shape(network.side, width)
        n_values = self.shape[0] * self.shape[1] * self.shape[2]
        self.start = nn.Sequential(nn.Linear(n_code, n_values, bias=False), nn.BatchNorm1d(n_values), nn.ReLU())
        self.enlarge = Enlarge(network, width)

    def forward(self, code: Tensor) -> Tensor:
        decoded: Tensor = self.enlarge(self.start(code).view(-1, *self.shape))
        return decoded


class Enlarge(nn.Module):
    """Enlarge maps (N,M,B,B) to images, or to rows, which are images of one pixel with a channel for each feature.

    `linear` omits the layers between the filters: an image is then a sum of filters, weighted by the maps.
    """

    def __init__(self, network: Network, width: int, linear: bool = False) -> None:
        super().__init__()
        self.side = network.side
        n_outputs = len(network.mean) if network.rotation is None else network.rotation.shape[1]
        sizes, layers = layer_sizes(self.side, width), []
        for n_inputs, n_maps in itertools.pairwise(sizes):
            layers.append(self._double(n_inputs, n_maps, bias=False))
            layers += [] if linear else [nn.BatchNorm2d(n_maps), nn.ReLU()]
        self.layers = nn.Sequential(*layers, self._double(sizes[-1], n_outputs, bias=not linear))

    def forward(self, maps: Tensor) -> Tensor:
        decoded: Tensor = self.layers(maps)
        if not self.side:
            return decoded.flatten(1)
        start = (decoded.shape[2] - self.side) // 2  # crop what is left over where the side cannot be halved
        return decoded[:, :, start : start + self.side, start : start + self.side]

    def _double(self, n_inputs: int, n_outputs: int, bias: bool) -> nn.Module:
        size, stride, padding = (4, 2, 1) if self.side else (1, 1, 0)
        return nn.ConvTranspose2d(n_inputs, n_outputs, size, stride, padding, bias=bias)


def map_shape(side: int, width: int) -> tuple[int, int, int]:
    """Return (M,B,B), the size of the first maps of a decoder of images of this side (0: rows)."""
    first_maps, *others = layer_sizes(side, width)
    first_side = -(-side // 2 ** (1 + len(others))) if side else 1
    return first_maps, first_side, first_side


def layer_sizes(side: int, width: int) -> list[int]:
    """Return the number of maps before each doubling: `width` before the last one, and twice as many before each
    earlier one."""
    doublings = 1
    while side > FIRST_SIDE * 2**doublings:
        doublings += 1
    return [min(MOST_MAPS, width * 2**step) for step in reversed(range(doublings))]


MASK, CODE_NOISE = 15, 16  # streams of random numbers


@dataclass(frozen=True)
class AeSettings:
    """The sizes are ours."""

    n_features: Count = 64  # D
    width: Count = 64  # maps before the decoder's last layer; twice as many before the one before it, and so on


@dataclass(frozen=True)
class DaeSettings(AeSettings):
    """Masking, one of the noises of Vincent et al. 2010; its share is ours."""

    corruption: Share = 0.25  # nu, share of the values that are hidden


@dataclass(frozen=True)
class VaeSettings(AeSettings):
    """The standard deviation is ours: a larger one makes codes keep fewer details."""

    noise: Positive = 0.5  # standard deviation of a standardised pixel around the decoder's output


class AeNetwork(CentresNetwork):
    """Backbone, a linear layer to the code, and the centres of k-means on it."""

    settings_type: type[AeSettings] = AeSettings

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.n_code = method_settings(config, self.settings_type).n_features
        self.head = self.make_head(self.backbone.n_features)
        self.centres = Centres(config.n_clusters, self.n_code)

    def make_head(self, n_features: int) -> nn.Module:
        # differs from the papers: each dimension of a code has mean 0 and variance 1, because k-means compares
        # directions
        return nn.Sequential(nn.Linear(n_features, self.n_code), nn.BatchNorm1d(self.n_code, affine=False))

    def code(self, images: Tensor) -> Tensor:
        code: Tensor = self.head(self.backbone_features(images))
        return code

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.code(images), dim=1)


class DaeNetwork(AeNetwork):
    """Backbone and code of a denoising autoencoder."""

    settings_type = DaeSettings


class VaeNetwork(AeNetwork):
    """The code is the mean of the posterior."""

    settings_type = VaeSettings

    def make_head(self, n_features: int) -> nn.Module:
        return nn.Linear(n_features, 2 * self.n_code)

    def posterior(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log of the variance, (N,D) each."""
        mean, log_variance = self.head(self.backbone_features(images)).chunk(2, dim=1)
        return mean, log_variance

    def code(self, images: Tensor) -> Tensor:
        return self.posterior(images)[0]


class Ae(KmeansAtEnd):
    """An autoencoder, with k-means on its codes at the end."""

    network_type: type[AeNetwork] = AeNetwork
    settings_type: type[AeSettings] = AeSettings
    online: AeNetwork

    # differs from the paper: all layers learn together, not one after another
    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings = method_settings(config, self.settings_type)
        self.decoder = Decoder(settings.n_features, self.online, settings.width)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.plain(),)  # the image itself, which is to be reconstructed

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        code = self.online.code(views[0])
        return self.outcome(code, peer_losses.squared_error(self.decoder(code), views[0]))

    def outcome(self, code: Tensor, loss: Tensor, **metrics: Tensor) -> Outcome:
        unit = F.normalize(code.detach(), dim=1)
        q = self.online.centres(unit).exp()
        # a step has only one view
        return Outcome(loss, assignment=q, key_assignment=q, memory={"features": unit}, metrics=metrics)


class Dae(Ae):
    """A denoising autoencoder, which reconstructs hidden values, with k-means on its codes at the end."""

    network_type = DaeNetwork
    settings_type = DaeSettings

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.corruption = method_settings(config, DaeSettings).corruption

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        images = views[0]
        kept = draws.uniform(keys, MASK, images[0].numel()).view(images.shape) >= self.corruption
        code = self.online.code(images * kept)  # a hidden value is 0, the mean
        return self.outcome(code, peer_losses.squared_error(self.decoder(code), images))


class Vae(Ae):
    """A variational autoencoder, with k-means on the means of its posterior at the end."""

    network_type = VaeNetwork
    settings_type = VaeSettings
    online: VaeNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.noise = method_settings(config, VaeSettings).noise

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        images = views[0]
        mean, log_variance = self.online.posterior(images)
        noise = draws.normal(keys, CODE_NOISE, mean.shape[1]).to(mean.dtype)
        rebuilt = self.decoder(mean + (log_variance / 2).exp() * noise)
        return self.outcome(
            mean,
            # differs from the paper: one Gaussian with a fixed deviation for all pixels; the paper's decoder predicts
            # the deviation, or has black and white pixels
            peer_losses.variational_bound(rebuilt, images, mean, log_variance, self.noise),
            divergence=peer_losses.gaussian_divergence(mean, log_variance).mean(),
        )


@dataclass(frozen=True)
class DecnnSettings:
    """Sizes and weight are ours."""

    width: Count = 16  # maps before the last layer; twice as many before the one before it, and so on
    sparsity: Positive = 0.2  # weight of the sum of absolute values of the maps, the inverse of the paper's lambda


class DecnnNetwork(CentresNetwork):
    """Backbone, a linear layer to sparse maps, and the centres of k-means on them."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        settings = method_settings(config, DecnnSettings)
        self.sparsity, self.map_shape = settings.sparsity, map_shape(self.side, settings.width)
        n_values = self.map_shape[0] * self.map_shape[1] * self.map_shape[2]  # D
        self.head = nn.Linear(self.backbone.n_features, n_values)
        self.centres = Centres(config.n_clusters, n_values)

    def maps(self, images: Tensor) -> Tensor:
        """Return the maps as (N,D); many values are 0."""
        # differs from the paper: the backbone predicts the maps directly; the paper searches for the cheapest maps
        # image by image. Shrinkage is the last part of each step of that search.
        return F.softshrink(self.head(self.backbone_features(images)), self.sparsity)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.maps(images), dim=1)


class Decnn(KmeansAtEnd):
    """A deconvolutional network with sparse maps, with k-means on them at the end."""

    network_type = DecnnNetwork
    settings_type = DecnnSettings
    online: DecnnNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = method_settings(config, DecnnSettings)
        # differs from the paper: all layers learn together, and only the topmost maps are sparse
        self.filters = Enlarge(self.online, self.settings.width, linear=True)
        self.unit_filters()

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.plain(),)  # the image itself, which is to be reconstructed

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        maps = self.online.maps(views[0])
        rebuilt = self.filters(maps.view(-1, *self.online.map_shape))
        unit = F.normalize(maps.detach(), dim=1)
        q = self.online.centres(unit).exp()
        return Outcome(
            loss=peer_losses.sparse_cost(rebuilt, views[0], maps, self.settings.sparsity),
            assignment=q,
            key_assignment=q,  # a step has only one view
            memory={"features": unit},
            metrics={"in_use": (maps != 0).float().mean()},
        )

    def remember(self, memory: dict[str, Tensor]) -> None:
        super().remember(memory)
        self.unit_filters()

    @torch.no_grad()
    def unit_filters(self) -> None:
        """Scale each map's filters to unit norm: long filters would allow small maps for any image."""
        for filters in self.filters.parameters():  # (maps in, maps out, height, width)
            filters.div_(filters.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1))


NOISE = 17  # stream of random numbers


@dataclass(frozen=True)
class DcganSettings:
    """Noise of the paper's size, and half as many maps."""

    n_noise: Count = 100  # Z
    width: Count = 64  # maps before the generator's last layer; twice as many before the one before it, and so on


class DcganNetwork(CentresNetwork):
    """The discriminator's backbone, and the centres of k-means on its features."""

    # differs from the paper: any backbone, with the mean over its last maps as features; the paper has four strided
    # convolutions with leaky units, and takes maxima of each layer's maps in 4 x 4 fields
    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.centres = Centres(config.n_clusters, self.backbone.n_features)

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.backbone_features(images), dim=1)

    def features_of_made(self, images: Tensor, *, frozen: bool) -> Tensor:
        """Return the features of generated images, (N,F), without dividing the batch, so that gradients reach the
        images.

        `frozen` weights get no gradient. Generated images pass batch-norm separately and do not change its running
        statistics.
        """
        weights = {name: weight.detach() if frozen else weight for name, weight in self.backbone.named_parameters()}
        spare = {name: buffer.clone() for name, buffer in self.backbone.named_buffers()}
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bf16):
            own: Tensor = functional_call(self.backbone, weights | spare, (self.processes.own(images),))
        return self.processes.gather(own.float() if self.bf16 else own, len(images))


class Dcgan(KmeansAtEnd):
    """DCGAN, with k-means on the features of its discriminator at the end."""

    network_type = DcganNetwork
    settings_type = DcganSettings
    online: DcganNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = method_settings(config, DcganSettings)
        self.is_real = nn.Linear(self.online.backbone.n_features, 1)
        self.generator = Decoder(self.settings.n_noise, self.online, self.settings.width)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.plain(),)  # the generator would learn to imitate augmented images

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        features, made = self.online.backbone_features(views[0]), self.made(keys)
        real_logit = self.is_real(features).squeeze(1)
        made_logit = self.is_real(self.online.features_of_made(made.detach(), frozen=False)).squeeze(1)
        discrimination = peer_losses.discrimination(real_logit, made_logit)
        deception = peer_losses.deception(self.frozen_logit(made))
        unit = F.normalize(features.detach(), dim=1)
        q = self.online.centres(unit).exp()
        return Outcome(
            # differs from the paper: one optimiser moves both players in the same step, not in turns. Neither term has
            # a gradient for the other player's weights.
            loss=discrimination + deception,
            assignment=q,
            key_assignment=q,  # a step has only one view
            memory={"features": unit},
            metrics={"discrimination": discrimination, "deception": deception},
        )

    def frozen_logit(self, images: Tensor) -> Tensor:
        features = self.online.features_of_made(images, frozen=True)
        return F.linear(features, self.is_real.weight.detach(), self.is_real.bias.detach()).squeeze(1)

    def made(self, keys: Tensor) -> Tensor:
        """Generate one image per key, standardised like real ones."""
        noise = 2 * draws.uniform(keys, NOISE, self.settings.n_noise).to(self.online.mean.dtype) - 1
        decoded: Tensor = self.generator(noise)
        if not self.online.side:
            return decoded
        mean, std = self.online.mean.view(-1, 1, 1), self.online.std.view(-1, 1, 1)
        return (decoded.sigmoid() - mean) / std  # from black to white, like pixels
