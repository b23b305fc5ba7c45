"""Turn a page's request into an edit: check it, and apply it to the state that the page has seen."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from twincluster.core import InputError
from twincluster.pages.explorer.library import Library
from twincluster.runs import ConflictError, Edits, State

MOST_ROWS = 2_000_000
KINDS = (
    "rename", "merge", "split", "split_off", "cut", "move", "confirm", "answer", "accept", "refuse", "junk", "unjunk",
    "undo", "redo",
)  # fmt: skip


def correct(library: Library, asked: Any) -> State:
    """Make one edit from parsed JSON {kind, expected, ...}. Raise InputError if it is invalid."""
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
        case "cut":
            return edits.cut(library.branches.tree(), groups=_branches(asked), expected=expected)
        case "move" if asked.get("to") is None:
            return edits.move(_numbers(asked, "rows"), name=_name(asked), expected=expected)
        case "move":
            return edits.move(_numbers(asked, "rows"), _whole(asked, "to"), expected=expected)
        case "confirm":
            return edits.confirm(_numbers(asked, "rows"), expected=expected)
        case "answer":
            to = None if asked.get("to") is None else _whole(asked, "to")
            rows, sample = _numbers(asked, "rows"), asked.get("sample") is True
            return edits.answer(rows, to, name=_name(asked), sample=sample, expected=expected)
        case "accept":
            rows, targets = library.lessons.chosen(_groups(asked), expected)
            return edits.accept(rows, targets, head=library.lessons.head(expected), expected=expected)
        case "refuse" if asked.get("groups") is not None:
            rows, targets = library.lessons.chosen(_groups(asked), expected)
            if len(np.unique(targets)) > 1:
                raise InputError("refuse one group at a time")
            return edits.refuse(rows, int(targets[0]), expected=expected)
        case "refuse":
            return edits.refuse(_numbers(asked, "rows"), _numbers(asked, "to").tolist(), expected=expected)
        case "junk":
            return edits.mark_junk(_numbers(asked, "rows"), expected=expected)
        case "unjunk":
            return edits.unmark_junk(_numbers(asked, "rows"), expected=expected)
        case "undo":
            return edits.undo(expected=expected)
        case _:
            return edits.redo(expected=expected)


def grow_from(library: Library, asked: Any) -> dict[str, Any]:
    """Return the next images similar to some and unlike others, from parsed JSON {like, unlike}."""
    if not isinstance(asked, dict):
        raise InputError("like and unlike are expected")
    like, unlike = _numbers(asked, "like"), _numbers(asked, "unlike")
    both = np.concatenate([like, unlike])
    if not len(like) or both.min() < 0 or not library.has(int(both.max())):
        raise InputError("like and unlike name images of the run, like at least one")
    return library.lessons.grow(like, unlike)


def _have_features(library: Library, edits: Edits, cluster: int) -> bool:
    """Return True if all images of a cluster have features.

    Without them a selection can still be split off, but new images then go to the part that keeps the name.
    """
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


def _groups(asked: dict[str, Any]) -> set[tuple[int, int]] | None:
    """Return the proposed groups that are meant, as pairs (from, to); None stands for all of them."""
    groups = asked.get("groups")
    if groups is None:
        return None
    pairs = [tuple(pair) for pair in groups if isinstance(pair, list)] if isinstance(groups, list) else []
    if (
        not pairs
        or len(pairs) != len(groups)
        or not all(len(pair) == 2 and all(map(_is_whole, pair)) for pair in pairs)
    ):
        raise InputError("groups must be a list of pairs of clusters, from which and to which")
    return {(source, to) for source, to in groups}


def _branches(asked: dict[str, Any]) -> list[list[int]]:
    groups = asked.get("groups")
    if not isinstance(groups, list) or not all(isinstance(one, list) and all(map(_is_whole, one)) for one in groups):
        raise InputError("groups must be lists of fine clusters")
    return groups


def _is_whole(value: Any) -> TypeGuard[int]:
    return type(value) is int and -(2**53) <= value <= 2**53  # beyond, JavaScript has no whole numbers


def _name(asked: dict[str, Any]) -> str | None:
    name = asked.get("name")
    if name is not None and not isinstance(name, str):
        raise InputError("name must be text")
    return name
