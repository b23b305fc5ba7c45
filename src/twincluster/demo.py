"""The demo: embedded digits, clustered beside three classic methods on the same pixels."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from twincluster import pipeline
from twincluster.config import load_recipe, make_config
from twincluster.evaluate import Scores, score
from twincluster.images.sources import open_source
from twincluster.progress import Progress, duration


def run_demo(out: Path, seed: int) -> None:
    listing = open_source("digits")
    assert listing.array is not None and listing.labels is not None, "the digits are embedded, with labels"
    config = make_config({"seed": seed}, make_config(load_recipe("digits").settings))
    print(f"clustering {len(listing.paths):,} images of handwritten digits into 10 clusters, without their labels")
    start = time.monotonic()
    with Progress() as progress:
        fitted = pipeline.fit(listing, config, out, location="digits", reporter=progress)
    seconds = time.monotonic() - start
    assert fitted.scores is not None, "the digits have labels"
    rows = {**classic_scores(listing.array, listing.labels, seed), "twincluster": fitted.scores}
    print(f"\n{'method':24} {'ACC':>6} {'NMI':>6} {'ARI':>6}")
    for name, scores in rows.items():
        print(f"{name:24} {scores.acc:6.3f} {scores.nmi:6.3f} {scores.ari:6.3f}")
    print(f"\ntrained in {duration(seconds)}; the run is in {out}")
    print(f"one row per image: {out / 'assignments.csv'}")
    print(f"next: twincluster evaluate {out}                            the confusion matrix")
    print("      twincluster fit FOLDER --clusters K --out runs/mine   your own images")


def classic_scores(images: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, Scores]:
    """What scikit-learn's classics make of the raw pixels."""
    from sklearn.cluster import AgglomerativeClustering, KMeans, SpectralClustering

    pixels = images.reshape(len(images), -1) / 255.0
    classics = {
        "k-means on pixels": KMeans(10, n_init=10, random_state=seed),
        "Ward on pixels": AgglomerativeClustering(10, linkage="ward"),
        "spectral on pixels": SpectralClustering(10, affinity="nearest_neighbors", random_state=seed),
    }
    return {name: score(labels, model.fit_predict(pixels)) for name, model in classics.items()}
