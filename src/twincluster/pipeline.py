"""From a source to a finished run folder, and from a run folder to new assignments and scores."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from twincluster import inference
from twincluster.config import Config, differences
from twincluster.derive import LARGEST_SIDE, data_shape, resolve, resolve_device
from twincluster.engine import Reporter, Trainer
from twincluster.errors import InputError
from twincluster.evaluate import Scores, score
from twincluster.images.decode import typical_side
from twincluster.images.sources import Listing
from twincluster.images.store import Images, open_images
from twincluster.results import Assignments, Run

Split = Literal["all", "train", "test"]
SMALLEST_SIDE = 8  # pixels that a network can make something of


@dataclass(frozen=True)
class Fitted:
    """A finished run."""

    run: Run
    config: Config  # resolved
    assignments: Assignments
    scores: Scores | None  # when the source has labels
    scored_on: Split  # the other split when only one was trained on

    def summary(self) -> str:
        """Where the result is and what to do next."""
        unread = sum(status != "ok" for status in self.assignments.status)
        lines = [f"sizes {' '.join(map(str, self.assignments.sizes(self.config.n_clusters)))}"]
        if unread:
            inputs = "1 input" if unread == 1 else f"{unread:,} inputs"
            lines.append(f"{inputs} could not be read; the status in assignments.csv says why")
        if self.scores:
            lines.append(scores_line(self.scores, self.scored_on))
        folder = self.run.folder
        lines.append(f"one row per input in {folder / 'assignments.csv'}")
        lines.append(f"next: twincluster predict {shlex.quote(str(folder))} NEW_IMAGES --out new.csv")
        return "\n".join(lines)


def fit(
    listing: Listing,
    config: Config,
    out: Path,
    *,
    location: str | None = None,
    root: Path | None = None,
    split: Split = "all",
    resume: bool = False,
    reporter: Reporter | None = None,
    decoding: Callable[[int, int], None] | None = None,
) -> Fitted:
    """Train on a source and write the run folder `out`. `location` and `root` let later commands open it again."""
    if not resume:
        Run(out).refuse_if_taken()  # before an hour of decoding
    scored, scored_on = rows_to_score(listing, split, len(listing.paths))
    config = with_image_size(config, listing)
    images = open_images(listing, side=store_side(config), progress=decoding)
    training = dataclasses.replace(images, usable=_usable(images, split))
    config = resolve(config, training)
    run = _continue_run(out, config, images, split) if resume else Run.create(out)
    run.write_config(config, data_shape(config, training), describe(images, location, root, split))
    labels = listing.labels[training.usable] if listing.labels is not None else None
    trainer = Trainer(config, training, run=run, labels=labels, reporter=reporter)
    network = trainer.run(resume=resume).online
    assignments = Assignments.of(images, images.usable, inference.predict(network, images.pixels, images.usable))
    run.save_model(network)
    run.write_assignments(assignments)
    scores = None
    if listing.labels is not None and (scored & (listing.labels >= 0) & (assignments.clusters >= 0)).any():
        scores = score(listing.labels[scored], assignments.clusters[scored])
    return Fitted(run, config, assignments, scores, scored_on)


def describe(
    images: Images, location: str | None = None, root: Path | None = None, split: Split = "all"
) -> dict[str, Any]:
    """What config.json says of the data."""
    return {
        "source": images.listing.name,
        "location": location,
        "root": str(root.absolute()) if root else None,
        "files": images.listing.files is not None,
        "fingerprint": images.fingerprint,
        "inputs": len(images.listing.paths),
        "readable": len(images.usable),
        "split": split,
    }


def with_image_size(config: Config, listing: Listing) -> Config:
    """Training size of images in files, where the settings name none: their own, within bounds."""
    if config.train.image_size or listing.files is None:
        return config
    side = min(LARGEST_SIDE, max(SMALLEST_SIDE, typical_side(listing.files) or LARGEST_SIDE))
    return dataclasses.replace(config, train=dataclasses.replace(config.train, image_size=side))


def store_side(config: Config) -> int:
    """Side at which files are decoded: half as large again as training needs, so that crops stay sharp."""
    return config.train.image_size * 3 // 2


def rows_to_score(listing: Listing | None, split: Split, count: int) -> tuple[np.ndarray, Split]:
    """Which inputs scores are about, (n,) bool: all of them, or the part that was not trained on."""
    held_out: dict[Split, Split] = {"all": "all", "train": "test", "test": "train"}
    if listing is None or split == "all":
        return np.ones(count, dtype=bool), "all"
    return _in_split(listing, held_out[split]), held_out[split]


def predict(run: Run, listing: Listing, device: str, decoding: Callable[[int, int], None] | None = None) -> Assignments:
    """Assign the inputs of another source to the clusters of a run."""
    config, shape, _ = run.read_config()
    network = run.load_network(resolve_device(device))
    width = listing.array.shape[1] if listing.array is not None and listing.array.ndim == 2 else 0  # of rows
    if width != (0 if shape.side else shape.n_inputs):
        trained_on = "images" if shape.side else f"rows of {shape.n_inputs} numbers"
        held = f"rows of {width} numbers" if width else "images"
        raise InputError(f"{listing.name} holds {held}, but {run.folder} was trained on {trained_on}")
    images = open_images(listing, side=store_side(config), progress=decoding)
    return Assignments.of(images, images.usable, inference.predict(network, images.pixels, images.usable))


def scores_line(scores: Scores, scored_on: Split) -> str:
    where = "the whole set" if scored_on == "all" else f"the {scored_on} part"
    return f"ACC {scores.acc:.4f}  NMI {scores.nmi:.4f}  ARI {scores.ari:.4f}  on {where}"


def _in_split(listing: Listing, split: Split) -> np.ndarray:
    """(n,) bool."""
    if split == "all":
        return np.ones(len(listing.paths), dtype=bool)
    if listing.split is None:
        raise InputError(f"{listing.name} has no train and test parts: leave out --split")
    chosen = np.asarray(listing.split == (0 if split == "train" else 1))
    if not chosen.any():
        raise InputError(f"the {split} part of {listing.name} is empty: leave out --split")
    return chosen


def _usable(images: Images, split: Split) -> np.ndarray:
    """Rows to train on."""
    if not len(images.usable):
        listing, why = images.listing, images.status[0].removeprefix("unreadable: ")
        raise InputError(
            f"none of the {len(listing.paths):,} images in {listing.name} can be read ({listing.paths[0]}: {why}): "
            "name a folder with sound images"
        )
    return np.flatnonzero(_in_split(images.listing, split) & (np.array(images.status) == "ok"))


def _continue_run(out: Path, config: Config, images: Images, split: Split) -> Run:
    """The run to resume, if settings and data are what they were."""
    run = Run.open(out)
    saved, _, data = run.read_config()
    if data["split"] != split:
        raise InputError(f"{out} was started with --split {data['split']}: resume with the same")
    if data["fingerprint"] != images.fingerprint and store_side(saved) == store_side(config):
        raise InputError(f"{out} was started on other data: resume with the same source, or start anew elsewhere")
    # how long a run trains and how often it saves may change; what it computes may not
    free = {"train.epochs", "train.minutes", "train.checkpoint_minutes", "train.compile"}
    changed = [name for name in differences(saved, config) if name not in free]
    if changed:
        raise InputError(f"{out} was started with another {', '.join(changed)}: resume with the same settings")
    return run
