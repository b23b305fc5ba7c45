"""Run folders made by hand, without training: pictures in known clusters, under names that try to be markup."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from small_runs import SMALL
from twincluster.config import make_config
from twincluster.data import Images, open_source
from twincluster.fit import describe
from twincluster.methods import METHODS
from twincluster.model import open_for
from twincluster.pages.report.material import Groups, Material
from twincluster.resolve import data_shape, resolve
from twincluster.runs import Assignments, Run

HOSTILE = "<img src=x onerror=window.harmed=1>"
CLASSES = ("blue</script><script>window.harmed=2</script>", "red & \"quoted\" 'names'", HOSTILE)


def hostile_folder(folder: Path, per_class: int = 8, side: int = 24) -> Path:
    """Pictures of three colours in folders with markup for names, two copies of one, and a file that is no picture."""
    random = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        inside = folder / name  # a slash in a name makes two folders, whose names together are markup
        inside.mkdir(parents=True)
        for image in range(per_class):
            pixels = random.integers(0, 110, (side, side, 3))
            pixels[..., number] += 130
            Image.fromarray(pixels.astype(np.uint8)).save(inside / f"{image} {HOSTILE}.png")
    for copy in ("copy 1.png", "copy 2.png"):
        Image.fromarray(pixels.astype(np.uint8)).save(inside / copy)
    (inside / f"broken {HOSTILE}.png").write_bytes(b"no picture")
    return folder


def made_run(
    out: Path, source: Any, n_clusters: int, clusters: NDArray[np.int64] | None = None, *changes: dict[str, Any]
) -> Run:
    """A run on a source whose network has learned nothing and whose assignments are given, or even ones."""
    listing = open_source(source)
    train = {} if listing.is_rows else {"backbone": "small", "image_size": 8}
    config = make_config({"n_clusters": n_clusters, "train": train, "tcc": {"cluster_queue": 2 * n_clusters}}, SMALL)
    for change in changes:
        config = make_config(change, config)
    images = open_for(config, listing)
    config = resolve(config, images)
    run = Run.create(out)
    location = str(source) if isinstance(source, str | Path) else None
    shape = data_shape(config, images)
    run.write_config(config, shape, describe(images, location))
    run.save_model(METHODS[config.method].network_type(config, shape))
    run.write_assignments(assigned(images, n_clusters, clusters))
    for epoch in range(6):
        run.append_metrics(metrics_row(epoch, n_clusters))
    return run


def assigned(images: Images, n_clusters: int, clusters: NDArray[np.int64] | None) -> Assignments:
    """Confidence rises with the place of an input, so that tests know who is doubtful."""
    count = len(images.status)
    clusters = np.arange(count) % n_clusters if clusters is None else np.array(clusters)
    confidence = np.linspace(0.3, 0.99, count)
    unread = np.array(images.status) != "ok"
    clusters[unread], confidence[unread] = -1, np.nan
    return Assignments(images.listing.paths, clusters, confidence, images.status)


def metrics_row(epoch: int, n_clusters: int) -> dict[str, Any]:
    sizes = [8] * (n_clusters - 1) + [8 + epoch]
    return {
        "epoch": epoch, "loss": 6 - epoch / 2, "instance_loss": 4.0, "cluster_loss": 2 - epoch / 4, "dec_loss": 0.1,
        "confidence": 0.4 + epoch / 12, "agreement": 0.9, "histogram": sizes,
        "mean_assignment": [1 / n_clusters] * n_clusters, "seconds": 2.0 * epoch, "progress": (epoch + 1) / 6,
    }  # fmt: skip


def material(
    features: NDArray[np.float32],
    clusters: NDArray[np.int64],
    run: Run,
    confidence: NDArray[np.float64] | None = None,
    pictures: NDArray[np.uint8] | None = None,
) -> Material:
    """What a page could be made of, from features alone; `run` lends its settings."""
    config, data = run.config, run.data
    n_clusters = int(clusters.max()) + 1
    config = make_config({"n_clusters": n_clusters, "tcc": {"cluster_queue": 2 * n_clusters}}, config)
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    paths = tuple(map(str, range(len(clusters))))
    confidence = np.linspace(0.2, 0.9, len(clusters)) if confidence is None else confidence
    assignments = Assignments(paths, clusters, confidence, ("ok",) * len(clusters))
    rows = np.arange(len(clusters))
    return Material(
        run, config, replace(data, inputs=len(paths)), assignments, Groups.of_model(n_clusters), pictures, rows=rows,
        features=unit.astype(np.float32),
    )  # fmt: skip
