"""VaDE: a variational autoencoder with a mixture of Gaussians as prior, one Gaussian per cluster.

Jiang et al. 2017, "Variational Deep Embedding: An Unsupervised and Generative Approach to Clustering". Shapes: N batch,
K clusters, D code.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twincluster.config import Config, Count, DataShape, Positive, Share, method_settings
from twincluster.methods.base import Batch, Network, Outcome
from twincluster.methods.heads import TwoStages
from twincluster.methods.peers import peer_losses
from twincluster.methods.peers.generative import CODE_NOISE, Decoder
from twincluster.nn import draws

LEAST = 1e-2  # smallest variance of a cluster when the mixture is fitted


@dataclass(frozen=True)
class VadeSettings:
    """Values of section 4.2 of the paper, except the decoder and the noise, which are those of our `vae`."""

    n_features: Count = 10  # D
    width: Count = 64  # maps before the decoder's last layer; twice as many before the one before it, and so on
    noise: Positive = 0.5  # standard deviation of a standardised pixel around the decoder's output
    cluster_start: Share = 0.5  # share of the run after which the mixture is fitted and learned with the rest


class VadeNetwork(Network):
    """Backbone, a linear layer to the posterior of the code, and the mixture."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.n_code, k = method_settings(config, VadeSettings).n_features, config.n_clusters
        self.head = nn.Linear(self.backbone.n_features, 2 * self.n_code)
        self.shares = nn.Parameter(torch.zeros(k))  # log of pi, up to a constant
        self.prototypes = nn.Parameter(torch.randn(k, self.n_code))  # mu
        self.log_variances = nn.Parameter(torch.zeros(k, self.n_code))  # log of sigma squared

    def posterior(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log of the variance, (N,D) each."""
        mean, log_variance = self.head(self.backbone_features(images)).chunk(2, dim=1)
        return mean, log_variance

    def embed(self, images: Tensor) -> Tensor:
        return self.posterior(images)[0]

    def log_assign(self, images: Tensor) -> Tensor:
        return self.responsibilities(self.embed(images))

    def responsibilities(self, code: Tensor) -> Tensor:
        """Return log q(k|x) = log p(k|z), (N,K): Eq. 16 of the paper."""
        return peer_losses.mixture_responsibilities(code, self.shares, self.prototypes, self.log_variances)


class Vade(TwoStages):
    """VaDE: first an autoencoder, then one whose prior is a mixture of Gaussians."""

    # differs from the paper: all layers of the autoencoder learn at once, not one after another

    network_type = VadeNetwork
    settings_type = VadeSettings
    spared = ("prototypes", "log_variances")
    online: VadeNetwork

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters = method_settings(config, VadeSettings), config.n_clusters
        self.seed = config.seed
        self.online = VadeNetwork(config, shape)
        self.decoder = Decoder(self.settings.n_features, self.online, self.settings.width)

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.plain(),)

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        images, net = views[0], self.online
        mean, log_variance = net.posterior(images)
        noise = draws.normal(keys, CODE_NOISE, mean.shape[1]).to(mean.dtype)
        # the autoencoder of the first stage adds no noise to its code
        code = mean + torch.where(self.clustering, (log_variance / 2).exp() * noise, torch.zeros_like(mean))
        log_q = net.responsibilities(code)
        n_values = images[0].numel()
        rebuilt = peer_losses.squared_error(self.decoder(code), images) / (2 * self.settings.noise**2)
        mixture = (net.shares, net.prototypes, net.log_variances)
        divergence = peer_losses.mixture_divergence(mean, log_variance, log_q, *mixture).mean() / n_values
        recorded = net.responsibilities(mean).detach().exp()
        return Outcome(
            loss=rebuilt + torch.where(self.clustering, divergence, 0.0),
            assignment=recorded,
            key_assignment=log_q.detach().exp(),
            memory={},
            metrics={"reconstruction": rebuilt, "divergence": divergence},
        )

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Fit the mixture to the codes until it is learned with the rest."""
        if not self.clustering:
            codes = self.embed_all(batches)
            if len(codes) >= max(2, self.n_clusters):
                self.fit_mixture(codes, self.seed + epoch)
            self.clustering.fill_(self.is_due(self.settings.cluster_start))
        return {"stage": float(self.clustering)}

    def fit_mixture(self, codes: Tensor, seed: int) -> None:
        from sklearn.mixture import GaussianMixture  # slow to import

        model = GaussianMixture(
            self.n_clusters, covariance_type="diag", reg_covar=LEAST, random_state=seed % 2**32, max_iter=20
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # twenty rounds are enough for a start
            model.fit(codes.double().cpu().numpy())
        net = self.online
        net.shares.copy_(torch.from_numpy(model.weights_).clamp(min=1e-6).log())
        net.prototypes.copy_(torch.from_numpy(model.means_))
        net.log_variances.copy_(torch.from_numpy(model.covariances_).log())
