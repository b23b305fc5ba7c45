"""How large a report is and how soon a browser shows it, on a run of noise that was never trained."""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import SEED, write_noise
from twincluster.config import make_config
from twincluster.core import InputError
from twincluster.data import open_images, open_source
from twincluster.fit import describe
from twincluster.methods import find_method
from twincluster.pages import write_report
from twincluster.resolve import data_shape, resolve
from twincluster.runs import Assignments, Run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LOADS = 5  # of the page; the table holds the median
TARGET_MB, TARGET_SECONDS = 15, 1.0


@dataclass(frozen=True)
class ReportFigures:
    images: int
    clusters: int
    bytes: int
    writing: float  # seconds
    loads: list[float]  # seconds from the request to the end of the load event

    def to_text(self) -> str:
        load = statistics.median(self.loads)
        lines = [
            f"report of {self.images:,} images of noise in {self.clusters:,} clusters",
            f"{'written in':14}{self.writing:8.1f} s",
            f"{'size':14}{self.bytes / 1e6:8.1f} MB   target under {TARGET_MB}",
            f"{'load event':14}{load:8.2f} s    median of {len(self.loads)}, target {TARGET_SECONDS}",
        ]
        return "\n".join(lines)


def write_run(folder: Path, n_images: int, n_clusters: int, side: int) -> Run:
    """A run folder as `fit` would leave it, with a network that has learned nothing."""
    folder.mkdir(parents=True)
    source = folder / "noise.npy"
    write_noise(source, n_images, side)
    images = open_images(open_source(source))
    settings = {"n_clusters": n_clusters, "train": {"backbone": "small", "device": "cpu", "image_size": side}}
    config = resolve(make_config(settings), images)
    shape = data_shape(config, images)
    run = Run.create(folder / "run")
    run.write_config(config, shape, describe(images, str(source)))
    run.save_model(find_method(config.method).network_type(config, shape))
    random = np.random.default_rng(SEED)
    clusters, confidence = random.integers(0, n_clusters, n_images), random.random(n_images)
    run.write_assignments(Assignments(images.listing.paths, clusters, confidence, images.status))
    for epoch in range(20):
        sizes = np.bincount(clusters, minlength=n_clusters).tolist()
        run.append_metrics({"epoch": epoch, "loss": 5 / (epoch + 1), "confidence": 0.5, "histogram": sizes})
    return run


def measure(n_images: int, n_clusters: int, side: int) -> ReportFigures:
    with tempfile.TemporaryDirectory() as place:
        run = write_run(Path(place) / "noise", n_images, n_clusters, side)
        start = time.perf_counter()
        path, _, _ = write_report(run)
        writing = time.perf_counter() - start
        return ReportFigures(n_images, n_clusters, path.stat().st_size, writing, _loads(path))


def find_browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def _loads(path: Path) -> list[float]:
    browser = find_browser()
    if importlib.util.find_spec("playwright") is None or browser is None:
        raise InputError("the page is measured in Chromium: install it, and pip install playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        loads = []
        for _ in range(LOADS):
            page = running.new_page(viewport={"width": 390, "height": 844})
            page.goto(path.resolve().as_uri())
            timing: Any = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
            loads.append(timing / 1000)
            page.close()
        running.close()
    return loads
