"""Settings of a run as frozen dataclasses, which recipes (recipe.py) and overrides fill.

A value of 0 or "auto", or of -1 where 0 has a meaning, means "derive it from the data": `resolve` replaces every such
value before training, so that `config.json` in a run folder holds only concrete numbers.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, Literal, TypeVar

from twincluster.errors import InputError, closest

Own = TypeVar("Own")
BOUNDS = {"above 0": lambda v: v > 0, "of 0 or more": lambda v: v >= 0, "from 0 to 1": lambda v: 0 <= v <= 1}
Positive = Annotated[float, "above 0"]  # types of settings in which a method declares what it takes
Count = Annotated[int, "above 0"]
CountOrNone = Annotated[int, "of 0 or more"]
Share = Annotated[float, "from 0 to 1"]
DERIVED = -1  # where 0 means something else: derive it from the data
Precision = Literal["auto", "float32", "bf16"]
Frame = Literal["crop", "letterbox"]


@dataclass(frozen=True)
class Augment:
    """How one view of a sample is drawn. The defaults are the paper's (Sec. 4.2, after MoCo v1 and MiCE)."""

    crop_area: tuple[float, float] = (0.2, 1.0)  # share of the area that the random crop keeps
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)  # width over height of the crop, drawn log-uniformly
    grey: float = 0.2  # probability of grey
    jitter: float = 1.0  # probability of colour jitter
    brightness: float = 0.4  # how far jitter may change it: 0.4 is a factor from 0.6 to 1.4
    contrast: float = 0.4  # likewise
    saturation: float = 0.4  # likewise
    hue: float = 0.4  # in turns of the colour circle, at most .5
    flip: float = 0.5  # probability of a horizontal flip; -1: .5, or 0 where left and right differ (images/mirrored.py)
    rotate: float = 0.0  # largest angle, in degrees
    blur: float = 0.0  # probability of a Gaussian blur
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # of the blur, in pixels of the view: least and most
    solarise: float = 0.0  # probability of inverting the bright pixels
    hole: float = 0.0  # side of a hidden square, as a share of the view's
    noise: float = 0.2  # rows only: standard deviation of the noise added to standardised features
    dropout: float = 0.1  # rows only: probability of dropping a feature
    neighbours: int = 0  # rows only: the second view is one of this many nearest rows; 0: the row itself


@dataclass(frozen=True)
class Optimiser:
    """Adam at a constant 3e-3 is the paper's."""

    name: Literal["adam", "sgd"] = "adam"  # how weights follow their gradients
    learning_rate: float = 3e-3  # at its highest, whatever the size of the batch
    momentum: float = 0.9  # SGD only, Nesterov
    weight_decay: float = 0.0  # not applied to biases, batch-norm and prototypes
    schedule: Literal["constant", "cosine"] = "constant"  # cosine: the rate falls to 0 by half a cosine
    warmup: float = 0.0  # share of the run in which the rate rises linearly


@dataclass(frozen=True)
class Train:
    """Length and size of a run, and the machine it uses."""

    epochs: int = 1000  # passes over the data; 0: from the number of samples and the device
    minutes: float = 0.0  # to train for, the schedule ending when the time does; 0: `epochs` decides
    batch_size: int = 0  # samples in a step; 0: 128, or 512 of many on a GPU; for tcc 32 per cluster, at most 6,400
    image_size: int = 0  # side of a training image in pixels; 0: the images' own, at most 96
    frame: Frame = "crop"  # how oblong images become square: their middle, or all of them between bars (letterbox)
    backbone: str = "auto"  # resnet18, resnet34, resnet50, small (tiny images), mlp or mlp_signed (rows)
    encoder: str = ""  # a pretrained network whose features are clustered instead of the images (encoders.py)
    finetune: bool = False  # the encoder is the backbone instead: it goes on learning, from images
    components: int = 0  # rows only: their first principal components instead of the rows; 0: the rows
    device: str = "auto"  # auto, cpu or cuda
    precision: Precision = "auto"  # auto: bf16 backbone on CUDA; losses are always float32
    compile: bool = True  # CUDA only: fuse losses and augmentation before a step is captured (networks: see kernels/)
    checkpoint_minutes: float = 3.0  # how often the resume state is written
    parts: int = 0  # in which a batch passes the network, one after the other; 0: as few as the GPU's memory allows

    @property
    def frozen(self) -> str:
        """The encoder whose features are clustered; "" where images are."""
        return "" if self.finetune else self.encoder


@dataclass(frozen=True)
class Tcc:
    """Twin-contrast clustering as printed, Eqs. 1 to 9; the switches at the end settle what the text leaves open."""

    alpha: float = 0.5  # weight of the cluster track, Eq. 9
    temperature: float = 1.0  # tau of both contrastive losses
    gumbel_temperature: float = 0.8  # lambda
    instance_queue: int = 12_800  # J, rows of Q
    cluster_queue: int = 0  # L, rows of P; 0: 100 per cluster, fewer for more than 400 clusters
    n_features: int = 128  # D
    ema: float = 0.999  # weight of the old momentum parameters at each step
    # the paper is silent or contradicts itself on:
    unit_norm: bool = False  # f and mu unit-norm in Eq. 3 (Eq. 3 as printed has neither)
    assignment_temperature: float = 1.0  # divides the logits of Eq. 3
    entropy: Literal["sample", "batch"] = "sample"  # Eq. 8 maximises H(q) of each sample; batch: of the batch mean
    prototypes: Literal["trained", "simplex"] = "trained"  # simplex: fixed, equally far apart
    centred: bool = False  # batch-norm without scale and shift on f
    shuffle_keys: bool = False  # key images cross batch-norm in two random halves, so that no statistics leak
    # ablations of Table 3, and reductions of Sec. 3.4, are methods of their own: methods/tcc_ablations.py


@dataclass(frozen=True)
class Anchored:
    """The default method: TCC's two tracks on clusters that k-means on the momentum features finds first."""

    instance: Literal["infonce", "byol"] = "byol"  # how the instance track learns features
    temperature: float = 0.2  # of InfoNCE
    instance_queue: int = 16_384  # rows of Q; at most the number of samples
    n_features: int = 256  # D, of the projection
    hidden: int = 2048  # width of projector and predictor; 0: neither, both tracks see the backbone's features
    ema: tuple[float, float] = (0.99, 0.9995)  # momentum at the start and at the end of the run, by cosine between
    shrinkage: float = 0.3  # of the whitening before k-means; a large number leaves the features as they are
    balance: float = 0.0  # of sizes: 1 all equal, 0 as k-means has them, -1 as uneven as the data (clusters/sizes.py)
    cluster_weight: float = 0.1  # of the cluster track: contrast of batch representations r_k
    cluster_temperature: float = 0.5  # of the contrast in the cluster track
    cluster_start: float = 0.3  # share of the run after which the cluster track begins
    commit_weight: float = 0.1  # of the commitment: how strongly the surest images of a cluster are drawn to it; 0: not
    commit_start: float = 0.3  # share of the run after which the commitment begins
    commit_share: float = 0.7  # share of each cluster, its surest images, that commits to it
    commit_temperature: float = 0.1  # of the softmax over clusters in the commitment


@dataclass(frozen=True)
class Config:
    """Everything a run depends on besides the data."""

    method: str = "anchored"
    n_clusters: int = 0  # 0: chosen from the features when training ends, within clusters_between
    clusters_between: tuple[int, int] = (2, 50)  # fewest and most that may be chosen
    seed: int = 0  # every random draw follows from it
    train: Train = field(default_factory=Train)
    optimiser: Optimiser = field(default_factory=Optimiser)
    augment: Augment = field(default_factory=Augment)
    tcc: Tcc = field(default_factory=Tcc)
    anchored: Anchored = field(default_factory=Anchored)
    own: Mapping[str, Any] = field(default_factory=dict)  # of any other method, which knows their names and types

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def make_config(settings: Mapping[str, Any], base: Config | None = None) -> Config:
    """`base` with nested settings replaced; a wrong name, type or value raises InputError that names the field."""
    base = base or Config()
    if settings.get("method", base.method) != base.method:
        base = dataclasses.replace(base, own={})  # another method's
    config: Config = _replace(base, settings, prefix="")
    _check(config)
    return config


def own_settings(config: Config, kind: type[Own]) -> Own:
    """What `config.own` says, as the dataclass in which a method declares its settings; refused like any other."""
    own: Own = _replace(kind(), config.own, prefix="own.")
    return own


def parse_overrides(pairs: typing.Iterable[str]) -> dict[str, Any]:
    """`["augment.flip=0.25", "train.backbone=resnet18"]` as nested settings; values are read as TOML, else as text."""
    nested: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator:
            raise InputError(f"--set {pair!r}: expected FIELD=VALUE, for example --set optimiser.learning_rate=0.05")
        *sections, leaf = name.strip().split(".")
        target = nested
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise InputError(f"--set {pair!r}: {section} is set to {target!r} as well; give it one or the other")
        target[leaf] = _read_value(text)
    return nested


def differences(first: Config, second: Config) -> list[str]:
    """Dotted names of the fields in which two configurations differ."""
    one, two = flatten(first.to_dict()), flatten(second.to_dict())
    return [name for name in {**one, **two} if one.get(name) != two.get(name)]


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat.update(flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value})
    return flat


def _read_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # .25 and 5. are numbers to everybody but TOML
    except ValueError:
        return text


def _replace(section: Any, settings: Mapping[str, Any], prefix: str) -> Any:
    types_of = typing.get_type_hints(type(section), include_extras=True)
    changes = {}
    for name, value in settings.items():
        if name not in types_of:
            known = f"expected one of {', '.join(types_of)}" if types_of else "this method has none of its own"
            hint = _group_of(name, section) or closest(name, types_of, prefix) or f": {known}"
            raise InputError(f"no setting {prefix + name!r}{hint}")
        current = getattr(section, name)
        if not isinstance(current, str | int | float | tuple):
            if not isinstance(value, Mapping):
                raise InputError(f"{prefix + name} is a group of settings: write {prefix + name}.FIELD=VALUE")
            typed = is_dataclass(current)  # else own_settings knows what they are
            changes[name] = _replace(current, value, f"{prefix}{name}.") if typed else dict(current) | _plain(value)
        else:
            changes[name] = _coerce(value, types_of[name], prefix + name)
    return dataclasses.replace(section, **changes)


def _group_of(name: str, section: Any) -> str:
    """The end of a message to who has left out the group that a setting stands in."""
    groups = [group for group, held in vars(section).items() if is_dataclass(held) and hasattr(held, name)]
    return f", did you mean {' or '.join(f'{group}.{name}' for group in groups)}?" if groups else ""


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:  # as config.json holds them
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _coerce(value: Any, wanted: Any, name: str) -> Any:
    """`value` as the field's type; whole numbers pass for floats, lists for tuples, nothing else is converted."""
    origin = typing.get_origin(wanted)
    if origin is Literal:
        if value not in typing.get_args(wanted):
            raise InputError(f"{name} is {value!r}: expected one of {', '.join(map(repr, typing.get_args(wanted)))}")
        return value
    if origin is Annotated:
        kind, bound, *_ = typing.get_args(wanted)
        value = _coerce(value, kind, name)
        if bound in BOUNDS and not BOUNDS[bound](value):
            raise InputError(f"{name} is {value}: expected a number {bound}")
        return value
    if origin is tuple:
        parts = typing.get_args(wanted)
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            raise InputError(f"{name} is {value!r}: expected {len(parts)} numbers, for example [0.2, 1.0]")
        return tuple(_coerce(item, part, name) for item, part in zip(value, parts, strict=True))
    assert not isinstance(wanted, types.UnionType), "settings have one type each"
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} is {value}: expected a finite number")
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise InputError(f"{name} is {value!r}: expected {_ARTICLES[wanted]}")
    return value


_ARTICLES = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
_PROBABILITIES = ("augment.crop_area", "augment.grey", "augment.jitter", "augment.flip", "augment.blur",
                  "augment.solarise", "augment.hole", "augment.dropout", "tcc.alpha", "tcc.ema", "optimiser.warmup",
                  "optimiser.momentum", "anchored.ema", "anchored.cluster_start", "anchored.commit_start",
                  "anchored.commit_share")  # fmt: skip
_POSITIVE = ("augment.crop_area", "augment.crop_ratio", "augment.blur_sigma", "tcc.temperature",
             "tcc.gumbel_temperature", "tcc.assignment_temperature", "anchored.temperature",
             "anchored.cluster_temperature", "anchored.commit_temperature", "optimiser.learning_rate",
             "tcc.instance_queue", "tcc.n_features", "anchored.n_features", "anchored.shrinkage")  # fmt: skip


def _check(config: Config) -> None:
    values = flatten(config.to_dict() | {"own": {}})  # whose own are checked where their types are known
    for name, value in values.items():
        numbers = value if isinstance(value, tuple) else () if isinstance(value, str) else (value,)
        expected = f"{name} is {value}: expected {'numbers' if isinstance(value, tuple) else 'a number'}"
        if name == "augment.flip" and value == DERIVED:
            continue
        if name in _PROBABILITIES and not all(0 <= number <= 1 for number in numbers):
            raise InputError(f"{expected} from 0 to 1")
        if name in _POSITIVE and not all(number > 0 for number in numbers):
            raise InputError(f"{expected} above 0")
        if name == "anchored.balance":
            if not -1 <= value <= 1:
                raise InputError(f"{expected} from -1 to 1")
        elif name != "seed" and any(number < 0 for number in numbers):
            raise InputError(f"{expected} of 0 or more")
    if config.n_clusters == 1 or config.clusters_between[0] < 2:
        raise InputError("one cluster is no clustering: give n_clusters and clusters_between of at least 2")
    for name in ("clusters_between", "augment.crop_area", "augment.crop_ratio", "augment.blur_sigma"):
        low, high = values[name]
        if low > high:
            raise InputError(f"{name} is [{low}, {high}]: write the smaller number first")
    if config.anchored.instance == "byol" and not config.anchored.hidden:
        raise InputError("anchored.hidden is 0, but byol needs a predictor: give a width, or anchored.instance=infonce")
    if (hue := config.augment.hue) > 0.5:
        raise InputError(f"augment.hue is {hue}: the colour circle allows at most 0.5")
