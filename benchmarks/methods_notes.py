"""The notes of a method's seeds as one: seeds that say the same, but for its numbers, say it once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NUMBER = re.compile(r"(?<![\w./-])\d+(?:,\d{3})*(?:\.\d+)?%?(?![\w/]|[.-]\w)")  # not those in names of files


def joined(told: Mapping[int, tuple[str, str]]) -> str:
    """By seed what is told, "" for nothing, and the log to see, "" for none; of several logs the first is named.

    >>> joined({0: ("4 of 10 are empty", ""), 1: ("1 of 10 is empty", "")})
    'both seeds: 1 to 4 of 10 are empty'
    """
    kinds: dict[str, list[int]] = {}
    for seed, (text, _) in sorted(told.items()):
        if text:
            kinds.setdefault(_kind(text), []).append(seed)
    notes = []
    for seeds in kinds.values():
        texts, log = [told[seed][0] for seed in seeds], told[seeds[0]][1]
        alike = len(seeds) == len(told) and len(set(texts)) == 1
        who = "" if alike else f"{_named(seeds, len(told))}: "
        notes.append(f"{who}{_merged(texts)}{f' (see {log})' if log else ''}")
    return "; ".join(notes)


def _kind(text: str) -> str:
    return re.sub(r"\bis empty", "are empty", NUMBER.sub("\0", text))


def _named(seeds: Sequence[int], count: int) -> str:
    """Of `count` seeds in all."""
    if len(seeds) == count > 1:
        return "both seeds" if count == 2 else f"all {count} seeds"
    *others, last = map(str, seeds)
    return f"seeds {', '.join(others)} and {last}" if others else f"seed {last}"


def _merged(texts: Sequence[str]) -> str:
    """One of texts that differ in their numbers alone, with the lowest and the highest of each."""
    spans = iter([sorted(set(found), key=_value) for found in zip(*map(NUMBER.findall, texts), strict=True)])

    def span(_: re.Match[str]) -> str:
        found = next(spans)
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    return NUMBER.sub(span, max(texts, key=lambda text: [_value(number) for number in NUMBER.findall(text)]))


def _value(number: str) -> float:
    return float(number.replace(",", "").rstrip("%"))
