"""Cluster two moons, the analogy of Figure 1 in "You Never Cluster Alone", and draw them beside what k-means finds.

    python examples/two_moons.py two_moons.png

A point at the tip of one moon is closer to the middle of the other: k-means, which knows a cluster by its centre alone,
cuts both moons in two. The learned assignment follows their shapes. Takes about ten seconds and needs matplotlib.
"""

import argparse

import matplotlib

matplotlib.use("Agg")  # a picture in a file needs no window

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from sklearn.cluster import KMeans
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score

from twincluster import TwinContrastClustering

COLOURS = ("#2a6f97", "#e07a3f")


def main() -> None:
    options = parse_options()
    points, moons = make_moons(options.points, noise=0.05, random_state=options.seed)
    by_centre = KMeans(n_clusters=2, n_init=10, random_state=options.seed).fit(points)
    by_context = TwinContrastClustering(n_clusters=2, random_state=options.seed, verbose=1).fit(points)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.1), layout="constrained")
    for axes, name, model in ((left, "k-means", by_centre), (right, "twin-contrast clustering", by_context)):
        score = adjusted_rand_score(moons, model.labels_)
        print(f"{name}: ARI {score:.3f}")
        axes.set_title(f"{name}, ARI {score:.2f}")
        draw_regions(axes, model, points)
        axes.scatter(*points.T, c=[COLOURS[label] for label in model.labels_], s=8)
    left.scatter(*by_centre.cluster_centers_.T, c="black", marker="x", s=60)
    figure.savefig(options.picture, dpi=150)
    print(f"drawn to {options.picture}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cluster two moons and draw them.")
    parser.add_argument("picture", help="the PNG file to write")
    parser.add_argument("--points", type=int, default=1000, help="how many points to draw (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the points and of the models (0)")
    return parser.parse_args()


def draw_regions(axes: Axes, model: KMeans | TwinContrastClustering, points: np.ndarray) -> None:
    """Shade the plane by the cluster a new point there would be given."""
    low, high = points.min(0) - 0.25, points.max(0) + 0.25
    across, down = np.meshgrid(np.linspace(low[0], high[0], 300), np.linspace(low[1], high[1], 200))
    clusters = model.predict(np.column_stack([across.ravel(), down.ravel()])).reshape(across.shape)
    axes.contourf(across, down, clusters, levels=[-0.5, 0.5, 1.5], colors=COLOURS, alpha=0.2)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])


if __name__ == "__main__":
    main()
