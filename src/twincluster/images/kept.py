"""Where named sets and decoded images are kept, and the folders of arrays that any set may be kept as."""

import os
from dataclasses import replace
from pathlib import Path

from twincluster.errors import InputError
from twincluster.images.folders import printable
from twincluster.images.listing import Listing, from_array, load_array


def data_root(root: Path | None) -> Path:
    """The folder named sets are looked for in, and downloaded to."""
    return _folder(root, "TWINCLUSTER_DATA", "~/.cache/twincluster/data")


def cache_folder(cache: Path | None = None) -> Path:
    """Where decoded images and features are kept, unless a folder is given."""
    return _folder(cache, "TWINCLUSTER_CACHE", "~/.cache/twincluster/store")


def _folder(given: Path | None, variable: str, usual: str) -> Path:
    folder = os.path.expanduser(given or os.environ.get(variable) or usual)
    if folder.startswith("~"):  # some containers and services have no home
        raise InputError(f"{folder}: there is no such home folder; set {variable} to a folder")
    return Path(folder)


def from_prepared(folder: Path) -> Listing:
    """A folder with images.npy and, perhaps, labels.npy and split.npy."""
    name = printable(folder.resolve().name) + "/"
    present = [part for part in ("labels", "split") if os.path.exists(folder / f"{part}.npy")]
    parts = {part: load_array(folder / f"{part}.npy") for part in present}
    return from_array(load_array(folder / "images.npy"), name, **parts)


def prepared_set(name: str, kept: Path, class_names: tuple[str, ...] | None) -> Listing | None:
    """A named set from its folder of arrays below `kept`, if it has one."""
    if not os.path.exists(kept / name / "images.npy"):
        return None
    listing = replace(from_prepared(kept / name), name=name)
    if class_names is None:
        return listing
    highest = -1 if listing.labels is None else int(listing.labels.max(initial=-1))
    if highest >= len(class_names):
        raise InputError(
            f"{kept / name / 'labels.npy'} holds the label {highest}, but {name} has {len(class_names)} classes: "
            f"write labels from 0 to {len(class_names) - 1}"
        )
    return replace(listing, class_names=class_names)


def absent(name: str, kept: Path, why: str, what: str) -> InputError:
    """What to tell a user whose named set is nowhere: `what` is to be put into `kept`."""
    beside = f"; for the {name} in this folder write ./{name}" if os.path.exists(name) else ""
    return InputError(
        f"{name} {why}: put {what}, or a folder {name} with images.npy, labels.npy and split.npy, into {kept} "
        f"(or set TWINCLUSTER_DATA to where they are){beside}"
    )
