"""The model of a run: what predicts, embeds and is saved, whoever asks for it.

`Model` joins a network with the settings, the shape of its data and the encoder in front of it. The command line, the
estimator, `update`, the pages, Ray and the exports apply a run through it and nothing else.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL.Image import Image
from torch import Tensor, nn

from twincluster.config import Config, DataShape
from twincluster.core import InputError, OnProgress, first_line, keep_freed
from twincluster.data import (
    Content,
    Decoded,
    Images,
    Listing,
    as_squares,
    decode,
    from_array,
    is_much_larger,
    largest_side,
    open_images,
)
from twincluster.methods import Network, base, find_method
from twincluster.nn import Encoder, encode, load_encoder, wrap_module
from twincluster.resolve import full_side, resolve_device, store_side
from twincluster.runs import Assignments, Edits, Run, RunData


def open_for(
    config: Config,
    listing: Listing,
    decoding: OnProgress | None = None,
    *,
    encoder: Encoder | None = None,
    device: str = "auto",
    encoding: OnProgress | None = None,
    side: int = 0,
) -> Images:
    """What a network of the run sees of a listing: pixels, in its frame and at the size that it reads files at (`side`,
    or what suits these files), or the features of its encoder, which is loaded by name unless it is given. Arrays keep
    their size, unless they are much larger than all that training needs."""
    if config.train.frozen:
        if listing.array is not None and listing.array.ndim == 2:
            raise InputError(f"{listing.name} holds rows, but {config.train.frozen} encodes images: leave it out")
        encoder = encoder or load_encoder(config.train.frozen, config.encoder)
        images = open_images(listing, side=encoder.side, frame=config.train.frame, progress=decoding)
        if listing.is_passing:
            encoder = dataclasses.replace(encoder, version="")  # whose features are not kept on the disk
        return encode(images, encoder, resolve_device(device), encoding)
    side = side or store_side(config, listing)
    # a run whose own images were smaller has not seen any that were made so, and goes on like that
    array_side = side if side == full_side(config) else 0
    return open_images(listing, side=side, array_side=array_side, frame=config.train.frame, progress=decoding)


@dataclass(eq=False)
class Model:
    """A network with its settings, the shape of its data and, where it has one, the encoder in front of it."""

    network: Network  # in evaluation mode
    config: Config  # resolved
    shape: DataShape
    data: RunData | None = None  # what it was trained on
    backbone: nn.Module | None = None  # the caller's own encoder, which no run folder holds
    name: str = "this model"  # for messages

    @classmethod
    def load(cls, run: Run, device: str = "auto", backbone: nn.Module | None = None) -> Self:
        """Read the model of a run folder onto a device."""
        device = resolve_device(device)
        network = load_network(run, device)
        return cls(network, run.config, run.shape, run.data, backbone, str(run.folder))

    def save(self, run: Run) -> None:
        """Write config.json and model.safetensors."""
        if self.data is None:
            raise ValueError("a model without its data has no run folder")
        run.write_config(self.config, self.shape, self.data)
        run.save_model(self.network)

    def on(self, device: str) -> Model:
        """Return the model on a device: itself, or a copy."""
        if device == self.device:
            return self
        network = copy.deepcopy(self.network).to(device)
        network.bf16 = device == "cuda" and self.config.train.precision == "bf16" and not self.is_of_rows
        return self.replace(network=network)

    def replace(self, **changes: Any) -> Model:
        """Return a copy with some fields changed, which keeps an encoder that is loaded."""
        other = dataclasses.replace(self, **changes)
        if "encoder" in vars(self):
            other.encoder = self.encoder
        return other

    @property
    def device(self) -> str:
        return self.network.mean.device.type

    @property
    def is_of_rows(self) -> bool:
        """Whether the network takes rows: the user's own, or the features of an encoder."""
        return not self.shape.side

    @property
    def sees_images(self) -> bool:
        return bool(self.shape.side or self.config.train.frozen)

    @cached_property
    def encoder(self) -> Encoder | None:
        """The pretrained network whose features the model clusters."""
        return encoder_of(self.name, self.config, self.data, self.backbone)

    @property
    def side(self) -> int:
        """Side at which single images are decoded."""
        return self.encoder.side if self.encoder else later_side(self.config, self.data) or full_side(self.config)

    def open(self, listing: Listing, decoding: OnProgress | None = None, encoding: OnProgress | None = None) -> Images:
        """Return what the network sees of a source: pixels, rows, or features of the encoder."""
        self._refuse_other_kind(listing)
        return open_for(
            self.config, listing, decoding, encoder=self.encoder, device=self.device, encoding=encoding,
            side=later_side(self.config, self.data),
        )  # fmt: skip

    def open_pixels(self, pixels: np.ndarray) -> Images:
        """Return what the network sees of decoded images (n,h,w,3). Nothing is cached."""
        passing = dataclasses.replace(self.encoder, version="") if self.encoder else None
        return open_for(
            self.config, from_array(pixels, "images"), encoder=passing, device=self.device, side=self.side
        )  # fmt: skip

    def decode(self, file: Path | Content) -> Decoded:
        """Decode one image file at the size the network needs."""
        return decode(file, self.side, self.config.train.frame)

    def predict(self, images: Images) -> Tensor:
        """Return q(k|x) of the usable images, (m,K) float32 on the CPU."""
        found = base.predict(self.network, images.pixels, images.usable)
        return self._finite(found, images, images.usable)

    def embed(self, images: Images, rows: np.ndarray | None = None) -> Tensor:
        """Return the embedding of some rows of `images`, by default the usable ones, (m,D) on the CPU."""
        rows = images.usable if rows is None else rows
        return self._finite(base.embed(self.network, images.pixels, rows), images, rows)

    def kinds(self, images: Images, rows: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """Return the features that a taught model reads of some rows, each (m,D): of the encoder, or the rows of
        numbers themselves, standardised; last the learned embedding, all there is of pixels."""
        rows = images.usable if rows is None else rows
        embedding = self.embed(images, rows).numpy()
        if not self.is_of_rows:
            return (embedding,)
        given = np.asarray(images.pixels[rows], dtype=np.float32)
        if not self.config.train.frozen:
            given = np.divide(given - self.shape.mean, self.shape.std, dtype=np.float32, casting="unsafe")
        return given, embedding

    def assign(self, images: Images) -> Assignments:
        """Return a row per input."""
        return Assignments.of(images, images.usable, self.predict(images))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the encoder, which `config` names and which may be large."""
        return {name: value for name, value in vars(self).items() if name != "encoder"}

    def _finite(self, found: Tensor, images: Images, rows: np.ndarray) -> Tensor:
        """Return what the network gave for some rows; refuse NaN and infinity."""
        odd = np.flatnonzero(~found.isfinite().all(1).numpy())
        if len(odd):
            some = f"{len(odd):,} of {len(rows):,} inputs, such as {images.listing.paths[rows[odd[0]]][:200]}"
            raise InputError(
                f"{self.name} gives NaN or infinity for {some}: its model.safetensors is damaged, or these inputs are "
                "unlike those of its training"
            )
        return found

    def _refuse_other_kind(self, listing: Listing) -> None:
        width = listing.array.shape[1] if listing.array is not None and listing.array.ndim == 2 else 0
        if width != (0 if self.sees_images else self.shape.n_inputs):
            trained_on = "images" if self.sees_images else f"rows of {self.shape.n_inputs} numbers"
            held = f"rows of {width} numbers" if width else "images"
            raise InputError(f"{listing.name} holds {held}, but {self.name} was trained on {trained_on}")


def predict(
    run: Run,
    listing: Listing,
    device: str = "auto",
    decoding: OnProgress | None = None,
    encoding: OnProgress | None = None,
    *,
    location: str | None = None,
    edits: Edits | None = None,
) -> Assignments:
    """Assign the inputs of a source to the clusters of a run, with the edits made to it.

    `location` opens the source again. By it, inputs are recognised that have a row in the run. `edits` are those of the
    run, if they are open already: `RunImages.edits` can learn again what a damaged file held.
    """
    if resolve_device(device) == "cpu":
        keep_freed()
    model = Model.load(run, device)
    images = model.open(listing, decoding, encoding)
    return (edits or Edits(run)).applied_to(
        model.assign(images), listing, location, lambda rows: model.kinds(images, rows)
    )


def load_network(run: Run, device: str = "cpu") -> Network:
    """Read the network that predicts, in evaluation mode."""
    config = run.config
    precision = config.train.precision if device == "cuda" else "float32"
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision))
    tensors = run.read_model()
    if ":" in config.method:
        find_method(config.method)  # code outside of twincluster may be refused, in words of its own
    try:
        network = find_method(config.method).network_type(config, run.shape)
        network.load_state_dict(tensors)
    except (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
        raise InputError(
            f"{run.model} and its config.json are damaged or from different runs ({first_line(error)}): "
            "put back copies that belong together, or fit again"
        ) from error
    return network.to(device).eval()


def encoder_of(what: Path | str, config: Config, data: RunData | None, backbone: object = None) -> Encoder | None:
    """Load the encoder of a model: the caller's own module, or the one its settings name.

    One whose weights have changed since the training is refused. `what` names the model in the message.
    """
    if isinstance(backbone, nn.Module):
        return wrap_module(backbone)
    encoder = load_encoder(config.train.frozen, config.encoder) if config.train.frozen else None
    if encoder and data:
        refuse_other_weights(what, data.encoder, encoder.version)
    return encoder


def refuse_other_weights(what: Path | str, then: str | None, now: str | None) -> None:
    """Refuse an encoder whose weights have changed; a module of the caller's own has no version."""
    if then and now and then != now:
        raise InputError(
            f"the encoder has other weights now than when {what} was made ({now}, then {then}): "
            "put the old ones back, or fit again"
        )


def later_side(config: Config, data: RunData | None) -> int:
    """Side at which images that come after the training are decoded, as the run's own were; 0 where it is not known."""
    return min(full_side(config), data.side) if data else 0


def squares_for(
    config: Config, images: Sequence[Image], encoder: Encoder | None, data: RunData | None = None
) -> np.ndarray:  # uint8 (n,s,s,3)
    """Make open images square, each the same whichever others come with it.

    The side is the encoder's, or that of the run's own images. Without `data` these are the run's own, and the largest
    keeps its size, as it would in an array.
    """
    full = full_side(config)
    if encoder:
        side = encoder.side
    elif data is not None:
        side = data.side or full
    else:
        side = largest_side([image.size for image in images], config.train.frame)
        side = full if is_much_larger(side, full) else side
    return as_squares(images, side, config.train.frame)
