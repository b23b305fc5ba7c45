"""The ablations of the paper's Table 3 and the reductions of its Section 3.4, each as a change to `Tcc`.

`Repaired` is not in the paper: it is the smallest change that makes TCC cluster digits (docs/results.md). Where the
paper is silent, a comment says what was chosen and why. Shapes: n samples, N batch, K clusters, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import Advice, kmeans
from twincluster.config import Config, DataShape, Share, method_settings
from twincluster.methods import losses
from twincluster.methods.base import Batch, Outcome
from twincluster.methods.heads import FINAL_STARTS, FINAL_STARTS_MANY
from twincluster.methods.tcc import Reading, Tcc, TccNetwork, Track
from twincluster.nn import draws

N_SAMPLES = 10  # of Gumbel noise per image, in ablation (iii)


class WithoutL1(Tcc):
    """Ablation (i): the loss is L2 alone; L1 is still recorded."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = replace(self.settings, alpha=0.0)


class WithoutL2(Tcc):
    """Ablation (ii): the loss is L1 alone, without entropy term, queue Q and NN."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = replace(self.settings, alpha=1.0)

    def instance_track(self, online: Reading, key: Reading) -> Track:
        return nothing(key)


class TenSamples(Tcc):
    """Ablation (iii): ten Gumbel samples of every image instead of one."""

    def sample(self, log_assignment: Tensor, keys: Tensor, stream: int) -> Tensor:  # (10N,K), image after image
        gumbel = draws.gumbel(keys, stream, N_SAMPLES * self.n_clusters).view(-1, self.n_clusters)
        return losses.gumbel_softmax(repeated(log_assignment), gumbel, self.settings.gumbel_temperature)

    def embedding(self, network: TccNetwork, reading: Reading) -> Tensor:  # (10N,D)
        return losses.embedding(repeated(reading.features), network.assignment_shift(reading.sample))

    def instance_track(self, online: Reading, key: Reading) -> Track:
        # the paper is silent: the s-th sample of an image meets the s-th sample of its key, not all ten of them
        loss, key_embedding = super().instance_track(online, key)
        mean = key_embedding.view(len(online.features), N_SAMPLES, -1).mean(1)  # (N,D)
        # the paper is silent: normalised again, otherwise negatives would be shorter than positives
        return loss, F.normalize(mean, dim=1)


class WithoutP(Tcc):
    """Ablation (iv): the other K - 1 representations of the batch are the negatives, not the queue P."""

    def cluster_track(self, online: Reading, key: Reading) -> Track:
        clusters = losses.cluster_representations(online.features, self.membership(online))
        # the paper is silent: the momentum representations, which P would hold
        negatives = losses.cluster_representations(key.features, self.membership(key))
        everyone = torch.ones(self.n_clusters, dtype=torch.bool, device=negatives.device)
        loss = losses.cluster_loss(clusters, negatives, negatives, everyone, self.settings.temperature)
        return loss, negatives[:0]


class WithoutImageAugmentation(Tcc):
    """Ablation (v): the representations of clusters come from images without augmentation."""

    # differs from the paper: its text names Eq. 8 here, the title of the ablation means L1

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch.view(0), batch.view(1), batch.plain()

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        view, key_view, plain = views
        online, key = self.read(view, key_view, keys)
        # a separate pass, so that batch-norm does not mix the statistics of plain and augmented images
        clusters = self.cluster_track(*self.read(plain, plain, keys))
        return self.outcome(online, key, clusters, self.instance_track(online, key))


class HardAssignments(Tcc):
    """Ablation (vi): an image counts only in the representation of its most likely cluster."""

    # argmax has no gradient: the prototypes learn from L2 alone, L1 reaches the encoder through the features only

    def membership(self, reading: Reading) -> Tensor:
        return F.one_hot(reading.log_assignment.argmax(1), self.n_clusters).to(reading.features.dtype)

    def cluster_track(self, online: Reading, key: Reading) -> Track:
        members, key_members = self.membership(online), self.membership(key)
        clusters = losses.cluster_representations(online.features, members)
        key_clusters = losses.cluster_representations(key.features, key_members)
        # the paper is silent: a cluster that is empty in either network is left out of the loss. Its row in P is zero,
        # so that row l still belongs to cluster l mod K; zero rows are not used as negatives
        present = members.any(0) & key_members.any(0)
        rows = self.cluster_queue.rows
        loss = losses.cluster_loss(
            clusters, key_clusters, rows, rows.any(1), self.settings.temperature, present.to(members.dtype)
        )
        return loss, key_clusters


class WithoutSubsetting(Tcc):
    """Ablation (vii): train on L2 alone; after each epoch take one step of L1 on the representations of all data."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.settings = replace(self.settings, alpha=0.0)

    def cluster_track(self, online: Reading, key: Reading) -> Track:
        return nothing(key)

    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Take one step of L1 on every sample, with the optimiser's current rate and moments.

        L1 depends on the encoder only through K sums. So two passes give the gradient of one pass over all data, with
        one batch in memory at a time: the first computes the sums, the second descends along the slope of L1 at them.
        """
        with torch.no_grad():
            sums = torch.stack([self.cluster_sums(self.online, batch.view(0)) for batch in batches()]).sum(0)
            key_sums = torch.stack([self.cluster_sums(self.momentum, batch.view(1)) for batch in batches()]).sum(0)
        key_clusters, queue = F.normalize(key_sums, dim=1), self.cluster_queue
        clusters = F.normalize(sums.requires_grad_(), dim=1)
        loss = losses.cluster_loss(clusters, key_clusters, queue.rows, queue.valid(), self.settings.temperature)
        (slope,) = torch.autograd.grad(loss, sums)

        optimiser.zero_grad(set_to_none=False)  # in place: a captured step writes to these tensors
        for batch in batches():  # the same views again
            (slope * self.cluster_sums(self.online, batch.view(0))).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        self.remember({"clusters": key_clusters, "embedding": key_clusters[:0]})
        return {"cluster_loss": float(loss.detach())}

    def cluster_sums(self, network: TccNetwork, images: Tensor) -> Tensor:
        """Return the batch's contribution to the sums of Eq. 4, (K,D)."""
        # the paper is silent: batch-norm normalises each batch separately, as in other steps
        features = network.embed(images)
        return network.assign_features(features).exp().T @ features


class AssignmentEmbedding(Tcc):
    """Reduction of Sec. 3.4: e = NN(c) alone, so that p(i | x, c) becomes p(i | c)."""

    def embedding(self, network: TccNetwork, reading: Reading) -> Tensor:
        return F.normalize(network.assignment_shift(reading.sample), dim=1)


class Deterministic(Tcc):
    """Reduction of Sec. 3.4: c without Gumbel noise."""

    def sample(self, log_assignment: Tensor, keys: Tensor, stream: int) -> Tensor:
        # the paper is silent: only the noise is removed, so c is pi sharpened by lambda and equals pi at lambda = 1
        return F.softmax(log_assignment / self.settings.gumbel_temperature, 1)


class AsCc(AssignmentEmbedding, Deterministic):
    """Reduction of Sec. 3.4 and Appendix B, complete: p(i | c) without Gumbel noise, so that L2 is that of CC."""

    def instance_loss(self, log_likelihood: Tensor, online: Reading) -> Tensor:
        # the paper is silent: without noise c is a function of x, and a point mass has no entropy. So L2 is the
        # instance loss of CC minus log K, with negatives from Q instead of the batch
        return losses.instance_loss(log_likelihood, torch.zeros_like(log_likelihood), self.n_clusters)


class StochasticClusters(Tcc):
    """The representation of a cluster weighs each image by its Gumbel sample c instead of pi."""

    def membership(self, reading: Reading) -> Tensor:
        return reading.sample


def nothing(key: Reading) -> Track:
    """Return the loss and queue rows of a track that is switched off."""
    return key.features.new_zeros(()), key.features[:0]


def repeated(rows: Tensor) -> Tensor:
    """Repeat each row for every Gumbel sample, (10N,...)."""
    return rows.repeat_interleave(N_SAMPLES, 0)


@dataclass(frozen=True)
class RepairedSettings:
    """Settings that are not in the paper."""

    kmeans_at: Share = 0.5  # of the run: after it, at the end of an epoch, k-means sets mu; 1: never


class Repaired(Tcc):
    """Twin-contrast clustering whose prototypes are set once, half-way, by k-means on its features."""

    settings_type = RepairedSettings
    advice = Advice(surer="try --set tcc.entropy=batch or the default method", evener="--set tcc.entropy=batch")
    placed: Tensor  # (), bool: whether k-means has set the prototypes
    progress: float = 0.0  # finished share of the run

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.kmeans_at, self.seed = method_settings(config, RepairedSettings).kmeans_at, config.seed
        self.register_buffer("placed", torch.zeros((), dtype=torch.bool))

    def schedule(self, epoch: int, progress: float) -> None:
        self.progress = progress

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        if self.progress >= self.kmeans_at and not self.placed:
            features = torch.cat([self.online.embed(batch.view(0)) for batch in batches()])
            self.online.prototypes.copy_(towards_clusters(features, self.n_clusters, self.seed))
            self.momentum.prototypes.copy_(self.online.prototypes)
            self.placed.fill_(True)
        return {}


def towards_clusters(features: Tensor, n_clusters: int, seed: int) -> Tensor:
    """Return unit vectors (K,D) from the mean of all features (n,D) towards the centroids of k-means."""
    n_init = FINAL_STARTS if n_clusters <= kmeans.FEW_CLUSTERS else FINAL_STARTS_MANY
    middle = features.mean(0)
    centres = kmeans.spherical_kmeans(features - middle, n_clusters, seed=seed, n_init=n_init).centres
    # Eq. 3 has no bias: orthogonal to the mean, the part that all features share favours no cluster
    shared = F.normalize(middle, dim=0)
    return F.normalize(centres - torch.outer(centres @ shared, shared), dim=1)
