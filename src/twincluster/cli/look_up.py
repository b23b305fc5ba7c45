"""Commands that show what there is to choose from: recipes and methods."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from twincluster.config import configure, load_recipe, recipe_names, recipe_text
from twincluster.core import InputError
from twincluster.methods import summaries


def recipes(name: str | None = None, /, *, toml: Annotated[bool, Parameter(negative=())] = False) -> None:
    """List the recipes, or show one with its command and numbers.

    Example: twincluster recipes paper-cifar10

    Parameters
    ----------
    name
        A recipe to show in full, or a TOML file.
    toml
        Print its file as it is: `twincluster recipes default --toml > mine.toml` is a start for one of your own.
    """
    if name is not None:
        config = configure(name, {}, {})
        if name not in recipe_names():
            from twincluster.resolve import check_method

            check_method(config)  # refuses what `fit` would
        print(recipe_text(name) if toml else f"{load_recipe(name).describe()}\n", end="")
        return
    if toml:
        raise InputError("--toml prints the file of one recipe: say which, as in twincluster recipes default --toml")
    for known in recipe_names():
        print(f"{known:22} {load_recipe(known).about}")
    print("\ntwincluster recipes NAME shows one in full")


def methods(name: str | None = None, /) -> None:
    """List the clustering methods, or show one with its settings; a recipe or --method NAME selects one.

    Example: twincluster methods moco

    Parameters
    ----------
    name
        A method to show with its settings, or package.module:Class, one of your own.
    """
    if name is not None:
        from twincluster.cli.explained import explain

        print(explain(name))
        return
    for known, summary in summaries().items():
        print(f"{known:32} {summary}")
    print("\ntwincluster methods NAME shows one with its settings")
