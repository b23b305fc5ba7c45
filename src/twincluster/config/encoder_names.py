"""Pretrained encoders by name: what they are, and how a name is parsed. Imports no torch.

A name is NAME or NAME@SIDE; NAME+NAME joins the features of several. If a file or folder follows, + and @ may be part
of its path.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from twincluster.core import InputError, read_json, write_json


@dataclass(frozen=True)
class KnownEncoder:
    """A network of the Hugging Face hub that has a short name here."""

    architecture: str  # of timm
    repository: str  # of the hub
    megabytes: int  # of its weights
    licence: str
    good_for: str
    commercial: bool = True  # whether its licence allows commercial use without special terms
    gated: bool = False  # whether its makers require a request first
    projected: bool = False  # whether its last layer, which classifiers drop, is part of it
    options: tuple[tuple[str, object], ...] = ()  # of timm.create_model

    @property
    def is_suggested(self) -> bool:
        return self.commercial and not self.gated


KNOWN_SIDE = 224  # pixels; DINOv2's own 518 takes five times as long
# Architectures, licences and statistics: the model tables of timm 1.0.31 (github.com/huggingface/pytorch-image-models).
# Sizes are those of the networks that timm builds. The weights themselves are untested: see docs/pretrained.md.
KNOWN: dict[str, KnownEncoder] = {
    "tinyvit-5m": KnownEncoder(
        "tiny_vit_5m_224", "timm/tiny_vit_5m_224.dist_in22k", 48, "Apache-2.0", "photographs on a CPU"
    ),
    "tinyvit-21m": KnownEncoder(
        "tiny_vit_21m_224", "timm/tiny_vit_21m_224.dist_in22k", 133, "Apache-2.0", "photographs"
    ),
    "dinov2-small": KnownEncoder(
        "vit_small_patch14_dinov2", "timm/vit_small_patch14_dinov2.lvd142m", 88, "Apache-2.0",
        "photographs of things that look alike, drawings", options=(("img_size", KNOWN_SIDE),),
    ),
    "dinov2-base": KnownEncoder(
        "vit_base_patch14_dinov2", "timm/vit_base_patch14_dinov2.lvd142m", 346, "Apache-2.0",
        "the same, better and slower; wants a GPU", options=(("img_size", KNOWN_SIDE),),
    ),
    "dinov2-large": KnownEncoder(
        "vit_large_patch14_dinov2", "timm/vit_large_patch14_dinov2.lvd142m", 1213, "Apache-2.0",
        "the same, best; needs a GPU", options=(("img_size", KNOWN_SIDE),),
    ),
    "dinov3-small": KnownEncoder(
        "vit_small_patch16_dinov3", "timm/vit_small_patch16_dinov3.lvd1689m", 86, "DINOv3 licence",
        "photographs", commercial=False, gated=True, options=(("global_pool", "token"), ("img_size", KNOWN_SIDE)),
    ),
    "siglip2-base": KnownEncoder(
        "vit_base_patch16_siglip_224", "timm/vit_base_patch16_siglip_224.v2_webli", 372, "Apache-2.0",
        "images of one idea: drawings, products, scenes",
    ),
    "clip-b32": KnownEncoder(
        "vit_base_patch32_clip_quickgelu_224", "timm/vit_base_patch32_clip_224.openai", 351, "MIT",
        "images of one idea: drawings, emoji, clip art", projected=True,
    ),
    "mobileclip2-s0": KnownEncoder(
        "fastvit_mci0", "timm/fastvit_mci0.apple_mclip2_dfndr2b", 46, "Apple AMLR: research only",
        "images of one idea, on a CPU", commercial=False, projected=True,
    ),
}  # fmt: skip
PREFERRED = "tinyvit-5m"  # better than the bundled encoder for photographs on a CPU

WITH_FILES = ("onnx", "resnet18", "resnet34", "resnet50", "small")  # a path must follow these names
WITH_PATHS = (*WITH_FILES, "timm", "hf")  # a path may follow these names
KINDS = (*WITH_PATHS, "torchvision")
BUNDLED = "pretrained"
_START = re.compile(rf"\+(?=(?:{'|'.join(map(re.escape, (BUNDLED, *KNOWN)))})(?:[@+]|$)|(?:{'|'.join(KINDS)}):)")


@dataclass(frozen=True)
class EncoderName:
    """One encoder of a parsed name."""

    kind: str  # "onnx", "timm", ..., or a short name
    rest: str = ""  # after the colon
    side: int | None = None  # pixels, if the name states them

    def __str__(self) -> str:
        return self.kind + (f":{self.rest}" if self.rest else "") + ("" if self.side is None else f"@{self.side}")


def read_name(name: str) -> tuple[EncoderName, ...]:
    """Return the encoders that a name joins, one for most names."""
    parts, rest = [], name
    while rest:
        ends = [match.start() for match in _START.finditer(rest)] + [len(rest)]
        # a plus is part of a path if such a file or folder exists
        end = next((end for end in reversed(ends) if _is_path(rest[:end])), ends[0])
        parts.append(_read_one(rest[:end]))
        rest = rest[end + 1 :]
    if len(set(parts)) < len(parts):
        raise InputError(f"{name} joins an encoder with itself: name two that differ")
    return tuple(parts)


def absolute_name(name: str) -> str:
    """Return the name with absolute paths, so that a run finds its files from any folder."""
    return "+".join(str(_absolute(part)) for part in read_name(name))


def _read_one(name: str) -> EncoderName:
    kind, _, rest = name.partition(":")
    stem, at, digits = rest.rpartition("@") if rest else kind.rpartition("@")
    if not at or not digits.isdecimal() or (rest and _is_path(name)):
        return EncoderName(kind, rest)
    return EncoderName(kind, stem, int(digits)) if rest else EncoderName(stem, "", int(digits))


def _is_path(name: str) -> bool:
    kind, _, rest = name.partition(":")
    return kind in WITH_PATHS and bool(rest) and _path_of(rest).exists()


def _path_of(rest: str) -> Path:
    return Path(os.path.expanduser(rest.removeprefix("local-dir:")))


def _absolute(part: EncoderName) -> EncoderName:
    if part.kind not in WITH_FILES or not part.rest or is_address(part.rest):
        return part
    return replace(part, rest=str(_path_of(part.rest).absolute()))


def is_address(rest: str) -> bool:
    return rest.startswith(("https://", "http://"))


_trusted: set[str] = set()  # addresses that the user of this process has named


def trust_addresses(name: str) -> None:
    """Allow downloads from the addresses in a name that the user gave. Runs and recipe files are not consent."""
    _trusted.update(part.rest for part in read_name(name) if part.kind == "onnx" and is_address(part.rest))


def is_trusted(address: str) -> bool:
    return address in _trusted


def preference_file() -> Path:
    """Return the file with the user's choice of encoder, in their configuration."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "twincluster" / "encoder.json"


def preferred_encoder() -> str | None:
    """Return the encoder that the user prefers; "" if they want none, None if they have not said.

    $TWINCLUSTER_ENCODER overrides the stored preference.
    """
    if (named := os.environ.get("TWINCLUSTER_ENCODER")) is not None:
        return named
    file = preference_file()
    if not os.path.isfile(file):  # nor where the folder must not be read
        return None
    try:
        return str(read_json(file)["encoder"])
    except (OSError, ValueError, LookupError, TypeError):
        raise InputError(f"{file} holds no name of an encoder: remove it") from None


def prefer(name: str) -> Path:
    """Store the encoder that the user prefers, "" for none; return the file."""
    file = preference_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"encoder": name})
    except OSError as error:
        raise InputError(
            f"{file} cannot be written ({error.strerror}): set TWINCLUSTER_ENCODER={name} in the environment instead"
        ) from None
    return file
