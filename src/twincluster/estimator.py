"""The scikit-learn estimator, with the engine and the run folders of the command line.

It takes images, paths or rows. For rows it passes scikit-learn's estimator checks, which do not cover images.
"""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from subprocess import Popen
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from twincluster.clustering import Head, Space, choose_questions
from twincluster.config import (
    Config,
    clusters_of,
    configure,
    flatten,
    how_long,
    in_python,
    nested,
    network_settings,
    python_words,
)
from twincluster.core import InputError, counted, hold, is_taken
from twincluster.data import (
    Images,
    Inputs,
    Listing,
    are_open,
    as_arrays,
    as_bytes,
    is_float_images,
    is_rows,
    location_of,
    open_source,
    outline,
    range_of,
    refuse_times,
)
from twincluster.fit import train, write_run
from twincluster.methods import spread
from twincluster.model import Model, encoder_of, later_side, open_for, squares_for
from twincluster.nn import wrap_module
from twincluster.pages import plot_clusters, write_report
from twincluster.parallel import decided
from twincluster.resolve import check_method, choose_recipe, resolve_device, with_image_size
from twincluster.run_images import RunImages, learn
from twincluster.runs import (
    JUNK,
    Assignments,
    Edits,
    Kinds,
    Line,
    Reference,
    Run,
    State,
    answer_line,
    applied,
    initial,
    lines_of_first,
    provenance,
    read_stamps,
)
from twincluster.training import Watcher

IMAGES_FILE = "images.npy"  # in a run folder: the images of a fit on an array
SCORED = 10_000  # inputs that `score` looks at


@dataclass
class _Lessons:
    """Answers about the inputs of a fit, and the model taught by them."""

    state: State
    images: Images | None = None  # the inputs, as long as they are there
    folder: Path | None = None  # the run folder that the model was loaded from
    head: Head | None = None
    space: tuple[np.ndarray, Space] | None = None
    lines: list[Line] = field(default_factory=list)  # as in edits.jsonl

    def add(self, line: Line) -> State:
        self.lines.append(line)
        self.state = applied(self.state, {"edit": len(self.lines), **line})
        return self.state

    def routed(self) -> State:
        """Return the state with the head, if there is one, which decides about other inputs."""
        head = self.head
        return replace(self.state, head=None if head is None else lambda: head)


class TwinContrastClustering(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Cluster images, or rows of numbers, by twin-contrast clustering.

    The default method, "anchored", is built from the two tracks of the paper and forms clusters faster. `method="tcc"`
    is the method of the paper; `recipe="paper-cifar10"` adds the paper's settings.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        Number of clusters. 1 only learns the embedding of `transform`. "auto" chooses a number from 2 to 50 when
        training ends (`config_.n_clusters`); `settings={"clusters_between": [5, 30]}` changes the range.
    recipe : str or path, default=None
        A recipe by name (`twincluster recipes` lists them) or a TOML file. None chooses "rows" for rows and
        "pretrained" for a pretrained backbone; with a GPU "gpu" for 20,000 images or more, else "default"; without a
        GPU "cpu" for images of up to 16 pixels, else "pretrained".
    method : str, default=None
        A method by name (`twincluster methods` lists them), or "package.module:Class", instead of the recipe's. Other
        settings of the recipe stay.
    backbone : str or nn.Module, default=None
        A network instead of the recipe's: one to train ("resnet18", "resnet34", "resnet50", "small"), or a pretrained
        one whose features are clustered: "pretrained", "torchvision:NAME", "timm:NAME", "hf:NAME",
        "resnet50:WEIGHTS.safetensors", or a module that maps images (N,3,S,S) to features (N,D). A module may have
        attributes `side`, `mean` and `std`; the defaults are 224 pixels and ImageNet's statistics.
    epochs : int, default=None
        Passes over the data, instead of the recipe's.
    minutes : float, default=None
        Minutes to train, instead of epochs. The learning-rate schedule is fitted to this time.
    settings : dict, default=None
        Settings that differ from the recipe's, nested or dotted: `{"augment.noise": 0.1}` is the same as
        `{"augment": {"noise": 0.1}}`. `twincluster methods NAME` lists the settings of a method. In a parameter grid,
        write `settings__augment__noise`.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device to train and predict on; "auto" takes a GPU if there is one.
    random_state : int, RandomState instance or None, default=None
        Seed of all random draws. On a CPU, the same seed gives the same result.
    verbose : int, default=0
        Above 0, show progress: a bar on a terminal and in a notebook, a line every few seconds elsewhere.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of each input; -1 if the file cannot be read.
    n_iter_ : int
        Epochs trained.
    n_features_in_ : int
        Number of columns. Defined only after fitting rows.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns. Defined only after fitting a data frame with column names.
    config_ : Config
        All settings of the run, with every "auto" resolved.
    cluster_names_ : dict
        Name of each named cluster, by its number. Empty until answers name one.

    Notes
    -----
    In `fit`, `predict`, `predict_proba` and `transform`, `X` is one of

    - uint8 images (n,h,w) or (n,h,w,c), as an array or a tensor; tensors may also be (n,c,h,w),
    - float images of these shapes with values from 0 to 1, 16 or 255: the smallest that holds all values in `fit`,
    - a list of PIL images of any size, a list of paths, a folder, or any other source that `twincluster fit` takes,
    - rows of numbers (n,d), as an array, a tensor, a data frame or lists; the estimator standardises them.

    A file that cannot be read keeps its place: its cluster is -1, its probabilities and embedding are nan.
    Bad input raises ValueError. Clusters that look collapsed when training ends cause a ConvergenceWarning.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from twincluster import TwinContrastClustering
    >>> rows, _ = make_blobs(60, centers=[[-4, -4], [0, 4], [4, -4]], random_state=0)
    >>> model = TwinContrastClustering(n_clusters=3, random_state=0).fit(rows)
    >>> sorted(int((model.labels_ == cluster).sum()) for cluster in range(3))
    [20, 20, 20]
    >>> len(set(model.predict([[-4, -4], [-4, -5], [4, -4]])))
    2
    >>> model.predict_proba(rows).shape
    (60, 3)
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 8,
        *,
        recipe: str | Path | None = None,
        method: str | None = None,
        backbone: str | nn.Module | None = None,
        epochs: int | None = None,
        minutes: float | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.recipe = recipe
        self.method = method
        self.backbone = backbone
        self.epochs = epochs
        self.minutes = minutes
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def set_params(self, **params: Any) -> Self:
        """Set parameters; `settings__optimiser__learning_rate=0.05` changes one setting and keeps the others."""
        inner = {name: params.pop(name) for name in list(params) if name.startswith("settings__")}
        super().set_params(**params)
        if inner:
            changes = {name.removeprefix("settings__").replace("__", "."): value for name, value in inner.items()}
            self.settings = {**flatten(nested(self.settings or {})), **changes}
        return self

    def fit(self, X: Inputs, y: object = None, *, answers: Sequence[str | None] | None = None) -> Self:
        """Train on `X`; `y` is ignored. `answers` holds a cluster's name, or None, for each input (see `teach`)."""
        with python_words(), (watcher := Watcher(self.verbose)):
            X = as_arrays(X)
            self._float_range = range_of(X) if is_float_images(X) else None
            X = self._as_bytes(X)
            listing = outline(X) if are_open(X) else self._listing(X, reset=True)
            config, why = choose_recipe(listing, self._configured(), self.recipe, self._changes())
            if why:
                warnings.warn(in_python(why), stacklevel=2)
            config = with_image_size(config, listing)
            encoder = encoder_of("this model", config, None, self.backbone)
            if are_open(X):
                listing = self._listing(squares_for(config, X, encoder), reset=True)
            if answers is not None and len(answers) != (count := len(listing.paths)):
                raise InputError(f"answers has {len(answers):,} entries for {count:,} inputs: give one for each")
            trained = train(
                listing, config, encoder=encoder, location=location_of(X), reporter=watcher,
                decoding=watcher.decoding, encoding=watcher.encoding,
            )  # fmt: skip
        trained.model = self._keep(trained.model, one_cluster=self.n_clusters == 1)
        self._made, self.choice_, self._history = trained.made, trained.choice, watcher.rows
        self._stamps = trained.stamps if listing.files else {}  # only files can change
        if trained.choice:
            watcher.warning = "" if trained.choice.clear else trained.choice.describe()
        result = trained.result(self._predict)
        self._assignments = result.assignments
        self._reference: Reference | None = result.reference
        if self.n_clusters != 1 and (warning := trained.health_warning(result)):
            watcher.warning = watcher.warning or in_python(warning)
        self.labels_, self.n_iter_ = self._assignments.clusters, len(watcher.rows)
        self._lessons = _Lessons(initial(self.labels_, self.config_.n_clusters), trained.images)
        self.cluster_names_: dict[int, str] = {}
        self._folder: Path | None = None  # the run folder that holds this model
        if watcher.warning:
            warnings.warn(watcher.warning, ConvergenceWarning, stacklevel=2)
        if answers is not None:
            self.teach(range(len(answers)), answers)
        return self

    def questions(self, n: int = 20) -> np.ndarray:
        """Return at most `n` rows of the fitted inputs whose answers would help most, the most useful first."""
        lessons = self._open_lessons()
        rows, space = self._space()
        state = lessons.state
        lesson = learn(rows, space, state, self.config_.seed)
        chosen = choose_questions(
            space, lesson if lesson.count else None, state.clusters[rows], state.examples[rows], n, self.config_.seed
        )
        return np.asarray(rows[chosen])

    def teach(self, rows: Iterable[int], labels: Iterable[str | None]) -> Self:
        """Learn from the labels of some fitted inputs, and move all others accordingly.

        A label is the name of a cluster, a new name, or "junk"; None is ignored. `labels_`, `predict` and run folders
        written by `save` then follow the answers.
        """
        lessons, given = self._open_lessons(), dict[int, str]()
        state, rows, labels = lessons.state, list(rows), list(labels)
        if len(rows) != len(labels):
            pair = f"{counted(len(rows), 'row')} and {counted(len(labels), 'label')}"
            raise InputError(f"{pair} do not go together: give a label, or None, for each row")
        for row, label in zip(rows, labels, strict=True):
            if isinstance(row, bool) or not isinstance(row, Integral) or not 0 <= int(row) < len(state.home):
                raise InputError(f"there is no row {row}: the model was fitted on {len(state.home):,}, counted from 0")
            if label is None or (isinstance(label, float) and np.isnan(label)):
                continue
            if not isinstance(label, str):
                raise InputError(f"the label of row {row} is {label!r}: give the name of a cluster, or None")
            if state.home[int(row)] < 0:
                raise InputError(f"input {row} could not be read, and so is in no cluster: leave it out")
            if given.setdefault(int(row), label) != label:
                raise InputError(f"row {row} has two labels, {given[int(row)]!r} and {label!r}: keep one")
        if not given:
            return self
        places, space = self._space()
        answer = answer_line(state, given, (), max([self.config_.n_clusters, *(one + 1 for one in state.names)]))
        state = lessons.add(answer)
        lesson = learn(places, space, state, self.config_.seed)
        moved, to, _ = lesson.proposals(state.clusters[places])
        accept = {"kind": "accept", "rows": places[moved].tolist(), "to": to.tolist(), "inputs": len(state.home)}
        lessons.head, self._folder = lesson.head, None
        self._follow(lessons.add(accept))
        return self

    def predict(self, X: Inputs) -> np.ndarray:
        """Return the cluster of each input, (n,) int64; -1 if a file cannot be read."""
        images = self._images(X)
        found = Assignments.of(images, images.usable, self._predict(images)).clusters
        if (state := self._edited_state()) is not None:
            kinds = self._kinds(images) if state.needs_features else None
            found[images.usable] = state.route(found[images.usable], kinds)
        return found

    def predict_proba(self, X: Inputs) -> np.ndarray:
        """Return the probability of each cluster, (n, n_clusters); nan if a file cannot be read.

        Answers that open a cluster add a column. An empty cluster has probability 0.
        """
        images = self._images(X)
        found, state = self._predict(images), self._edited_state()
        if state is not None:
            kinds = self._kinds(images) if state.needs_features else None
            found = torch.from_numpy(state.chances(found.cpu().numpy(), kinds))
        return spread(found, images)

    def transform(self, X: Inputs) -> np.ndarray:
        """Return the learned embedding, (n, n_features_out); nan if a file cannot be read."""
        images = self._images(X)
        return spread(self._model.on(resolve_device(self.device)).embed(images), images)

    def score(self, X: Inputs, y: object = None) -> float:
        """Return the silhouette of the embedding of `X`, from -1 to 1; more is better. `y` is ignored.

        Above 10,000 inputs it is that of a random sample. If all inputs are in one cluster it is -1.
        """
        labels, rows = self.predict(X), self.transform(X)
        usable = labels >= 0
        labels, rows = labels[usable], rows[usable]
        if not 2 <= len(np.unique(labels)) < len(labels):
            return -1.0
        sample = SCORED if len(labels) > SCORED else None
        return float(silhouette_score(rows, labels, sample_size=sample, random_state=self.config_.seed))

    def plot(self, X: Inputs, *, ax: Any = None) -> Any:
        """Draw `X` on the two main directions of its embedding, a colour per cluster; return the matplotlib axes."""
        labels, rows = self.predict(X), self.transform(X)
        usable = labels >= 0
        return plot_clusters(rows[usable], labels[usable], self.cluster_names_, ax)

    def report(self, folder: str | Path | None = None) -> Path:
        """Write a run folder with its report, and return the page, which a browser opens.

        Without `folder`, write the report of the folder that the model was saved to or loaded from.
        """
        return write_report(Run.open(self._run_folder(folder)))[0]

    def serve(self, folder: str | Path | None = None, *, port: int = 8765, in_browser: bool = True) -> Popen[bytes]:
        """Open the explorer on a run folder, in a process of its own; `terminate()` of what is returned ends it.

        The folder is written first, as by `report`. Corrections go to the folder: `load` it to use them.
        """
        command = ["serve", str(self._run_folder(folder)), "--port", str(port), *(["--open"] if in_browser else [])]
        return Popen([sys.executable, "-m", "twincluster", *command])

    def save(self, folder: str | Path, *, images: bool = False) -> None:
        """Write a run folder for `load` and for the command line (`twincluster predict FOLDER ...`).

        `images=True` also writes the images of a fit on an array into it, so that report and explorer can show them.
        """
        check_is_fitted(self)
        folder = Path(folder)
        if self._one_cluster:
            raise InputError("a model of one cluster cannot be saved: fit with n_clusters=2 or more, or pickle it")
        if is_taken(folder):
            raise InputError(f"{folder} exists and is not empty: choose another folder")
        with hold(folder, "training", "choose another folder"):
            run = Run.create(folder)
            for row in self._history:
                run.append_metrics(row)
            model = self._model.replace(network=copy.deepcopy(self._model.network).float())
            if images and (kept := self._lessons.images) is not None and kept.listing.array is not None:
                np.save(folder / IMAGES_FILE, kept.listing.array)
                if model.data is not None:
                    model = model.replace(data=replace(model.data, location=str((folder / IMAGES_FILE).resolve())))
            write_run(
                run, model, self._assignments, reference=self._reference, stamps=self._stamps, made=self._made,
                choice=self.choice_,
            )  # fmt: skip
            if lines := self._open_lessons().lines:
                Edits(run).extend(lines, self._open_lessons().head)
        self._folder = folder

    @classmethod
    def load(cls, folder: str | Path, *, backbone: nn.Module | None = None, device: str = "auto") -> Self:
        """Load a fitted estimator from a run folder, made by `save` or by `twincluster fit`, with all its edits.

        Nothing is unpickled. If the model was fitted with your own module, pass that module again as `backbone`.
        """
        run = Run.open(folder)
        config = check_method(run.config)
        settings = config.to_dict()
        for name in ("device", "precision"):  # this machine may have no GPU
            del settings["train"][name]
        model = cls(
            config.n_clusters, method=settings.pop("method"), settings=settings, backbone=backbone, device=device,
            random_state=config.seed,
        )  # fmt: skip
        model._float_range = run.data.float_range
        model._keep(Model.load(run, "cpu", backbone).replace(name="this model"))
        model.choice_, model._reference = run.read_choice(), Reference.read(run.folder, config.n_clusters)
        model._stamps, model._made = read_stamps(run.folder), provenance.read(run.folder)
        model._history = run.read_metrics()
        model._assignments = run.read_assignments().first(run.data.inputs)  # without rows added by `twincluster update`
        model.labels_, model.n_iter_ = model._assignments.clusters, len(model._history)
        model._folder = run.folder
        model.cluster_names_, edits = {}, RunImages(run, device=device).edits
        model._lessons = _Lessons(initial(model.labels_, config.n_clusters), folder=run.folder)
        if edits.any:
            state, taught, own = edits.state, edits.taught, len(model.labels_)
            head = taught.head if taught is not None else None
            model._lessons = _Lessons(replace(state.first(own), head=None), folder=run.folder, head=head)
            model._lessons.lines = lines_of_first(edits.history[0], own)
            model._follow(model._lessons.state)
        if not model._model.sees_images:
            model.n_features_in_ = run.shape.n_inputs
            if run.data.columns:
                model.feature_names_in_ = np.array(run.data.columns, dtype=object)
        return model

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the parameters that differ from their defaults, in one line."""
        return re.sub(r"\n\s*", " ", super().__repr__(N_CHAR_MAX))

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the inputs of the fit, which may be large."""
        state: dict[str, Any] = super().__getstate__()
        if "_lessons" in state:
            state["_lessons"] = replace(state["_lessons"], images=None)
        return state

    def _run_folder(self, folder: str | Path | None) -> Path:
        """Write a run folder if one is named; otherwise return the one that holds this model."""
        check_is_fitted(self)
        if folder is not None:
            self.save(folder, images=True)
        if self._folder is None:
            raise InputError("name a folder to write the run to: no folder holds this model as it is")
        return self._folder

    def _open_lessons(self) -> _Lessons:
        check_is_fitted(self)
        if self._one_cluster:
            raise InputError("a model of one cluster has nothing to learn: fit with n_clusters=2 or more")
        return self._lessons

    def _space(self) -> tuple[np.ndarray, Space]:
        """Return the readable rows and the space of their features."""
        lessons = self._lessons
        if lessons.space is None and lessons.folder is not None:
            rows, space = RunImages(Run.open(lessons.folder), device=self.device).space
            if len(rows) and rows[-1] >= len(self._assignments.paths):
                raise InputError(f"{lessons.folder} has rows of later images: teach it with twincluster teach")
            lessons.space = rows, space
        elif lessons.space is None:
            if lessons.images is None:
                raise InputError("a pickle does not hold the inputs of the fit: fit again, or save and load the model")
            kinds = self._kinds(lessons.images)
            second = kinds[1] if len(kinds) > 1 else None
            lessons.space = lessons.images.usable, Space.of(kinds[0], second, self.config_.seed)
        return lessons.space

    def _kinds(self, images: Images) -> Kinds:
        return self._model.on(resolve_device(self.device)).kinds(images)

    def _edited_state(self) -> State | None:
        """Return the state after answers and edits; None where they change no other input."""
        lessons: _Lessons | None = getattr(self, "_lessons", None)
        if lessons is None or not (lessons.state.joined or max(lessons.state.names) >= self.config_.n_clusters):
            return None
        return lessons.routed()

    def _follow(self, state: State) -> None:
        self.labels_ = np.where(state.clusters == JUNK, -1, state.clusters)
        self.cluster_names_ = {cluster: name for cluster, name in state.names.items() if name != str(cluster)}

    def _listing(self, X: Any, *, reset: bool) -> Listing:
        """Return `X` as a listing. Rows are validated by scikit-learn, so that its usual messages appear."""
        at_least = 2 if reset else 1
        if is_rows(X):
            refuse_times(X)
            X = validate_data(self, X, reset=reset, dtype=np.float64, ensure_min_samples=at_least)
            return open_source(X, labels="none", at_least=1)
        listing = open_source(X, labels="none", at_least=at_least)
        if reset:
            for name in ("n_features_in_", "feature_names_in_"):  # of an earlier fit
                self.__dict__.pop(name, None)
            if listing.is_rows and listing.array is not None:  # a file of rows
                self.n_features_in_ = listing.array.shape[1]
        return listing

    def _configured(self) -> Callable[[str], Config]:
        """Return a function from a recipe to settings: the recipe, then `settings`, then the other parameters."""
        settings = self._changes()
        name = wrap_module(self.backbone).name if isinstance(self.backbone, nn.Module) else self.backbone
        train: dict[str, Any] = {**network_settings(name, settings), **how_long(self.epochs, self.minutes)}
        train |= {} if self.device == "auto" else {"device": self.device}
        seed = self.random_state  # a number has the same effect as `twincluster fit --seed`
        if not isinstance(seed, Integral):
            drawn = check_random_state(seed).randint(2**31 - 1)  # in every process, to advance the generator
            seed = int(decided(self.device, lambda: str(drawn)))
        clusters = clusters_of(self.n_clusters)  # 2 for 1: `_predict` joins them
        options = {"n_clusters": clusters, "seed": int(seed), "train": train}
        return partial(configure, settings=settings, options=options)

    def _as_bytes(self, X: Inputs) -> Any:
        """Return float images as uint8, by the range of the images that `fit` saw; all else as it is."""
        if not is_float_images(X):
            return X
        if self._float_range is None:
            raise InputError(
                "this model was not fitted on float images: pass uint8, for values of 0 .. 1 "
                "(images * 255).astype('uint8')"
            )
        return as_bytes(X, self._float_range)

    def _changes(self) -> dict[str, Any]:
        """Return `settings` and `method`, nested."""
        return nested(self.settings or {}) | ({"method": self.method} if self.method else {})

    def _keep(self, model: Model, *, one_cluster: bool = False) -> Model:
        """Keep the model on the CPU, so that a model trained on a GPU can predict and be unpickled anywhere."""
        network = model.network.cpu().eval().requires_grad_(False)
        network.bf16 = False
        if model.is_of_rows:  # double precision, so that results do not depend on the other rows of a batch
            network = network.double()
        backbone = self.backbone if isinstance(self.backbone, nn.Module) else None
        data = model.data
        if data is not None:
            columns = tuple(getattr(self, "feature_names_in_", ()))
            data = replace(data, columns=columns, float_range=self._float_range)
        self._model = model.replace(network=network, data=data, backbone=backbone)
        self._one_cluster, self.config_ = one_cluster, model.config
        blank = torch.zeros(1, 3, model.shape.side, model.shape.side)
        if model.is_of_rows:
            blank = network.prepare(torch.zeros(1, model.shape.n_inputs, dtype=network.mean.dtype))
        self._n_features_out = network.embed(blank).shape[1]
        return self._model

    @python_words()
    def _images(self, X: Inputs) -> Images:
        """Return `X` as the input of the model."""
        check_is_fitted(self)
        X, model = self._as_bytes(as_arrays(X)), self._model
        if model.shape.side and is_rows(X):
            raise InputError(f"this model was fitted on images of {model.shape.side} pixels: pass images, not rows")
        if are_open(X):
            X = squares_for(model.config, X, model.encoder, model.data)
        listing = self._listing(X, reset=False)
        images = open_for(
            model.config, listing, encoder=model.encoder, device=self.device,
            side=later_side(model.config, model.data),
        )  # fmt: skip
        if model.is_of_rows and images.pixels.shape[1:] != (model.shape.n_inputs,):
            raise InputError(f"this model was fitted on rows of {model.shape.n_inputs} features: pass such rows")
        return images

    @python_words()
    def _predict(self, images: Images) -> Tensor:
        """Return q of the usable images. A model of one cluster sums its two."""
        probabilities = self._model.on(resolve_device(self.device)).predict(images)
        return probabilities.sum(1, keepdim=True) if self._one_cluster else probabilities
