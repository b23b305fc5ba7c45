"""Named sets: from folders of arrays, from small files like those torchvision keeps, and when they are nowhere."""

import hashlib
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from sourcing import complaint, picture, prepared

from twincluster.data import open_source
from twincluster.data.named import CIFAR100_SUPERCLASS_OF, CIFAR100_SUPERCLASSES, NAMED

RANDOM = np.random.default_rng(0)
NOWHERE = "http://127.0.0.1:9/"  # nobody listens there


def test_digits(digits: tuple[np.ndarray, np.ndarray]) -> None:
    listing = open_source("digits")
    assert listing.array is not None
    assert listing.labels is not None
    assert np.array_equal(listing.array, digits[0])
    assert listing.array.dtype == np.uint8
    assert listing.array.max() == 255
    assert np.array_equal(listing.labels, digits[1])
    assert listing.paths[:2] == ("0", "1")
    assert listing.class_names == tuple("0123456789")
    assert (listing.name, listing.split, listing.files) == ("digits", None, None)


@pytest.mark.parametrize("how", ["root", "environment"])
@pytest.mark.parametrize("name", [name for name in NAMED if name != "digits"])
def test_from_a_prepared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, name: str) -> None:
    images = prepared(tmp_path / name)
    if how == "environment":
        monkeypatch.setenv("TWINCLUSTER_DATA", str(tmp_path))
    listing = open_source(name, root=tmp_path if how == "root" else None)
    assert isinstance(listing.array, np.memmap)
    assert np.array_equal(listing.array, images)
    assert listing.name == name
    assert listing.labels is not None
    assert listing.labels.tolist() == [row % 3 for row in range(12)]
    assert listing.split is not None
    assert listing.split.tolist() == [0] * 8 + [1] * 4


def test_class_names(tmp_path: Path) -> None:
    expected = {
        "mnist": (10, 7, "7"),
        "fashion_mnist": (10, 9, "ankle boot"),
        "cifar10": (10, 3, "cat"),
        "cifar100": (20, 14, "people"),
        "stl10": (10, 7, "monkey"),
        "imagenet10": (10, 9, "orange"),
        "imagenet_dogs": (15, 13, "pug"),
    }
    for name, (count, code, called) in expected.items():
        prepared(tmp_path / name)
        class_names = open_source(name, root=tmp_path).class_names or ()
        assert (len(set(class_names)), class_names[code]) == (count, called)


def test_labels_of_another_set_are_told(tmp_path: Path) -> None:
    prepared(tmp_path / "cifar100")
    np.save(tmp_path / "cifar100" / "labels.npy", np.arange(12) * 9)  # the fine classes, say
    assert "label 99, but cifar100 has 20 classes" in complaint("cifar100", root=tmp_path)


def test_superclasses_of_cifar100() -> None:
    """Five of the hundred classes to each; a few that everyone knows."""
    assert np.bincount(CIFAR100_SUPERCLASS_OF).tolist() == [5] * 20
    of = {0: "fruit and vegetables", 2: "people", 43: "large carnivores", 67: "fish", 96: "trees", 99: "non-insect"}
    for fine, name in of.items():  # apple, baby, lion, ray, willow tree, worm
        assert CIFAR100_SUPERCLASSES[CIFAR100_SUPERCLASS_OF[fine]].startswith(name)


def _pickled(path: Path, content: dict[str, object]) -> str:
    """Write a file and give its checksum, which torchvision asks for."""
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("inside", ["", "cifar10"])
def test_cifar10_from_the_files_torchvision_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    """Small files of the same form; torchvision compares checksums, so it is told of theirs."""
    from torchvision.datasets import CIFAR10

    kept = tmp_path / inside / "cifar-10-batches-py"
    kept.mkdir(parents=True)
    data = {name: RANDOM.integers(0, 256, (5, 3072), np.uint8) for name in ("data_batch_1", "test_batch")}
    sums = {name: _pickled(kept / name, {"data": rows, "labels": [0, 1, 2, 3, 9]}) for name, rows in data.items()}
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", sums["data_batch_1"]]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    meta = _pickled(kept / "batches.meta", {"label_names": ["x"] * 10})
    monkeypatch.setattr(CIFAR10, "meta", {"filename": "batches.meta", "key": "label_names", "md5": meta})
    listing = open_source("cifar10", root=tmp_path)
    assert listing.array is not None
    assert listing.labels is not None
    assert listing.split is not None
    first = data["data_batch_1"][0].reshape(3, 32, 32)
    assert np.array_equal(listing.array[0, :, :, 1], first[1])
    assert listing.array.shape == (10, 32, 32, 3)
    assert listing.labels.tolist() == [0, 1, 2, 3, 9] * 2
    assert listing.split.tolist() == [0] * 5 + [1] * 5


def test_cifar100_from_the_files_torchvision_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR100

    kept = tmp_path / "cifar-100-python"
    kept.mkdir()
    for name, labels, wanted in (("train", [0, 2, 99], "train_list"), ("test", [43, 67], "test_list")):
        rows = RANDOM.integers(0, 256, (len(labels), 3072), np.uint8)
        monkeypatch.setattr(CIFAR100, wanted, [[name, _pickled(kept / name, {"data": rows, "fine_labels": labels})]])
    meta = _pickled(kept / "meta", {"fine_label_names": ["x"] * 100})
    monkeypatch.setattr(CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": meta})
    listing = open_source("cifar100", root=tmp_path)
    names = listing.class_names or ()
    assert listing.labels is not None
    assert [names[code] for code in listing.labels] == [
        "fruit and vegetables", "people", "non-insect invertebrates", "large carnivores", "fish",
    ]  # fmt: skip
    assert listing.split is not None
    assert listing.split.tolist() == [0, 0, 0, 1, 1]


def _idx(path: Path, values: np.ndarray) -> None:
    """The format of MNIST: two zeros, 8 for bytes, the number of dimensions, their sizes, the values."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.write_bytes(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes())


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_from_the_files_torchvision_keeps(tmp_path: Path, name: str, folder: str) -> None:
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    images, labels = RANDOM.integers(0, 256, (7, 28, 28), np.uint8), np.array([3, 1, 4, 1, 5, 9, 2], np.uint8)
    for part, rows in (("train", slice(0, 4)), ("t10k", slice(4, 7))):
        _idx(raw / f"{part}-images-idx3-ubyte", images[rows])
        _idx(raw / f"{part}-labels-idx1-ubyte", labels[rows])
    listing = open_source(name, root=tmp_path)
    assert np.array_equal(listing.array, images)  # type: ignore[arg-type]
    assert listing.labels is not None
    assert listing.labels.tolist() == labels.tolist()
    assert listing.split is not None
    assert listing.split.tolist() == [0, 0, 0, 0, 1, 1, 1]


def _stl10(folder: Path, images: np.ndarray, labels: np.ndarray, n_train: int) -> None:
    """STL-10's own files: channel by channel, each column by column; labels from 1; nothing that is unlabelled."""
    folder.mkdir(parents=True)
    for part, rows in (("train", slice(0, n_train)), ("test", slice(n_train, None))):
        (folder / f"{part}_X.bin").write_bytes(images[rows].transpose(0, 3, 2, 1).tobytes())
        (folder / f"{part}_y.bin").write_bytes((labels[rows] + 1).astype(np.uint8).tobytes())


def test_stl10_from_its_own_files(tmp_path: Path) -> None:
    images, labels = RANDOM.integers(0, 256, (5, 96, 96, 3), np.uint8), np.array([0, 9, 4, 2, 7])
    _stl10(tmp_path / "stl10" / "stl10_binary", images, labels, 2)
    listing = open_source("stl10", root=tmp_path)
    assert listing.array is not None
    assert np.array_equal(listing.array, images)
    assert listing.array.flags.c_contiguous
    assert listing.labels is not None
    assert listing.labels.tolist() == labels.tolist()
    assert listing.split is not None
    assert listing.split.tolist() == [0, 0, 1, 1, 1]


def test_stl10_is_read_as_torchvision_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import STL10

    images = RANDOM.integers(0, 256, (4, 96, 96, 3), np.uint8)
    _stl10(tmp_path / "stl10_binary", images, np.arange(4), 2)
    monkeypatch.setattr(STL10, "_check_integrity", lambda self: True)
    theirs = STL10(tmp_path, split="test")
    ours = open_source("stl10", root=tmp_path)
    assert ours.array is not None
    for row in range(2):
        image, label = theirs[row]
        assert np.array_equal(ours.array[2 + row], np.asarray(image))
        assert ours.labels is not None
        assert ours.labels[2 + row] == label


def test_damaged_files_of_stl10_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "stl10_binary"
    _stl10(folder, RANDOM.integers(0, 256, (4, 96, 96, 3), np.uint8), np.arange(4), 2)
    (folder / "test_y.bin").write_bytes(b"\1")
    assert "ValueError" in complaint("stl10", root=tmp_path)
    (folder / "train_X.bin").write_bytes(b"cut short")
    assert "stl10_binary" in complaint("stl10", root=tmp_path)


PUT = {
    "mnist": "MNIST/raw",
    "fashion_mnist": "FashionMNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "stl10": "stl10_binary",
}


@pytest.mark.parametrize("name", PUT)
def test_what_cannot_be_downloaded_says_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from torchvision import datasets

    for dataset in (datasets.CIFAR10, datasets.CIFAR100, datasets.STL10):
        monkeypatch.setattr(dataset, "url", NOWHERE + "set.tar.gz")
    for dataset in (datasets.MNIST, datasets.FashionMNIST):
        monkeypatch.setattr(dataset, "mirrors", [NOWHERE])
    said = complaint(name, root=tmp_path)
    for part in (str(tmp_path), "images.npy", PUT[name], "TWINCLUSTER_DATA"):
        assert part in said
    assert "write ./" not in said


@pytest.mark.parametrize("name", PUT)
def test_without_torchvision_the_same_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    assert PUT[name] in complaint(name, root=tmp_path)


def test_a_folder_called_like_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name means the set; the folder is another source, and who meant it is told how to say so."""
    monkeypatch.chdir(tmp_path)
    for name in ("digits/1.png", "digits/2.png", "imagenet10/1.png", "imagenet10/2.png"):
        picture(tmp_path / name)
    assert open_source("digits").files is None
    for folder in ("./digits", Path("digits"), tmp_path / "digits"):
        assert open_source(folder).paths == ("1.png", "2.png")
    assert "write ./imagenet10" in complaint("imagenet10", root=tmp_path / "data")
    assert open_source("./imagenet10").paths == ("1.png", "2.png")


def test_a_model_of_digits_beside_a_folder_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the run says it was fitted on is what opens again: the set, not the folder."""
    from sklearn.exceptions import ConvergenceWarning

    from twincluster.estimator import TwinContrastClustering
    from twincluster.runs import Run

    monkeypatch.chdir(tmp_path)
    for row in range(6):
        picture(tmp_path / "digits" / f"{row}.png", (row * 40, 0, 0))
    settings = {"train.batch_size": 512, "train.backbone": "small", "anchored": {"n_features": 8, "hidden": 8}}
    for source, location in (("digits", "digits"), (Path("digits"), str(tmp_path / "digits"))):
        options = settings if isinstance(source, str) else settings | {"train.batch_size": 4, "train.image_size": 8}
        model = TwinContrastClustering(2, recipe="digits", epochs=1, settings=options, device="cpu", random_state=0)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            model.fit(source).save(tmp_path / f"run {type(source).__name__}")
        data = Run(tmp_path / f"run {type(source).__name__}").data
        assert data.location == location
        assert data.inputs == len(open_source(location).paths)
