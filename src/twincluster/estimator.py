"""The scikit-learn estimator: images, paths or rows in, clusters out, by the same engine and run folders as the command
line. What counts as rows and what as images is decided here; everything else is done by the modules below."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from twincluster import inference
from twincluster.config import Config, load_recipe, make_config
from twincluster.derive import data_shape, resolve, resolve_device
from twincluster.engine import Reporter, Trainer
from twincluster.errors import InputError
from twincluster.images.sources import Listing, open_source
from twincluster.images.store import Images, open_images
from twincluster.methods.base import Network
from twincluster.pipeline import store_side
from twincluster.progress import Progress
from twincluster.results import Assignments, Run

LARGEST_SEED = 2**31 - 1
CHANNELS = (1, 3, 4)


class TwinContrastClustering(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Cluster images, or rows of numbers, by twin-contrast clustering.

    Parameters
    ----------
    n_clusters : int, default=8
        How many clusters to find. With 1 only the embedding of `transform` is learned.
    recipe : str or path, default=None
        A recipe by name (`twincluster recipes` lists them) or a TOML file. None takes "rows" for rows and "default"
        for images.
    epochs : int, default=None
        Passes over the data, instead of the recipe's.
    minutes : float, default=None
        Train for this long instead; the learning-rate schedule ends when the time does.
    settings : dict, default=None
        Settings that differ from the recipe's, nested or dotted: `{"augment.noise": 0.1}` is the same as
        `{"augment": {"noise": 0.1}}`.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where to train and to predict; "auto" takes a GPU when there is one.
    random_state : int, RandomState instance or None, default=None
        Every random draw follows from it. On a CPU the same number gives the same result.
    verbose : int, default=0
        Above 0, progress is shown: a bar on a terminal and in a notebook, a line now and then elsewhere.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of each input; -1 where a file could not be read.
    n_iter_ : int
        Epochs trained.
    n_features_in_ : int
        Columns of the rows; after fitting images it does not exist.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, when the rows came as a data frame whose column names are all strings.
    config_ : Config
        Every setting the run used, with nothing left to derive.
    network_ : torch.nn.Module
        What predicts: on the CPU, in evaluation mode.

    Notes
    -----
    `X` is, in `fit` as in `predict`, `predict_proba` and `transform`, one of

    - uint8 images (n,h,w) or (n,h,w,c), as an array or a tensor; tensors may also be (n,c,h,w),
    - a list of PIL images, or of paths, or a folder, or any other source that `twincluster fit` takes,
    - rows of numbers (n,d), as an array, a tensor, a data frame or lists; they are standardised inside.

    A file that cannot be read keeps its place: its cluster is -1, its probabilities and its embedding are nan.
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
        n_clusters: int = 8,
        *,
        recipe: str | Path | None = None,
        epochs: int | None = None,
        minutes: float | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.recipe = recipe
        self.epochs = epochs
        self.minutes = minutes
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: object = None) -> Self:
        """Train on `X`; `y` is ignored."""
        with _Watcher(self.verbose) as watcher:
            listing = self._listing(X, reset=True)
            config = self._configure(listing)
            images = open_images(listing, side=store_side(config), progress=watcher.decoding)
            self._check_clusters(len(images.usable))
            config = resolve(config, images)
            network = Trainer(config, images, reporter=watcher).run().online
        self.config_, self._shape = config, data_shape(config, images)
        self._keep_network(network, self.n_clusters)
        self._data = self._describe(images, X)
        self._assignments = Assignments.of(images, images.usable, self._infer(inference.predict, images))
        self._history = watcher.rows
        self.labels_, self.n_iter_ = self._assignments.clusters, len(watcher.rows)
        if watcher.warning:
            warnings.warn(watcher.warning, ConvergenceWarning, stacklevel=2)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Cluster of each input, (n,) int64; -1 where a file could not be read."""
        images = self._images(X)
        probabilities = self._infer(inference.predict, images)
        return Assignments.of(images, images.usable, probabilities).clusters

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each cluster, (n, n_clusters)."""
        images = self._images(X)
        return _spread(self._infer(inference.predict, images), images)

    def transform(self, X: Any) -> np.ndarray:
        """The learned embedding, (n, n_features_out)."""
        images = self._images(X)
        return _spread(self._infer(inference.embed, images), images)

    def save(self, folder: str | Path) -> None:
        """Write a run folder, which `load` and the command line read (`twincluster predict FOLDER ...`)."""
        check_is_fitted(self)
        if self._n_clusters < 2:
            raise InputError(
                "a model of one cluster has no run folder: fit with n_clusters of at least 2, or pickle it"
            )
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is not empty: choose another folder")
        run = Run.create(folder)
        run.write_config(self.config_, self._shape, self._data)
        for row in self._history:
            run.append_metrics(row)
        run.write_assignments(self._assignments)
        run.save_model(copy.deepcopy(self.network_).float())

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto") -> Self:
        """A fitted estimator from a run folder, made by `save` or by `twincluster fit`. Nothing is unpickled."""
        run = Run.open(folder)
        config, shape, data = run.read_config()
        settings = config.to_dict()
        settings["train"] = {k: v for k, v in settings["train"].items() if k not in ("device", "precision")}
        model = cls(config.n_clusters, settings=settings, device=device, random_state=config.seed)
        model.config_, model._shape, model._data = config, shape, data
        model._keep_network(run.load_network(), config.n_clusters)
        model._assignments, model._history = run.read_assignments(), run.read_metrics()
        model.labels_ = model._assignments.clusters
        model.n_iter_ = len(model._history)
        if not shape.side:
            model.n_features_in_ = shape.n_inputs
            if names := data.get("columns"):
                model.feature_names_in_ = np.array(names, dtype=object)
        return model

    def _listing(self, X: Any, *, reset: bool) -> Listing:
        """What `X` holds. Rows are validated by scikit-learn, so that its users meet its messages."""
        X = _from_tensors(X)
        if not _is_rows(X):
            if reset:
                for name in ("n_features_in_", "feature_names_in_"):
                    vars(self).pop(name, None)
            return open_source(X, labels="none", at_least=2 if reset else 1)
        rows = validate_data(self, X, reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1)
        return open_source(rows, labels="none", at_least=1)

    def _configure(self, listing: Listing) -> Config:
        """Recipe, then `settings`, then the other parameters that were given."""
        if self.epochs is not None and self.minutes is not None:
            raise InputError("epochs and minutes both say how long to train: give one of them")
        is_rows = listing.array is not None and listing.array.ndim == 2
        config = make_config(load_recipe(self.recipe or ("rows" if is_rows else "default")).settings)
        config = make_config(_nested(self.settings or {}), config)
        train: dict[str, Any] = {} if self.device == "auto" else {"device": self.device}
        if self.epochs is not None:
            train |= {"epochs": _whole(self.epochs, "epochs", at_least=1), "minutes": 0.0}
        if self.minutes is not None:
            train["minutes"] = float(self.minutes)
        clusters = max(2, _whole(self.n_clusters, "n_clusters", at_least=1))
        return make_config({"n_clusters": clusters, "seed": self._seed(), "train": train}, config)

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)  # the same as `twincluster fit --seed`
        return int(check_random_state(self.random_state).randint(LARGEST_SEED))

    def _check_clusters(self, n_samples: int) -> None:
        if n_samples < self.n_clusters:
            raise InputError(
                f"n_samples={n_samples} should be >= n_clusters={self.n_clusters}: give more samples that can be read,"
                " or ask for fewer clusters"
            )

    def _keep_network(self, network: Network, n_clusters: int) -> None:
        """On the CPU, so that a model trained on a GPU predicts, and unpickles, anywhere."""
        network = network.cpu().eval().requires_grad_(False)
        network.bf16 = False
        # Rows in double precision: a row's result must not depend on which others it comes with.
        self.network_ = network if network.side else network.double()
        self._n_clusters = n_clusters
        side = network.side
        blank = torch.zeros((1, 3, side, side) if side else (1, len(network.mean)), dtype=network.mean.dtype)
        self._n_features_out = network.embed(blank).shape[1]

    def _describe(self, images: Images, X: Any) -> dict[str, Any]:
        """What config.json says of the data."""
        listing = images.listing
        named = isinstance(X, str | os.PathLike)
        return {
            "source": listing.name,
            "location": (str(Path(X).absolute()) if Path(X).exists() else str(X)) if named else None,
            "files": listing.files is not None,
            "fingerprint": images.fingerprint,
            "inputs": len(listing.paths),
            "readable": len(images.usable),
            "split": "all",
            "columns": [str(name) for name in getattr(self, "feature_names_in_", ())],
        }

    def _images(self, X: Any) -> Images:
        check_is_fitted(self)
        wants_rows = self.network_.side == 0
        if not wants_rows and _is_rows(_from_tensors(X)):
            raise InputError(
                f"this model was fitted on images of {self.network_.side} pixels: give it images, not rows"
            )
        listing = self._listing(X, reset=False)
        if wants_rows and (listing.array is None or listing.array.shape[1:] != (self.n_features_in_,)):
            raise InputError(f"this model was fitted on rows of {self.n_features_in_} features: give it such rows")
        return open_images(listing, side=store_side(self.config_))

    def _infer(self, function: Any, images: Images) -> torch.Tensor:
        network, device = self.network_, resolve_device(self.device)
        if device != "cpu":
            network = copy.deepcopy(network).to(device)
            network.bf16 = self.config_.train.precision == "bf16" and network.side > 0
        result: torch.Tensor = function(network, images.pixels, images.usable)
        if function is inference.predict and self._n_clusters == 1:
            return result.sum(1, keepdim=True)
        return result


class _Watcher(Reporter):
    """Keeps each epoch's row and the newest warning, and passes all of it on to a progress bar when one is wanted."""

    def __init__(self, verbose: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.warning: str | None = None
        self.shown = Progress() if verbose else None
        self.decoding = self.shown.decoding if self.shown else None

    def __enter__(self) -> _Watcher:
        if self.shown:
            self.shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            self.shown.__exit__(kind, error, trace)

    def step(self, progress: float, remaining: float | None) -> None:
        if self.shown:
            self.shown.step(progress, remaining)

    def epoch(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.warning = None  # an earlier one has been overcome, unless it comes again
        if self.shown:
            self.shown.epoch(row)

    def warn(self, message: str) -> None:
        self.warning = message


def _from_tensors(X: Any) -> Any:
    """Tensors as arrays, with the channels of images last; anything else as it is."""
    if isinstance(X, list | tuple) and len(X) and all(isinstance(item, torch.Tensor) for item in X):
        X = torch.stack(list(X))
    if not isinstance(X, torch.Tensor):
        return X
    X = X.detach().cpu()
    if X.dtype == torch.bfloat16:  # numpy has no such type
        X = X.float()
    if X.dim() == 4 and X.shape[1] in CHANNELS and X.shape[3] not in CHANNELS:
        X = X.permute(0, 2, 3, 1)
    return X.numpy()


def _is_rows(X: Any) -> bool:
    """Whether `X` is for scikit-learn's validation: all that are neither images nor names of any."""
    if isinstance(X, str | bytes | os.PathLike | Image.Image):
        return False
    if hasattr(X, "shape") and len(X.shape) != 1:
        return len(X.shape) < 3
    try:
        first = next(iter(X), None)
    except TypeError:
        return True
    return not isinstance(first, str | bytes | os.PathLike | Image.Image) and np.ndim(first) < 2


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`{"tcc.alpha": 0.25}` as `{"tcc": {"alpha": 0.25}}`; what is nested already is merged in."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        head, _, rest = str(name).partition(".")
        inner = {rest: value} if rest else value
        if isinstance(inner, Mapping):
            earlier = result.get(head, {})
            result[head] = {**(earlier if isinstance(earlier, dict) else {}), **_nested(inner)}
        else:
            result[head] = inner
    return result


def _whole(value: Any, name: str, *, at_least: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
        raise InputError(f"{name} is {value!r}: expected a whole number of at least {at_least}")
    return int(value)


def _spread(result: torch.Tensor, images: Images) -> np.ndarray:
    """One row per input, nan where it could not be read."""
    if len(images.usable) == len(images.status):
        return result.numpy()
    rows = np.full((len(images.status), result.shape[1]), np.nan, dtype=result.numpy().dtype)
    rows[images.usable] = result.numpy()
    return rows
