"""DCCS: the network describes an image by a category and a style; augmentation must not change the category.

Zhao et al. 2020, "Deep Image Clustering with Category-Style Representation", after the authors' code. A discriminator
maximises the information that category and style carry about the image. A critic matches their distribution to a prior:
a one-hot category and a Gaussian style of small variance. Shapes: N batch, K clusters, S style, D features of a place,
P places.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from twincluster.config import Config, Count, DataShape, Positive, method_settings
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.heads import mlp
from twincluster.methods.peers import peer_losses
from twincluster.nn import Backbone, draws

STYLE, CATEGORY, BETWEEN, ORDER = 13, 14, 15, 16  # streams of random numbers
LEAK = 0.2  # slope of leaky units below 0


@dataclass(frozen=True)
class DccsSettings:
    """Values of the authors' code, with their command for CIFAR-10."""

    n_style: Count = 50  # S
    style_deviation: Positive = 0.1  # of the Gaussian prior of styles
    information_weight: float = 0.5  # beta_MI: information that category and style carry about the image
    prior_weight: float = 1.0  # beta_Adv: match of their distribution to the prior
    augmentation_weight: float = 4.0  # beta_Aug: invariance of categories to augmentation; 2 for MNIST
    slope_weight: float = 10.0  # of the gradient penalty, which pulls the critic's slopes to 1
    critic_pace: Positive = 4.0  # factor on the critic's steps, instead of four steps for one
    hidden: Count = 1024  # width of critic and discriminator; their second layers have half of it


class Places(Backbone):
    """A backbone that returns its last maps instead of their mean over all places."""

    def __init__(self, trunk: Backbone, image: Tensor) -> None:
        super().__init__()
        with torch.no_grad():
            self.n_features = trunk.eval().maps(image).numel()  # DP
        self.trunk = trunk.train()

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk.maps(x).flatten(1)  # (N,DP)


class DccsNetwork(Network):
    """Backbone, and two layers from the mean over all places to style and category."""

    # differs from the authors' code: the backbone sees colours, not grey images; a layer with batch-norm precedes the
    # code, as theirs does for MNIST but not for CIFAR-10

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        raw = torch.zeros(1, shape.side, shape.side, 3, dtype=torch.uint8) if shape.side else self.mean[None]
        self.width, self.n_style = self.backbone.n_features, method_settings(config, DccsSettings).n_style
        self.head = init_like_authors(mlp(self.width, self.width, self.n_style + config.n_clusters, batch_norm=True))
        self.backbone = Places(self.backbone, self.prepare(raw))

    def embed(self, images: Tensor) -> Tensor:
        return F.normalize(self.pooled(self.backbone_features(images)), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return self.code(self.backbone_features(images))[1]

    def code(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return style (N,S) and log q (N,K) of maps (N,DP)."""
        code = self.head(self.pooled(maps))
        return code[:, : self.n_style], F.log_softmax(code[:, self.n_style :], 1)

    def pooled(self, maps: Tensor) -> Tensor:
        return maps.view(len(maps), self.width, -1).mean(2)  # (N,D)


class Critic(nn.Module):
    """Score how likely codes (N,S+K) come from the prior, (N,). Its weights move `pace` times as far as others."""

    def __init__(self, n_code: int, hidden: int, pace: float) -> None:
        super().__init__()
        self.layers, self.pace = perceptron(n_code, hidden, bias=False), pace  # a last bias would cancel
        with torch.no_grad():
            for weight in self.parameters():
                weight.div_(pace)

    def forward(self, codes: Tensor, *, frozen: bool = False) -> Tensor:
        said: Tensor = functional_call(self.layers, self.weights(frozen=frozen), (codes,))
        return said.squeeze(1)

    def slope(self, codes: Tensor) -> Tensor:
        """Return the gradient of each code's score, (N,S+K), in closed form: a step has only one backward pass."""
        w = self.weights(frozen=False)
        once = F.linear(codes, w["0.weight"], w["0.bias"])
        twice = F.linear(F.leaky_relu(once, LEAK), w["2.weight"], w["2.bias"])
        back = (w["4.weight"] * leaky_slope(twice)) @ w["2.weight"]
        return (back * leaky_slope(once)) @ w["0.weight"]

    def weights(self, *, frozen: bool) -> dict[str, Tensor]:
        pairs = self.layers.named_parameters()
        return {name: self.pace * (weight.detach() if frozen else weight) for name, weight in pairs}


class Dccs(Method):
    """DCCS: category and style by mutual information, an invariant category, and a critic for their prior."""

    network_type = DccsNetwork
    settings_type = DccsSettings
    online: DccsNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters = method_settings(config, DccsSettings), config.n_clusters
        self.online = DccsNetwork(config, shape)
        n_code, hidden = self.settings.n_style + config.n_clusters, self.settings.hidden
        self.critic = Critic(n_code, hidden, self.settings.critic_pace)
        self.discriminator = perceptron(self.online.backbone.n_features + n_code, hidden, bias=True)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.plain(), batch.view(0)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        # differs from the authors' code: images and augmentations share batch-norm statistics
        s, both = self.settings, self.online.backbone_features(torch.cat(views))  # (2N,DP)
        maps, (style, log_q) = both[: len(samples)], self.online.code(both)
        log_plain, log_augmented = log_q.chunk(2)
        code = torch.cat([style[: len(samples)], log_plain.exp()], 1)  # z, (N,S+K)
        information = self.information(maps, code, keys)
        invariance = peer_losses.assignment_divergence(log_plain, log_augmented)
        gap, slope = self.critic_loss(code.detach(), keys)
        return Outcome(
            # differs from the authors' code: one optimiser moves the critic together with the rest, but further; theirs
            # takes four steps of the critic for one of the rest. Neither side receives gradients of the other's terms.
            loss=s.information_weight * information
            + s.augmentation_weight * invariance
            + s.prior_weight * (gap + s.slope_weight * slope - self.critic(code, frozen=True).mean()),
            assignment=log_plain.detach().exp(),
            key_assignment=log_augmented.detach().exp(),
            memory={},
            metrics={"information_loss": information, "invariance_loss": invariance, "distance": -gap},
        )

    def information(self, maps: Tensor, code: Tensor, keys: Tensor) -> Tensor:
        """Return how badly a discriminator tells an image's own code from another image's: high if codes say little."""
        # differs from the authors' code: the last maps, from which the code is made; theirs uses an earlier block
        others = code[draws.uniform(keys, ORDER, 1).squeeze(1).argsort()]
        true, false = (self.discriminator(torch.cat([maps, z], 1)).squeeze(1) for z in (code, others))
        return peer_losses.discrimination(true, false) / 2  # the mean of both, as in the authors' code

    def critic_loss(self, code: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the critic's loss: the gap between codes and prior, and the gradient penalty on points between the
        two."""
        prior, share = self.prior(keys).to(code.dtype), draws.uniform(keys, BETWEEN, 1).to(code.dtype)
        gap = peer_losses.critic_gap(self.critic(prior), self.critic(code))
        return gap, peer_losses.slope_penalty(self.critic.slope(share * prior + (1 - share) * code))

    def prior(self, keys: Tensor) -> Tensor:
        """Draw codes from the prior, (N,S+K): a Gaussian style and a uniform one-hot category."""
        style = self.settings.style_deviation * draws.normal(keys, STYLE, self.settings.n_style)
        category = (draws.uniform(keys, CATEGORY, 1).squeeze(1) * self.n_clusters).long()
        return torch.cat([style, F.one_hot(category.clamp(max=self.n_clusters - 1), self.n_clusters)], 1)


def leaky_slope(values: Tensor) -> Tensor:
    """Return the factor that leaky units apply to a gradient, given their inputs (N,C)."""
    return torch.where(values > 0, torch.ones_like(values), LEAK)


def perceptron(n_inputs: int, hidden: int, *, bias: bool) -> nn.Sequential:
    """Build three layers with leaky units and one output; `bias` is that of the last layer."""
    half = max(1, hidden // 2)
    layers = [nn.Linear(n_inputs, hidden), nn.Linear(hidden, half), nn.Linear(half, 1, bias=bias)]
    return init_like_authors(nn.Sequential(layers[0], nn.LeakyReLU(LEAK), layers[1], nn.LeakyReLU(LEAK), layers[2]))


def init_like_authors(layers: nn.Sequential) -> nn.Sequential:
    """Initialise weights as the authors' code does: larger than PyTorch's, so that codes differ from the start."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return layers
