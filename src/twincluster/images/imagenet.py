"""The benchmarks that are made from an ImageNet folder, which only its owners may hand out, and Tiny ImageNet."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from twincluster.errors import InputError
from twincluster.images.folders import printable, walk
from twincluster.images.kept import absent, data_root, prepared_set
from twincluster.images.listing import Listing

IMAGENET10 = {
    "n02056570": "king penguin",
    "n02085936": "Maltese dog",
    "n02128757": "snow leopard",
    "n02690373": "airliner",
    "n02692877": "airship",
    "n03095699": "container ship",
    "n04254680": "soccer ball",
    "n04285008": "sports car",
    "n04467665": "trailer truck",
    "n07747607": "orange",
}
IMAGENET_DOGS = {
    "n02085936": "Maltese dog",
    "n02086646": "Blenheim spaniel",
    "n02088238": "basset",
    "n02091467": "Norwegian elkhound",
    "n02097130": "giant schnauzer",
    "n02099601": "golden retriever",
    "n02101388": "Brittany spaniel",
    "n02101556": "clumber",
    "n02102177": "Welsh springer spaniel",
    "n02105056": "groenendael",
    "n02105412": "kelpie",
    "n02105855": "Shetland sheepdog",
    "n02107142": "Doberman",
    "n02110958": "pug",
    "n02112137": "chow",
}


def imagenet10(root: Path | None) -> Listing:
    """The 13,000 training images of ten classes."""
    return _classes_of_imagenet("imagenet10", IMAGENET10, data_root(root))


def imagenet_dogs(root: Path | None) -> Listing:
    """The 19,500 training images of fifteen breeds."""
    return _classes_of_imagenet("imagenet_dogs", IMAGENET_DOGS, data_root(root))


def tiny_imagenet(root: Path | None) -> Listing:
    """100,000 training images of 200 classes and then 10,000 for validation, 64 x 64."""
    kept = data_root(root)
    if listing := prepared_set("tiny_imagenet", kept, None):
        return listing
    unpacked = "tiny-imagenet-200"
    places = (kept / unpacked, kept / "tiny_imagenet" / unpacked, kept / "tiny_imagenet")
    place = next((place for place in places if os.path.isdir(place / "train")), None)
    if place is None:
        raise absent("tiny_imagenet", kept, "is not downloaded", f"the unpacked folder {unpacked}")
    train, val = (_images(place, part) for part in ("train", "val"))
    classes = sorted({path.split("/")[1] for path in train if path.count("/") > 1})
    annotated = _table(place / "val" / "val_annotations.txt")
    code = {identifier: number for number, identifier in enumerate(classes)}
    found = [path.split("/")[1] for path in train]
    # Some sort the validation images into folders of their classes.
    found += [annotated.get(path.split("/")[-1], path.split("/")[1]) for path in val]
    labels = np.array([code.get(identifier, -1) for identifier in found], np.int64)
    if (labels[len(train) :] < 0).all():
        raise InputError(f"{place / 'val'} has no val_annotations.txt that names the images' classes: unpack it again")
    words = _table(place / "words.txt")
    return Listing(
        "tiny_imagenet",
        tuple(printable(path) for path in train + val),
        files=tuple(str(place.absolute() / path) for path in train + val),
        labels=labels,
        class_names=tuple(words.get(identifier, identifier).split(",")[0] for identifier in classes),
        split=np.repeat(np.array([0, 1], np.int8), [len(train), len(val)]),
        root=place.absolute(),
    )


def _classes_of_imagenet(name: str, classes: Mapping[str, str], kept: Path) -> Listing:
    class_names = tuple(classes.values())
    if listing := prepared_set(name, kept, class_names):
        return listing
    whole = kept / "imagenet"
    inside = ("train", "ILSVRC/Data/CLS-LOC/train", "")  # the second as Kaggle packs it
    places = [kept / name / "train", kept / name, *(whole / folder for folder in inside)]
    place = max(places, key=lambda place: sum(os.path.isdir(place / identifier) for identifier in classes))
    present = [identifier for identifier in classes if os.path.isdir(place / identifier)]
    if not present:
        folders = f"imagenet/train with the class folders {', '.join(classes)}"
        raise absent(name, kept, "is made from ImageNet, which is not downloaded", folders)
    found = {identifier: walk(place / identifier, f"{place / identifier}/")[0] for identifier in present}
    if lacking := [identifier for identifier in classes if not found.get(identifier)]:
        raise InputError(f"{name} needs images in {', '.join(lacking)} too: add these folders of ImageNet to {place}")
    paths = [f"{identifier}/{path}" for identifier in classes for path in found[identifier]]
    return Listing(
        name,
        tuple(printable(path) for path in paths),
        files=tuple(str(place.absolute() / path) for path in paths),
        labels=np.repeat(np.arange(len(classes)), [len(found[identifier]) for identifier in classes]).astype(np.int64),
        class_names=class_names,
    )


def _images(place: Path, part: str) -> list[str]:
    if not os.path.isdir(place / part):
        raise InputError(f"tiny_imagenet: {place} has no folder {part}: unpack it again")
    found, _ = walk(place / part, f"{place / part}/")
    if not found:
        raise InputError(f"tiny_imagenet: {place / part} holds no images: unpack it again")
    return [f"{part}/{path}" for path in found]


def _table(file: Path) -> dict[str, str]:
    """The first two columns of a file of tab-separated lines; nothing when there is no such file."""
    if not os.path.isfile(file):
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    return {cells[0]: cells[1].strip() for line in lines if len(cells := line.split("\t")) > 1}
