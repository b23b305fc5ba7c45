"""The one path of a fit: `train` makes a model of a source, `fit` writes it into a run folder.

The command line calls `fit`, the estimator `train`. `continue_run` decides which runs `--resume` goes on with: those
on the same data, with settings that compute the same.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from twincluster.clustering import Choice, Health, Scores, health, score
from twincluster.config import DERIVED, Config, DataShape, Split, differences, flatten
from twincluster.core import InputError, OnProgress, counted, hold, keep_freed, refuse_taken, settle
from twincluster.data import Images, Listing
from twincluster.methods import find_method
from twincluster.model import Model, open_for, refuse_other_weights
from twincluster.nn import Encoder, load_encoder
from twincluster.parallel import join
from twincluster.resolve import check_method, data_shape, resolve, resolve_device, with_image_size
from twincluster.runs import EDITS_FILE as EDITS
from twincluster.runs import (
    REFERENCE_SAMPLE,
    Assignments,
    Reference,
    Run,
    RunData,
    kinds_of,
    provenance,
    stamps_of,
    write_stamps,
)
from twincluster.training import Reporter, Trainer, has_checkpoint

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
        problems = self.assignments.problems()
        plot = " and clusters.png" if (self.run.folder / "clusters.png").is_file() else ""
        lines = [self.choice.describe(), f"all that were tried: clusters.json{plot}"] if self.choice else []
        lines.append(sizes_line(self.assignments.sizes(self.config.n_clusters)))
        if self.handed:
            lines.append("left and right mean something in these images: none was mirrored to learn from")
        if unread := problems.total():
            inputs = counted(unread, "input")
            lines.append(f"{inputs} could not be read{kinds_of(problems)}; the status in assignments.csv says why")
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
    decoding: OnProgress | None = None,
    encoding: OnProgress | None = None,
) -> Fitted:
    """Train on a source and write the run folder `out`. `location` and `root` let later commands open it again."""
    processes = join(config.train.device)
    with hold(out, "training") if processes.first else nullcontext():
        if not resume and processes.first:
            refuse_taken(out)  # before an hour of decoding
        if resolve_device(config.train.device) == "cpu":
            keep_freed()  # before an encoder's first image: that frees as much as a step does
        scored, scored_on = rows_to_score(listing, split, len(listing.paths))

        def begin(config: Config, shape: DataShape, data: RunData, started: str) -> Run | None:
            return _begin(out, config, shape, data, resume, reporter, started) if processes.first else None

        trained = train(
            listing, config, begin=begin, location=location, root=root, split=split, resume=resume, reporter=reporter,
            decoding=decoding, encoding=encoding,
        )  # fmt: skip
        if trained.run is None:
            raise SystemExit(0)  # the first process writes the result
        result = trained.result()
        write_run(
            trained.run, trained.model, result.assignments, reference=result.reference, stamps=trained.stamps,
            made=trained.made, choice=trained.choice,
        )  # fmt: skip
        if reporter and (warning := trained.unwell(result)):
            reporter.warn(warning)
        scores = _scores(listing.labels, result.assignments.clusters, scored)
        return Fitted(
            trained.run, trained.model.config, result.assignments, scores, scored_on, trained.choice, trained.handed
        )


@dataclass(frozen=True, eq=False)
class Result:
    """What a trained model makes of its own inputs."""

    assignments: Assignments
    reference: Reference  # what later images are compared with
    probabilities: Tensor  # q of the usable inputs


@dataclass(eq=False)
class Trained:
    """A finished training, in memory."""

    model: Model
    images: Images  # all inputs, as the network sees them
    training: Images  # the same with those usable that were trained on
    stamps: dict[str, str]  # of the inputs, by the names of their rows
    made: provenance.Provenance
    choice: Choice | None = None  # when the number of clusters was not given
    handed: bool = False  # whether left and right were found to mean something: no image was mirrored
    run: Run | None = None  # begun before the training

    def result(self, predict: Callable[[Images], Tensor] | None = None) -> Result:
        """Predict the inputs, by the model unless `predict` is given, and describe those trained on."""
        found = (predict or self.model.predict)(self.images)
        trained = found[np.searchsorted(self.images.usable, self.training.usable)]
        step = math.ceil(len(self.training.usable) / REFERENCE_SAMPLE) or 1
        features = self.model.embed(self.training, self.training.usable[::step])
        assignments = Assignments.of(self.images, self.images.usable, found)
        return Result(assignments, Reference.of(features, trained[::step]), found)

    def unwell(self, result: Result) -> str | None:
        """Return what is wrong with the clusters, if anything."""
        config = self.model.config
        if self.choice:  # while it trained their number was not known, so that there is more to say
            state = health(result.probabilities)
        else:
            state = Health.of_result(result.assignments.sizes(config.n_clusters))
        return state.warning(config.method, find_method(config.method).advice, config.train.precision)


def write_run(
    run: Run,
    model: Model,
    assignments: Assignments,
    *,
    reference: Reference | None,
    stamps: dict[str, str],
    made: provenance.Provenance,
    choice: Choice | None,
) -> None:
    """Write what a finished run consists of, except for its metrics."""
    if choice:
        run.write_choice(choice)
    model.save(run)
    write_stamps(run.folder, stamps)
    if reference:
        reference.write(run.folder)
    run.write_assignments(assignments)
    provenance.write(run.folder, made)


def train(
    listing: Listing,
    config: Config,
    *,
    begin: Callable[[Config, DataShape, RunData, str], Run | None] | None = None,
    encoder: Encoder | None = None,
    location: str | None = None,
    root: Path | None = None,
    split: Split = "all",
    resume: bool = False,
    reporter: Reporter | None = None,
    decoding: OnProgress | None = None,
    encoding: OnProgress | None = None,
) -> Trained:
    """Train on a source: the one path from settings and a listing to a model.

    `begin` makes the run folder once the settings are resolved; without it nothing is written. `encoder` is one that
    is loaded already, or the caller's own.
    """
    started = provenance.now()
    processes, config = join(config.train.device), check_method(config)
    config = processes.in_turn(lambda: with_image_size(config, listing))  # which may download an encoder
    stamps, device = stamps_of(listing), config.train.device
    if config.train.frozen and encoder is None:
        encoder = processes.in_turn(lambda: load_encoder(config.train.frozen, config.encoder))
    images = processes.in_turn(
        lambda: open_for(config, listing, decoding, encoder=encoder, device=device, encoding=encoding)
    )
    training = dataclasses.replace(images, usable=_usable(images, split))
    flip_by_images, config = config.augment.flip == DERIVED, resolve(config, training)
    shape, data = data_shape(config, training), describe(images, location, root, split, encoder)
    run = begin(config, shape, data, started) if begin else None
    labels = listing.labels[training.usable] if listing.labels is not None else None
    trainer = Trainer(config, training, run=run, shape=shape, labels=labels, reporter=reporter)
    method = trainer.run(resume=resume)
    if method.choice:
        config = dataclasses.replace(config, n_clusters=method.choice.n_clusters)
    made = provenance.read(run.folder) if run else provenance.Provenance().begin(started, config.train.device)
    model = Model(method.online, config, shape, data)
    if encoder:
        model.encoder = encoder
    return Trained(
        model=model,
        images=images,
        training=training,
        stamps=dict(zip(listing.paths, stamps, strict=True)),
        made=made.end(trainer.clock.seconds),
        choice=method.choice,
        handed=flip_by_images and not images.is_rows and not config.augment.flip,
        run=run,
    )


def _scores(labels: np.ndarray | None, clusters: np.ndarray, scored: np.ndarray) -> Scores | None:
    if labels is None or not (scored & (labels >= 0) & (clusters >= 0)).any():
        return None
    return score(labels[scored], clusters[scored])


def _begin(
    out: Path, config: Config, shape: DataShape, data: RunData, resume: bool, reporter: Reporter | None, started: str
) -> Run:
    run = continue_run(out, config, data) if resume else Run.create(out)
    anew = not has_checkpoint(run.checkpoint)
    if resume and anew and reporter:
        reporter.warn(f"nothing of the training in {out} was kept, so it begins anew")
    elif resume and reporter and (planned := length_of(run.config)) != length_of(config):
        reporter.warn(
            f"{out} was planned for {planned} and is now to end after {length_of(config)}: the learning rate, and all "
            "else that follows how much of a run is done, jumps, and the result is not that of a run of this length"
        )
    if not run.has_choice:  # else config.json holds the number of clusters, which the model there has
        run.write_config(config, shape, data)
    made = provenance.Provenance() if anew else provenance.read(run.folder) or provenance.UNKNOWN
    provenance.write(run.folder, made.begin(started, config.train.device))
    return run


def describe(
    images: Images,
    location: str | None = None,
    root: Path | None = None,
    split: Split = "all",
    encoder: Encoder | None = None,
) -> RunData:
    """Return what config.json says of the data."""
    return RunData(
        source=images.listing.name,
        location=location,
        root=str(root.absolute()) if root else None,
        files=images.listing.files is not None,
        fingerprint=images.fingerprint,
        inputs=len(images.listing.paths),
        side=images.side,
        readable=len(images.usable),
        split=split,
        encoder=(encoder.version or None) if encoder else None,
    )


def rows_to_score(listing: Listing | None, split: Split, count: int) -> tuple[np.ndarray, Split]:
    """Which of `count` rows scores are about, (n,) bool: all of them, or those that were not trained on, which are the
    other part of the listing and all rows after it: `twincluster update` added these."""
    held_out: dict[Split, Split] = {"all": "all", "train": "test", "test": "train"}
    if listing is None or split == "all":
        return np.ones(count, dtype=bool), "all"
    part = _in_split(listing, held_out[split])
    return np.concatenate([part, np.ones(count - len(part), dtype=bool)]), held_out[split]


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
            "check the paths"
        )
    return np.flatnonzero(_in_split(images.listing, split) & (np.array(images.status) == "ok"))


FEW_NAMES = 5  # of settings, in a message


def continue_run(out: Path, config: Config, data: RunData) -> Run:
    """The run to resume, if settings and data are what they were, or nothing was made of them yet."""
    if not (out / "config.json").is_file():
        raise InputError(f"there is no run in {out} to resume: leave out --resume")
    run = Run.open(out)
    if not has_checkpoint(run.checkpoint):
        if (out / "model.safetensors").is_file():
            raise InputError(f"{out} has a model, but no checkpoint to go on from: fit into another --out")
        return run
    saved, then = check_method(run.config), run.data
    if run.is_updated:
        raise InputError(
            f"{out} has rows of later images (twincluster update), which more training would make wrong: fit into "
            "another --out, and update that"
        )
    settle(edits := run.folder / EDITS)  # an edit that began before this process held the run is finished first
    if edits.is_file() and edits.stat().st_size:
        raise InputError(
            f"{out} has corrections by hand, which more training would make wrong: fit into another --out, or move "
            f"{edits} away"
        )
    if then.split != data.split:
        raise InputError(f"{out} was started with --split {then.split}: resume with the same")
    shapes = [(made.train.image_size, made.train.frame) for made in (saved, config)]
    if saved.train.encoder == config.train.encoder:
        refuse_other_weights(run.folder, then.encoder, data.encoder)
    if then.fingerprint != data.fingerprint and shapes[0] == shapes[1]:
        raise InputError(f"{out} was started on other data: resume with the same source, or start anew elsewhere")
    _refuse_changes(run, saved, config)
    if not config.train.minutes and (done := len(run.read_metrics())) > config.train.epochs:
        raise InputError(
            f"{out} has trained for {done} epochs already: ask for as many or more, or fit into another --out"
        )
    return run


def _refuse_changes(run: Run, saved: Config, config: Config) -> None:
    """How long a run trains and how often it saves may change; what it computes may not."""
    free = {"train.epochs", "train.minutes", "train.checkpoint_minutes", "train.compile", "train.parts"}
    if run.has_choice and not config.n_clusters:
        free.add("n_clusters")  # it was left to the data, as it is now
    changed = [name for name in differences(saved, config) if name not in free]
    if "n_clusters" in changed or "clusters_between" in changed:
        changed = ["n_clusters", *(name for name in changed if "clusters" not in name and not _of_method(name, config))]
    if changed:
        raise InputError(
            f"{run.folder} was started with another {_told(changed, saved, config)}: resume with the same settings"
        )


def _of_method(name: str, config: Config) -> bool:
    """Whether a setting is the method's, which may derive it from the number of clusters."""
    return name.partition(".")[0] in config.groups


def _told(names: list[str], saved: Config, config: Config) -> str:
    """The settings that have changed, and what they were; of many, what may be the cause."""
    then, now = flatten(saved.to_dict()), flatten(config.to_dict()) | {"n_clusters": config.n_clusters or "auto"}
    told = ", ".join(f"{name} ({then.get(name)}, now {now.get(name)})" for name in names[:FEW_NAMES])
    return told if len(names) <= FEW_NAMES else f"{told} and {len(names) - FEW_NAMES} more (perhaps another --recipe)"


def length_of(config: Config) -> str:
    """How long a run is to train, in words."""
    minutes, epochs = config.train.minutes, config.train.epochs
    return f"{minutes:g} minutes" if minutes else counted(epochs, "epoch")
