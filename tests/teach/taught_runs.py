"""Runs to teach: pictures in three colours, of which every fourth lies in a wrong cluster."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from command_line import colours
from small_runs import SMALL
from twincluster.config import make_config
from twincluster.data import open_source
from twincluster.fit import describe
from twincluster.methods import METHODS
from twincluster.model import open_for
from twincluster.resolve import data_shape, resolve
from twincluster.run_images import RunImages
from twincluster.runs import Assignments, Run, stamps_of, write_stamps

COUNT = 90


def colour_folder(folder: Path, count: int = COUNT, seed: int = 0) -> Path:
    """`count` pictures; the colour of a picture is its number modulo 3."""
    folder.mkdir(parents=True)
    for number, picture in enumerate(colours(count, seed=seed)[0]):
        Image.fromarray(picture).save(folder / f"{number:03d}.png")
    return folder


def colour_run(folder: Path, count: int = COUNT) -> Run:
    """A run on pictures in `folder`/images, of which every fourth lies in the next colour's cluster."""
    source = colour_folder(folder / "images", count)
    return untaught_run(folder / "run", source, wrong_clusters(count))


def untaught_run(folder: Path, source: Path, clusters: NDArray[np.int64]) -> Run:
    """A run whose network has learned nothing and whose clusters are given; -1 where an input cannot be read."""
    listing = open_source(source)
    train = {} if listing.is_rows else {"backbone": "small", "image_size": 8}
    config = make_config({"n_clusters": int(clusters.max()) + 1, "train": train}, SMALL)
    images = open_for(config, listing)
    config = resolve(config, images)
    run, shape = Run.create(folder), data_shape(config, images)
    run.write_config(config, shape, describe(images, str(source)))
    torch.manual_seed(0)
    run.save_model(METHODS[config.method].network_type(config, shape))
    confidence = np.where(clusters < 0, np.nan, 0.75)
    run.write_assignments(Assignments(listing.paths, clusters, confidence, images.status))
    if listing.files is not None:
        write_stamps(folder, dict(zip(listing.paths, stamps_of(listing), strict=True)))
    return run


def wrong_clusters(count: int = COUNT) -> NDArray[np.int64]:
    numbers = np.arange(count)
    return np.where(numbers % 4 == 1, numbers + 1, numbers) % 3


def opened(run: Run) -> RunImages:
    return RunImages(Run.open(run.folder), device="cpu")
