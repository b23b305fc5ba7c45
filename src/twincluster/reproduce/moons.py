"""Figure 1 of the paper as an experiment: two moons, which k-means cuts in two and learned assignments follow.

A point at the tip of one moon is closer to the middle of the other, so whoever knows a cluster by its centre alone puts
it there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score

from twincluster.estimator import TwinContrastClustering
from twincluster.report.figures import blank_figure, save_figure
from twincluster.reproduce.trainings import Asked

POINTS = 1000
COLOURS = ("#2a6f97", "#e07a3f")


def draw_moons(asked: Asked, points: int = POINTS) -> str:
    """What k-means and the estimator make of them, and of the plane around; takes about ten seconds."""
    asked.out.mkdir(parents=True, exist_ok=True)
    places, moons = make_moons(points, noise=0.05, random_state=0)
    models = {
        "k-means": KMeans(n_clusters=2, n_init=10, random_state=0).fit(places),
        "twin-contrast clustering": TwinContrastClustering(n_clusters=2, random_state=0).fit(places),
    }
    figure, axes = blank_figure(9, 3.1, len(models))
    lines = []
    for place, (name, model) in zip(axes, models.items(), strict=True):
        lines.append(f"{name}: ARI {adjusted_rand_score(moons, model.labels_):.3f}")
        place.set(title=lines[-1], xticks=[], yticks=[], aspect="equal")
        _shade(place, model, places)
        place.scatter(*places.T, c=[COLOURS[label] for label in model.labels_], s=8)
    axes[0].scatter(*models["k-means"].cluster_centers_.T, c="black", marker="x", s=60)
    save_figure(figure, asked.out / "figure1")
    return "\n".join([*lines, f"drawn to {asked.out / 'figure1'}.png and .svg"])


def _shade(axes: Any, model: Any, places: np.ndarray) -> None:
    """The plane by the cluster that a new point there would be given."""
    low, high = places.min(0) - 0.25, places.max(0) + 0.25
    across, up = np.meshgrid(np.linspace(low[0], high[0], 300), np.linspace(low[1], high[1], 200))
    clusters = model.predict(np.column_stack([across.ravel(), up.ravel()])).reshape(across.shape)
    axes.contourf(across, up, clusters, levels=[-0.5, 0.5, 1.5], colors=COLOURS, alpha=0.2)
