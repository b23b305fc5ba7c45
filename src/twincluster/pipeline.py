"""From a source to a finished run folder, and from a run folder to new assignments and scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from twincluster import inference
from twincluster.config import Config, differences
from twincluster.derive import data_shape, resolve, resolve_device
from twincluster.engine import Reporter, Trainer
from twincluster.errors import InputError
from twincluster.evaluate import Scores, score
from twincluster.images.sources import Listing
from twincluster.images.store import Images, open_images
from twincluster.results import Assignments, Run

Split = Literal["all", "train", "test"]


@dataclass(frozen=True)
class Fitted:
    """A finished run."""

    run: Run
    images: Images
    assignments: Assignments
    scores: Scores | None  # when the source has labels; on the other split when only one was trained on

    def summary(self) -> str:
        """Where the result is and what to do next."""
        clusters = self.assignments.clusters
        unread = int((clusters < 0).sum())
        lines = [f"sizes {' '.join(map(str, np.bincount(clusters[clusters >= 0])))}"]
        if unread:
            lines.append(f"{unread:,} inputs could not be read; their rows in assignments.csv say why")
        if self.scores:
            lines.append(f"ACC {self.scores.acc:.4f}  NMI {self.scores.nmi:.4f}  ARI {self.scores.ari:.4f}")
        folder = self.run.folder
        lines.append(f"one row per input in {folder / 'assignments.csv'}")
        lines.append(f"next: twincluster predict {folder} NEW_IMAGES --out new.csv")
        return "\n".join(lines)


def fit(
    listing: Listing,
    config: Config,
    out: Path,
    *,
    location: str | None = None,
    split: Split = "all",
    resume: bool = False,
    reporter: Reporter | None = None,
    decoding: Callable[[int, int], None] | None = None,
) -> Fitted:
    """Train on a source and write the run folder `out`. `location` lets later commands open the source again."""
    images = open_images(listing, side=store_side(config), progress=decoding)
    training = dataclasses.replace(images, usable=images.usable[_in_split(listing, split)[images.usable]])
    config = resolve(config, training)
    run = _continue_run(out, config, images, split) if resume else Run.create(out)
    data = {
        "source": listing.name,
        "location": location,
        "files": listing.files is not None,
        "fingerprint": images.fingerprint,
        "inputs": len(listing.paths),
        "readable": len(images.usable),
        "split": split,
    }
    run.write_config(config, data_shape(config, training), data)
    labels = listing.labels[training.usable] if listing.labels is not None else None
    trainer = Trainer(config, training, run=run, labels=labels, reporter=reporter)
    network = trainer.run(resume=resume).online
    assignments = Assignments.of(images, images.usable, inference.predict(network, images.pixels, images.usable))
    run.save_model(network)
    run.write_assignments(assignments)
    scored, _ = rows_to_score(listing, split, len(listing.paths))
    scores = score(listing.labels[scored], assignments.clusters[scored]) if listing.labels is not None else None
    return Fitted(run, images, assignments, scores)


def store_side(config: Config) -> int:
    """Side at which folders are decoded: half as large again as training needs, so that crops stay sharp."""
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
    images = open_images(listing, side=store_side(config), progress=decoding)
    if images.is_rows != (shape.side == 0) or images.pixels.shape[-1] != shape.n_inputs:
        trained_on = f"images of {shape.side} pixels" if shape.side else f"rows of {shape.n_inputs} features"
        raise InputError(f"{listing.name} does not fit the run, which was trained on {trained_on}")
    network = run.load_network(resolve_device(device))
    return Assignments.of(images, images.usable, inference.predict(network, images.pixels, images.usable))


def _in_split(listing: Listing, split: Split) -> np.ndarray:
    """(n,) bool."""
    if split == "all":
        return np.ones(len(listing.paths), dtype=bool)
    if listing.split is None:
        raise InputError(f"{listing.name} has no train and test parts: leave out --split")
    return np.asarray(listing.split == (0 if split == "train" else 1))


def _continue_run(out: Path, config: Config, images: Images, split: Split) -> Run:
    """The run to resume, if settings and data are what they were."""
    run = Run.open(out)
    saved, _, data = run.read_config()
    # how long and where a run trains, and how often it saves, may change; what it computes may not
    free = {"train.epochs", "train.minutes", "train.checkpoint_minutes", "train.compile"}
    changed = [name for name in differences(saved, config) if name not in free]
    if changed:
        raise InputError(f"{out} was started with another {', '.join(changed)}: resume with the same settings")
    if data["split"] != split:
        raise InputError(f"{out} was started with --split {data['split']}: resume with the same")
    if data["fingerprint"] != images.fingerprint:
        raise InputError(f"{out} was started on other data: resume with the same source, or start anew elsewhere")
    return run
