"""From a request to an edit: what a page asks for, checked, and done with the number of the edit it has seen last."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from twincluster.core import InputError
from twincluster.pages.explorer.library import Library
from twincluster.runs import ConflictError, Edits, State

MOST_ROWS = 2_000_000
KINDS = ("rename", "merge", "split", "split_off", "move", "junk", "unjunk", "undo", "redo")


def correct(library: Library, asked: Any) -> State:
    """Does one edit. `asked` is {kind, expected, ...}, as JSON gave it; InputError says what is wrong with it."""
    if not isinstance(asked, dict) or asked.get("kind") not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}")
    expected, edits = _whole(asked, "expected"), library.edits
    now = edits.state.number
    if expected != now:  # before anything is computed
        raise ConflictError(now)
    match asked["kind"]:
        case "rename":
            return edits.rename(_whole(asked, "cluster"), _name(asked) or "", expected=expected)
        case "merge":
            return edits.merge(_numbers(asked, "clusters").tolist(), name=_name(asked), expected=expected)
        case "split":
            cluster, parts = _whole(asked, "cluster"), _whole(asked, "parts")
            return edits.split(cluster, parts, library.features_of, expected=expected)
        case "split_off":
            cluster, rows = _whole(asked, "cluster"), _numbers(asked, "rows")
            features = library.features_of if _have_features(library, edits, cluster) else None
            return edits.split_off(cluster, rows, features, name=_name(asked), expected=expected)
        case "move" if asked.get("to") is None:
            return edits.move(_numbers(asked, "rows"), name=_name(asked), expected=expected)
        case "move":
            return edits.move(_numbers(asked, "rows"), _whole(asked, "to"), expected=expected)
        case "junk":
            return edits.mark_junk(_numbers(asked, "rows"), expected=expected)
        case "unjunk":
            return edits.unmark_junk(_numbers(asked, "rows"), expected=expected)
        case "undo":
            return edits.undo(expected=expected)
        case _:
            return edits.redo(expected=expected)


def _have_features(library: Library, edits: Edits, cluster: int) -> bool:
    """Whether all images of a cluster can be compared. A selection can be split off without that, but new images then
    go to the part that keeps the name."""
    if library.seen is None:
        return False
    everyone, places = np.flatnonzero(edits.state.home == cluster), library.seen.places
    return bool((places[everyone[everyone < len(places)]] >= 0).all())


def _whole(asked: dict[str, Any], field: str) -> int:
    value = asked.get(field)
    if not _is_whole(value):
        raise InputError(f"{field} must be a whole number")
    return value


def _numbers(asked: dict[str, Any], field: str) -> np.ndarray:
    values = asked.get(field)
    if not isinstance(values, list) or len(values) > MOST_ROWS or not all(map(_is_whole, values)):
        raise InputError(f"{field} must be a list of whole numbers")
    return np.array(values, dtype=np.int64)


def _is_whole(value: Any) -> TypeGuard[int]:
    return type(value) is int and -(2**53) <= value <= 2**53  # beyond, JavaScript has no whole numbers


def _name(asked: dict[str, Any]) -> str | None:
    name = asked.get("name")
    if name is not None and not isinstance(name, str):
        raise InputError("name must be text")
    return name
