"""The model of a run, which every command uses to predict and embed.

`Model` joins a network with the settings, the shape of its data and the encoder in front of it. The command line, the
estimator, `update`, the pages, Ray and the exports all apply a run through it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from twincluster.config import Config, DataShape, EncoderInput, absolute_name
from twincluster.core import InputError, OnProgress, first_line, keep_freed
from twincluster.data import (
    Content,
    Decoded,
    EncodedData,
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

AT_ONCE = 16 * base.CHUNK_ROWS  # inputs whose probabilities are in memory


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
    """Open a listing as the input of a run's network: pixels at the size it reads files at, or the features of its
    encoder.

    `side` is that size; 0 derives it from the files. The encoder is loaded by name unless it is given. Arrays keep
    their size unless they are much larger than training needs.
    """
    if listing.encoded is not None:
        _refuse_other_encoder(config, listing.encoded.data, listing.name)
        return open_images(listing)
    if config.train.frozen:
        if listing.array is not None and listing.array.ndim == 2:
            raise InputError(
                f"{listing.name} contains rows, but {config.train.frozen} encodes images: omit the encoder"
            )
        encoder = encoder or load_encoder(config.train.frozen, config.encoder)
        images = open_images(listing, side=encoder.side, frame=config.train.frame, progress=decoding)
        if listing.is_passing:
            encoder = dataclasses.replace(encoder, version="")  # without a version, its features are not cached
        return encode(images, encoder, resolve_device(device), encoding)
    side = side or store_side(config, listing)
    # runs on smaller images were trained on arrays that were not shrunk
    array_side = side if side == full_side(config) else 0
    return open_images(listing, side=side, array_side=array_side, frame=config.train.frame, progress=decoding)


def _refuse_other_encoder(config: Config, data: EncodedData, name: str) -> None:
    """Raise InputError if an encoded folder does not have the features that a network takes."""
    frozen = config.train.frozen
    if not frozen:
        raise InputError(
            f"{name} has features of {data.encoder}, but this network takes images or rows of its own: name the images"
        )
    if absolute_name(frozen) != absolute_name(data.encoder) or config.encoder != EncoderInput():
        raise InputError(f"{name} has features of {data.encoder}, not of {frozen}: encode its images with {frozen}")
    if data.frame != config.train.frame:
        raise InputError(f"{name} has features of {data.frame} squares, not {config.train.frame}: name the images")


@dataclass(eq=False)
class Model:
    """A network with its settings, the shape of its data and its encoder, if it has one."""

    network: Network  # in evaluation mode
    config: Config  # resolved
    shape: DataShape
    data: RunData | None = None  # of the training
    backbone: nn.Module | None = None  # the caller's own encoder, which is not part of the run folder
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
            raise ValueError("a model without data cannot be saved as a run folder")
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
        """Return a copy with some fields changed. A loaded encoder is kept."""
        other = dataclasses.replace(self, **changes)
        if "encoder" in vars(self):
            other.encoder = self.encoder
        return other

    @property
    def device(self) -> str:
        return self.network.mean.device.type

    @property
    def is_of_rows(self) -> bool:
        """True if the network takes rows: the user's own, or the features of an encoder."""
        return not self.shape.side

    @property
    def sees_images(self) -> bool:
        return bool(self.shape.side or self.config.train.frozen)

    @cached_property
    def encoder(self) -> Encoder | None:
        """The pretrained encoder whose features the model clusters."""
        return encoder_of(self.name, self.config, self.data, self.backbone)

    @property
    def side(self) -> int:
        """Side at which single images are decoded."""
        return self.encoder.side if self.encoder else later_side(self.config, self.data) or full_side(self.config)

    def open(self, listing: Listing, decoding: OnProgress | None = None, encoding: OnProgress | None = None) -> Images:
        """Return the network's input for a source: pixels, rows, or features of the encoder."""
        self._refuse_other_kind(listing)
        if listing.encoded is not None:  # which needs no weights here
            refuse_other_weights(self.name, self.data.encoder if self.data else None, listing.encoded.data.version)
            return open_for(self.config, listing)
        return open_for(
            self.config, listing, decoding, encoder=self.encoder, device=self.device, encoding=encoding,
            side=later_side(self.config, self.data),
        )  # fmt: skip

    def open_pixels(self, pixels: np.ndarray) -> Images:
        """Return the network's input for decoded images (n,h,w,3). Nothing is cached."""
        passing = dataclasses.replace(self.encoder, version="") if self.encoder else None
        return open_for(
            self.config, from_array(pixels, "images"), encoder=passing, device=self.device, side=self.side
        )  # fmt: skip

    def decode(self, file: Path | Content) -> Decoded:
        """Decode one image file at the size the network needs."""
        return decode(file, self.side, self.config.train.frame)

    def predict(self, images: Images) -> Tensor:
        """Return q(k|x) of the usable images, (m,K) float32 on the CPU."""
        probabilities = base.predict(self.network, images.pixels, images.usable)
        return self._finite(probabilities, images, images.usable)

    def embed(self, images: Images, rows: np.ndarray | None = None) -> Tensor:
        """Return the embedding of some rows of `images`, by default the usable ones, (m,D) on the CPU."""
        rows = images.usable if rows is None else rows
        return self._finite(base.embed(self.network, images.pixels, rows), images, rows)

    def kinds(self, images: Images, rows: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """Return the features that a taught model reads of some rows, each (m,D).

        These are the encoder's features or the standardised rows of numbers, then the learned embedding; for pixels
        only the embedding.
        """
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
        return assign(images, self.predict, np.empty(0, np.int64))[0]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the encoder, which `config` names and which may be large."""
        return {name: value for name, value in vars(self).items() if name != "encoder"}

    def _finite(self, output: Tensor, images: Images, rows: np.ndarray) -> Tensor:
        """Return the network's output for some rows. Raise InputError for NaN or infinity."""
        odd = np.flatnonzero(~output.isfinite().all(1).numpy())
        if len(odd):
            some = f"{len(odd):,} of {len(rows):,} inputs, such as {images.listing.paths[rows[odd[0]]][:200]}"
            raise InputError(
                f"{self.name} returns NaN or infinity for {some}: its model.safetensors is damaged, or these inputs "
                "are unlike those of its training"
            )
        return output

    def _refuse_other_kind(self, listing: Listing) -> None:
        if listing.encoded is not None:
            return  # `open_for` compares the encoders
        width = listing.array.shape[1] if listing.array is not None and listing.array.ndim == 2 else 0
        if width != (0 if self.sees_images else self.shape.n_inputs):
            trained_on = "images" if self.sees_images else f"rows of {self.shape.n_inputs} numbers"
            content = f"rows of {width} numbers" if width else "images"
            raise InputError(f"{listing.name} contains {content}, but {self.name} was trained on {trained_on}")


def assign(
    images: Images, predict: Callable[[Images], Tensor], wanted: np.ndarray
) -> tuple[Assignments, Tensor]:  # fmt: skip
    """Return a row per input, and the probabilities (m,K) of the usable inputs among `wanted`, ascending.

    The probabilities of all inputs are never in memory at once.
    """
    clusters, confidence = np.full(len(images.status), -1, np.int64), np.full(len(images.status), np.nan)
    kept = []
    for start in range(0, max(1, len(images.usable)), AT_ONCE):
        rows = images.usable[start : start + AT_ONCE]
        probabilities = predict(dataclasses.replace(images, usable=rows))
        clusters[rows], confidence[rows] = probabilities.argmax(1).numpy(), probabilities.amax(1).numpy()
        kept.append(probabilities[torch.from_numpy(np.isin(rows, wanted))])
    return Assignments(images.listing.paths, clusters, confidence, images.status), torch.cat(kept)


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
    """Assign the inputs of a source to the clusters of a run, with its edits applied.

    `location` opens the source again; with it, inputs that have a row in the run are recognised.
    """
    if resolve_device(device) == "cpu":
        keep_freed()
    model = Model.load(run, device)
    images = model.open(listing, decoding, encoding)
    return (edits or Edits(run)).applied_to(
        model.assign(images), listing, location, lambda rows: model.kinds(images, rows)
    )


def load_network(run: Run, device: str = "cpu") -> Network:
    """Load the network of a run in evaluation mode."""
    config = run.config
    precision = config.train.precision if device == "cuda" else "float32"
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision))
    tensors = run.read_model()
    if ":" in config.method:
        find_method(config.method)  # outside the try block: its own error if the code is not trusted
    try:
        network = find_method(config.method).network_type(config, run.shape)
        network.load_state_dict(tensors)
    except (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError) as error:
        raise InputError(
            f"{run.model} and its config.json are damaged or from different runs ({first_line(error)}): "
            "restore copies that belong together, or fit again"
        ) from error
    return network.to(device).eval()


def encoder_of(what: Path | str, config: Config, data: RunData | None, backbone: object = None) -> Encoder | None:
    """Load the encoder of a model: the caller's own module, or the one its settings name.

    Raise InputError if its weights have changed since the training. `what` names the model in the message.
    """
    if isinstance(backbone, nn.Module):
        return wrap_module(backbone)
    encoder = load_encoder(config.train.frozen, config.encoder) if config.train.frozen else None
    if encoder and data:
        refuse_other_weights(what, data.encoder, encoder.version)
    return encoder


def refuse_other_weights(what: Path | str, then: str | None, now: str | None) -> None:
    """Raise InputError if an encoder's weights have changed. A caller's own module has no version."""
    if then and now and then != now:
        raise InputError(
            f"the weights of the encoder have changed since {what} was trained (now {now}, then {then}): restore the "
            "old ones, or fit again"
        )


def later_side(config: Config, data: RunData | None) -> int:
    """Return the side to decode images at after training, as the run's own were; 0 if unknown."""
    return min(full_side(config), data.side) if data else 0


def squares_for(
    config: Config, images: Sequence[Image], encoder: Encoder | None, data: RunData | None = None
) -> np.ndarray:  # uint8 (n,s,s,3)
    """Make PIL images square; the result for an image does not depend on the others.

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
