"""Images that somebody drops on the page: decoded in memory, put into a cluster, compared with the run's own."""

from __future__ import annotations

import base64
import dataclasses
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from twincluster import inference
from twincluster.derive import resolve_device
from twincluster.edits.lines import unit
from twincluster.encoders import Encoder, load_encoder
from twincluster.errors import InputError
from twincluster.explorer.images import THUMBNAIL, as_jpeg
from twincluster.explorer.library import Library
from twincluster.features import encode
from twincluster.images.decode import decode
from twincluster.images.inputs import Content
from twincluster.images.listing import from_array
from twincluster.images.store import Images
from twincluster.methods.base import Network
from twincluster.opening import later_side

NEIGHBOURS = 12
MOST_BYTES = 40_000_000  # of one file


class Visitors:
    """One image at a time: the network has no use for several callers."""

    def __init__(self, library: Library) -> None:
        self.library, self._one_at_a_time = library, Lock()

    def look_at(self, content: bytes) -> dict[str, Any]:
        """Its cluster as the edits have it, the model's confidence, its nearest rows; nothing is kept."""
        library = self.library
        if library.is_rows:
            raise InputError("this run is about rows of numbers: an image has no place in it")
        with self._one_at_a_time:
            side = self._encoder.side if self._encoder else later_side(library.config, library.data)
            pixels, said = decode(Content(content), side or library.shape.side, library.config.train.frame)
            if pixels is None:
                raise InputError(said)
            seen = self._as_the_network_sees(pixels)
            everyone = np.zeros(1, np.int64)
            feature = unit(inference.embed(self._network, seen, everyone).numpy())
            probability = inference.predict(self._network, seen, everyone)[0].numpy()
        cluster = int(library.edits.state.route(np.array([int(probability.argmax())]), feature)[0])
        larger, _ = decode(Content(content), THUMBNAIL, library.config.train.frame)
        small, kind = as_jpeg(pixels if larger is None else larger, 80)
        near = library.seen.nearest(feature[0], NEIGHBOURS) if library.seen else []
        return {
            "cluster": cluster,
            "confidence": round(float(probability.max()), 4),
            "neighbours": [{"row": row, "cosine": round(cosine, 4)} for row, cosine in near],
            "picture": f"data:{kind};base64,{base64.b64encode(small).decode()}",
        }

    def _as_the_network_sees(self, pixels: np.ndarray) -> np.ndarray:
        if self._encoder is None:
            return pixels[None]
        alone = Images(from_array(pixels[None], "dropped"), pixels[None], ("ok",), np.zeros(1, np.int64), "")
        nameless = dataclasses.replace(self._encoder, version="")  # whose features are not kept on the disk
        return encode(alone, nameless, resolve_device("auto")).pixels

    @cached_property
    def _network(self) -> Network:
        return self.library.run.load_network(resolve_device("auto"))

    @cached_property
    def _encoder(self) -> Encoder | None:
        frozen = self.library.config.train.frozen
        return load_encoder(frozen) if frozen else None
