"""The single path of a fit: `train` makes a model from a source, `fit` writes it into a run folder.

The command line calls `fit`, the estimator `train`. `continue_run` decides whether `--resume` may continue a run: it
needs the same data, and settings that compute the same.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from twincluster.clustering import (
    Choice,
    Health,
    Scores,
    Tree,
    grow_tree,
    grow_tree_of_sample,
    health,
    score,
    spread_sample,
)
from twincluster.config import DERIVED, SAME_NETWORK, Config, DataShape, Split, differences, flatten
from twincluster.core import InputError, OnProgress, counted, hold, keep_freed, refuse_taken, return_freed, settle
from twincluster.data import Images, Listing
from twincluster.methods import REFINERS, find_method
from twincluster.model import Model, assign, open_for, refuse_other_weights
from twincluster.nn import Encoder, load_encoder
from twincluster.parallel import Processes, join
from twincluster.resolve import check_method, data_shape, resolve, resolve_device, with_image_size
from twincluster.runs import EDITS_FILE as EDITS
from twincluster.runs import (
    REFERENCE_SAMPLE,
    Assignments,
    Reference,
    Run,
    RunData,
    State,
    bind,
    carry_over,
    contents_of,
    kinds_of,
    provenance,
    read_contents,
    stamps_of,
    unbind,
    write_contents,
    write_stamps,
    write_tree,
)
from twincluster.training import Reporter, Trainer, has_checkpoint

MOST_ROWS = 200_000  # of numbers or features to train on; of more, ...
SAMPLE, PER_CLUSTER = 50_000, 200  # ... a sample of this size, or of so many rows per cluster if that is more
MOST_SIZES = 100  # cluster sizes to print one by one


@dataclass(frozen=True)
class Fitted:
    """A finished run."""

    run: Run
    config: Config  # resolved
    assignments: Assignments
    scores: Scores | None  # if the source has labels
    scored_on: Split  # the other split if only one was trained on
    choice: Choice | None = None  # if the number of clusters was not given
    handed: bool = False  # left differs from right in the images, so they were not flipped

    def summary(self) -> str:
        """Return the results and next steps as text."""
        problems = self.assignments.problems()
        plot = " and clusters.png" if (self.run.folder / "clusters.png").is_file() else ""
        lines = [self.choice.describe(), f"all numbers that were tried: clusters.json{plot}"] if self.choice else []
        lines.append(sizes_line(self.assignments.sizes(self.config.n_clusters)))
        if self.handed:
            lines.append("left differs from right in these images, so training did not flip them")
        if unread := problems.total():
            inputs = counted(unread, "input")
            lines.append(f"{inputs} could not be read{kinds_of(problems)}; the status in assignments.csv says why")
        if self.scores:
            lines.append(scores_line(self.scores, self.scored_on))
        folder = self.run.folder
        lines.append(f"one row per input in {folder / 'assignments.csv'}")
        lines.append(f"next: twincluster predict {shlex.quote(str(folder))} NEW_IMAGES --out new.csv")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON has them."""
        return {
            "run": str(self.run.folder),
            "table": str(self.run.folder / "assignments.csv"),
            "inputs": len(self.assignments.paths),
            "problems": dict(self.assignments.problems()),
            "n_clusters": self.config.n_clusters,
            "clear": self.choice.clear if self.choice else None,
            "sizes": self.assignments.sizes(self.config.n_clusters),
            "scores": {"acc": self.scores.acc, "nmi": self.scores.nmi, "ari": self.scores.ari} if self.scores else None,
            "scored_on": self.scored_on if self.scores else None,
        }


def fit(
    listing: Listing,
    config: Config,
    out: Path,
    *,
    location: str | None = None,
    root: Path | None = None,
    split: Split = "all",
    resume: bool = False,
    earlier: Run | None = None,
    reporter: Reporter | None = None,
    decoding: OnProgress | None = None,
    encoding: OnProgress | None = None,
) -> Fitted:
    """Train on a source and write the run folder `out`.

    Later commands open the source again by `location` and `root`. `earlier` is the run that a method refines.
    """
    processes = join(config.train.device)
    with hold(out, "training") if processes.first else nullcontext():
        if not resume and processes.first:
            refuse_taken(out)  # before decoding, which may take an hour
        if resolve_device(config.train.device) == "cpu":
            keep_freed()  # before encoding, which frees as much memory as training steps
        scored, scored_on = rows_to_score(listing, split, len(listing.paths))

        before: State | None = None  # the corrections of a run that trains on

        def begin(config: Config, shape: DataShape, data: RunData, started: str) -> Run | None:
            nonlocal before
            if not processes.first:
                return None
            run = _begin(out, config, shape, data, resume, reporter, started)
            before = unbind(run) if (out / EDITS).is_file() else None
            return run

        trained = train(
            listing, config, begin=begin, location=location, root=root, split=split, resume=resume, earlier=earlier,
            reporter=reporter, decoding=decoding, encoding=encoding,
        )  # fmt: skip
        if trained.run is None:
            raise SystemExit(0)  # the first process writes the result
        result = trained.result()
        if before is not None:
            carry_over(trained.run, before, result.assignments.clusters, trained.model.config.n_clusters)
        write_run(
            trained.run, trained.model, result.assignments, reference=result.reference, stamps=trained.stamps,
            contents=contents_of(trained.images, trained.model.config.train.frame), made=trained.made,
            choice=trained.choice,
        )  # fmt: skip
        if (out / EDITS).is_file():
            bind(trained.run)
        write_tree(trained.run, trained.tree(result))
        return_freed()  # the report comes next
        if reporter and (warning := trained.health_warning(result)):
            reporter.warn(warning)
        scores = _scores(listing.labels, result.assignments.clusters, scored)
        return Fitted(
            trained.run, trained.model.config, result.assignments, scores, scored_on, trained.choice, trained.handed
        )


@dataclass(frozen=True, eq=False)
class Result:
    """The model's output for its own inputs."""

    assignments: Assignments
    reference: Reference  # to compare later images with
    probabilities: Tensor  # q of the inputs trained on


@dataclass(eq=False)
class Trained:
    """A finished training, in memory."""

    model: Model
    images: Images  # all inputs, as the network reads them
    training: Images  # the same; `usable` are those trained on
    stamps: dict[str, str]  # of the inputs, by row name
    made: provenance.Provenance
    choice: Choice | None = None  # if the number of clusters was not given
    handed: bool = False  # left differs from right in the images, so they were not flipped
    run: Run | None = None  # created before training

    def result(self, predict: Callable[[Images], Tensor] | None = None) -> Result:
        """Predict the inputs, with `predict` instead of the model if given, and describe the training images."""
        assignments, trained = assign(self.images, predict or self.model.predict, self.training.usable)
        step = math.ceil(len(self.training.usable) / REFERENCE_SAMPLE) or 1
        features = self.model.embed(self.training, self.training.usable[::step])
        return Result(assignments, Reference.of(features, trained[::step]), trained)

    def tree(self, result: Result) -> Tree:
        """Return the tree that has the clusters as one of its levels."""
        rows, clusters, seed = self.images.usable, result.assignments.clusters, self.model.config.seed
        if len(rows) <= MOST_ROWS:
            return tree_of(self.model.embed(self.images).numpy(), rows, clusters, seed)
        tree = grow_tree_of_sample(
            lambda some: self.model.embed(self.images, rows[some]).numpy(), clusters[rows], seed
        )  # fmt: skip
        leaf = np.full(len(clusters), -1, np.int32)
        leaf[rows] = tree.leaf
        return dataclasses.replace(tree, leaf=leaf)

    def health_warning(self, result: Result) -> str | None:
        """Return a warning if the clusters look unhealthy, otherwise None."""
        config = self.model.config
        if self.choice:  # training could not check clusters whose number was open
            state = health(result.probabilities)
        else:
            state = Health.of_result(result.assignments.sizes(config.n_clusters))
        return state.warning(config.method, find_method(config.method).advice, config.train.precision)


def tree_of(features: np.ndarray, rows: np.ndarray, clusters: np.ndarray, seed: int) -> Tree:
    """Return the tree of all clusters (n,) from the features of some rows, (m,D) and (m,)."""
    readable = clusters[rows] >= 0
    tree = grow_tree(features[readable], clusters[rows[readable]], seed)
    leaf = np.full(len(clusters), -1, np.int32)
    leaf[rows[readable]] = tree.leaf
    return dataclasses.replace(tree, leaf=leaf)


def write_run(
    run: Run,
    model: Model,
    assignments: Assignments,
    *,
    reference: Reference | None,
    stamps: dict[str, str],
    contents: dict[str, str] | None = None,
    made: provenance.Provenance,
    choice: Choice | None,
) -> None:
    """Write all files of a finished run except its metrics."""
    if choice:
        run.write_choice(choice)
    model.save(run)
    write_stamps(run.folder, stamps)
    if contents:
        write_contents(run.folder, contents)
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
    earlier: Run | None = None,
    reporter: Reporter | None = None,
    decoding: OnProgress | None = None,
    encoding: OnProgress | None = None,
) -> Trained:
    """Train on a source: the single path from settings and a listing to a model.

    `begin` creates the run folder once the settings are resolved; without it nothing is written. `encoder` is a loaded
    one, or the caller's own. `earlier` is the run that a method refines.
    """
    started = provenance.now()
    processes, config = join(config.train.device), check_method(config)
    check_refinement(config, earlier)
    config = processes.in_turn(lambda: with_image_size(config, listing))  # may download an encoder
    stamps, device = stamps_of(listing), config.train.device
    if config.train.frozen and encoder is None and listing.encoded is None:
        encoder = processes.in_turn(lambda: load_encoder(config.train.frozen, config.encoder))
    images = processes.in_turn(
        lambda: open_for(config, listing, decoding, encoder=encoder, device=device, encoding=encoding)
    )
    training = _sampled(dataclasses.replace(images, usable=_usable(images, split)), config, processes, reporter)
    if earlier:
        _refuse_other_images(earlier, training, config)
    flip_by_images, config = config.augment.flip == DERIVED, resolve(config, training)
    shape, data = data_shape(config, training), describe(images, location, root, split, encoder)
    labels = listing.labels[training.usable] if listing.labels is not None else None
    # building an encoder draws random numbers: the trainer derives its shape after seeding, so seeds keep their weights
    known_shape = None if config.train.finetune else shape
    trainer = Trainer(config, _in_memory(training, images), shape=known_shape, labels=labels, reporter=reporter)
    if earlier:
        model = Model.load(earlier, config.train.device)
        trainer.method.refine(model.network, model.predict(training), model.embed(training))
    trainer.run_folder = run = begin(config, shape, data, started) if begin else None
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


def check_refinement(config: Config, earlier: Run | None) -> None:
    """Raise InputError if a method that refines has no run to begin with, or one with another network or number of
    clusters.
    """
    if config.method not in REFINERS:
        return
    if earlier is None:
        raise InputError(
            f"{config.method} refines a finished run: name one, as in twincluster fit SOURCE --method {config.method} "
            "--from RUN"
        )
    before = earlier.config
    if config.n_clusters != before.n_clusters:
        raise InputError(
            f"{earlier.folder} has {before.n_clusters} clusters, and {config.method} keeps their number: leave out "
            "--clusters"
        )
    for name in SAME_NETWORK:
        if getattr(config.train, name) != (then := getattr(before.train, name)):
            raise InputError(
                f"{config.method} continues the network of {earlier.folder}, whose train.{name} is {then!r}: leave out "
                "--backbone and --set of it"
            )


def _refuse_other_images(earlier: Run, training: Images, config: Config) -> None:
    """Raise InputError if a run to be refined has seen none of the images. Hashes are compared, or names if they are
    of images at other sizes."""
    before = read_contents(earlier.folder)
    if not before or training.fingerprint == earlier.data.fingerprint:
        return
    now = contents_of(training, config.train.frame)
    sizes = [{content.rpartition("-")[0] for content in contents.values()} for contents in (now, before)]
    common = set(now.values()) & set(before.values()) if sizes[0] & sizes[1] else now.keys() & before.keys()
    if not common:
        raise InputError(
            f"{earlier.folder} has none of the images of {training.listing.name}: {config.method} refines a run on its "
            "own images; name their source, or another --from"
        )


def _sampled(images: Images, config: Config, processes: Processes, reporter: Reporter | None) -> Images:
    """Return the images with a sample of their usable rows, if there are too many rows of numbers to train on all."""
    n_clusters, count = config.n_clusters or config.clusters_between[1], len(images.usable)
    wanted = config.train.rows or (max(SAMPLE, PER_CLUSTER * n_clusters) if count > MOST_ROWS else count)
    if not images.is_rows or wanted >= count:
        return images
    rows = spread_sample(images.pixels, images.usable, wanted, config.seed)
    if processes.count > 1:  # processors may differ in the last bits
        rows = np.array(processes.broadcast_value(rows.tolist()), np.int64)
    if reporter:
        reporter.say(f"training on {wanted:,} of {count:,} rows, from all parts of the data; all are assigned")
    return dataclasses.replace(images, usable=rows)


def _in_memory(training: Images, images: Images) -> Images:
    """Return the sampled rows alone, so that the trainer prepares no others."""
    if not training.is_rows or len(images.usable) <= MOST_ROWS or len(training.usable) == len(images.usable):
        return training
    rows = np.asarray(training.pixels[training.usable], np.float32)
    return dataclasses.replace(training, pixels=rows, usable=np.arange(len(rows)), status=("ok",) * len(rows))


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
        reporter.warn(f"{out} has no checkpoint yet, so training starts from the beginning")
    elif resume and reporter and (planned := length_of(run.config)) != length_of(config):
        reporter.warn(
            f"{out} was planned for {planned} and will now end after {length_of(config)}: the learning rate and other "
            "schedules jump, so the result differs from an uninterrupted run of this length"
        )
    if not run.has_choice:  # otherwise config.json already has the chosen number of clusters
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
    """Return the entry of config.json about the data."""
    encoded = images.listing.encoded.data if images.listing.encoded else None
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
        encoder=(encoder.version or None) if encoder else encoded.version or None if encoded else None,
        base=encoded.base if encoded and encoded.base else None,
    )


def rows_to_score(listing: Listing | None, split: Split, count: int) -> tuple[np.ndarray, Split]:
    """Return a mask (n,) of the rows to score, and their split.

    All rows if all were trained on, otherwise the rest: the other split and the rows added by `twincluster update`.
    """
    held_out: dict[Split, Split] = {"all": "all", "train": "test", "test": "train"}
    if listing is None or split == "all":
        return np.ones(count, dtype=bool), "all"
    part = _in_split(listing, held_out[split])
    return np.concatenate([part, np.ones(count - len(part), dtype=bool)]), held_out[split]


def scores_line(scores: Scores, scored_on: Split) -> str:
    where = "the whole set" if scored_on == "all" else f"the {scored_on} part"
    return f"ACC {scores.acc:.4f}  NMI {scores.nmi:.4f}  ARI {scores.ari:.4f}  on {where}"


def sizes_line(sizes: list[int]) -> str:
    """Return the cluster sizes as text, summarised if there are many."""
    if len(sizes) <= MOST_SIZES:
        return f"sizes {' '.join(map(str, sizes))}"
    return f"sizes from {min(sizes):,} to {max(sizes):,}, median {np.median(sizes):,g}"


def _in_split(listing: Listing, split: Split) -> np.ndarray:
    """Return a mask (n,) of a split."""
    if split == "all":
        return np.ones(len(listing.paths), dtype=bool)
    if listing.split is None:
        raise InputError(f"{listing.name} has no train and test parts: leave out --split")
    chosen = np.asarray(listing.split == (0 if split == "train" else 1))
    if not chosen.any():
        raise InputError(f"the {split} part of {listing.name} is empty: leave out --split")
    return chosen


def _usable(images: Images, split: Split) -> np.ndarray:
    """Return the rows to train on."""
    if not len(images.usable):
        listing, why = images.listing, images.status[0].removeprefix("unreadable: ")
        raise InputError(
            f"none of the {len(listing.paths):,} images in {listing.name} can be read ({listing.paths[0]}: {why}): "
            "check the paths"
        )
    return np.asarray(images.usable[_in_split(images.listing, split)[images.usable]])


FEW_NAMES = 5  # most settings to name in a message


def continue_run(out: Path, config: Config, data: RunData) -> Run:
    """Return the run to resume. Raise InputError if its settings or data differ, unless it has no checkpoint yet."""
    if not (out / "config.json").is_file():
        raise InputError(f"{out} contains no run to resume: omit --resume")
    run = Run.open(out)
    if not has_checkpoint(run.checkpoint):
        if (out / "model.safetensors").is_file():
            raise InputError(f"{out} has a model but no checkpoint to continue from: fit into another --out")
        return run
    saved, then = check_method(run.config), run.data
    if run.is_updated:
        raise InputError(
            f"{out} has rows added by twincluster update, which more training would invalidate: fit into another "
            "--out, and update that"
        )
    settle(run.folder / EDITS)  # wait for an edit in progress
    if then.split != data.split:
        raise InputError(f"{out} was started with --split {then.split}: resume with the same split")
    shapes = [(made.train.image_size, made.train.frame) for made in (saved, config)]
    if saved.train.encoder == config.train.encoder:
        refuse_other_weights(run.folder, then.encoder, data.encoder)
    if then.fingerprint != data.fingerprint and shapes[0] == shapes[1]:
        raise InputError(f"{out} was started on other data: resume with the same source, or choose another --out")
    _refuse_changes(run, saved, config)
    if not config.train.minutes and (done := len(run.read_metrics())) > config.train.epochs:
        raise InputError(
            f"{out} has already trained for {done} epochs: set --epochs to {done} or more, or choose another --out"
        )
    return run


def _refuse_changes(run: Run, saved: Config, config: Config) -> None:
    """Raise InputError if the run would compute something else. Its length and how often it saves may change."""
    free = {"train.epochs", "train.minutes", "train.checkpoint_minutes", "train.compile", "train.parts"}
    if run.has_choice and not config.n_clusters:
        free.add("n_clusters")  # chosen from the data, then and now
    changed = [name for name in differences(saved, config) if name not in free]
    if "n_clusters" in changed or "clusters_between" in changed:
        changed = ["n_clusters", *(name for name in changed if "clusters" not in name and not _of_method(name, config))]
    if changed:
        raise InputError(
            f"{run.folder} was started with another {_listed(changed, saved, config)}: resume with the same settings"
        )


def _of_method(name: str, config: Config) -> bool:
    """Return True for a setting of the method, which may depend on the number of clusters."""
    return name.partition(".")[0] in config.groups


def _listed(names: list[str], saved: Config, config: Config) -> str:
    """Return the changed settings with their old and new values as text, shortened if there are many."""
    then, now = flatten(saved.to_dict()), flatten(config.to_dict()) | {"n_clusters": config.n_clusters or "auto"}
    text = ", ".join(f"{name} ({then.get(name)}, now {now.get(name)})" for name in names[:FEW_NAMES])
    return text if len(names) <= FEW_NAMES else f"{text} and {len(names) - FEW_NAMES} more (perhaps another --recipe)"


def length_of(config: Config) -> str:
    """Return the training length as text."""
    minutes, epochs = config.train.minutes, config.train.epochs
    return f"{minutes:g} minutes" if minutes else counted(epochs, "epoch")
