"""The problems of a run: what its images show of copies, flaws and odd ones, written to problems.csv.

What images look like is cached by the state of their files, so an update only looks at new images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from twincluster.core import SEAL, check_seal, seal, unfinished
from twincluster.data import File, Looks, Originals, cache_folder
from twincluster.run_images.images import RunImages
from twincluster.runs import Inspected, Problem, find_problems, read_problems, write_problems

MOST_COMPARED = 200_000  # rows; of more, only exact copies are found
LOOKS_VERSION = 1  # of the figures of an image


def write_problems_of(images: RunImages, changed: Container[str] | None = None) -> tuple[Problem, ...]:
    """Write problems.csv, and return its rows. With `changed`, only those of these paths are looked for again.

    The others keep theirs, unless there is no table yet.
    """
    inspected = _inspected(images)
    earlier = None if changed is None else read_problems(images.run.folder, images.assignments.paths)
    fresh = None
    if changed is not None and earlier is not None:
        fresh = np.array([path in changed for path in inspected.paths], bool)
    problems = find_problems(inspected, earlier or (), fresh)
    write_problems(images.run.folder, problems)
    return tuple(problems)


def problems_of(images: RunImages, *, write: bool = True) -> tuple[Problem, ...]:
    """Return the rows of problems.csv. `write` gives a run without the table one, if it can be written."""
    read = read_problems(images.run.folder, images.assignments.paths)
    return read or (write_problems_of(images) if read is None and write and images.parts else ())


def _inspected(images: RunImages) -> Inspected:
    """Return what can be read again of the rows; a path that a list names twice counts once.

    Pictures of an encoded folder are not decoded again: it has content hashes, which find exact copies.
    """
    contents, paths, named = images.contents(), images.assignments.paths, set[str]()
    rows: list[int] = []
    shown: list[tuple[np.ndarray, list[int], list[File]]] = []
    keys: list[str] = []
    features = []
    compare = sum(len(part.rows) for part in images.parts) <= MOST_COMPARED
    for part in images.parts:
        new = [at for at, row in enumerate(part.rows.tolist()) if paths[row] not in named]
        named.update(paths[row] for row in part.rows[new].tolist())
        rows += part.rows[new].tolist()
        places, listing = part.places[new].tolist(), part.images.listing
        if part.pictures is not None and not isinstance(part.pictures, Originals) and compare:
            files = [listing.files[place] for place in places] if listing.files else []
            stamps = [listing.entries[place] for place in places] if files else places
            keys += [_key_of(stamp, contents.get(row)) for stamp, row in zip(stamps, part.rows[new], strict=True)]
            shown.append((part.pictures, places, files))
        if part.images.is_rows and compare:
            features.append(np.asarray(part.images.pixels[places]))
    is_complete = len(features) == len(images.parts) and len({each.shape[1] for each in features}) == 1
    return Inspected(
        [paths[row] for row in rows], [contents.get(row, str(row)) for row in rows],
        _looks(_place(images), shown, keys) if shown and len(shown) == len(images.parts) else None,
        np.concatenate(features) if is_complete else None,
    )  # fmt: skip


def _looks(path: Path, shown: Sequence[tuple[np.ndarray, list[int], list[File]]], keys: Sequence[str]) -> Looks:
    """Look at the pictures (pixels, places, files) of all parts, but for those in the cache."""
    cached, numbers = _read_looks(path)
    looks, at, seen, before = [] if cached is None else [cached], 0, len(numbers), len(numbers)
    for pixels, places, files in shown:
        new = [number for number in range(len(places)) if keys[at + number] not in numbers]
        numbers |= {keys[at + number]: seen + more for more, number in enumerate(new)}
        looks.append(Looks.of(pixels, [places[number] for number in new], [files[n] for n in new if files]))
        at, seen = at + len(places), seen + len(new)
    together = Looks.joined(looks).part(np.array([numbers[key] for key in keys], np.int64))
    if len(numbers) > before:
        with suppress(OSError):  # without the cache the next start takes a little longer
            _write_looks(path, together, keys)
    return together


def _place(images: RunImages) -> Path:
    return cache_folder() / "looks" / f"{hashlib.sha256(images.data.fingerprint.encode()).hexdigest()[:32]}.safetensors"


def _key_of(stamp: object, content: str | None) -> str:
    """Return 32 letters for the state of a file and its content."""
    return hashlib.sha256(repr((LOOKS_VERSION, stamp, content)).encode(errors="surrogatepass")).hexdigest()[:32]


def _read_looks(path: Path) -> tuple[Looks | None, dict[str, int]]:
    """Read cached looks and their numbers by key; none if the file is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        check_seal(path)
        arrays = load_file(path)
        keys = arrays.pop("keys")
        return Looks(**arrays), {key.tobytes().decode(): number for number, key in enumerate(keys)}
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None, {}


def _write_looks(path: Path, looks: Looks, keys: Sequence[str]) -> None:
    from safetensors.numpy import save

    path.parent.mkdir(parents=True, exist_ok=True)
    table = np.frombuffer("".join(keys).encode(), np.uint8).reshape(len(keys), -1)
    with unfinished(path) as partial:
        partial.write_bytes(
            save({**{name: np.ascontiguousarray(a) for name, a in vars(looks).items()}, "keys": table}, SEAL)
        )
        seal(partial)
