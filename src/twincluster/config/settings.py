"""Settings of a run as frozen dataclasses, a user's options as settings, and recipes. Imports no torch.

A value of 0 or "auto", or of -1 where 0 has a meaning, means "derive it from the data": `resolve` replaces every such
value before training, so that `config.json` in a run folder holds only concrete numbers. A mistake is reported before
anything heavy is imported. Recipes are packaged TOML files, each with its command and the numbers it stands for.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from twincluster.core import InputError, closest

Settings = TypeVar("Settings")
OWN = "own"  # the group of settings of a method that has no name of its own for it
BOUNDS: dict[str, Callable[[float], bool]] = {
    "above 0": lambda v: v > 0,
    "of 0 or more": lambda v: v >= 0,
    "from 0 to 1": lambda v: 0 <= v <= 1,
    "from 0 to 4096": lambda v: 0 <= v <= 4096,
    "from -1 to 1": lambda v: -1 <= v <= 1,
    "from 0 to 1, or -1": lambda v: v == DERIVED or 0 <= v <= 1,
}
Positive = Annotated[float, "above 0"]  # types of settings, in which methods too declare what they take
Amount = Annotated[float, "of 0 or more"]
Share = Annotated[float, "from 0 to 1"]
Count = Annotated[int, "above 0"]
CountOrNone = Annotated[int, "of 0 or more"]
Side = Annotated[int, "from 0 to 4096"]
ShareOrDerived = Annotated[float, "from 0 to 1, or -1"]
Signed = Annotated[float, "from -1 to 1"]
Shares = Annotated[tuple[float, float], "from 0 to 1"]
Positives = Annotated[tuple[float, float], "above 0"]
LARGEST = (2**53, 3e38)  # whole numbers that JSON keeps, and what single precision holds
DERIVED = -1  # where 0 means something else: derive it from the data
Precision = Literal["auto", "float32", "bf16"]
Frame = Literal["crop", "letterbox"]


@dataclass(frozen=True)
class Augment:
    """How one view of a sample is drawn. The defaults are the paper's (Sec. 4.2, after MoCo v1 and MiCE)."""

    crop_area: Annotated[Shares, "above 0"] = (0.2, 1.0)  # share of the area that the random crop keeps
    crop_ratio: Positives = (0.75, 4 / 3)  # width over height of the crop, drawn log-uniformly
    grey: Share = 0.2  # probability of grey
    grey_last: bool = False  # grey after the jitter, as in MoCo v2 and SimCLR, instead of before it
    jitter: Share = 1.0  # probability of colour jitter
    brightness: Amount = 0.4  # how far jitter may change it: 0.4 is a factor from 0.6 to 1.4
    contrast: Amount = 0.4  # likewise
    saturation: Amount = 0.4  # likewise
    hue: Amount = 0.4  # in turns of the colour circle, at most .5
    flip: ShareOrDerived = 0.5  # probability of a horizontal flip; -1: .5, or 0 where left differs from right
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
    """Adam at a constant 3e-3 is the paper's."""

    name: Literal["adam", "sgd"] = "adam"  # how weights follow their gradients
    learning_rate: Positive = 3e-3  # at its highest, whatever the size of the batch
    momentum: Share = 0.9  # SGD only, Nesterov
    weight_decay: Amount = 0.0  # not applied to biases, batch-norm and (but in MiCE) prototypes
    schedule: Literal["constant", "cosine"] = "constant"  # cosine: the rate falls to 0 by half a cosine
    warmup: Share = 0.0  # share of the run in which the rate rises linearly


@dataclass(frozen=True)
class Train:
    """Length and size of a run, and the machine it uses."""

    epochs: CountOrNone = 1000  # passes over the data; 0: from the number of samples and the device
    minutes: Amount = 0.0  # to train for, the schedule ending when the time does; 0: `epochs` decides
    batch_size: CountOrNone = 0  # samples in a step; 0: the method and the device decide
    image_size: Side = 0  # side of a training image in pixels; 0: the images' own, at most 96
    frame: Frame = "crop"  # how oblong images become square: their middle, or all of them between bars (letterbox)
    backbone: str = "auto"  # resnet18, resnet34, resnet50, small (tiny images), mlp or mlp_signed (rows)
    encoder: str = ""  # a pretrained network whose features are clustered instead of the images (encoders.py)
    finetune: bool = False  # the encoder is the backbone instead: it goes on learning, from images
    components: CountOrNone = 0  # rows only: their first principal components instead of the rows; 0: the rows
    device: str = "auto"  # auto, cpu or cuda
    precision: Precision = "auto"  # auto: bf16 backbone on CUDA; losses are always float32
    compile: bool = True  # CUDA only: fuse losses and augmentation before a step is captured (networks: see kernels/)
    checkpoint_minutes: Amount = 3.0  # how often the resume state is written
    parts: CountOrNone = 0  # in which a batch passes the network, one by one; 0: as few as the GPU's memory allows

    @property
    def frozen(self) -> str:
        """The encoder whose features are clustered; "" where images are."""
        return "" if self.finetune else self.encoder


@dataclass(frozen=True)
class Config:
    """Everything a run depends on besides the data."""

    method: str = "auto"  # a registered name, or package.module:Class; auto: the default method
    n_clusters: CountOrNone = 0  # 0: chosen from the features when training ends, within clusters_between
    clusters_between: tuple[int, int] = (2, 50)  # fewest and most that may be chosen
    seed: int = 0  # every random draw follows from it
    train: Train = field(default_factory=Train)
    optimiser: Optimiser = field(default_factory=Optimiser)
    augment: Augment = field(default_factory=Augment)
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the method, which has their types

    def to_dict(self) -> dict[str, Any]:
        """Return nested settings as recipes and config.json hold them."""
        fields = dataclasses.asdict(self)
        groups: dict[str, Any] = fields.pop("groups")
        return fields | groups


@dataclass(frozen=True)
class DataShape:
    """What a network must know of the data: size, kind and the statistics that standardise it."""

    n_samples: int
    side: int  # of a training image in pixels; 0 for rows
    n_inputs: int  # channels of an image, features of a row
    mean: tuple[float, ...]  # per channel or feature, on the scale of 0 to 1 for images
    std: tuple[float, ...]


def make_config(settings: Mapping[str, Any], base: Config | None = None) -> Config:
    """Return `base` with nested settings replaced; a wrong name, type or value raises InputError naming the field.

    A group that is no field of Config belongs to a method: `method_settings` checks it.
    """
    base = base or Config()
    groups = {name: dict(group) for name, group in base.groups.items()}
    if settings.get("method", base.method) != base.method:
        groups.pop(OWN, None)  # another method's
    known = {field.name for field in dataclasses.fields(Config)} - {"groups"}
    for name, value in settings.items():
        if name in known:
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
    """Return a group of the method's settings as the dataclass that declares them; InputError as in `make_config`."""
    settings: Settings = _replace(kind(), config.groups.get(group, {}), prefix=f"{group}.")
    return settings


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
    types_of.pop("groups", None)  # a method's
    changes = {}
    for name, value in settings.items():
        if name not in types_of:
            known = f"expected one of {', '.join(types_of)}" if types_of else "this method has none of its own"
            known += "" if prefix else ", or GROUP.FIELD as `twincluster methods NAME` shows them"
            hint = _group_of(name, section) or closest(name, types_of, prefix) or f": {known}"
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
            raise InputError(f"{name} is {value!r}: expected {len(parts)} numbers, for example [0.2, 1.0]")
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
    """What the types do not tell."""
    if config.n_clusters == 1 or config.clusters_between[0] < 2:
        raise InputError("one cluster is no clustering: give n_clusters and clusters_between of at least 2")
    values = flatten(config.to_dict())
    for name in ("clusters_between", "augment.crop_area", "augment.crop_ratio", "augment.blur_sigma"):
        low, high = values[name]
        if low > high:
            raise InputError(f"{name} is [{low}, {high}]: write the smaller number first")
    if (hue := config.augment.hue) > 0.5:
        raise InputError(f"augment.hue is {hue}: the colour circle allows at most 0.5")


Split = Literal["all", "train", "test"]
OWN_BACKBONES = ("auto", "resnet18", "resnet34", "resnet50", "small", "mlp", "mlp_signed")  # those of backbones.py
LARGEST_SEED = 2**32 - 1  # what numpy and scikit-learn take


def configure(recipe: str | Path, settings: Mapping[str, object], options: Mapping[str, object]) -> Config:
    """Recipe, then settings (--set), then the options that were given."""
    config = make_config(load_recipe(recipe).settings)
    config = make_config(_given(options), make_config(settings, config))
    if not 0 <= config.seed <= LARGEST_SEED:
        raise InputError(f"the seed is {config.seed}: choose one from 0 to {LARGEST_SEED}")
    return config


def cluster_settings(wanted: str | None) -> dict[str, object]:
    """--clusters as settings."""
    if wanted is None:
        return {}
    if wanted == "auto":
        return {"n_clusters": 0}
    numbers = [int(part) for part in wanted.split("-") if part.isdecimal()]
    if "-".join(map(str, numbers)) != wanted or len(numbers) not in (1, 2):
        raise InputError(f"--clusters is {wanted}: give a number, a range such as 5-30, or auto")
    if numbers != sorted(numbers):
        raise InputError(f"--clusters is {wanted}: give the smaller number first")
    if min(numbers) < 2:
        raise InputError(f"--clusters is {wanted}: give at least 2")
    return {"n_clusters": numbers[0]} if len(set(numbers)) == 1 else {"n_clusters": 0, "clusters_between": numbers}


def network_settings(backbone: str | None, settings: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The name of a network as settings: one of our own, or what encoders.py finds by its name. Without a name,
    train.encoder among the other settings counts as one."""
    if backbone is None:
        train = (settings or {}).get("train")
        encoder = train.get("encoder") if isinstance(train, Mapping) else None
        return network_settings(encoder) if isinstance(encoder, str) and encoder not in ("", *OWN_BACKBONES) else {}
    if not isinstance(backbone, str):
        raise InputError(f"backbone is {backbone!r}: expected the name of a network, or an nn.Module")
    if backbone in OWN_BACKBONES:
        return {"backbone": backbone}
    kind, _, file = backbone.partition(":")  # a file is remembered by where it is, not by where we are
    whole = Path(os.path.expanduser(file)).absolute()
    return {"encoder": f"{kind}:{whole}" if kind in OWN_BACKBONES else backbone}


def whole_number(name: str, value: Any, or_else: str = "") -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}: expected a whole number of at least 1{or_else}")
    return int(value)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`{"tcc.alpha": 0.25}` as `{"tcc": {"alpha": 0.25}}`, merged with what is nested already."""
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise InputError(f'settings is {settings!r}: expected a dict such as {{"augment.noise": 0.1}}')
    result: dict[str, Any] = {}
    for name, value in settings.items():
        section, _, rest = name.partition(".")
        if rest or isinstance(value, Mapping):
            inner, earlier = nested({rest: value} if rest else value), result.get(section, {})
            if not isinstance(earlier, Mapping):
                raise InputError(
                    f"settings has {section} as {earlier!r} and as a group of settings: leave out the former"
                )
            result[section] = {**earlier, **inner}
        else:  # a number of numpy's, as from a grid, as one of Python's
            result[section] = value.item() if getattr(value, "shape", None) == () else value
    return result


def clusters_of(n_clusters: Any) -> int:
    """`n_clusters` of the estimator as a setting: 0 for "auto", and 2 for one, since fewer are not trained."""
    return 0 if n_clusters == "auto" else max(2, whole_number("n_clusters", n_clusters, ', or "auto"'))


def how_long(epochs: Any, minutes: Any) -> dict[str, float]:
    """`epochs` or `minutes` as settings."""
    if epochs is not None and minutes is not None:
        raise InputError("epochs and minutes both say how long to train: give one of them")
    if epochs is not None:
        return {"epochs": whole_number("epochs", epochs), "minutes": 0.0}
    if minutes is None:
        return {}
    if not isinstance(minutes, Real) or isinstance(minutes, bool) or not float(minutes) > 0:
        raise InputError(f"minutes is {minutes!r}: expected a number above 0")
    return {"minutes": float(minutes)}


@contextmanager
def python_words() -> Iterator[None]:
    """Bad input is answered in the words of the estimator instead of those of the command line."""
    try:
        yield
    except InputError as error:
        if (said := in_python(str(error))) == str(error):
            raise
        raise InputError(said) from error


def in_python(advice: str) -> str:
    """`--set tcc.alpha=0.25` as `settings={"tcc.alpha": 0.25}`, and options as arguments of the estimator."""
    return _OPTION.sub(_as_argument, advice).replace("} settings={", ", ").replace('" settings={', '", settings={')


_OPTION = re.compile(r"--(set|method|clusters|backbone|device|precision|epochs|minutes|recipe) ([\w.:=@-]*\w)")
_SETTINGS = {"precision": "train.precision"}  # options that are no arguments of the estimator


def _as_argument(found: re.Match[str]) -> str:
    name, value = found.groups()
    field, _, given = value.partition("=") if name == "set" else (_SETTINGS.get(name), "", value)
    written = given if re.fullmatch(r"-?[\d.]+", given) else json.dumps(given)
    if field:
        return f'settings={{"{field}": {written}}}'
    return f"{'n_clusters' if name == 'clusters' else name}={written}"


def _given(options: Mapping[str, object]) -> dict[str, object]:
    return {k: _given(v) if isinstance(v, Mapping) else v for k, v in options.items() if v is not None}


RECIPES = Path(__file__).parent / "recipes"
MOST_DOTS = 200  # in a line of a recipe
ABOUT = {"about": str, "command": str, "data": str, "published": dict, "measured": list}  # what [recipe] may hold


@dataclass(frozen=True)
class Recipe:
    """A recipe file: who it is for, what it claims, and the settings it changes."""

    name: str
    about: str  # one line
    command: str  # that reproduces the numbers
    data: str  # which data it is meant for
    published: Mapping[str, Any]  # the paper's numbers, where there are any
    measured: tuple[Mapping[str, Any], ...]  # ours: scores, seeds, minutes, hardware
    settings: Mapping[str, Any]  # nested, as in Config

    def describe(self) -> str:
        """The recipe as a page of text."""
        lines = [f"{self.name}: {self.about}" if self.about else self.name]
        lines += [f"  data       {self.data}"] if self.data else []
        lines += [f"  command    {self.command}"] if self.command else []
        lines += [f"  published  {_listed(self.published)}"] if self.published else []
        lines += [f"  measured   {_listed(row)}" for row in self.measured] or ["  measured   nothing yet"]
        lines += ["  settings", *(f"    {name} = {as_toml(value)}" for name, value in flatten(self.settings).items())]
        if method := self.settings.get("method"):
            lines.append(f"\ntwincluster methods {method} shows what they mean")
        return "\n".join(lines)


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load_recipe(name: str | Path) -> Recipe:
    """A packaged recipe by name, or any TOML file by path."""
    path = _find(str(name))
    content = _read(path)
    about = content.pop("recipe", {})
    _check_about(about, path)
    return Recipe(
        name=path.stem,
        about=about.get("about", ""),
        command=about.get("command", ""),
        data=about.get("data", ""),
        published=about.get("published", {}),
        measured=tuple(about.get("measured", ())),
        settings=content,
    )


def other_settings(method: str, used: str, source: str) -> str | None:
    """Return a line about recipes made for a method, where a method was named and a recipe was not.

    None where there are no others. The recipe for the source itself is preferred.
    """
    recipes = [load_recipe(name) for name in recipe_names()]
    own = [recipe for recipe in recipes if recipe.settings.get("method") == method]
    if not own:  # an ablation, NAME-without-something, shares the recipes of its method
        own = [recipe for recipe in recipes if recipe.settings.get("method") == method.partition("-")[0]]
    if not own:
        return None
    best = next((recipe for recipe in own if recipe.name.endswith(source.replace("_", "-"))), own[0])
    kind = "of its paper" if best.published else "made for it"
    return f"{method} with the settings of the recipe {used}; those {kind} are in the recipe {best.name}"


def recipe_text(name: str) -> str:
    """The file of a recipe as it is, a start for one of your own."""
    return _find(name).read_text(encoding="utf-8")


def as_toml(value: Any) -> str:
    """A setting as it is written in a recipe."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _find(name: str) -> Path:
    is_file = name.endswith(".toml") or "/" in name or "\\" in name
    path = Path(name) if is_file else RECIPES / f"{name}.toml"
    if path.is_file():
        return path
    if Path(f"{name}.toml").is_file():
        hint = f", did you mean {name + '.toml'!r}?"
    elif is_file:
        hint = ": there is no such file"
    else:
        hint = closest(name, recipe_names()) or "; `twincluster recipes` lists them"
    raise InputError(f"no recipe {name!r}{hint}")


def _read(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        if any(line.count(".") > MOST_DOTS for line in text.split("\n")):  # tomllib takes minutes for such a name
            raise ValueError(f"a line has more than {MOST_DOTS} dots")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"recipe {path} is not valid TOML: {problem}{_without_quotes(text, str(error))}") from error


def _without_quotes(text: str, error: str) -> str:
    """The end of a message about a line that has a bare word for its value."""
    found = re.search(r"at line (\d+)", error)
    line = text.split("\n")[int(found[1]) - 1] if found else ""
    bare = re.fullmatch(r"\s*([\w.-]+)\s*=\s*([^\W\d][\w.:/-]*)\s*(#.*)?", line)
    if not bare:
        return ""
    name, word = bare[1], bare[2]
    if word.lower() in ("true", "false"):
        return f"; write {name} = {word.lower()}"
    return f"; text needs quotes: {name} = {as_toml(word)}"


def _check_about(about: Any, path: Path) -> None:
    measured = about.get("measured", []) if isinstance(about, dict) else None
    if not isinstance(measured, list) or not all(isinstance(row, dict) for row in measured):
        raise InputError(f"recipe {path}: write [recipe] as a table and [[recipe.measured]] as a list of tables")
    for name, value in about.items():
        if name not in ABOUT:
            hint = closest(name, ABOUT, "recipe.") or f": expected one of {', '.join(ABOUT)}"
            raise InputError(f"recipe {path}: no entry {f'recipe.{name}'!r}{hint}")
        if not isinstance(value, ABOUT[name]):
            wanted = "text in quotes" if ABOUT[name] is str else "a table"
            raise InputError(f"recipe {path}: recipe.{name} is {value!r}: expected {wanted}")


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(str(value) if name in ("table", "note") else f"{name} {value}" for name, value in row.items())
