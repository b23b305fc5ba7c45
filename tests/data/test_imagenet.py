"""ImageNet-10, ImageNet-Dogs and Tiny ImageNet from small folders of the official layouts."""

from pathlib import Path

import numpy as np
import pytest
from sourcing import complaint, picture

from twincluster.data import open_images, open_source
from twincluster.data.named import IMAGENET10, IMAGENET_DOGS

# As the papers list them.
TEN = "02056570 02085936 02128757 02690373 02692877 03095699 04254680 04285008 04467665 07747607"
FIFTEEN = (
    "02085936 02086646 02088238 02091467 02097130 02099601 02101388 02101556 02102177 02105056 02105412 02105855 "
    "02107142 02110958 02112137"
)
BOTH = sorted({f"n{number}" for number in (TEN + " " + FIFTEEN).split()})


def _imagenet(train: Path) -> Path:
    """Two images of each class of either set, a class of neither, and a file that is no image."""
    for place, identifier in enumerate([*BOTH, "n01440764"]):
        for number in (10026, 7):
            picture(train / identifier / f"{identifier}_{number}.JPEG", (place * 9, number % 255, 0))
    (train / BOTH[0] / "notes.txt").write_text("no image")
    return train


def test_the_classes() -> None:
    assert [*IMAGENET10] == [f"n{number}" for number in TEN.split()]
    assert [*IMAGENET_DOGS] == [f"n{number}" for number in FIFTEEN.split()]


@pytest.mark.parametrize("where", ["imagenet/train", "imagenet", "imagenet/ILSVRC/Data/CLS-LOC/train"])
def test_both_from_one_imagenet_folder(tmp_path: Path, where: str) -> None:
    train = _imagenet(tmp_path / where)
    for name, numbers in (("imagenet10", TEN), ("imagenet_dogs", FIFTEEN)):
        listing = open_source(name, root=tmp_path)
        expected = [f"n{number}/n{number}_{image}.JPEG" for number in numbers.split() for image in (10026, 7)]
        assert listing.name == name
        assert list(listing.paths) == expected
        assert listing.files == tuple(str(train / path) for path in expected)
        assert listing.labels is not None
        assert listing.labels.tolist() == [code for code in range(len(numbers.split())) for _ in (0, 1)]
        assert len(listing.class_names or ()) == len(numbers.split())


@pytest.mark.parametrize("where", ["imagenet10", "imagenet10/train"])
def test_a_folder_of_the_set_alone_comes_first(tmp_path: Path, where: str) -> None:
    _imagenet(tmp_path / "imagenet" / "train")
    alone = _imagenet(tmp_path / where)
    files = open_source("imagenet10", root=tmp_path).files or ()
    assert all(Path(str(file)).is_relative_to(alone) for file in files)


def test_two_sets_of_one_folder_have_stores_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twincluster.data.listing.FEW", 0)
    _imagenet(tmp_path / "imagenet" / "train")
    for first in (True, False):
        for name in ("imagenet10", "imagenet_dogs"):
            told: list[int] = []
            listing = open_source(name, root=tmp_path)
            images = open_images(listing, side=8, workers=1, progress=lambda done, total, told=told: told.append(done))
            assert set(images.status) == {"ok"}
            assert abs(int(images.pixels[0, 4, 4, 0]) - 9 * BOTH.index(listing.paths[0][:9])) < 8
            assert bool(told) is first  # the second time nothing is decoded


def test_an_imagenet_folder_that_lacks_something(tmp_path: Path) -> None:
    said = complaint("imagenet_dogs", root=tmp_path)
    for part in ("imagenet/train", "n02112137", "images.npy", str(tmp_path)):
        assert part in said
    train = _imagenet(tmp_path / "imagenet" / "train")
    for image in (train / "n02128757").iterdir():
        image.unlink()
    (train / "n07747607").rename(train / "orange")
    said = complaint("imagenet10", root=tmp_path)
    assert f"has no images in n02128757, n07747607: add these ImageNet folders to {train}" in said
    assert len(open_source("imagenet_dogs", root=tmp_path).paths) == 30


def _tiny(place: Path) -> Path:
    """Two classes, three training images each, and three for validation whose classes a file tells."""
    for identifier in ("n02124075", "n01443537"):
        for number in range(3):
            picture(place / "train" / identifier / "images" / f"{identifier}_{number}.JPEG")
        (place / "train" / identifier / f"{identifier}_boxes.txt").write_text("")
    for number in range(3):
        picture(place / "val" / "images" / f"val_{number}.JPEG")
    picture(place / "test" / "images" / "test_0.JPEG")
    (place / "val" / "val_annotations.txt").write_text(
        "val_0.JPEG\tn02124075\t0\t32\t44\t62\nval_2.JPEG\tn01443537\t52\t55\t57\t59\n"
        "val_1.JPEG\tn02124075\t4\t0\t60\t55\n"
    )
    (place / "wnids.txt").write_text("n02124075\nn01443537\n")
    (place / "words.txt").write_text(
        "n00001740\tentity\nn02124075\tEgyptian cat\nn01443537\tgoldfish, Carassius auratus"
    )
    return place


@pytest.mark.parametrize("where", ["tiny-imagenet-200", "tiny_imagenet/tiny-imagenet-200", "tiny_imagenet"])
def test_tiny_imagenet(tmp_path: Path, where: str) -> None:
    place = _tiny(tmp_path / where)
    listing = open_source("tiny_imagenet", root=tmp_path)
    assert listing.class_names == ("goldfish", "Egyptian cat")
    assert listing.paths == (
        *(f"train/n01443537/images/n01443537_{number}.JPEG" for number in range(3)),
        *(f"train/n02124075/images/n02124075_{number}.JPEG" for number in range(3)),
        *(f"val/images/val_{number}.JPEG" for number in range(3)),
    )
    assert listing.files == tuple(str(place / path) for path in listing.paths)
    assert listing.labels is not None
    assert listing.labels.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 0]
    assert listing.split is not None
    assert listing.split.tolist() == [0] * 6 + [1] * 3
    assert listing.split.dtype == np.int8


def test_tiny_imagenet_sorted_into_classes_and_without_words(tmp_path: Path) -> None:
    place = _tiny(tmp_path / "tiny-imagenet-200")
    (place / "val" / "val_annotations.txt").unlink()
    (place / "words.txt").unlink()
    for number in range(3):
        target = place / "val" / "n02124075" / f"val_{number}.JPEG"
        target.parent.mkdir(exist_ok=True)
        (place / "val" / "images" / f"val_{number}.JPEG").rename(target)
    listing = open_source("tiny_imagenet", root=tmp_path)
    assert listing.class_names == ("n01443537", "n02124075")
    assert listing.labels is not None
    assert listing.labels.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]


def test_tiny_imagenet_that_lacks_something(tmp_path: Path) -> None:
    said = complaint("tiny_imagenet", root=tmp_path)
    for part in ("tiny-imagenet-200", "images.npy", str(tmp_path)):
        assert part in said
    place = _tiny(tmp_path / "tiny-imagenet-200")
    (place / "val" / "val_annotations.txt").unlink()
    assert "no val_annotations.txt" in complaint("tiny_imagenet", root=tmp_path)
    (place / "val").rename(place / "other")
    assert "has no folder val" in complaint("tiny_imagenet", root=tmp_path)
    (place / "val").mkdir()
    assert "contains no images" in complaint("tiny_imagenet", root=tmp_path)
