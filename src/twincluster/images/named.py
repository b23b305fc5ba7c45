"""The data sets known by name: each from a folder of arrays, from the files torchvision keeps, or downloaded by it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from twincluster.images.imagenet import imagenet10, imagenet_dogs, tiny_imagenet
from twincluster.images.kept import absent, data_root, prepared_set
from twincluster.images.listing import Listing, from_array

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
    """scikit-learn's 1,797 handwritten digits, 8 x 8."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = np.rint(loaded.images * (255 / 16)).astype(np.uint8)
    return from_array(images, "digits", labels=loaded.target, class_names=tuple("0123456789"))


def _mnist(root: Path | None) -> Listing:
    """60,000 handwritten digits for training and then 10,000 for testing, 28 x 28, grey."""
    return _arrays("mnist", root, tuple("0123456789"), "MNIST/raw", partial(_train_and_test, "mnist"))


def _fashion_mnist(root: Path | None) -> Listing:
    """60,000 articles of clothing and then 10,000, 28 x 28, grey."""
    load = partial(_train_and_test, "fashion_mnist")
    return _arrays("fashion_mnist", root, FASHION_CLASSES, "FashionMNIST/raw", load)


def _cifar10(root: Path | None) -> Listing:
    """50,000 photographs and then 10,000, 32 x 32."""
    return _arrays("cifar10", root, CIFAR10_CLASSES, "cifar-10-batches-py", partial(_train_and_test, "cifar10"))


def _cifar100(root: Path | None) -> Listing:
    """50,000 photographs and then 10,000, 32 x 32; the labels are the 20 superclasses, as clustering is scored."""

    def load(holder: Path) -> list[Part]:
        superclass = np.array(CIFAR100_SUPERCLASS_OF)
        return [(images, superclass[labels]) for images, labels in _train_and_test("cifar100", holder)]

    return _arrays("cifar100", root, CIFAR100_SUPERCLASSES, "cifar-100-python", load)


def _stl10(root: Path | None) -> Listing:
    """The labelled part: 5,000 photographs and then 8,000, 96 x 96."""

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
    """A prepared folder, else what `load` makes of `files`, which lie in the root or in a folder called `name`."""
    kept = data_root(root)
    if listing := prepared_set(name, kept, class_names):
        return listing
    try:
        train, test = load(kept / name if (kept / name / files).is_dir() else kept)
    except Exception as error:  # no torchvision, no network, no room, a damaged download
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

    known = {"mnist": MNIST, "fashion_mnist": FashionMNIST, "cifar10": CIFAR10, "cifar100": CIFAR100}
    # torchvision unpickles the files of CIFAR, after comparing them with the checksums it knows.
    parts = [known[name](holder, train=train, download=True) for train in (True, False)]
    return [(np.asarray(part.data), np.asarray(part.targets)) for part in parts]


def _stl10_part(folder: Path, part: str) -> Part:
    """Read here, because torchvision first takes checksums of 3 GB, most of it the images without labels."""
    pixels = np.memmap(folder / f"{part}_X.bin", np.uint8, "r").reshape(-1, 3, 96, 96)  # channel, column, row
    labels = np.fromfile(folder / f"{part}_y.bin", np.uint8).astype(np.int64) - 1
    if len(labels) != len(pixels):
        raise ValueError(f"{len(pixels)} images and {len(labels)} labels")
    return pixels.transpose(0, 3, 2, 1), labels
