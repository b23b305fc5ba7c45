"""From settings that say "derive it" to concrete ones: what depends on the data is decided here, and only here."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import torch

from twincluster.clustering import FEWEST_PER_CLUSTER, check_parts
from twincluster.config import DERIVED, Config, DataShape, Precision, Train, make_config, own_settings
from twincluster.core import InputError
from twincluster.data import DEFAULT_SIDE, Images, Listing, left_differs_from_right
from twincluster.methods import Tcc, find_method
from twincluster.nn import BACKBONES, load_encoder, queue_size
from twincluster.parallel import decided

STATISTICS_SAMPLE = 10_000  # samples that mean and standard deviation are computed from
STATISTICS_PIXELS = 2**22  # held at once
SAMPLES_SEEN = {"rows": 100_000, "cpu": 100_000, "cuda": 24_000_000}  # what a run of no stated length looks at, ...
EPOCHS = {"rows": (20, 200), "cpu": (20, 100), "cuda": (30, 1000)}  # ... in at least and at most so many epochs
MANY = 20_000  # samples, from which on a GPU takes large batches
LONG_STEPS, LONG_MINUTES = 5000, 5.0  # of a run that is worth compiling for
LARGEST_BATCH = 6400  # that follows from a number of clusters: the paper's, for 200 of them
CLUSTER_CELLS = 2**24  # similarities of clusters to the rows of P in a step, 64 MiB: 100 rows each for 400 clusters


def resolve(config: Config, images: Images) -> Config:
    """The same settings with every 0, -1 and "auto" replaced; InputError where they cannot fit the data."""
    n_samples = len(images.usable)
    _refuse_blurred(images.listing)
    config = _with_clusters(check_method(config), n_samples)
    train = config.train
    device = resolve_device(train.device)
    side = 0 if images.is_rows else train.image_size or min(images.side, DEFAULT_SIDE)
    train = replace(
        train,
        device=device,
        precision=_precision(train.precision, device),
        image_size=side,
        backbone=_backbone(train.backbone, config.method, side, device),
        batch_size=_batch_size(config, n_samples, device),
        epochs=train.epochs or _epochs(n_samples, device if side else "rows"),
    )
    train = replace(train, compile=train.compile and _pays(train, n_samples))
    tcc = replace(
        config.tcc,
        cluster_queue=_cluster_queue(config.tcc.cluster_queue, config.n_clusters),
        instance_queue=queue_size(config.tcc.instance_queue, n_samples, train.batch_size),
    )
    anchored = replace(
        config.anchored,
        instance_queue=queue_size(config.anchored.instance_queue, n_samples, 2 * train.batch_size),
    )
    check_parts(config.n_clusters or config.clusters_between[1], config.anchored.balance)
    augment = replace(config.augment, flip=_flip(config.augment.flip, images, device))
    config = replace(config, train=train, augment=augment, tcc=tcc, anchored=anchored)
    if issubclass(find_method(config.method), Tcc):  # whoever uses another need not care
        _check_tcc(config)
    return config


def check_method(config: Config) -> Config:
    """With all settings of the method's own; InputError where there is no such method or setting."""
    own = asdict(own_settings(config, find_method(config.method).settings_type))
    return make_config({"own": own}, config)


def data_shape(config: Config, images: Images) -> DataShape:
    """Size and statistics of the usable data. `config` is resolved."""
    rows = images.usable
    if len(rows) > STATISTICS_SAMPLE:
        rows = rows[:: len(rows) // STATISTICS_SAMPLE]
    if images.is_rows:
        sample = np.asarray(images.pixels[rows], dtype=np.float64)
        mean, std = sample.mean(0), sample.std(0)
    elif config.train.finetune:
        encoder = load_encoder(config.train.encoder)
        mean, std = np.array(encoder.mean), np.array(encoder.std)  # what it has learned with
    else:
        mean, std = _pixel_statistics(images.pixels, rows)
    # a constant channel or feature stays constant; where all numbers are small, they still differ
    least = min(1e-6, 1e-3 * std.max())
    if images.is_rows and not config.train.frozen:  # a column may have a small unit, which an encoder's feature has not
        least = np.minimum(least, np.maximum(1e-6 * np.abs(mean), 1e-12 * std.max()))
    std = np.where(std > least, std, 1.0)
    return DataShape(
        n_samples=len(images.usable),
        side=config.train.image_size,
        n_inputs=images.pixels.shape[-1],
        mean=tuple(float(value) for value in mean),
        std=tuple(float(value) for value in std),
    )


def _pixel_statistics(pixels: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel, from counts of the 256 values.

    Counts are exact and take a few images at a time; float32 sums of so many pixels come out far too small.
    """
    counts = np.zeros((pixels.shape[-1], 256))
    chunk = max(1, STATISTICS_PIXELS // pixels[0].size)
    for start in range(0, len(rows), chunk):
        part = pixels[rows[start : start + chunk]]
        counts += [np.bincount(part[..., channel].ravel(), minlength=256) for channel in range(len(counts))]
    shares, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = shares @ values
    return mean, np.sqrt((shares * (values - mean[:, None]) ** 2).sum(1))


def resolve_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}: expected auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda' but torch sees no GPU: use --device auto or cpu")
    return name


def _refuse_blurred(listing: Listing) -> None:
    if listing.blurred:
        raise InputError(
            f"{listing.name}: the numbers of {listing.blurred} lie too close together for single precision, in which "
            "rows are kept: take the smallest off all of them, and off those to be predicted, or drop the column"
        )


def _with_clusters(config: Config, n_samples: int) -> Config:
    if config.n_clusters > n_samples:
        raise InputError(
            f"{config.n_clusters} clusters need at least as many readable samples; there are {n_samples}: ask for fewer"
        )
    if config.n_clusters:
        return config
    if config.method != "anchored":
        raise InputError(f"{config.method} has to be told the number of clusters: give it, for example --clusters 10")
    low, high = config.clusters_between
    high = min(high, n_samples // FEWEST_PER_CLUSTER)
    if low > high:
        raise InputError(
            f"{n_samples} samples can show {high} clusters at most, not {low} or more: ask for fewer, or give their "
            f"number, for example --clusters {min(10, n_samples)}"
        )
    return replace(config, clusters_between=(low, high))


def _precision(wanted: Precision, device: str) -> Precision:
    if device == "cpu":
        if wanted == "bf16":
            raise InputError("precision bf16 needs a GPU: use --precision auto")
        return "float32"  # bf16 products are not safe on every CPU that claims them
    return "bf16" if wanted == "auto" else wanted


def _backbone(wanted: str, method: str, side: int, device: str) -> str:
    if wanted != "auto":
        fitting = [name for name in BACKBONES if name.startswith("mlp") == (side == 0)]
        if wanted not in fitting:
            kind = "images" if side else "rows"
            raise InputError(f"train.backbone is {wanted!r}: for {kind} expected auto, {' or '.join(fitting)}")
        return wanted
    if side == 0:
        return "mlp"
    if side <= 28 or (device == "cpu" and side <= 32):
        return "small"
    return "resnet34" if issubclass(find_method(method), Tcc) else "resnet18"


def _batch_size(config: Config, n_samples: int, device: str) -> int:
    # Sec. 4.2: enough samples of every cluster in a step
    wanted = config.train.batch_size or min(32 * config.n_clusters, LARGEST_BATCH)
    if not config.train.batch_size and not issubclass(find_method(config.method), Tcc):
        wanted = 512 if device == "cuda" and n_samples >= MANY else 128  # a CPU gains nothing but memory use
    return max(2, min(wanted, n_samples))


def _epochs(n_samples: int, kind: str) -> int:
    """Enough to see SAMPLES_SEEN views, within sane limits: small data needs more passes, a CPU can afford fewer."""
    fewest, most = EPOCHS[kind]
    return min(most, max(fewest, SAMPLES_SEEN[kind] // n_samples))


def _flip(wanted: float, images: Images, device: str) -> float:
    if wanted != DERIVED or images.is_rows:
        return max(0.0, wanted)  # rows have no left
    # by one of several processes: near the threshold the last bits of another processor may say otherwise
    return float(decided(device, lambda: "0" if left_differs_from_right(images.pixels, images.usable) else "0.5"))


def _pays(train: Train, n_samples: int) -> bool:
    """Whether a run is long enough for compilation, about a minute, to be made up for."""
    steps = train.epochs * (n_samples // train.batch_size)
    return train.device == "cuda" and (train.minutes >= LONG_MINUTES if train.minutes else steps >= LONG_STEPS)


def _cluster_queue(wanted: int, n_clusters: int) -> int:
    blocks = min(100, CLUSTER_CELLS // max(1, n_clusters) ** 2)  # Sec. 4.2: 100 for each cluster
    return wanted or max(1, blocks) * n_clusters


def _check_tcc(config: Config) -> None:
    tcc, n_clusters = config.tcc, config.n_clusters
    if tcc.cluster_queue % n_clusters:
        raise InputError(f"tcc.cluster_queue is {tcc.cluster_queue}: expected a multiple of the {n_clusters} clusters")
    if tcc.prototypes == "simplex" and tcc.n_features < n_clusters - 1:
        raise InputError(
            f"tcc.prototypes=simplex needs tcc.n_features of at least {n_clusters - 1} for {n_clusters} clusters, "
            f"it is {tcc.n_features}"
        )
