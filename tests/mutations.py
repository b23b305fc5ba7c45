"""Damage for files of a run: changed bits, cuts, zeroed pages, other types, deep nesting, doubled lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Damage = Callable[[np.random.Generator, bytes], bytes]
PAGE = 256  # small, as the files of the tests are
OTHERS: tuple[Any, ...] = (
    None, True, -1, 0, 7, 10**400, 1e308, float("nan"), "", "x", [], [None], [[1]], {}, {"x": 1}, "\ud800", "9" * 99,
)  # fmt: skip


def flip_bit(random: np.random.Generator, content: bytes) -> bytes:
    changed = bytearray(content)
    if changed:
        changed[random.integers(len(changed))] ^= 1 << int(random.integers(8))
    return bytes(changed)


def change_bytes(random: np.random.Generator, content: bytes) -> bytes:
    start, noise = int(random.integers(len(content) + 1)), random.bytes(int(random.integers(1, 9)))
    return content[:start] + noise + content[start + len(noise) :]


def cut(random: np.random.Generator, content: bytes) -> bytes:
    return content[: random.integers(len(content) + 1)]


def zero_page(random: np.random.Generator, content: bytes) -> bytes:
    start = int(random.integers(len(content) // PAGE + 1)) * PAGE
    return content[:start] + b"\0" * len(content[start : start + PAGE]) + content[start + PAGE :]


def double_line(random: np.random.Generator, content: bytes) -> bytes:
    """One line over another."""
    lines = content.splitlines(keepends=True)
    if len(lines) > 1:
        lines[random.integers(len(lines))] = lines[random.integers(len(lines))]
    return b"".join(lines)


def other_type(random: np.random.Generator, content: bytes) -> bytes:
    """Another value for an entry of a JSON document, or of one of its lines; else bits change."""
    return _in_json(random, content, lambda: OTHERS[random.integers(len(OTHERS))])


def without_entry(random: np.random.Generator, content: bytes) -> bytes:
    return _in_json(random, content, None)


def deep(random: np.random.Generator, content: bytes) -> bytes:
    depth = int(10 ** random.uniform(1, 5.3))
    nested = (b"[" * depth + b"]" * depth) if random.random() < 0.5 else (b'{"a":' * depth + b"1" + b"}" * depth)
    lines = content.splitlines(keepends=True)
    if random.random() < 0.5 or not lines:
        return nested
    place = int(random.integers(len(lines)))
    return b"".join([*lines[:place], nested + b"\n", *lines[place + 1 :]])


DAMAGES: tuple[Damage, ...] = (
    flip_bit, change_bytes, cut, zero_page, double_line, other_type, other_type, without_entry, deep,
)  # fmt: skip


def damaged(seed: int, files: dict[Path, bytes]) -> tuple[Path, bytes, str]:
    """Return a file to replace, what to replace it by, and the kind of damage."""
    random = np.random.default_rng(seed)
    path = list(files)[random.integers(len(files))]
    damage = DAMAGES[random.integers(len(DAMAGES))]
    return path, damage(random, files[path]), damage.__name__


def _in_json(random: np.random.Generator, content: bytes, other: Callable[[], Any] | None) -> bytes:
    documents, ending = _documents(content)
    if not documents:
        return flip_bit(random, content)
    place = int(random.integers(len(documents)))
    places = list(_places(documents[place]))
    if not places:
        documents[place] = other and other()
    else:
        holder, name = places[random.integers(len(places))]
        if other is None:
            del holder[name]
        else:
            holder[name] = other()
    return b"".join(json.dumps(document).encode() + ending for document in documents)


def _documents(content: bytes) -> tuple[list[Any], bytes]:
    try:
        return [json.loads(content)], b""
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in content.splitlines()], b"\n"
    except ValueError:
        return [], b""


def _places(value: Any) -> Any:
    """Every place inside a JSON value, as its holder and its name or number there."""
    for name in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, name
        yield from _places(value[name])
