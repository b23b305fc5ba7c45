"""From a request to an edit: what a page asks for, checked, and done with the number of the edit it has seen last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from twincluster.edits import ConflictError, Edits, State
from twincluster.errors import InputError
from twincluster.explorer.library import Library

MOST_ROWS = 2_000_000


def correct(library: Library, asked: Any) -> State:
    """Does one edit. `asked` is {kind, expected, ...}, as JSON gave it; InputError says what is wrong with it."""
    if not isinstance(asked, dict) or asked.get("kind") not in tuple(KINDS):  # a list cannot be looked up in a dict
        raise InputError(f"kind is one of {', '.join(KINDS)}")
    expected = _whole(asked, "expected")
    edits = library.edits
    now = edits.state.number
    if expected != now:  # before anything is computed
        raise ConflictError(now)
    return KINDS[asked["kind"]](library, edits, asked, expected)


def _rename(library: Library, edits: Edits, asked: dict[str, Any], expected: int) -> State:
    return edits.rename(_whole(asked, "cluster"), _name(asked) or "", expected=expected)


def _merge(library: Library, edits: Edits, asked: dict[str, Any], expected: int) -> State:
    return edits.merge(_numbers(asked, "clusters").tolist(), name=_name(asked), expected=expected)


def _split(library: Library, edits: Edits, asked: dict[str, Any], expected: int) -> State:
    return edits.split(_whole(asked, "cluster"), _whole(asked, "parts"), library.features_of, expected=expected)


def _split_off(library: Library, edits: Edits, asked: dict[str, Any], expected: int) -> State:
    """Without features new images stay with the larger part; the split itself needs none."""
    cluster, rows = _whole(asked, "cluster"), _numbers(asked, "rows")
    state = edits.state
    everyone = np.flatnonzero(state.home == cluster)
    known = library.seen is not None and (library.seen.places[everyone[everyone < len(library.seen.places)]] >= 0).all()
    features = library.features_of if known else None
    return edits.split_off(cluster, rows, features, name=_name(asked), expected=expected)


def _move(library: Library, edits: Edits, asked: dict[str, Any], expected: int) -> State:
    to = _whole(asked, "to") if asked.get("to") is not None else None
    return edits.move(_numbers(asked, "rows"), to, name=_name(asked) if to is None else None, expected=expected)


def _junk(library: Library, edits: Edits, asked: dict[str, Any], expected: int) -> State:
    return edits.mark_junk(_numbers(asked, "rows"), expected=expected)


def _unjunk(library: Library, edits: Edits, asked: dict[str, Any], expected: int) -> State:
    return edits.unmark_junk(_numbers(asked, "rows"), expected=expected)


def _undo(library: Library, edits: Edits, asked: dict[str, Any], expected: int) -> State:
    return edits.undo(expected=expected)


def _redo(library: Library, edits: Edits, asked: dict[str, Any], expected: int) -> State:
    return edits.redo(expected=expected)


def _whole(asked: dict[str, Any], field: str) -> int:
    value = asked.get(field)
    if type(value) is not int or not -(2**53) <= value <= 2**53:
        raise InputError(f"{field} is a whole number")
    return value


def _numbers(asked: dict[str, Any], field: str) -> np.ndarray:
    values = asked.get(field)
    if not isinstance(values, list) or len(values) > MOST_ROWS:
        raise InputError(f"{field} is a list of whole numbers")
    if any(type(value) is not int or not -(2**53) <= value <= 2**53 for value in values):
        raise InputError(f"{field} is a list of whole numbers")
    return np.array(values, dtype=np.int64)


def _name(asked: dict[str, Any]) -> str | None:
    name = asked.get("name")
    if name is not None and not isinstance(name, str):
        raise InputError("name is a text")
    return name


KINDS: dict[str, Callable[[Library, Edits, dict[str, Any], int], State]] = {
    "rename": _rename,
    "merge": _merge,
    "split": _split,
    "split_off": _split_off,
    "move": _move,
    "junk": _junk,
    "unjunk": _unjunk,
    "undo": _undo,
    "redo": _redo,
}
