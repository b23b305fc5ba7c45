"""Build settings from a user's options and from recipes. Imports no torch, so mistakes are reported at once.

Recipes are packaged TOML files, each with its command and its measured numbers.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from twincluster.config.encoder_names import absolute_name, trust_addresses
from twincluster.config.schema import Config, flatten, make_config
from twincluster.core import InputError, closest

Split = Literal["all", "train", "test"]
OWN_BACKBONES = ("auto", "resnet18", "resnet34", "resnet50", "small", "mlp", "mlp_signed")  # those of backbones.py
SAME_NETWORK = ("image_size", "frame", "backbone", "encoder", "finetune", "components")  # of [train], to refine a run
LARGEST_SEED = 2**32 - 1  # of numpy and scikit-learn


def configure(
    recipe: str | Path,
    settings: Mapping[str, object],
    options: Mapping[str, object],
    earlier: Mapping[str, object] | None = None,
) -> Config:
    """Build settings from a recipe, then those of an `earlier` run, then `settings` (--set), then the given options."""
    try:
        config = make_config(earlier or {}, make_config(load_recipe(recipe).settings))
        config = make_config(_given(options), make_config(settings, config))
    except RecursionError:
        raise InputError("the settings are nested too deeply: write GROUP.FIELD=VALUE") from None
    if not 0 <= config.seed <= LARGEST_SEED:
        raise InputError(f"the seed is {config.seed}: choose one from 0 to {LARGEST_SEED}")
    return config


def settings_to_refine(earlier: Config, *, augment: bool) -> dict[str, object]:
    """Return the settings that a method which refines shares with the earlier run: its clusters, network and input,
    and with `augment` its augmentation.
    """
    settings = earlier.to_dict()
    train = {name: settings["train"][name] for name in SAME_NETWORK}
    same = {name: settings[name] for name in ("n_clusters", "encoder", *(("augment",) if augment else ()))}
    return {**same, "train": train}


def cluster_settings(wanted: str | None) -> dict[str, object]:
    """Return --clusters as settings."""
    if wanted is None:
        return {}
    if wanted == "auto":
        return {"n_clusters": 0}
    numbers = [int(part) for part in wanted.split("-") if part.isdecimal()]
    if "-".join(map(str, numbers)) != wanted or len(numbers) not in (1, 2):
        raise InputError(f"--clusters is {wanted}: expected a number, a range such as 5-30, or auto")
    if numbers != sorted(numbers):
        raise InputError(f"--clusters is {wanted}: write the smaller number first")
    if min(numbers) < 2:
        raise InputError(f"--clusters is {wanted}: expected at least 2")
    return {"n_clusters": numbers[0]} if len(set(numbers)) == 1 else {"n_clusters": 0, "clusters_between": numbers}


def network_settings(backbone: str | None, settings: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the name of a network that the user gave as settings: one of our own backbones, or an encoder.

    Without a name, use train.encoder of the other settings. An encoder behind an address may then be downloaded.
    """
    if backbone is None:
        train = (settings or {}).get("train")
        encoder = train.get("encoder") if isinstance(train, Mapping) else None
        return network_settings(encoder) if isinstance(encoder, str) and encoder not in ("", *OWN_BACKBONES) else {}
    if not isinstance(backbone, str):
        raise InputError(f"backbone is {backbone!r}: expected the name of a network, or an nn.Module")
    if backbone in OWN_BACKBONES:
        return {"backbone": backbone}
    trust_addresses(backbone)
    return {"encoder": absolute_name(backbone)}


def whole_number(name: str, value: Any, or_else: str = "") -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}: expected a whole number of at least 1{or_else}")
    return int(value)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert `{"tcc.alpha": 0.25}` to `{"tcc": {"alpha": 0.25}}`, merged with nested settings."""
    if not isinstance(settings, Mapping) or not all(isinstance(name, str) for name in settings):
        raise InputError(f'settings is {settings!r}: expected a dict such as {{"augment.noise": 0.1}}')
    result: dict[str, Any] = {}
    for name, value in settings.items():
        section, _, rest = name.partition(".")
        if rest or isinstance(value, Mapping):
            inner, earlier = nested({rest: value} if rest else value), result.get(section, {})
            if not isinstance(earlier, Mapping):
                raise InputError(f"settings sets {section} to {earlier!r} and as a group: remove the former")
            result[section] = {**earlier, **inner}
        else:  # convert numpy scalars, for example from a parameter grid
            result[section] = value.item() if getattr(value, "shape", None) == () else value
    return result


def clusters_of(n_clusters: Any) -> int:
    """Return the estimator's `n_clusters` as a setting: 0 for "auto", and 2 for 1, because at least 2 are trained."""
    return 0 if n_clusters == "auto" else max(2, whole_number("n_clusters", n_clusters, ', or "auto"'))


def how_long(epochs: Any, minutes: Any) -> dict[str, float]:
    """Return `epochs` or `minutes` as settings."""
    if epochs is not None and minutes is not None:
        raise InputError("epochs and minutes both set the training length: choose one of them")
    if epochs is not None:
        return {"epochs": whole_number("epochs", epochs), "minutes": 0.0}
    if minutes is None:
        return {}
    if not isinstance(minutes, Real) or isinstance(minutes, bool) or not float(minutes) > 0:
        raise InputError(f"minutes is {minutes!r}: expected a number above 0")
    return {"minutes": float(minutes)}


@contextmanager
def python_words() -> Iterator[None]:
    """Translate command-line options in error messages to arguments of the estimator."""
    try:
        yield
    except InputError as error:
        if (message := in_python(str(error))) == str(error):
            raise
        raise InputError(message) from error


def in_python(advice: str) -> str:
    """Translate `--set tcc.alpha=0.25` to `settings={"tcc.alpha": 0.25}`, and other options to arguments."""
    return _OPTION.sub(_as_argument, advice).replace("} settings={", ", ").replace('" settings={', '", settings={')


_OPTION = re.compile(r"--(set|method|clusters|backbone|device|precision|epochs|minutes|recipe) ([\w.:=@-]*\w)")
_SETTINGS = {"precision": "train.precision"}  # options that are settings of the estimator


def _as_argument(match: re.Match[str]) -> str:
    name, value = match.groups()
    field, _, given = value.partition("=") if name == "set" else (_SETTINGS.get(name), "", value)
    written = given if re.fullmatch(r"-?[\d.]+", given) else json.dumps(given)
    if field:
        return f'settings={{"{field}": {written}}}'
    return f"{'n_clusters' if name == 'clusters' else name}={written}"


def _given(options: Mapping[str, object]) -> dict[str, object]:
    return {k: _given(v) if isinstance(v, Mapping) else v for k, v in options.items() if v is not None}


RECIPES = Path(__file__).parent / "recipes"
MOST_DOTS = 200  # most dots in a line of a recipe
ABOUT = {"about": str, "command": str, "data": str, "published": dict, "measured": list}  # entries of [recipe]


@dataclass(frozen=True)
class Recipe:
    """A recipe file: its purpose, its published and measured numbers, and the settings it changes."""

    name: str
    about: str  # one line
    command: str  # to reproduce the numbers
    data: str  # intended data
    published: Mapping[str, Any]  # the paper's numbers, if any
    measured: tuple[Mapping[str, Any], ...]  # ours: scores, seeds, minutes, hardware
    settings: Mapping[str, Any]  # nested, as in Config

    def describe(self) -> str:
        """Return the recipe as a page of text."""
        lines = [f"{self.name}: {self.about}" if self.about else self.name]
        lines += [f"  data       {self.data}"] if self.data else []
        lines += [f"  command    {self.command}"] if self.command else []
        lines += [f"  published  {_listed(self.published)}"] if self.published else []
        lines += [f"  measured   {_listed(row)}" for row in self.measured] or ["  measured   nothing yet"]
        lines += ["  settings", *(f"    {name} = {as_toml(value)}" for name, value in flatten(self.settings).items())]
        if method := self.settings.get("method"):
            lines.append(f"\ntwincluster methods {method} explains these settings")
        return "\n".join(lines)


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load_recipe(name: str | Path) -> Recipe:
    """Load a packaged recipe by name, or any TOML file by path."""
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
    """Return a line that points to recipes made for a method, if the user named a method but no recipe.

    None if there are none. The recipe for the source itself is preferred.
    """
    recipes = [load_recipe(name) for name in recipe_names()]
    own = [recipe for recipe in recipes if recipe.settings.get("method") == method]
    if not own:  # an ablation, NAME-without-something, shares the recipes of its method
        own = [recipe for recipe in recipes if recipe.settings.get("method") == method.partition("-")[0]]
    if not own:
        return None
    best = next((recipe for recipe in own if recipe.name.endswith(source.replace("_", "-"))), own[0])
    kind = "of its paper" if best.published else "made for it"
    return f"using {method} with the settings of recipe {used}; recipe {best.name} has those {kind}"


def recipe_text(name: str) -> str:
    """Return the text of a recipe file, as a start for your own."""
    return _find(name).read_text(encoding="utf-8")


def as_toml(value: Any) -> str:
    """Format a setting as in a recipe."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _find(name: str) -> Path:
    is_file = name.endswith(".toml") or "/" in name or "\\" in name
    path = Path(name) if is_file else RECIPES / f"{name}.toml"
    if path.is_file():
        return path
    if Path(f"{name}.toml").is_file():
        hint = f", did you mean {name + '.toml'!r}?"
    elif is_file:
        hint = ": the file does not exist"
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
    """Return the end of a message if the line has a value without quotes, otherwise ""."""
    match = re.search(r"at line (\d+)", error)
    line = text.split("\n")[int(match[1]) - 1] if match else ""
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
