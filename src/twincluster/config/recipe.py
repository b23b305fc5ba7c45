"""Recipes: packaged TOML files that fill the settings of a run, each with the command and the numbers it stands for."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twincluster.config.schema import Config, flatten
from twincluster.core import InputError, closest

RECIPES = Path(__file__).parent / "recipes"
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
        method = self.settings.get("method", Config.method)
        return "\n".join([*lines, f"\ntwincluster methods {method} shows what they mean"])


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
    """A line for who names a method and no recipe: whose settings it gets, and where those made for it are.

    None for the default method, and where there are no others. The recipe for the very source is preferred.
    """
    recipes = [load_recipe(name) for name in recipe_names()] if method != Config.method else []
    own = [recipe for recipe in recipes if recipe.settings.get("method") == method]
    if not own and method.startswith("tcc-"):  # an ablation, of the same paper
        own = [recipe for recipe in recipes if recipe.settings.get("method") == "tcc"]
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
