"""Data sets by name: read from a prepared folder of arrays or from torchvision's files, or downloaded by torchvision.

ImageNet-10, ImageNet-Dogs and Tiny ImageNet are built from local folders, because their licences forbid sharing them.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from twincluster.core import InputError
from twincluster.data.listing import Listing, absent, data_root, from_array, prepared_set, printable, walk

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
    """List the 13,000 training images of ten ImageNet classes."""
    return _classes_of_imagenet("imagenet10", IMAGENET10, data_root(root))


def imagenet_dogs(root: Path | None) -> Listing:
    """List the 19,500 training images of fifteen dog breeds of ImageNet."""
    return _classes_of_imagenet("imagenet_dogs", IMAGENET_DOGS, data_root(root))


def tiny_imagenet(root: Path | None) -> Listing:
    """List 100,000 training and 10,000 validation images of 200 classes, 64 x 64."""
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
    # Validation images may be sorted into folders by class.
    found += [annotated.get(path.split("/")[-1], path.split("/")[1]) for path in val]
    labels = np.array([code.get(identifier, -1) for identifier in found], np.int64)
    if (labels[len(train) :] < 0).all():
        raise InputError(
            f"{place / 'val'} has no val_annotations.txt that names the classes of its images: unpack the archive again"
        )
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
        raise InputError(f"{name} has no images in {', '.join(lacking)}: add these ImageNet folders to {place}")
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
        raise InputError(f"tiny_imagenet: {place} has no folder {part}: unpack the archive again")
    found, _ = walk(place / part, f"{place / part}/")
    if not found:
        raise InputError(f"tiny_imagenet: {place / part} contains no images: unpack the archive again")
    return [f"{part}/{path}" for path in found]


def _table(file: Path) -> dict[str, str]:
    """Return the first two columns of a tab-separated file; empty if it does not exist."""
    if not os.path.isfile(file):
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    return {cells[0]: cells[1].strip() for line in lines if len(cells := line.split("\t")) > 1}


Part = tuple[np.ndarray, np.ndarray]  # uint8 images and their labels

FASHION_CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_SUPERCLASSES = (
    "aquatic mammals", "fish", "flowers", "food containers", "fruit and vegetables", "household electrical devices",
    "household furniture", "insects", "large carnivores", "large man-made outdoor things",
    "large natural outdoor scenes", "large omnivores and herbivores", "medium-sized mammals",
    "non-insect invertebrates", "people", "reptiles", "small mammals", "trees", "vehicles 1", "vehicles 2",
)  # fmt: skip
CIFAR100_SUPERCLASS_OF = (  # of the 100 classes in alphabetical order, apple to worm
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10,
    12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16,
    12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14,
    13,
)  # fmt: skip
STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
STL10_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin")


def _digits(root: Path | None) -> Listing:
    """Load scikit-learn's 1,797 handwritten digits, 8 x 8."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = np.rint(loaded.images * (255 / 16)).astype(np.uint8)
    return from_array(images, "digits", labels=loaded.target, class_names=tuple("0123456789"))


def _mnist(root: Path | None) -> Listing:
    """Load 60,000 training and 10,000 test images of handwritten digits, 28 x 28, grey."""
    return _arrays("mnist", root, tuple("0123456789"), "MNIST/raw", partial(_train_and_test, "mnist"))


def _fashion_mnist(root: Path | None) -> Listing:
    """Load 60,000 training and 10,000 test images of clothing, 28 x 28, grey."""
    load = partial(_train_and_test, "fashion_mnist")
    return _arrays("fashion_mnist", root, FASHION_CLASSES, "FashionMNIST/raw", load)


def _cifar10(root: Path | None) -> Listing:
    """Load 50,000 training and 10,000 test photographs, 32 x 32."""
    return _arrays("cifar10", root, CIFAR10_CLASSES, "cifar-10-batches-py", partial(_train_and_test, "cifar10"))


def _cifar100(root: Path | None) -> Listing:
    """Load 50,000 training and 10,000 test photographs, 32 x 32, with the 20 superclasses as labels, as is usual."""

    def load(holder: Path) -> list[Part]:
        superclass = np.array(CIFAR100_SUPERCLASS_OF)
        return [(images, superclass[labels]) for images, labels in _train_and_test("cifar100", holder)]

    return _arrays("cifar100", root, CIFAR100_SUPERCLASSES, "cifar-100-python", load)


def _stl10(root: Path | None) -> Listing:
    """Load the labelled part: 5,000 training and 8,000 test photographs, 96 x 96."""

    def load(holder: Path) -> list[Part]:
        folder = holder / "stl10_binary"
        if not all((folder / name).is_file() for name in STL10_FILES):
            from torchvision.datasets import STL10

            STL10(holder, split="test", download=True)
        return [_stl10_part(folder, part) for part in ("train", "test")]

    return _arrays("stl10", root, STL10_CLASSES, "stl10_binary", load)


NAMED: dict[str, Callable[[Path | None], Listing]] = {
    "digits": _digits,
    "mnist": _mnist,
    "fashion_mnist": _fashion_mnist,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "stl10": _stl10,
    "imagenet10": imagenet10,
    "imagenet_dogs": imagenet_dogs,
    "tiny_imagenet": tiny_imagenet,
}


def _arrays(
    name: str, root: Path | None, class_names: tuple[str, ...], files: str, load: Callable[[Path], list[Part]]
) -> Listing:
    """Return the prepared folder, or the arrays that `load` reads from `files`, in the root or its folder `name`."""
    kept = data_root(root)
    if listing := prepared_set(name, kept, class_names):
        return listing
    try:
        train, test = load(kept / name if (kept / name / files).is_dir() else kept)
    except Exception as error:  # no torchvision, no network, full disk, damaged download
        raise absent(name, kept, f"could not be downloaded ({type(error).__name__})", files) from None
    images = np.empty((len(train[0]) + len(test[0]), *train[0].shape[1:]), np.uint8)
    images[: len(train[0])], images[len(train[0]) :] = train[0], test[0]
    return from_array(
        images,
        name,
        labels=np.concatenate([train[1], test[1]]),
        split=np.repeat([0, 1], [len(train[0]), len(test[0])]),
        class_names=class_names,
    )


def _train_and_test(name: str, holder: Path) -> list[Part]:
    from torchvision.datasets import CIFAR10, CIFAR100, MNIST, FashionMNIST

    data_sets = {"mnist": MNIST, "fashion_mnist": FashionMNIST, "cifar10": CIFAR10, "cifar100": CIFAR100}
    # torchvision unpickles the files of CIFAR, but only after it has checked their checksums.
    parts = [data_sets[name](holder, train=train, download=True) for train in (True, False)]
    return [(np.asarray(part.data), np.asarray(part.targets)) for part in parts]


def _stl10_part(folder: Path, part: str) -> Part:
    """Read images and labels without torchvision, which first takes checksums of 3 GB, mostly unlabelled images."""
    pixels = np.memmap(folder / f"{part}_X.bin", np.uint8, "r").reshape(-1, 3, 96, 96)  # channel, column, row
    labels = np.fromfile(folder / f"{part}_y.bin", np.uint8).astype(np.int64) - 1
    if len(labels) != len(pixels):
        raise ValueError(f"{len(pixels)} images and {len(labels)} labels")
    return pixels.transpose(0, 3, 2, 1), labels
