"""RUC refines the clusters of a finished run: labels that look clean teach two networks, which correct the others.

Park et al. 2021, "Improving Unsupervised Image Clustering With Robust Learning", after the authors' code. Labels are
clean where the run is sure of them, where neighbours share them, or both. Each network learns mixtures of images:
labels of clean images are refined by the other network, those of the rest are guessed by both. Shapes: n samples, N
batch, K clusters, F backbone features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from twincluster.clustering import neighbours
from twincluster.config import Amount, Config, Count, DataShape, Positive, Share, method_settings
from twincluster.core import InputError
from twincluster.data import hide
from twincluster.methods.base import Batch, Method, Network, Outcome
from twincluster.methods.peers import peer_losses
from twincluster.nn import draws

HOLE, MIX, PARTNER = 50, 51, 53  # streams of random numbers; the last two have one for each network


@dataclass(frozen=True)
class RucSettings:
    """Values of the authors' code for CIFAR-10."""

    clean: Literal["confidence", "neighbours", "both"] = "both"  # what makes a label of the earlier run clean
    confidence: Share = 0.99  # of a clean label, in the earlier run and later
    neighbours: Count = 100  # images with the same majority label, at most; the image itself is one of them
    temperature: Positive = 0.5  # T: smaller sharpens refined and guessed labels more
    mix: Count = 4  # alpha of the Beta distribution of mixtures
    guess_weight: Amount = 25.0  # of guessed labels at the end; it begins at a tenth
    smoothing: Share = 0.5  # share of the other clusters in the label of a strong view
    hole: Share = 0.5  # side of the square that a strong view hides; of rows it hides the square of this share


class RucHalf(Network):
    """One of the two networks: backbone and a linear head."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.head = nn.Linear(self.backbone.n_features, config.n_clusters)

    def logits(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone_features(images))
        return logits


class RucNetwork(RucHalf):
    """Both networks; they predict together."""

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__(config, shape)
        self.other = RucHalf(config, shape)

    @property
    def halves(self) -> tuple[RucHalf, RucHalf]:
        return self, self.other

    def embed(self, images: Tensor) -> Tensor:
        both = [F.normalize(half.backbone_features(images), dim=1) for half in self.halves]
        return F.normalize(torch.cat(both, 1), dim=1)

    def log_assign(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.logits(images) + self.other.logits(images), 1)


class Ruc(Method):
    """RUC: refine a finished run (--from RUN) by learning from its clean labels and correcting the others."""

    # differs from the authors' code: both networks learn in the same step, with the same views and different mixtures;
    # theirs have an epoch each in turn. Weak views are those of the run. The strong view hides a square as theirs does,
    # without RandAugment, which they use at its weakest. Neighbours are searched in the features of the earlier run,
    # not in those of another network trained by SimCLR

    network_type = RucNetwork
    settings_type = RucSettings
    online: RucNetwork
    labels: Tensor  # (n,) int64, of clean samples
    clean: Tensor  # (n,) bool
    confidence: Tensor  # (2,n) of each network in the plain image; 0 before it has seen the sample
    doubt: Tensor  # (2,n) weight of each network against the label of a clean sample
    ramp: Tensor  # () weight of guessed labels

    def __init__(self, config: Config, shape: DataShape) -> None:
        super().__init__()
        self.settings, self.n_clusters = method_settings(config, RucSettings), config.n_clusters
        self.online = RucNetwork(config, shape)
        self.register_buffer("labels", torch.zeros(shape.n_samples, dtype=torch.int64))
        self.register_buffer("clean", torch.zeros(shape.n_samples, dtype=torch.bool))
        self.register_buffer("confidence", torch.zeros(2, shape.n_samples))
        self.register_buffer("doubt", torch.zeros(2, shape.n_samples))
        self.register_buffer("ramp", torch.zeros(()))

    @torch.no_grad()
    def refine(self, earlier: Network, probabilities: Tensor, features: Tensor) -> None:
        """Take the backbone and the clean labels of the earlier run. The heads begin anew, as the authors' do."""
        for half in self.online.halves:
            half.backbone.load_state_dict(earlier.backbone.state_dict())
            for name in ("mean", "std", "rotation"):
                if (own := getattr(half, name)) is not None:
                    own.copy_(getattr(earlier, name))
        sure, labels = probabilities.max(1)
        agreed = torch.ones_like(labels, dtype=torch.bool)
        if self.settings.clean != "confidence":
            # differs from the authors' code, which is for large sets: at most half of an even cluster
            count = min(self.settings.neighbours, max(2, len(labels) // (2 * self.n_clusters)))
            nearest = neighbours.nearest_rows(features, count - 1)
            agreed = peer_losses.majority(labels, nearest, self.n_clusters) == labels
        if self.settings.clean != "neighbours":
            agreed &= sure >= self.settings.confidence
        self._refuse_none_clean(labels, agreed)
        self.labels.copy_(labels)
        self.clean.copy_(agreed)

    def _refuse_none_clean(self, labels: Tensor, clean: Tensor) -> None:
        """Raise InputError if a cluster has no clean labels: it would vanish."""
        if lost := sorted(set(labels.tolist()) - set(labels[clean].tolist())):
            raise InputError(
                f"cluster {lost[0]} of the earlier run has no clean label: lower the confidence that makes a label "
                f"clean, --set own.confidence={self.settings.confidence - 0.1:.2g}, or set own.clean=neighbours"
            )

    def schedule(self, epoch: int, progress: float) -> None:
        self.ramp.fill_(self.settings.guess_weight * max(0.1, progress))

    def views(self, batch: Batch) -> tuple[Tensor, ...]:
        strong, share = batch.view(2), self.settings.hole
        if self.online.side:
            strong = hide(strong.clone(), draws.uniform(batch.keys, HOLE, 2).to(strong.dtype), share)
        else:
            strong = strong * (draws.uniform(batch.keys, HOLE, strong.shape[1]) >= share**2)
        return batch.plain(), batch.view(0), batch.view(1), strong

    def losses(self, views: tuple[Tensor, ...], samples: Tensor, keys: Tensor) -> Outcome:
        plain, one, two, strong = views
        clean, label = self.clean[samples], self.labels[samples]
        with torch.no_grad():
            seen = [half.logits(torch.cat([plain, one, two])).softmax(1).chunk(3) for half in self.online.halves]
            guess = (seen[0][1] + seen[0][2] + seen[1][1] + seen[1][2]) / 4
            guess = peer_losses.sharpened(guess, self.settings.temperature)
        total, metrics = guess.new_zeros(()), dict[str, Tensor]()
        for number, half in enumerate(self.online.halves):
            doubt = self.doubt[1 - number, samples][:, None].to(guess.dtype)
            refined = (1 - doubt) * F.one_hot(label, self.n_clusters) + doubt * seen[1 - number][0]
            target = torch.where(clean[:, None], peer_losses.sharpened(refined, self.settings.temperature), guess)
            images, target = self._mixed(torch.cat([one, two]), torch.cat([target, target]), keys, number)
            log_q = F.log_softmax(half.logits(torch.cat([images, strong])), 1)
            mixed, firm = log_q[: 2 * len(samples)], log_q[2 * len(samples) :]
            entropy, error = peer_losses.mixed_losses(mixed, target, clean.repeat(2))
            smooth = peer_losses.smooth_label_loss(firm, label, clean, self.settings.smoothing)
            total = total + entropy + self.ramp * error + smooth
            metrics |= {f"clean_loss_{number}": entropy, f"guess_loss_{number}": error, f"strong_loss_{number}": smooth}
        return Outcome(
            loss=total,
            assignment=(seen[0][1] + seen[1][1]) / 2,
            key_assignment=(seen[0][2] + seen[1][2]) / 2,
            memory={"samples": samples, "plain": torch.stack([seen[0][0], seen[1][0]])},
            metrics={name: value.detach() for name, value in metrics.items()},
        )

    def _mixed(self, images: Tensor, target: Tensor, keys: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Mix each image, and its target, with another one of the batch. One share of a Beta distribution is for all.

        Of 2a-1 uniform numbers the a-th is distributed as Beta(a,a).
        """
        alpha = self.settings.mix
        share = draws.uniform(keys[:1], MIX + number, 2 * alpha - 1).sort(1).values[0, alpha - 1].to(target.dtype)
        share = torch.maximum(share, 1 - share)
        partner = draws.uniform(keys, PARTNER + number, 2).T.flatten().argsort()
        return share * images + (1 - share) * images[partner], share * target + (1 - share) * target[partner]

    def remember(self, memory: dict[str, Tensor]) -> None:
        """Add samples to the clean ones whose cluster a network is sure of."""
        samples, (sure, label) = memory["samples"], memory["plain"].max(2)  # (2,N) each
        is_sure, clean = sure >= self.settings.confidence, self.clean[samples]
        found = torch.where(is_sure[0], label[0], label[1])
        new = ~clean & is_sure.any(0)
        self.labels[samples] = torch.where(new, found, self.labels[samples])
        self.clean[samples] = clean | new
        self.confidence[:, samples] = sure.to(self.confidence.dtype)

    @torch.no_grad()
    def after_epoch(
        self, epoch: int, batches: Callable[[], Iterator[Batch]], optimiser: torch.optim.Optimizer
    ) -> dict[str, float]:
        """Scale the confidence of each network to 0 to 1: how much it counts against a label of the other."""
        low = torch.where(self.confidence > 0, self.confidence, 1.0).amin(1, keepdim=True)
        width = (self.confidence.amax(1, keepdim=True) - low).clamp(min=1e-6)
        self.doubt.copy_(((self.confidence - low) / width).clamp(0, 1))
        return {"clean": float(self.clean.float().mean())}
