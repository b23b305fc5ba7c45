"""The inputs of a run: names of their rows, whether they have changed, and whether new ones look like them.

A row has the name of its input in the run's own source. An input of another source is named by its absolute path, and a
row of an array by the array and its number, so that names of two sources never collide.

At the end of training the run stores how its own images look to the network: the centroid of each cluster, and the
confidence and the distance from the centroid that one in twenty of its images exceeds. Of similar new images, about one
in twenty exceeds them as well. Shapes: n images, K clusters, D features.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from twincluster.core import MANIFEST, MISMATCH, SEAL, InputError, check_seal, read_table, seal, unfinished, write_table
from twincluster.data import File, Listing, Member, digest_of, printable, stamp_of
from twincluster.runs.folder import RunData, UpdateRecord, rows_of_table

if TYPE_CHECKING:
    from torch import Tensor

    from twincluster.data import Images

STAMPS_FILE, CONTENTS_FILE = "stamps.csv", "contents.csv"


def stamps_of(listing: Listing) -> list[str]:
    """Return one word per input: size and time of change of a file, a digest of a row of an array."""
    if listing.encoded is not None:
        return listing.encoded.column("stamp")
    if listing.files is None:
        array = listing.array if listing.array is not None else np.empty((0, 0))
        return [digest_of(row) for row in array]
    return [stamp_of(file, entry) for file, entry in zip(listing.files, listing.entries, strict=True)]


def write_stamps(folder: Path, stamps: Mapping[str, str]) -> None:
    _write_words(folder / STAMPS_FILE, "stamp", stamps)


def read_stamps(folder: Path) -> dict[str, str]:
    """Return stamps by the names of their rows; none for runs that were made before there was such a file."""
    return _read_words(folder / STAMPS_FILE, "stamp")


def contents_of(images: Images, frame: str) -> dict[str, str]:
    """Return a content hash of each readable input, by the names of rows."""
    if images.listing.encoded is not None:
        known = images.listing.encoded.column("content")
        return {images.listing.paths[row]: known[row] for row in images.usable.tolist()}
    return {images.listing.paths[row]: content_of(images, row, frame) for row in images.usable.tolist()}


def content_of(images: Images, row: int, frame: str) -> str:
    """Hash the decoded pixels of an image, or the numbers of a row."""
    if images.listing.encoded is not None:
        return str(images.listing.encoded.part([row]).column("content")[0])
    if images.listing.is_rows:
        return f"rows-{digest_of(images.pixels[row])}"
    return content_of_pixels((images.pixels if images.pictures is None else images.pictures)[row], frame)


def content_of_pixels(pixels: np.ndarray, frame: str) -> str:
    """Hash pixels (s,s,3). Their side and frame come first: only hashes with the same prefix are comparable."""
    return f"{len(pixels)}-{frame}-{digest_of(pixels)}"


def write_contents(folder: Path, contents: Mapping[str, str]) -> None:
    _write_words(folder / CONTENTS_FILE, "content", contents)


def read_contents(folder: Path) -> dict[str, str]:
    """Read content hashes by the names of rows; empty for runs without the file."""
    return _read_words(folder / CONTENTS_FILE, "content")


def _write_words(path: Path, what: str, words: Mapping[str, str]) -> None:
    """Write a table with one word per row of a run."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("path", what), *words.items()])
    write_table(path, text.getvalue())


def _read_words(path: Path, what: str) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        text, matches = read_table(path)
        words = dict(rows_of_table(text, ("path", what)))
        if not matches:
            raise ValueError(f"{MISMATCH}, or was edited without deleting {MANIFEST}")
        return words
    except InputError:
        raise
    except ValueError as error:
        problem = f"{path} cannot be read as a table of path, {what} ({error})"
        raise InputError(f"{problem}: restore a copy, or delete {path.name} to continue without it") from None


def row_names(listing: Listing, location: str | None, data: RunData, known: Iterable[str]) -> list[str]:
    """What the rows of a listing are called in a run; `data` is what config.json says of the run's own source, `known`
    are the names of the rows it has."""
    own = _is_own(listing, location, data)
    if listing.files is None:
        return [path if own else f"{printable(location or listing.name)}:{path}" for path in listing.paths]
    base = printable(base_of(data)) if data.files else ""
    at = {os.path.normpath(os.path.join(base, name)): name for name in known}
    names = []
    for path, file in zip(listing.paths, listing.files, strict=True):
        whole = _whole(path, file)
        if own and whole not in at:
            names.append(path)
        elif whole not in at and base and whole.startswith(base + os.sep):  # a part of the run's source, by another way
            names.append(whole.removeprefix(base + os.sep))
        else:
            names.append(at.get(whole, whole))
    return names


def base_of(data: RunData) -> str:
    """Return the folder that the names of a run's own files start in; `data` is what config.json says of its source."""
    if data.base is not None:  # of an encoded folder: names start where its images were
        return data.base
    location = str(data.location or os.path.join(os.getcwd(), "paths"))  # paths from Python start where we are
    return location if os.path.isdir(location) else os.path.dirname(location)


def within_source(name: str, records: Iterable[UpdateRecord]) -> str:
    """Return the name of a row inside the source that brought it; `records` are the run's updates."""
    inside = name
    for record in records:
        location = printable(record.location or "")
        starts = (f"{location}:",) if not record.files else (f"{location}/", f"{os.path.dirname(location)}/")
        shorter = next(
            (name.removeprefix(start) for start in starts if len(start) > 1 and name.startswith(start)), name
        )
        inside = min(inside, shorter, key=len)
    return inside


def _is_own(listing: Listing, location: str | None, data: RunData) -> bool:
    """Return whether the run was trained on a source: it has the same place or, if that is gone, the same name."""
    then = data.location
    if not location or not then or data.files != (listing.files is not None):
        return False
    if os.path.exists(then) and os.path.exists(location):
        return os.path.samefile(then, location)
    return bool(location == then or (listing.name == data.source and not os.path.exists(then)))


def _whole(path: str, file: File) -> str:
    if not isinstance(file, Member):
        return printable(os.path.normpath(file))
    archive = printable(str(file.archive))  # whose name is followed by that of the image inside
    return os.path.normpath(f"{archive}/{path.partition(os.path.basename(archive) + '/')[2]}")


REFERENCE_FILE = "reference.safetensors"
REFERENCE_SAMPLE = 50_000  # training images that are enough for the reference
TAIL = 0.05  # share of the training images beyond each bound
FEWEST = 20  # least images for a cluster's own bounds (fewer use those of all), and for the verdict "alike"
SLACK = 1e-3  # tolerance for rounding
# Measured shares beyond a bound (docs/results.md): 7 to 9 % of the other half of the same set, 13 % with only 300
# training images; 16 % of darkened digits, 56 % of shifted ones, 66 to 74 % of other objects.
EXPECTED, CLEARLY = 0.10, 0.25
CERTAINTY = 0.01  # chance of a wrong "different" if the true share is EXPECTED

Verdict = Literal["alike", "somewhat different", "different", "too few to tell"]


@dataclass(frozen=True, eq=False)
class Reference:
    """How the training images look to the network."""

    centres: np.ndarray  # (K,D) mean of unit-norm features; zeros for an empty cluster, far from everything
    confidence: np.ndarray  # (K,) lower bound
    distance: np.ndarray  # (K,) upper bound, Euclidean, of unit-norm features
    typical: np.ndarray  # (K,) median distance

    @classmethod
    def of(cls, features: Tensor, probabilities: Tensor) -> Reference:
        """Describe training images, or a sample of them, by features (n,D) and probabilities (n,K)."""
        import torch.nn.functional as F

        rows, n_clusters = F.normalize(features.float(), dim=1).numpy(), probabilities.shape[1]
        confidence, clusters = (part.numpy() for part in probabilities.float().max(dim=1))
        sums = np.zeros((n_clusters, rows.shape[1]))
        np.add.at(sums, clusters, rows)
        sizes = np.bincount(clusters, minlength=n_clusters)
        centres = (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)
        distance = np.linalg.norm(rows - centres[clusters], axis=1)
        return cls(
            centres,
            _per_cluster(confidence, clusters, sizes, TAIL),
            _per_cluster(distance, clusters, sizes, 1 - TAIL),
            _per_cluster(distance, clusters, sizes, 0.5),
        )

    def write(self, folder: Path) -> None:
        with unfinished(folder / REFERENCE_FILE) as partial:
            partial.write_bytes(save(vars(self), SEAL))
            seal(partial)

    @classmethod
    def read(cls, folder: Path, n_clusters: int) -> Reference | None:
        """Read the reference of a run; None for runs of earlier versions."""
        path = folder / REFERENCE_FILE
        if not path.is_file():
            return None
        try:
            reference = cls(**load(path.read_bytes()))
            if {len(part) for part in vars(reference).values()} != {n_clusters} or reference.centres.ndim != 2:
                raise ValueError(f"it does not have {n_clusters} clusters")
            if odd := [name for name, part in vars(reference).items() if not np.isfinite(part).all()]:
                raise ValueError(f"{odd[0]} contains NaN or infinity")
            check_seal(path)
        except (SafetensorError, TypeError, ValueError) as error:
            raise InputError(
                f"{path} is damaged or from another run ({error}): delete it to continue without it"
            ) from None
        return reference


@dataclass(frozen=True)
class Drift:
    """How new images compare with the training images; shares are of the readable new images."""

    images: int
    low_confidence: float  # share below the bound of their cluster; TAIL for the training images
    far: float  # share beyond the distance bound of their cluster; TAIL for the training images
    distance: float  # median distance from the centroid, relative to that of the training images
    verdict: Verdict

    @classmethod
    def between(cls, reference: Reference, features: Tensor, probabilities: Tensor) -> Drift | None:
        """Compare new images, features (n,D) and probabilities (n,K); None if there are none."""
        import torch.nn.functional as F

        if not len(features):
            return None
        rows = F.normalize(features.float(), dim=1).numpy()
        confidence, clusters = (part.numpy() for part in probabilities.float().max(dim=1))
        distance = np.linalg.norm(rows - reference.centres[clusters], axis=1)
        low = ~(confidence >= reference.confidence[clusters] - SLACK)  # NaN counts as low
        far = ~(distance <= reference.distance[clusters] + SLACK)
        relative = distance / np.maximum(reference.typical[clusters], SLACK)
        verdict = _verdict(max(int(low.sum()), int(far.sum())), len(rows))
        return cls(len(rows), float(low.mean()), float(far.mean()), float(np.median(relative)), verdict)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "expected": TAIL}

    def lines(self) -> list[str]:
        """Return the figures and their meaning as text."""
        return [
            f"low confidence    {self.low_confidence:6.1%} of the new images, {TAIL:.0%} of the training images",
            f"far from centre   {self.far:6.1%} of the new images, {TAIL:.0%} of the training images",
            f"typical distance  {self.distance:6.2f} times that of the training images",
            _MEANING[self.verdict],
        ]


_MEANING: dict[Verdict, str] = {
    "alike": "the new images look like the training images",
    "somewhat different": (
        "the new images look somewhat different from the training images, or there were few of these: check the rows "
        "with the lowest confidence, and fit again with all images if their clusters are wrong"
    ),
    "different": (
        "the new images do not look like the training images, and their clusters may be wrong: fit again with all "
        "images"
    ),
    "too few to tell": "too few new images to tell whether they look like the training images",
}


def _per_cluster(values: np.ndarray, clusters: np.ndarray, sizes: np.ndarray, level: float) -> np.ndarray:
    """Return a quantile of the values (n,) of each cluster, (K,) float32."""
    result = np.full(len(sizes), np.quantile(values, level))
    for cluster in np.flatnonzero(sizes >= FEWEST):
        result[cluster] = np.quantile(values[clusters == cluster], level)
    return result.astype(np.float32)


def _verdict(beyond: int, count: int) -> Verdict:
    """Return the verdict if `beyond` of `count` images exceed a bound, allowing for chance."""
    from scipy.special import bdtrc  # the tail of a binomial; scipy.stats takes half a second to import

    if bdtrc(beyond - 1, count, CLEARLY) <= CERTAINTY:
        return "different"
    if bdtrc(beyond - 1, count, EXPECTED) <= CERTAINTY:
        return "somewhat different"
    return "alike" if count >= FEWEST else "too few to tell"
