"""Twenty steps of the engine beside a plain PyTorch loop that was written for this test, loss for loss.

Networks are small and smooth: at the kink of a ReLU the last bit of a sum decides about a gradient, and a step later
two loops that do the same have parted.

The loop shares with the engine the layers of the networks, the random numbers and the augmentation of an image. Order,
losses, queues, momentum, schedules and optimiser are its own, as plainly as they can be said. What k-means finds
between epochs is told to it. Shapes: N batch, K clusters, D features.
"""

import copy
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from small_runs import images_of, pictures, small_config
from twincluster.config import Config
from twincluster.data import N_DRAWS, augment_images
from twincluster.methods import Anchored, heads
from twincluster.nn import BACKBONES, Backbone, BatchNorm2d, conv, draws
from twincluster.training import Reporter, Trainer

EPOCHS, PER_EPOCH, BATCH = 4, 5, 8
STEPS = EPOCHS * PER_EPOCH
IMAGES = images_of(pictures(PER_EPOCH * BATCH + 3)[0])  # three are left over in every epoch
TOLERANCE = 1e-5
RATE = "optimiser.learning_rate=0.02"


class Smooth(Backbone):
    n_features = 12

    def __init__(self, side: int, n_inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            conv(n_inputs, 8, 3), BatchNorm2d(8), nn.Softplus(), conv(8, 12, 3, 2), BatchNorm2d(12), nn.Softplus()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean((2, 3))


@pytest.fixture(autouse=True)
def smooth_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKBONES, "small", Smooth)
    monkeypatch.setattr(heads.nn, "ReLU", nn.Softplus)


class Heard(Reporter):
    """The loss of every step, and the clusters that the default method has found after every epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.clusters: list[tuple[Tensor, Tensor]] = []
        self.sum = 0.0
        self.trainer: Trainer

    def step(self, progress: float, remaining: float | None) -> None:
        total = float(self.trainer.record.totals["loss"].double())
        self.losses.append(total - self.sum)
        self.sum = total

    def epoch(self, row: dict[str, Any]) -> None:
        self.sum = 0.0
        if isinstance(self.trainer.method, Anchored):
            self.clusters.append((self.trainer.method.labels.clone(), self.trainer.method.sure.clone()))


def config_of(*changes: str) -> Config:
    return small_config(IMAGES, f"train.epochs={EPOCHS}", f"train.batch_size={BATCH}", "train.backbone=small", *changes)


def engine(config: Config) -> tuple[Heard, Trainer]:
    heard = Heard()
    trainer = heard.trainer = Trainer(config, IMAGES, reporter=heard)
    trainer.run()
    assert len(heard.losses) == STEPS
    return heard, trainer


class Plain:
    """What both loops have in common: an online network, its momentum copy, an optimiser and the order of images."""

    def __init__(self, config: Config) -> None:
        self.config, self.K = config, config.n_clusters
        method = Trainer(config, IMAGES).method  # for its first weights alone
        self.online, self.momentum = copy.deepcopy(method.online), copy.deepcopy(method.online)
        self.extra: nn.Module = copy.deepcopy(getattr(method, "predictor", nn.Identity()))
        self.pairs = list(zip(self.momentum.parameters(), self.online.parameters(), strict=True))
        settings = config.optimiser
        groups = []
        for name, weight in [*self.online.named_parameters(), *self.extra.named_parameters()]:
            if weight.requires_grad:
                spared = weight.dim() == 1 or name == "prototypes"
                groups.append({"params": [weight], "weight_decay": 0.0 if spared else settings.weight_decay})
        if settings.name == "adam":
            self.optimiser: torch.optim.Optimizer = torch.optim.Adam(groups, lr=1.0)
        else:
            self.optimiser = torch.optim.SGD(groups, lr=1.0, momentum=settings.momentum, nesterov=True)

    def batches(self) -> Iterator[tuple[int, Tensor, Tensor, tuple[Tensor, Tensor]]]:
        """Epoch, samples, keys and two views, for one step after another."""
        for epoch in range(EPOCHS):
            generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + epoch)
            order = torch.randperm(len(IMAGES.usable), generator=generator)
            for step in range(PER_EPOCH):
                samples = order[step * BATCH : (step + 1) * BATCH]
                keys = draws.sample_keys(self.config.seed, torch.tensor(epoch), samples)
                raw = torch.from_numpy(IMAGES.pixels[samples.numpy()])
                yield epoch, samples, keys, (self.view(raw, keys, 0), self.view(raw, keys, 1))

    def view(self, raw: Tensor, keys: Tensor, stream: int) -> Tensor:
        numbers, network = draws.uniform(keys, stream, N_DRAWS), self.online
        return augment_images(raw, numbers, self.config.augment, network.side, network.mean, network.std)

    def descend(self, loss: Tensor, progress: float) -> None:
        settings = self.config.optimiser
        if progress < settings.warmup:
            rate = settings.learning_rate * progress / settings.warmup
        else:
            share = (progress - settings.warmup) / (1 - settings.warmup)
            rate = settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def follow(self, keep: float) -> None:
        with torch.no_grad():
            for old, new in self.pairs:
                old.copy_(keep * old + (1 - keep) * new)


def contrast(query: Tensor, key: Tensor, negatives: list[Tensor], temperature: float) -> Tensor:
    """-log of the share that a query's own key has, for one query."""
    logits = torch.stack([query @ other for other in (key, *negatives)]) / temperature
    return -F.log_softmax(logits, 0)[0]


def plain_tcc(config: Config) -> tuple[list[float], Plain]:
    """Eqs. 3 to 9 as printed, but for clusters that count from 0."""
    plain, s, K = Plain(config), SimpleNamespace(**config.groups["tcc"]), config.n_clusters
    P: list[tuple[int, Tensor]] = []  # with the cluster that each row stands for
    Q: list[Tensor] = []
    found: list[float] = []

    def read(network: Any, images: Tensor, keys: Tensor, stream: int) -> tuple[Tensor, Tensor, Tensor]:
        f = network.head(network.backbone(images))
        pi = F.softmax(f @ network.prototypes.T, 1)
        gumbel = -torch.log(-torch.log(draws.uniform(keys, stream, K)))
        c = F.softmax((pi.log() + gumbel) / s.gumbel_temperature, 1)
        return pi, F.normalize(pi.T @ f, dim=1), F.normalize(f + network.assignment_shift(c), dim=1)

    for step, (_, _, keys, (one, two)) in enumerate(plain.batches()):
        pi, r, e = read(plain.online, one, keys, 10)
        with torch.no_grad():
            _, key_r, key_e = read(plain.momentum, two, keys, 11)
        terms = [contrast(r[k], key_r[k], [row for owner, row in P if owner != k], s.temperature) for k in range(K)]
        instance = torch.stack([contrast(e[i], key_e[i], Q, s.temperature) for i in range(BATCH)]).mean()
        entropy = -(pi * pi.log()).sum(1).mean()
        loss = s.alpha * torch.stack(terms).mean() + (1 - s.alpha) * (instance - entropy - math.log(K))
        found.append(loss.item())
        plain.descend(loss, step / STEPS)
        P = [*P, *enumerate(key_r)][-s.cluster_queue :]
        Q = [*Q, *key_e][-s.instance_queue :]
        plain.follow(s.ema)
    return found, plain


def plain_anchored(config: Config, clusters: list[tuple[Tensor, Tensor]]) -> tuple[list[float], Plain]:
    """Instance track, cluster track and commitment, given what k-means found after each epoch."""
    plain, s, K = Plain(config), SimpleNamespace(**config.groups["anchored"]), config.n_clusters
    count = len(IMAGES.usable)
    labels, sure = torch.zeros(count, dtype=torch.int64), torch.zeros(count, dtype=torch.bool)
    prototypes, members = torch.zeros(K, plain.online.n_projected), [[] for _ in range(K)]
    queue: list[Tensor] = []
    found: list[float] = []
    for step, (epoch, samples, _, (one, two)) in enumerate(plain.batches()):
        if step and step % PER_EPOCH == 0:
            prototypes = torch.stack(
                [F.normalize(sum(rows, torch.zeros_like(prototypes[0])), dim=0) for rows in members]
            )
            (labels, sure), members = clusters[epoch - 1], [[] for _ in range(K)]
        progress, images = step / STEPS, torch.cat([one, two])
        query = F.normalize(plain.extra(plain.online.projector(plain.online.backbone(images))), dim=1)
        with torch.no_grad():
            key = F.normalize(plain.momentum.projector(plain.momentum.backbone(images)), dim=1)
        other, who = torch.cat([key[BATCH:], key[:BATCH]]), [*samples.tolist(), *samples.tolist()]
        if s.instance == "byol":
            loss = (query - other).square().sum(1).mean()
        else:
            loss = torch.stack([contrast(query[i], other[i], queue, s.temperature) for i in range(2 * BATCH)]).mean()
        if epoch and progress >= s.cluster_start:
            mine = {k: [i for i, sample in enumerate(who) if labels[sample] == k] for k in range(K)}
            r = {k: F.normalize(query[rows].sum(0), dim=0) for k, rows in mine.items() if rows}
            key_r = {k: F.normalize(other[rows].sum(0), dim=0) for k, rows in mine.items() if rows}
            terms = [contrast(r[k], key_r[k], [key_r[j] for j in r if j != k], s.cluster_temperature) for k in r]
            loss = loss + s.cluster_weight * torch.stack(terms).mean()
        certain = [i for i, sample in enumerate(who) if sure[sample]]
        if epoch and progress >= s.commit_start and certain:
            logits = query[certain] @ prototypes.T / s.commit_temperature
            loss = loss + s.commit_weight * F.cross_entropy(logits, labels[[who[i] for i in certain]])
        found.append(loss.item())
        plain.descend(loss, progress)
        queue = [*queue, *key][-s.instance_queue :]
        for i in certain:
            members[int(labels[who[i]])].append(key[i])
        first, last = s.ema
        plain.follow(last - (last - first) * (1 + math.cos(math.pi * progress)) / 2)
    return found, plain


def assert_same_course(found: list[float], plain: Plain, heard: Heard, trainer: Trainer) -> None:
    assert heard.losses == pytest.approx(found, rel=TOLERANCE, abs=TOLERANCE)
    assert max(found) - min(found) > 100 * TOLERANCE  # else any loop would do
    method: Any = trainer.method
    for network, other in ((method.online, plain.online), (method.momentum, plain.momentum)):
        for (name, weight), twin in zip(network.named_parameters(), other.parameters(), strict=True):
            if not name.startswith("head") or not isinstance(method, Anchored):  # k-means sets that head
                torch.testing.assert_close(
                    weight, twin, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
                )


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_tcc_takes_the_steps_of_a_plain_loop(optimiser: str) -> None:
    config = config_of("method=tcc", f"optimiser.name={optimiser}", RATE)
    heard, trainer = engine(config)
    found, plain = plain_tcc(config)
    assert_same_course(found, plain, heard, trainer)


@pytest.mark.parametrize("instance", ["infonce", "byol"])
def test_the_default_method_takes_the_steps_of_a_plain_loop(instance: str) -> None:
    config = config_of(f"anchored.instance={instance}", RATE)
    heard, trainer = engine(config)
    assert all(sure.any() for _, sure in heard.clusters)  # else nothing would be committed to
    found, plain = plain_anchored(config, heard.clusters)
    assert_same_course(found, plain, heard, trainer)
