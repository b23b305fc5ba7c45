"""What a run saw of its files, from the store that they were decoded into, where the files themselves are gone.

A store is taken only if it has the fingerprint of the run: its pixels are then those of the training, wherever the
files are now.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twincluster.config import Config
from twincluster.errors import InputError
from twincluster.features import encode
from twincluster.images.build import Row, Store, read_journal
from twincluster.images.sources import Listing
from twincluster.images.store import Images, fingerprint_of, place_of
from twincluster.opening import encoder_of


class Stored(NamedTuple):
    images: Images  # what the network saw
    pixels: np.ndarray  # (n,s,s,3) to look at
    stamps: tuple[str, ...]  # of the files when they were decoded, as known.py writes them


def open_stored(config: Config, data: Mapping[str, Any], device: str) -> Stored | None:
    """None where there is no such store. `data` is what config.json says of the source."""
    if not data["files"] or not data["location"]:
        return None
    with suppress(InputError, OSError, ValueError):
        encoder = encoder_of("the run", config, data)
        side = encoder.side if encoder else int(data.get("side") or 0)
        source = Listing(data["source"], (), files=(), root=Path(data["location"]))
        for journal in sorted(place_of(source, side, config.train.frame, None).glob("*.jsonl")):
            rows = read_journal(journal)
            kept = [rows[row] for row in range(len(rows)) if row in rows]
            store = Store(journal.parent, [row.entry for row in kept], side, config.train.frame)
            if store.journal == journal and _is_the_runs(store, kept, data):
                pixels = np.load(store.pixels, mmap_mode="r", allow_pickle=False)
                images = _images(data["source"], kept, pixels, data["fingerprint"])
                stamps = tuple(f"{row.entry[1]}-{row.entry[2]}" for row in kept)
                return Stored(encode(images, encoder, device) if encoder else images, pixels, stamps)
    return None


def _is_the_runs(store: Store, kept: list[Row], data: Mapping[str, Any]) -> bool:
    rows = dict(enumerate(kept))
    if len(kept) != data["inputs"] or len(store.rows()) != len(kept):
        return False
    return bool(fingerprint_of(store.side, store.frame, rows) == data["fingerprint"])


def _images(name: str, kept: list[Row], pixels: np.ndarray, fingerprint: str) -> Images:
    listing = Listing(name, tuple(row.entry[0] for row in kept), files=())
    status = tuple(row.status for row in kept)
    usable = np.flatnonzero([said == "ok" for said in status]).astype(np.int64)
    return Images(listing, pixels, status, usable, fingerprint)
