"""The demo: embedded digits, clustered beside three classic methods on the same pixels."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import numpy as np

from twincluster import fit
from twincluster.cli.pages import report_after_fit
from twincluster.clustering import TITLES, Scores, cluster_by, score
from twincluster.config import Config
from twincluster.core import duration
from twincluster.data import open_source
from twincluster.training import Progress


def run_demo(out: Path, config: Config) -> None:
    """Train, compare, and say where the run is and what to do next. `config` is the recipe `digits`, or nearly."""
    listing = open_source("digits")
    assert listing.array is not None, "the digits are embedded"
    assert listing.labels is not None, "and have labels"
    print(
        f"clustering {len(listing.paths):,} images of handwritten digits into {config.n_clusters} clusters, "
        "without their labels",
        flush=True,
    )
    start = time.monotonic()
    with Progress() as progress:
        fitted = fit.fit(listing, config, out, location="digits", reporter=progress)
    seconds = time.monotonic() - start
    assert fitted.scores is not None, "there are labels"
    rows = {**classic_scores(listing.array, listing.labels, config.seed), "twincluster": fitted.scores}
    print(f"\n{'method':24} {'ACC':>6} {'NMI':>6} {'ARI':>6}")
    for name, scores in rows.items():
        print(f"{name:24} {scores.acc:6.3f} {scores.nmi:6.3f} {scores.ari:6.3f}")
    print(f"\ntrained in {duration(seconds)}; the run is in {out}")
    print(f"one row per image: {out / 'assignments.csv'}")
    evaluate = f"twincluster evaluate {shlex.quote(str(out))}"
    mine = "twincluster fit FOLDER --clusters K --out runs/mine"
    width = max(len(evaluate), len(mine))
    print(f"next: {evaluate:{width}}   the confusion matrix")
    print(f"      {mine:{width}}   your own images", flush=True)
    report_after_fit(fitted.run, listing, None, progress)


def classic_scores(images: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, Scores]:
    """What scikit-learn's classics make of the raw pixels."""
    pixels = images.reshape(len(images), -1) / 255.0
    return {
        f"{TITLES[name]} on pixels": score(labels, cluster_by(name, pixels, 10, seed))
        for name in ("k-means", "ward", "spectral")
    }
