"""List and explain recipes, and methods with all their settings.

A setting is explained by the comment behind its field in the dataclass, read from the source.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import textwrap
import tokenize
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from cyclopts import Parameter

from twincluster.cli.terminal import Json
from twincluster.config import Config, as_toml, configure, load_recipe, recipe_names, recipe_text
from twincluster.core import InputError, strict_json
from twincluster.methods import find_method, import_method, summaries

if TYPE_CHECKING:
    from twincluster.methods import Method


def recipes(
    name: str | None = None, /, *, toml: Annotated[bool, Parameter(negative=())] = False, json: Json = False
) -> None:
    """List the recipes, or show one with its command and numbers.

    Example: twincluster recipes paper-cifar10

    Parameters
    ----------
    name
        A recipe to show in full, or a TOML file.
    toml
        Print the recipe file. To start your own: `twincluster recipes default --toml > mine.toml`.
    json
        Print JSON instead of text: a list of names, or the settings of one.
    """
    if name is not None:
        config = configure(name, {}, {})
        if name not in recipe_names():
            from twincluster.resolve import check_method

            check_method(config)  # raises the errors of `fit`
        if json:
            print(strict_json({"name": name, "settings": config.to_dict()}, indent=2))
        else:
            print(recipe_text(name) if toml else f"{load_recipe(name).describe()}\n", end="")
        return
    if toml:
        raise InputError("--toml prints one recipe file: name it, for example twincluster recipes default --toml")
    if json:
        print(strict_json([{"name": known, "about": load_recipe(known).about} for known in recipe_names()], indent=2))
        return
    for known in recipe_names():
        print(f"{known:22} {load_recipe(known).about}")
    print("\ntwincluster recipes NAME shows one in full")


def methods(name: str | None = None, /, *, json: Json = False) -> None:
    """List the clustering methods, or show one with its settings; a recipe or --method NAME selects one.

    Example: twincluster methods moco

    Parameters
    ----------
    name
        A method to show with its settings, or your own as package.module:Class.
    json
        Print the list as JSON.
    """
    if json:
        if name is not None:
            raise InputError("--json prints the list of methods: leave out the name")
        print(strict_json([{"name": known, "about": summary} for known, summary in summaries().items()], indent=2))
        return
    if name is not None:
        print(explain(name))
        return
    for known, summary in summaries().items():
        print(f"{known:32} {summary}")
    print("\ntwincluster methods NAME shows one with its settings")


COMMON = ("train", "optimiser", "augment")
INTRODUCTION = """\
Settings for --set, with their defaults. Recipes change some of them: `twincluster recipes` lists the recipes, and
`twincluster recipes default` shows the one that `fit` uses by default."""


def explain(name: str) -> str:
    """Return a page about a method, by its name or by "package.module:Class", which is imported."""
    method = import_method(name) if ":" in name else find_method(name)
    config = Config()
    own = [_group(group, kind()) for group, kind in method.setting_groups().items()] or [
        "This method has no settings of its own."
    ]
    common = [_group(group, getattr(config, group)) for group in COMMON]
    return "\n\n".join([*_about(name, method), INTRODUCTION, *own, _group("", config), *common])


def meanings(kind: type) -> dict[str, str]:
    """Return the comment behind each field of a dataclass and its bases; empty if the source is unavailable."""
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        comments |= _comments(base) if is_dataclass(base) else {}
    return comments


def _about(name: str, method: type[Method]) -> list[str]:
    """Return the method's docstring and, if it is longer, that of its module, which names the paper and explains
    symbols.
    """
    about = inspect.cleandoc(method.__doc__ or "")
    file = inspect.cleandoc(sys.modules[method.__module__].__doc__ or "")
    return [f"{name}: {about}", *([file] if len(file) > len(about) else [])]


def _group(name: str, settings: Any) -> str:
    """Return the settings of one group, one per line."""
    kind, known = type(settings), meanings(type(settings))
    prefix = f"{name}." if name else ""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if not name:  # the groups of Config are listed separately
        values = {field: value for field, value in values.items() if isinstance(value, int | tuple)}
    choices = _choices(kind)
    rows = [
        (f"{prefix}{field} = {as_toml(value)}", f"{known.get(field, '')}{choices.get(field, '')}".strip())
        for field, value in values.items()
    ]
    width = max((len(row) for row, _ in rows), default=0)
    said = inspect.cleandoc(kind.__doc__ or "")
    said = "" if said.startswith(f"{kind.__name__}(") else f" {said}"  # the automatic docstring of a dataclass
    title = f"[{name}]{said}" if name else "Common to all methods, in no group:"
    return "\n".join([title.rstrip(), *(f"  {row:{width}}   {meaning}".rstrip() for row, meaning in rows)])


def _choices(kind: type) -> dict[str, str]:
    """Return the allowed words of fields that accept only some."""
    literal = {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is Literal}
    return {name: f" (one of {', '.join(map(str, get_args(hint)))})" for name, hint in literal.items()}


def _comments(kind: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
        (tree,) = ast.parse(source).body
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (OSError, TypeError, ValueError, SyntaxError, tokenize.TokenError):
        return {}
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    declared = [line for line in getattr(tree, "body", []) if isinstance(line, ast.AnnAssign)]
    return {ast.unparse(line.target): comments[line.end_lineno] for line in declared if line.end_lineno in comments}
