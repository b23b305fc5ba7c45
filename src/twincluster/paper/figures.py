"""The paper's figures: maps of features, sweeps over settings, and the course of training.

Figure 1 as an experiment: two moons, clustered by k-means, by TCC and by the default method. A point at the tip of one
moon is closer to the middle of the other, so that k-means puts it there.

Figure 7: the layers of the backbone, as built here for the images of a set.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn

from twincluster.config import load_recipe, make_config
from twincluster.core import InputError
from twincluster.estimator import TwinContrastClustering
from twincluster.nn import ResNet, build_backbone, flops
from twincluster.pages import HUES, blank_figure, save_figure, write_figures, write_report
from twincluster.paper.trainings import Asked, Finished, Outcomes, Training, by_paper, paper_recipe
from twincluster.resolve import check_method

# Figure 4 shows its values only in a picture: these are ours, around the settings of the text
ALPHA = (0.1, 0.25, 0.5, 0.75, 0.9)
LAMBDA = (0.2, 0.5, 0.8, 1.0, 2.0)
ROWS = (10, 50, 100, 200)  # of queue P, per cluster
BATCH = (0.25, 0.5, 1.0, 2.0)  # multiples of the paper's batch size
MICE = "mice-as-tcc"


def one_run(data: str) -> list[Training]:
    return [by_paper(data)]


def beside_mice(data: str) -> list[Training]:
    """MiCE "with the same optimizer setting", as the paper's authors ran it."""
    return [by_paper(data), by_paper(data, "mice", MICE)]


def sweep(data: str) -> list[Training]:
    """Return all trainings of Figure 4, each once."""
    points = (training for values in _panels(data).values() for training in values.values())
    return list({training.name: training for training in points}.values())


def _panels(data: str) -> dict[str, dict[float, Training]]:
    """Return a training for each value of each setting. All panels share the one with the paper's own values."""
    usual = check_method(make_config(load_recipe(paper_recipe(data)).settings))
    tcc = usual.groups["tcc"]
    k, batch = usual.n_clusters, usual.train.batch_size
    panels = {
        "alpha": ("tcc.alpha", ALPHA, tcc["alpha"]),
        "lambda": ("tcc.gumbel_temperature", LAMBDA, tcc["gumbel_temperature"]),
        "L": ("tcc.cluster_queue", [rows * k for rows in ROWS], 100 * k),
        "batch": ("train.batch_size", [round(times * batch) for times in BATCH], batch),
    }
    return {
        title: {value: by_paper(data) if value == own else _changed(data, title, field, value) for value in values}
        for title, (field, values, own) in panels.items()
    }


def _changed(data: str, title: str, field: str, value: float) -> Training:
    return by_paper(data, name=f"tcc-{title}-{value:g}", settings=(f"{field}={value:g}",))


def draw_map(asked: Asked, outcomes: Outcomes) -> str:
    """Draw Figure 3: a map of the features of TCC, one colour per class."""
    return _from_report(asked, outcomes, "map", "figure3")


def draw_sizes(asked: Asked, outcomes: Outcomes) -> str:
    """Draw Figure 6: sizes of the clusters during training."""
    return _from_report(asked, outcomes, "sizes", "figure6")


def _from_report(asked: Asked, outcomes: Outcomes, kind: str, name: str) -> str:
    """Draw one of the figures that `report` makes for any run."""
    _, material, gathered = write_report(_first(outcomes, "tcc").run, None, asked.root)
    folder = write_figures(material, gathered)
    for suffix in (".png", ".svg"):
        shutil.copyfile(folder / f"{kind}{suffix}", asked.out / f"{name}{suffix}")
    return _drawn(asked, name)


def draw_sweep(asked: Asked, outcomes: Outcomes) -> str:
    """Draw Figure 4: ACC, NMI and ARI for each value of four settings, means over the seeds."""
    panels = _panels(asked.data)
    figure, axes = blank_figure(8, 2.4, len(panels))
    lines = [f"{'':18}{'ACC':>8}{'NMI':>8}{'ARI':>8}"]
    for place, (title, values) in zip(axes, panels.items(), strict=True):
        found = {value: means for value, training in values.items() if (means := _means(outcomes[training.name]))}
        for number, (score, hue) in enumerate(zip(("ACC", "NMI", "ARI"), HUES, strict=False)):
            place.plot([means[number] for means in found.values()], marker=".", color=hue, label=score)
        place.set_xticks(range(len(found)), [f"{value:g}" for value in found])
        place.set(title=title, ylim=(0, 1))
        lines += [f"{f'{title} {value:g}':18}" + "".join(f"{mean:8.3f}" for mean in found[value]) for value in found]
    axes[0].legend(frameon=False)
    save_figure(figure, asked.out / "figure4")
    return "\n".join([*lines, _drawn(asked, "figure4")])


def draw_course(asked: Asked, outcomes: Outcomes) -> str:
    """Draw Figure 5: accuracy on the batches by epochs and by time, of TCC and MiCE, and the DEC loss of TCC."""
    figure, (by_epochs, by_time, dec) = blank_figure(8, 2.4, 3, same_scale=False)
    for name, title, hue in (("tcc", "TCC", HUES[0]), (MICE, "MiCE", HUES[1])):
        metrics = _first(outcomes, name).run.read_metrics()
        epochs, accuracy = [row["epoch"] + 1 for row in metrics], [row["on_batch_acc"] for row in metrics]
        by_epochs.plot(epochs, accuracy, color=hue, label=title)
        by_time.plot([row["seconds"] / 60 for row in metrics], accuracy, color=hue)
        if name == "tcc":
            dec.plot(epochs, [row["dec_loss"] for row in metrics], color=hue)
    by_epochs.set(title="(a) accuracy on batches", xlabel="epoch", ylim=(0, 1))
    by_time.set(title="(b) accuracy on batches", xlabel="minutes", ylim=(0, 1))
    dec.set(title="(c) DEC loss, not trained on", xlabel="epoch")
    dec.ticklabel_format(axis="y", scilimits=(-3, 3))
    by_epochs.legend(frameon=False)
    save_figure(figure, asked.out / "figure5")
    return _drawn(asked, "figure5")


def _first(outcomes: Outcomes, name: str) -> Finished:
    """Return the run with seed 0. Raise InputError without one."""
    outcome = outcomes[name][0]
    if isinstance(outcome, str):
        raise InputError(f"{name} {outcome}, and the figure needs it: see what it said above")
    return outcome


def _means(by_seed: Mapping[int, Finished | str]) -> tuple[float, ...]:
    scores = [outcome.scores for outcome in by_seed.values() if isinstance(outcome, Finished)]
    return tuple(map(statistics.fmean, zip(*((one.acc, one.nmi, one.ari) for one in scores), strict=True)))


def _drawn(asked: Asked, name: str) -> str:
    return f"drawn to {asked.out / name}.png and .svg"


POINTS = 1000
COLOURS = ("#2a6f97", "#e07a3f")


FREE = {  # the best ARI of 36 combinations of what the paper leaves open or gives for images (docs/reproduce.md)
    "tcc.unit_norm": True, "tcc.assignment_temperature": 0.5, "tcc.entropy": "batch", "tcc.prototypes": "simplex",
    "tcc.alpha": 0.05, "tcc.ema": 0.99, "augment.noise": 0.2, "augment.dropout": 0.0,
    "optimiser.learning_rate": 1e-3, "train.batch_size": 256,
}  # fmt: skip
FREE_EPOCHS = 150


def draw_moons(asked: Asked, points: int = POINTS) -> str:
    """Cluster two moons by k-means, TCC and the default method, and draw the clusters; takes less than a minute."""
    asked.out.mkdir(parents=True, exist_ok=True)
    places, moons = make_moons(points, noise=0.05, random_state=0)
    learned: dict[str, dict[str, Any]] = {
        "tcc": {"method": "tcc"},
        "tcc, settings chosen for it": {"method": "tcc", "settings": FREE, "epochs": FREE_EPOCHS},
        "anchored": {},
    }
    models: dict[str, Any] = {"k-means": KMeans(n_clusters=2, n_init=10, random_state=0).fit(places)}
    for name, settings in learned.items():
        models[name] = TwinContrastClustering(n_clusters=2, random_state=0, **settings).fit(places)
    figure, axes = blank_figure(11, 2.2, len(models))
    lines = []
    for place, (name, model) in zip(axes, models.items(), strict=True):
        score = adjusted_rand_score(moons, model.labels_)
        lines.append(f"{name}: ARI {score:.3f}")
        place.set(xticks=[], yticks=[], aspect="equal")
        place.set_title(f"{name}\nARI {score:.3f}", fontsize=8)
        _shade(place, model, places)
        place.scatter(*places.T, c=[COLOURS[label] for label in model.labels_], s=5)
    axes[0].scatter(*models["k-means"].cluster_centers_.T, c="black", marker="x", s=60)
    save_figure(figure, asked.out / "figure1")
    return "\n".join([*lines, f"drawn to {asked.out / 'figure1'}.png and .svg"])


def _shade(axes: Any, model: Any, places: np.ndarray) -> None:
    """Colour the plane by the cluster that a new point there would have."""
    low, high = places.min(0) - 0.25, places.max(0) + 0.25
    across, up = np.meshgrid(np.linspace(low[0], high[0], 300), np.linspace(low[1], high[1], 200))
    clusters = model.predict(np.column_stack([across.ravel(), up.ravel()])).reshape(across.shape)
    axes.contourf(across, up, clusters, levels=[-0.5, 0.5, 1.5], colors=COLOURS, alpha=0.2)


FOOT = "convolutions have batch-norm and then ReLU, the last one of a block after its shortcut is added, and no bias"


def describe_network(asked: Asked) -> str:
    """Return a line for each layer of the stem, for equal blocks, and for the layers after them."""
    config = by_paper(asked.data).config(asked, seed=0)
    side, name = config.train.image_size, config.train.backbone
    backbone = build_backbone(name, side=side, n_inputs=3).to("meta").eval()
    if not isinstance(backbone, ResNet):
        raise InputError(f"train.backbone is {name}: figure7 shows residual networks, such as resnet18")
    assert isinstance(backbone.stem, nn.Sequential)
    assert isinstance(backbone.stages, nn.Sequential)
    x, lines = torch.empty(1, 3, side, side, device="meta"), []
    for layer in backbone.stem:
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            lines.append((_layer(layer), _size(x)))
    for block in backbone.stages:
        x = block(x)
        lines.append((_block(block), _size(x)))
    lines += [("mean over pixels", str(backbone.n_features)), ("linear", str(config.groups["tcc"]["n_features"]))]
    weights = sum(weight.numel() for weight in backbone.parameters())
    title = (
        f"{name} at {side} px: {weights / 1e6:.1f} million weights, {flops(backbone, side) / 1e9:.2f} GFLOP an image"
    )
    return "\n".join([title, *_joined(lines), FOOT])


def _layer(layer: nn.Conv2d | nn.MaxPool2d) -> str:
    kind = "convolution" if isinstance(layer, nn.Conv2d) else "maximum"
    size, stride = (value[0] if isinstance(value, tuple) else value for value in (layer.kernel_size, layer.stride))
    return f"{kind} {size} x {size}" + (f", stride {stride}" if stride != 1 else "")


def _block(block: nn.Module) -> str:
    """Describe a residual block by its convolutions, without those of the shortcut."""
    layers = [layer for name, layer in block.named_modules() if isinstance(layer, nn.Conv2d) and "shortcut" not in name]
    return "block of " + " and ".join(_layer(layer).removeprefix("convolution ") for layer in layers)


def _size(x: Tensor) -> str:
    return f"{x.shape[2]} x {x.shape[3]} x {x.shape[1]}"


def _joined(lines: list[tuple[str, str]]) -> list[str]:
    """Join equal layers into one line with their number."""
    counted = [(*line, len(list(group))) for line, group in groupby(lines)]
    return [f"  {f'{count} x {what}' if count > 1 else what:48}{size}" for what, size, count in counted]
