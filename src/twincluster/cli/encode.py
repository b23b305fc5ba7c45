"""`twincluster encode`: the features of a source as Parquet shards, to be clustered later or elsewhere."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from twincluster.cli.terminal import Json, results
from twincluster.config import BUNDLED, absolute_name, preferred_encoder, trust_addresses
from twincluster.core import InputError, check_writable, counted, torch_for_good


def encode(
    source: str,
    out: Path,
    /,
    *,
    backbone: str | None = None,
    thumbnails: Annotated[bool, Parameter(negative=())] = False,
    float32: Annotated[bool, Parameter(negative=())] = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    data_root: Path | None = None,
    as_json: Json = False,
) -> None:
    """Write the features of all images to a folder that fit, predict and update take as a source.

    The same command continues an interrupted one, and brings the folder up to date when the source has changed.

    Example: twincluster encode photos/ photos-encoded/

    Parameters
    ----------
    source
        What fit takes, if it has images: a folder, a list of paths, shards (.tar), an array, or a named set.
    out
        The folder to write: shards with path, hashes, status and features of each image, and encoded.json. Decoded
        images are not stored.
    backbone
        A pretrained network, as for fit. The default is the preferred one (twincluster encoders prefer NAME), or
        `pretrained`.
    thumbnails
        Also store pictures of 64 pixels, for reports where the images themselves are not.
    float32
        Store features in single precision, which takes twice the space.
    device
        auto uses a GPU if there is one.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    as_json
        Print the result as JSON; all else goes to stderr.
    """
    from twincluster.data import location_of, open_source

    check_writable(out, "choose another folder")
    name = backbone or preferred_encoder() or BUNDLED
    trust_addresses(name)
    listing = open_source(source, labels="none", root=data_root, at_least=1)
    if listing.encoded is not None:
        raise InputError(f"{listing.name} is encoded already: fit it, or name the images")
    with results(as_json) as found:
        print(f"{counted(len(listing.paths), 'input')} in {listing.name}, encoded with {name}", flush=True)
        with torch_for_good():
            from twincluster.nn import encode_folder, load_encoder
            from twincluster.resolve import resolve_device
            from twincluster.training import Progress
        encoder, where = load_encoder(absolute_name(name)), resolve_device(device)
        with Progress() as progress:
            done = encode_folder(
                listing, encoder, out, location=location_of(source), device=where,
                dtype="float32" if float32 else "float16", thumbnails=thumbnails, progress=progress.encoding,
            )  # fmt: skip
        problems = Counter(status.partition(":")[0] for status in done.problems)
        found |= {
            "folder": str(out), "encoder": encoder.name, "inputs": done.data.rows, "readable": done.data.readable,
            "features": done.data.features, "shards": len(done.data.shards), "written": done.written,
            "problems": dict(problems),
        }  # fmt: skip
        unread = f"; {counted(problems.total(), 'input')} could not be read: see the status" if problems else ""
        kept = len(done.data.shards) - done.written
        also = f", {kept:,} of them there already" if kept else ""
        print(f"{counted(done.data.rows, 'row')} of {done.data.features:,} features in {out}{unread}")
        print(f"{counted(len(done.data.shards), 'shard')}{also}")
        print(f"next: twincluster fit {shlex.quote(str(out))} --out runs/mine", flush=True)
