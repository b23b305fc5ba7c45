"""What the words of a user mean as settings. Nothing here imports torch, so that a mistake is told at once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from twincluster.config.recipe import load_recipe
from twincluster.config.schema import Config, make_config
from twincluster.core import InputError

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
    return _OPTION.sub(_as_argument, advice).replace("} settings={", ", ")


_OPTION = re.compile(r"--(set|method|clusters|backbone|device|precision|epochs|minutes|recipe) ([\w.:=@-]*\w)")
_SETTINGS = {"method": "method", "precision": "train.precision"}  # options that are no arguments of the estimator


def _as_argument(found: re.Match[str]) -> str:
    name, value = found.groups()
    field, _, given = value.partition("=") if name == "set" else (_SETTINGS.get(name), "", value)
    written = given if re.fullmatch(r"-?[\d.]+", given) else json.dumps(given)
    if field:
        return f'settings={{"{field}": {written}}}'
    return f"{'n_clusters' if name == 'clusters' else name}={written}"


def _given(options: Mapping[str, object]) -> dict[str, object]:
    return {k: _given(v) if isinstance(v, Mapping) else v for k, v in options.items() if v is not None}
