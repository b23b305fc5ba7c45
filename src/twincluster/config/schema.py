"""Settings of a run as frozen dataclasses, filled by recipes and overrides (options.py).

A value of 0 or "auto", or of -1 if 0 has a meaning, is derived from the data: `resolve` replaces every such value
before training, so that `config.json` in a run folder has only concrete values.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, Literal, TypeVar

from twincluster.core import InputError, closest

Settings = TypeVar("Settings")
OWN = "own"  # default name of a method's group of settings
BOUNDS: dict[str, Callable[[float], bool]] = {
    "above 0": lambda v: v > 0,
    "of 0 or more": lambda v: v >= 0,
    "from 0 to 1": lambda v: 0 <= v <= 1,
    "from 0 to 4096": lambda v: 0 <= v <= 4096,
    "from -1 to 1": lambda v: -1 <= v <= 1,
    "from 0 to 1, or -1": lambda v: v == DERIVED or 0 <= v <= 1,
    "of 0 or more, or -1": lambda v: v == DERIVED or v >= 0,
}
Positive = Annotated[float, "above 0"]  # types of settings, also for those of methods
Amount = Annotated[float, "of 0 or more"]
Share = Annotated[float, "from 0 to 1"]
Count = Annotated[int, "above 0"]
CountOrNone = Annotated[int, "of 0 or more"]
Side = Annotated[int, "from 0 to 4096"]
ShareOrDerived = Annotated[float, "from 0 to 1, or -1"]
Signed = Annotated[float, "from -1 to 1"]
Shares = Annotated[tuple[float, float], "from 0 to 1"]
Positives = Annotated[tuple[float, float], "above 0"]
Channels = Annotated[tuple[float, float, float], "of 0 or more, or -1"]
LARGEST = (2**53, 3e38)  # largest exact integer in JSON, and largest number in single precision
DERIVED = -1  # derive the value from the data, for settings where 0 has a meaning
Precision = Literal["auto", "float32", "bf16"]
Frame = Literal["crop", "letterbox"]


@dataclass(frozen=True)
class Augment:
    """Random augmentation of a view. The defaults are the paper's (Sec. 4.2, after MoCo v1 and MiCE)."""

    crop_area: Annotated[Shares, "above 0"] = (0.2, 1.0)  # share of the area that the random crop keeps
    crop_ratio: Positives = (0.75, 4 / 3)  # width over height of the crop, drawn log-uniformly
    grey: Share = 0.2  # probability of grey
    grey_last: bool = False  # grey after the jitter, as in MoCo v2 and SimCLR, instead of before it
    jitter: Share = 1.0  # probability of colour jitter
    brightness: Amount = 0.4  # how far jitter may change it: 0.4 is a factor from 0.6 to 1.4
    contrast: Amount = 0.4  # likewise
    saturation: Amount = 0.4  # likewise
    hue: Amount = 0.4  # in turns of the colour circle, at most .5
    flip: ShareOrDerived = 0.5  # probability of a horizontal flip; -1: .5, or 0 if left differs from right
    rotate: Amount = 0.0  # largest angle, in degrees
    blur: Share = 0.0  # probability of a Gaussian blur
    blur_sigma: Positives = (0.1, 2.0)  # of the blur, in pixels of the view: least and most
    solarise: Share = 0.0  # probability of inverting the bright pixels
    hole: Share = 0.0  # side of a hidden square, as a share of the view's
    noise: Amount = 0.2  # rows only: standard deviation of the noise added to standardised features
    dropout: Share = 0.1  # rows only: probability of dropping a feature
    neighbours: CountOrNone = 0  # rows only: the second view is one of this many nearest rows; 0: the row itself


@dataclass(frozen=True)
class Optimiser:
    """The paper uses Adam at a constant 3e-3."""

    name: Literal["adam", "sgd"] = "adam"  # optimisation algorithm
    learning_rate: Positive = 3e-3  # maximum; not scaled with the batch size
    momentum: Share = 0.9  # SGD only, Nesterov
    weight_decay: Amount = 0.0  # not applied to biases, batch-norm and, except in MiCE, prototypes
    schedule: Literal["constant", "cosine"] = "constant"  # of the learning rate; cosine: half a cosine down to 0
    warmup: Share = 0.0  # share of the run in which the rate rises linearly


@dataclass(frozen=True)
class Train:
    """Length and size of a run, and its hardware."""

    epochs: CountOrNone = 1000  # passes over the data; 0: from the number of samples and the device
    minutes: Amount = 0.0  # training time, to which the schedule is fitted; 0: train for `epochs`
    batch_size: CountOrNone = 0  # samples per step; 0: depends on method and device
    image_size: Side = 0  # side of a training image in pixels; 0: the images' own, at most 96
    frame: Frame = "crop"  # how oblong images become square: crop the centre, or add bars (letterbox)
    backbone: str = "auto"  # resnet18, resnet34, resnet50, small (tiny images), mlp or mlp_signed (rows)
    encoder: str = ""  # pretrained network whose features are clustered instead of the images (encoders.py)
    finetune: bool = False  # train the encoder further on the images, as the backbone
    components: CountOrNone = 0  # rows only: number of principal components to use instead of the rows; 0: the rows
    device: str = "auto"  # auto, cpu or cuda
    precision: Precision = "auto"  # auto: bf16 backbone on CUDA; losses are always float32
    compile: bool = True  # CUDA only: compile losses and augmentation (networks have their own kernels)
    checkpoint_minutes: Amount = 3.0  # time between checkpoints
    rows: CountOrNone = 0  # rows of numbers or features to train on; 0: all up to 200,000, a sample of more
    parts: CountOrNone = 0  # divide each batch to save memory; 0: as few parts as the GPU memory allows

    @property
    def frozen(self) -> str:
        """The encoder whose features are clustered; "" if images are."""
        return "" if self.finetune else self.encoder


@dataclass(frozen=True)
class EncoderInput:
    """What a pretrained network is shown, where it is not what the network says itself."""

    size: Side = 0  # of an image, in pixels a side; 0: the network's own, or 224
    mean: Channels = (-1.0, -1.0, -1.0)  # of each channel, on the scale of 0 to 1; -1: the network's own, or ImageNet's
    std: Channels = (-1.0, -1.0, -1.0)  # likewise
    output: str = ""  # of an ONNX file, which one to take; needed where it has several


@dataclass(frozen=True)
class Config:
    """All settings of a run; with the data, they determine its result."""

    method: str = "auto"  # a registered name, or package.module:Class; auto: the default method
    n_clusters: CountOrNone = 0  # 0: chosen from the features when training ends, within clusters_between
    clusters_between: tuple[int, int] = (2, 50)  # range of the number to choose
    seed: int = 0  # of all random draws
    train: Train = field(default_factory=Train)
    optimiser: Optimiser = field(default_factory=Optimiser)
    augment: Augment = field(default_factory=Augment)
    encoder: EncoderInput = field(default_factory=EncoderInput)  # how train.encoder is used
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the method, which declares their types

    def to_dict(self) -> dict[str, Any]:
        """Return nested settings, as in recipes and config.json."""
        fields = dataclasses.asdict(self)
        groups: dict[str, Any] = fields.pop("groups")
        return fields | groups


@dataclass(frozen=True)
class DataShape:
    """Size, kind and statistics of the data, which the network needs."""

    n_samples: int
    side: int  # of a training image in pixels; 0 for rows
    n_inputs: int  # channels of an image, features of a row
    mean: tuple[float, ...]  # per channel or feature, on the scale of 0 to 1 for images
    std: tuple[float, ...]
    widths: tuple[int, ...] = ()  # columns of each encoder, where rows are the features of several


def make_config(settings: Mapping[str, Any], base: Config | None = None) -> Config:
    """Return `base` with nested settings replaced. Raise InputError that names the field of a wrong name, type or
    value.

    A group that is not a field of Config belongs to a method: `method_settings` checks it.
    """
    base = base or Config()
    groups = {name: dict(group) for name, group in base.groups.items()}
    if settings.get("method", base.method) != base.method:
        groups.pop(OWN, None)  # another method's
    fields = {field.name for field in dataclasses.fields(Config)} - {"groups"}
    for name, value in settings.items():
        if name in fields:
            continue
        if isinstance(value, Mapping):
            groups[name] = groups.get(name, {}) | _plain(value)
        elif name == OWN or name in groups:
            raise InputError(f"{name} is a group of settings: write {name}.FIELD=VALUE")
    rest = {name: value for name, value in settings.items() if name not in groups}
    config: Config = _replace(base, rest, prefix="")
    _check(config)
    return dataclasses.replace(config, groups=groups)


def method_settings(config: Config, kind: type[Settings], group: str = OWN) -> Settings:
    """Return a group of the method's settings as the dataclass that declares them.

    Raise InputError as `make_config` does.
    """
    settings: Settings = _replace(kind(), config.groups.get(group, {}), prefix=f"{group}.")
    return settings


def parse_overrides(pairs: typing.Iterable[str]) -> dict[str, Any]:
    """Parse `["augment.flip=0.25", "train.backbone=resnet18"]` as nested settings. Values are TOML, or else text."""
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
                raise InputError(f"--set {pair!r}: {section} is also set to {target!r}; set only one of them")
        target[leaf] = _read_value(text)
    return nested


def differences(first: Config, second: Config) -> list[str]:
    """Return the dotted names of the fields in which two configurations differ."""
    one, two = flatten(first.to_dict()), flatten(second.to_dict())
    return [name for name in {**one, **two} if one.get(name) != two.get(name)]


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat.update(flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value})
    return flat


def _read_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    except RecursionError:
        raise InputError(f"--set: the value {text[:40]}... is nested too deeply") from None
    try:
        return float(text)  # TOML does not accept .25 and 5.
    except ValueError:
        whole = re.sub(r"(?<![\w.])\.(\d)", r"0.\1", text)  # those in a list, too
        return _read_value(whole) if whole != text and text.startswith("[") else text


def _replace(section: Any, settings: Mapping[str, Any], prefix: str) -> Any:
    types_of = typing.get_type_hints(type(section), include_extras=True)
    types_of.pop("groups", None)  # a method's
    changes = {}
    for name, value in settings.items():
        if name not in types_of:
            expected = f"expected one of {', '.join(types_of)}" if types_of else "this method has no settings"
            expected += "" if prefix else ", or GROUP.FIELD as listed by `twincluster methods NAME`"
            hint = _group_of(name, section) or closest(name, types_of, prefix) or f": {expected}"
            raise InputError(f"no setting {prefix + name!r}{hint}")
        current = getattr(section, name)
        if not isinstance(current, str | int | float | tuple):
            if not isinstance(value, Mapping):
                raise InputError(f"{prefix + name} is a group of settings: write {prefix + name}.FIELD=VALUE")
            changes[name] = _replace(current, value, f"{prefix}{name}.")
        else:
            changes[name] = _coerce(value, types_of[name], prefix + name)
    return dataclasses.replace(section, **changes)


def _group_of(name: str, section: Any) -> str:
    """Return the end of a message that suggests the missing group of a setting; "" if none has it."""
    groups = [group for group, held in vars(section).items() if is_dataclass(held) and hasattr(held, name)]
    return f", did you mean {' or '.join(f'{group}.{name}' for group in groups)}?" if groups else ""


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:  # as config.json holds them
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _coerce(value: Any, wanted: Any, name: str) -> Any:
    """Return `value` as the field's type. Whole numbers become floats and lists tuples; nothing else is converted."""
    origin = typing.get_origin(wanted)
    if origin is Literal:
        if value not in typing.get_args(wanted):
            raise InputError(f"{name} is {value!r}: expected one of {', '.join(map(repr, typing.get_args(wanted)))}")
        return value
    if origin is Annotated:
        kind, *bounds = typing.get_args(wanted)
        value = _coerce(value, kind, name)
        numbers = value if isinstance(value, tuple) else (value,)
        for bound in bounds:
            if bound in BOUNDS and not all(map(BOUNDS[bound], numbers)):
                raise InputError(f"{name} is {value}: expected {'numbers' if len(numbers) > 1 else 'a number'} {bound}")
        return value
    if origin is tuple:
        parts = typing.get_args(wanted)
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            example = [0.2, *[0.5] * (len(parts) - 2), 1.0]
            raise InputError(f"{name} is {value!r}: expected {len(parts)} numbers, for example {example}")
        return tuple(_coerce(item, part, name) for item, part in zip(value, parts, strict=True))
    assert not isinstance(wanted, types.UnionType), "settings have one type each"
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} is {value}: expected a finite number")
    if isinstance(value, int | float) and abs(value) > LARGEST[wanted is float]:
        raise InputError(f"{name} is {str(value)[:20]}: expected a number of at most {LARGEST[wanted is float]:.3g}")
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise InputError(f"{name} is {value!r}: expected {_ARTICLES[wanted]}")
    return value


_ARTICLES = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}


def _check(config: Config) -> None:
    """Check relations that the types do not express."""
    if config.n_clusters == 1 or config.clusters_between[0] < 2:
        raise InputError("clustering needs at least two clusters: set n_clusters and clusters_between to 2 or more")
    values = flatten(config.to_dict())
    for name in ("clusters_between", "augment.crop_area", "augment.crop_ratio", "augment.blur_sigma"):
        low, high = values[name]
        if low > high:
            raise InputError(f"{name} is [{low}, {high}]: write the smaller number first")
    if 0 in config.encoder.std:
        raise InputError(f"encoder.std is {list(config.encoder.std)}: expected numbers above 0")
    if (hue := config.augment.hue) > 0.5:
        raise InputError(f"augment.hue is {hue}: the colour circle allows at most 0.5")
