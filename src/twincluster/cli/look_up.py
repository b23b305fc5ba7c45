"""Commands that show what there is to choose from: recipes, and methods with every setting they take.

The meaning of a setting is the comment behind the field of its frozen dataclass, read from the source.
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

from twincluster.config import Config, as_toml, configure, load_recipe, recipe_names, recipe_text
from twincluster.core import InputError
from twincluster.methods import find_method, import_method, summaries

if TYPE_CHECKING:
    from twincluster.methods import Method


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
        print(explain(name))
        return
    for known, summary in summaries().items():
        print(f"{known:32} {summary}")
    print("\ntwincluster methods NAME shows one with its settings")


COMMON = ("train", "optimiser", "augment")
INTRODUCTION = """\
Settings as they are written after --set, with their defaults. A recipe may have others: `twincluster recipes default`
shows those of the recipe that `fit` takes where none is named and none is for this kind of data."""


def explain(name: str) -> str:
    """A method by its name, or "package.module:Class", which is imported."""
    method = import_method(name) if ":" in name else find_method(name)
    config = Config()
    own = [_group(group, kind()) for group, kind in method.setting_groups().items()] or [
        "This method has no settings of its own."
    ]
    common = [_group(group, getattr(config, group)) for group in COMMON]
    return "\n\n".join([*_about(name, method), INTRODUCTION, *own, _group("", config), *common])


def meanings(kind: type) -> dict[str, str]:
    """The comment behind each field of a dataclass or of its bases; none where the source is not to be had."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= _comments(base) if is_dataclass(base) else {}
    return found


def _about(name: str, method: type[Method]) -> list[str]:
    """Its docstring and, where that says more, its file's, which names the paper and the letters of sizes."""
    said = inspect.cleandoc(method.__doc__ or "")
    file = inspect.cleandoc(sys.modules[method.__module__].__doc__ or "")
    return [f"{name}: {said}", *([file] if len(file) > len(said) else [])]


def _group(name: str, settings: Any) -> str:
    """The settings of one group, a line each."""
    kind, known = type(settings), meanings(type(settings))
    prefix = f"{name}." if name else ""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    if not name:  # the groups of Config have places of their own
        values = {field: value for field, value in values.items() if isinstance(value, int | tuple)}
    choices = _choices(kind)
    rows = [
        (f"{prefix}{field} = {as_toml(value)}", f"{known.get(field, '')}{choices.get(field, '')}".strip())
        for field, value in values.items()
    ]
    width = max((len(row) for row, _ in rows), default=0)
    said = inspect.cleandoc(kind.__doc__ or "")
    said = "" if said.startswith(f"{kind.__name__}(") else f" {said}"  # what dataclass writes where nobody has
    title = f"[{name}]{said}" if name else "Common to all methods, outside of any group:"
    return "\n".join([title.rstrip(), *(f"  {row:{width}}   {meaning}".rstrip() for row, meaning in rows)])


def _choices(kind: type) -> dict[str, str]:
    """What may be written, of the fields that take one of a few words."""
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
