"""From a source to a finished run folder, and from a run folder to new assignments and scores."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from twincluster import inference, provenance
from twincluster.clusters.choose import Choice
from twincluster.config import DERIVED, Config
from twincluster.derive import check_method, data_shape, resolve, resolve_device
from twincluster.disk import refuse_taken
from twincluster.edits.corrected import corrected
from twincluster.encoders import load_encoder
from twincluster.engine import Reporter, Trainer
from twincluster.errors import InputError
from twincluster.evaluate import Health, Scores, health, score
from twincluster.images.sources import Listing
from twincluster.images.store import Images
from twincluster.known import stamps_of, write_stamps
from twincluster.methods.base import Method, Network
from twincluster.opening import open_for, open_with, with_image_size
from twincluster.options import Split
from twincluster.parallel.processes import join
from twincluster.results import Assignments, Run
from twincluster.resuming import continue_run, length_of
from twincluster.training import checkpoint
from twincluster.training.allocator import keep_freed
from twincluster.updates.drift import Reference

MOST_SIZES = 100  # that are told one by one


@dataclass(frozen=True)
class Fitted:
    """A finished run."""

    run: Run
    config: Config  # resolved
    assignments: Assignments
    scores: Scores | None  # when the source has labels
    scored_on: Split  # the other split when only one was trained on
    choice: Choice | None = None  # when the number of clusters was not given
    handed: bool = False  # where it was left to the images, which can be told from their mirror images: no flips

    def summary(self) -> str:
        """Where the result is and what to do next."""
        unread = sum(status != "ok" for status in self.assignments.status)
        plot = " and clusters.png" if (self.run.folder / "clusters.png").is_file() else ""
        lines = [self.choice.describe(), f"all that were tried: clusters.json{plot}"] if self.choice else []
        lines.append(sizes_line(self.assignments.sizes(self.config.n_clusters)))
        if self.handed:
            lines.append("left and right mean something in these images: none was mirrored to learn from")
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
    encoding: Callable[[int, int], None] | None = None,
) -> Fitted:
    """Train on a source and write the run folder `out`. `location` and `root` let later commands open it again."""
    started = provenance.now()
    processes, config = join(config.train.device), check_method(config)
    if not resume and processes.first:
        refuse_taken(out)  # before an hour of decoding
    scored, scored_on = rows_to_score(listing, split, len(listing.paths))
    config = processes.in_turn(lambda: with_image_size(config, listing))  # which may download an encoder
    stamps, device = stamps_of(listing), config.train.device
    if resolve_device(device) == "cpu":
        keep_freed()  # before an encoder's first image: that frees as much as a step does
    encoder = processes.in_turn(lambda: load_encoder(config.train.frozen)) if config.train.frozen else None
    images = processes.in_turn(
        lambda: open_for(config, listing, decoding, encoder=encoder, device=device, encoding=encoding)
    )
    training = dataclasses.replace(images, usable=_usable(images, split))
    flip_by_images, config = config.augment.flip == DERIVED, resolve(config, training)
    data = describe(images, location, root, split) | ({"encoder": encoder.version} if encoder else {})
    run = _begin(out, config, data, training, resume, reporter, started) if processes.first else None
    labels = listing.labels[training.usable] if listing.labels is not None else None
    trainer = Trainer(config, training, run=run, labels=labels, reporter=reporter)
    method = trainer.run(resume=resume)
    if run is None:
        raise SystemExit(0)  # the first process writes the result
    config = _keep_model(run, method, config, data, training)
    write_stamps(run.folder, dict(zip(listing.paths, stamps, strict=True)))
    assignments, found = _keep_rows(run, method.online, images, training)
    provenance.write(run.folder, provenance.read(run.folder).end(trainer.clock.seconds))
    if reporter and (warning := unwell(config, method.choice, found, assignments)):
        reporter.warn(warning)
    handed = flip_by_images and not images.is_rows and not config.augment.flip
    scores = _scores(listing.labels, assignments.clusters, scored)
    return Fitted(run, config, assignments, scores, scored_on, method.choice, handed)


def unwell(config: Config, choice: Choice | None, found: Tensor, assignments: Assignments) -> str | None:
    """What is wrong with the clusters of a finished run. Where their number was not known while it trained, there is
    more to say than that some are empty; `found` is q of those readable."""
    state = health(found) if choice else Health.of_result(assignments.sizes(config.n_clusters))
    return state.warning(config.method, config.train.precision)


def _scores(labels: np.ndarray | None, clusters: np.ndarray, scored: np.ndarray) -> Scores | None:
    if labels is None or not (scored & (labels >= 0) & (clusters >= 0)).any():
        return None
    return score(labels[scored], clusters[scored])


def _begin(
    out: Path, config: Config, data: dict[str, Any], training: Images, resume: bool, reporter: Reporter | None,
    started: str,
) -> Run:  # fmt: skip
    run = continue_run(out, config, data) if resume else Run.create(out)
    anew = not checkpoint.exists(run.checkpoint)
    if resume and anew and reporter:
        reporter.warn(f"nothing of the training in {out} was kept, so it begins anew")
    elif resume and reporter and (planned := length_of(run.read_config()[0])) != length_of(config):
        reporter.warn(
            f"{out} was planned for {planned} and is now to end after {length_of(config)}: the learning rate, and all "
            "else that follows how much of a run is done, jumps, and the result is not that of a run of this length"
        )
    if not run.has_choice:  # else config.json holds the number of clusters, which the model there has
        run.write_config(config, data_shape(config, training), data)
    made = provenance.Provenance() if anew else provenance.read(run.folder) or provenance.UNKNOWN
    provenance.write(run.folder, made.begin(started, config.train.device))
    return run


def _keep_model(run: Run, method: Method, config: Config, data: dict[str, Any], training: Images) -> Config:
    """Write what predicts; returns the settings with the number of clusters, if that was left to the data."""
    if method.choice:
        run.write_choice(method.choice)
        config = dataclasses.replace(config, n_clusters=method.choice.n_clusters)
        run.write_config(config, data_shape(config, training), data)
    run.save_model(method.online)
    return config


def _keep_rows(run: Run, network: Network, images: Images, training: Images) -> tuple[Assignments, Tensor]:
    """Write one row per input, and what images that come later are compared with; also returns q of those readable."""
    found = inference.predict(network, images.pixels, images.usable)
    trained = found[np.searchsorted(images.usable, training.usable)]  # those of one split may be some of them
    Reference.measured(network, training.pixels, training.usable, trained).write(run.folder)
    assignments = Assignments.of(images, images.usable, found)
    run.write_assignments(assignments)
    return assignments, found


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
        "side": images.side,
        "readable": len(images.usable),
        "split": split,
    }


def rows_to_score(listing: Listing | None, split: Split, count: int) -> tuple[np.ndarray, Split]:
    """Which of `count` rows scores are about, (n,) bool: all of them, or those that were not trained on, which are the
    other part of the listing and all rows after it: `twincluster update` added these."""
    held_out: dict[Split, Split] = {"all": "all", "train": "test", "test": "train"}
    if listing is None or split == "all":
        return np.ones(count, dtype=bool), "all"
    part = _in_split(listing, held_out[split])
    return np.concatenate([part, np.ones(count - len(part), dtype=bool)]), held_out[split]


def predict(
    run: Run,
    listing: Listing,
    device: str,
    decoding: Callable[[int, int], None] | None = None,
    encoding: Callable[[int, int], None] | None = None,
    *,
    location: str | None = None,
) -> Assignments:
    """Assign the inputs of another source to the clusters of a run, with the edits that were made to it.

    By `location`, which opens the source again, images are known that the run has rows of.
    """
    if resolve_device(device) == "cpu":
        keep_freed()
    network, images = open_with(run, listing, device, decoding, encoding)
    found = Assignments.of(images, images.usable, inference.predict(network, images.pixels, images.usable))
    return corrected(run, found, listing, location, lambda rows: inference.embed(network, images.pixels, rows).numpy())


def scores_line(scores: Scores, scored_on: Split) -> str:
    where = "the whole set" if scored_on == "all" else f"the {scored_on} part"
    return f"ACC {scores.acc:.4f}  NMI {scores.nmi:.4f}  ARI {scores.ari:.4f}  on {where}"


def sizes_line(sizes: list[int]) -> str:
    """All of them, unless there are so many that they would fill a page."""
    if len(sizes) <= MOST_SIZES:
        return f"sizes {' '.join(map(str, sizes))}"
    return f"sizes from {min(sizes):,} to {max(sizes):,}, median {np.median(sizes):,g}"


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
            "name a folder with images that can be read"
        )
    return np.flatnonzero(_in_split(images.listing, split) & (np.array(images.status) == "ok"))
