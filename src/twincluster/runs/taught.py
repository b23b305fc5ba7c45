"""taught.safetensors: the model taught by a person's answers, as of the newest accepted proposals.

The file is derived from edits.jsonl and the features of the run and can be recomputed. It is valid only while its key
matches the edits in force. Shapes: m images, D dimensions, C clusters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from twincluster.core import SEAL, check_seal, seal, unfinished
from twincluster.runs.edit_kinds import Line
from twincluster.runs.edit_state import UNREADABLE

if TYPE_CHECKING:
    from twincluster.clustering import Head

TAUGHT_FILE = "taught.safetensors"
FINITE = ("weight", "bias")  # tensors that must not contain NaN


@dataclass(frozen=True, eq=False)
class Taught:
    """The head, and its decisions about images added to the run later."""

    key: str
    head: Head
    later: Mapping[str, int] = field(default_factory=dict)  # digest of a path to its cluster

    def clusters_of(self, paths: Sequence[str]) -> np.ndarray:
        """Return the clusters of added images, (m,); UNREADABLE where none is recorded."""
        return np.array([self.later.get(digest_of_path(path), UNREADABLE) for path in paths], dtype=np.int64)

    def with_later(self, paths: Sequence[str], clusters: np.ndarray) -> Taught:
        new = dict(zip(map(digest_of_path, paths), clusters.tolist(), strict=True))
        return Taught(self.key, self.head, {**self.later, **new})

    def write(self, folder: Path) -> None:
        from safetensors.numpy import save

        digests = np.array([int(digest, 16) for digest in self.later], dtype=np.uint64)
        arrays = self.head.tensors() | {
            "later.paths": digests.view(np.int64),
            "later.clusters": np.array(list(self.later.values()), dtype=np.int64),
        }
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        with unfinished(folder / TAUGHT_FILE) as partial:
            partial.write_bytes(save(arrays, {**SEAL, "key": self.key}))
            seal(partial)

    @classmethod
    def read(cls, folder: Path, key: str) -> Taught | None:
        """Read the file; None if it is missing, damaged or of other edits."""
        from safetensors import SafetensorError, safe_open

        from twincluster.clustering import Head

        path = folder / TAUGHT_FILE
        if not path.is_file():
            return None
        with suppress(OSError, ValueError, KeyError, TypeError, IndexError, SafetensorError):
            check_seal(path)
            with safe_open(path, framework="numpy") as file:
                if (file.metadata() or {}).get("key") != key:
                    return None
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
            if not all(np.isfinite(arrays[name]).all() for name in FINITE):
                return None
            digests = (f"{digest:016x}" for digest in arrays.pop("later.paths").view(np.uint64).tolist())
            later = dict(zip(digests, arrays.pop("later.clusters").tolist(), strict=True))
            return cls(key, Head.from_tensors(arrays), later)
        return None


def key_of(lines: Sequence[Line]) -> str:
    """Return a digest of the edits that a head was taught by: the first line of the log and those in force."""
    return hashlib.sha256("\n".join(map(json.dumps, lines)).encode()).hexdigest()[:32]


def digest_of_path(path: str) -> str:
    return hashlib.blake2b(path.encode(errors="surrogatepass"), digest_size=8).hexdigest()
