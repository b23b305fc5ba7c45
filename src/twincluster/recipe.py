"""Recipes: packaged TOML files that fill the settings of a run, each with the command and the numbers it stands for."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twincluster.config import flatten
from twincluster.errors import InputError, closest

RECIPES = Path(__file__).parent / "recipes"


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
        lines = [f"{self.name}: {self.about}", f"  data       {self.data}", f"  command    {self.command}"]
        lines += [f"  published  {_listed(self.published)}"] if self.published else []
        lines += [f"  measured   {_listed(row)}" for row in self.measured] or ["  measured   nothing yet"]
        return "\n".join([*lines, "  settings", *(f"    {name} = {v}" for name, v in flatten(self.settings).items())])


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load_recipe(name: str | Path) -> Recipe:
    """A packaged recipe by name, or any TOML file by path."""
    path = Path(name) if str(name).endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file():
        hint = closest(str(name), recipe_names()) or "; `twincluster recipes` lists them"
        raise InputError(f"no recipe {str(name)!r}{hint}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"recipe {path} is not valid TOML: {error}") from error
    about = content.pop("recipe", {})
    if not isinstance(about, dict) or not isinstance(about.get("measured", []), list):
        raise InputError(f"recipe {path}: write [recipe] as a table and [[recipe.measured]] as a list of tables")
    return Recipe(
        name=path.stem,
        about=about.get("about", ""),
        command=about.get("command", ""),
        data=about.get("data", ""),
        published=about.get("published", {}),
        measured=tuple(about.get("measured", ())),
        settings=content,
    )


def as_toml(value: Any) -> str:
    """A setting as it is written in a recipe."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(str(value) if name in ("table", "note") else f"{name} {value}" for name, value in row.items())
