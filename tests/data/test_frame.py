"""Oblong images as squares: their middle, or all of them between bars, from files, arrays and open images alike."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pictures import SIDE, photos, same
from PIL import Image

from command_line import TINY, command, worked
from twincluster import model as opening
from twincluster import resolve as deciding
from twincluster.config import Config, make_config
from twincluster.core import InputError
from twincluster.data import Frame, are_open, as_squares, decode, open_images, open_source, typical_side
from twincluster.data.decoding import letterboxed
from twincluster.estimator import TwinContrastClustering
from twincluster.runs import RunData

FACTS = RunData("x", None, files=False, fingerprint="f", inputs=3, readable=3, split="all")


def striped(width: int, height: int) -> Image.Image:
    """Red at the left, blue at the right and green between: all of it must be seen."""
    image = Image.new("RGB", (width, height), (0, 200, 0))
    image.paste((200, 0, 0), (0, 0, width // 4, height))
    image.paste((0, 0, 200), (width - width // 4, 0, width, height))
    return image


def slow_letterbox(pixels: np.ndarray) -> np.ndarray:
    """Pixel by pixel, for one image."""
    height, width = pixels.shape[:2]
    border = [*pixels[0], *pixels[-1], *pixels[:, 0], *pixels[:, -1]]
    bars = [round(sum(int(pixel[channel]) for pixel in border) / len(border)) for channel in range(3)]
    edge = max(height, width)
    result = np.array([[bars] * edge] * edge)
    for row in range(height):
        for column in range(width):
            result[row + (edge - height) // 2, column + (edge - width) // 2] = pixels[row, column]
    return result


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 6), (1, 7), (7, 1), (6, 6), (1, 1)])
def test_bars_have_the_colour_of_the_border(shape: tuple[int, int]) -> None:
    batch = np.random.default_rng(0).integers(0, 256, (3, *shape, 3), np.uint8)
    together = letterboxed(batch)
    assert together.dtype == np.uint8
    for one, image in zip(together, batch, strict=True):
        assert np.abs(one.astype(int) - slow_letterbox(image)).max() <= 1  # halves may be rounded either way
        assert np.array_equal(one, letterboxed(image))


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_file_is_shown_whole(tmp_path: Path, suffix: str) -> None:
    striped(120, 40).save(tmp_path / f"wide.{suffix}", **({"quality": 95} if suffix == "jpg" else {}))
    pixels, status = decode(tmp_path / f"wide.{suffix}", 24, "letterbox")
    assert status == "ok"
    assert pixels is not None
    for column, colour in ((2, (200, 0, 0)), (12, (0, 200, 0)), (21, (0, 0, 200))):
        assert np.abs(pixels[12, column].astype(int) - colour).max() <= 12
    bars = pixels[[2, 21]].reshape(-1, 3)
    assert np.ptp(bars, axis=0).max() == 0
    assert 40 < bars[0][1] < 160  # a mixture, not the black or grey of nothing
    cropped, _ = decode(tmp_path / f"wide.{suffix}", 24)
    assert cropped is not None
    assert np.abs(cropped[12, 2].astype(int) - (0, 200, 0)).max() <= 12  # the crop does not see the ends


@pytest.mark.parametrize("size", [(640, 1), (1, 500), (3, 2), (1, 1)])
def test_extreme_shapes(tmp_path: Path, size: tuple[int, int]) -> None:
    Image.new("RGB", size, (9, 99, 199)).save(tmp_path / "a.png")
    pixels, _ = decode(tmp_path / "a.png", SIDE, "letterbox")
    assert pixels is not None
    assert pixels.shape == (SIDE, SIDE, 3)
    assert (pixels == (9, 99, 199)).all()


def test_squares_are_the_same_either_way(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 30, 3), np.uint8)).save(tmp_path / "a.png")
    assert np.array_equal(decode(tmp_path / "a.png", SIDE)[0], decode(tmp_path / "a.png", SIDE, "letterbox")[0])


def test_a_turned_photograph_is_turned_before_it_is_framed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    striped(120, 40).save(tmp_path / "a.png", exif=exif)
    pixels, _ = decode(tmp_path / "a.png", 24, "letterbox")
    assert pixels is not None
    assert pixels[2, 12].tolist() == [200, 0, 0]
    assert pixels[21, 12].tolist() == [0, 0, 200]


# The store


def test_each_frame_has_a_store_of_its_own(tmp_path: Path, own_cache: Path) -> None:
    listing = open_source(photos(tmp_path / "a"))
    cropped = open_images(listing, side=SIDE, workers=1)
    boxed = open_images(listing, side=SIDE, frame="letterbox", workers=1)
    assert cropped.fingerprint != boxed.fingerprint
    assert len(list(own_cache.glob("*/*.npy"))) == 2
    told: list[int] = []
    for images, frame in ((cropped, "crop"), (boxed, "letterbox")):
        again = open_images(listing, side=SIDE, frame=frame, progress=lambda done, total: told.append(done))  # type: ignore[arg-type]
        assert same(images, again)
    assert told == []
    for row, file in enumerate(listing.files or ()):
        if (expected := decode(file, SIDE, "letterbox")[0]) is not None:
            assert np.array_equal(boxed.pixels[row], expected)


def test_the_fingerprint_differs_even_where_all_images_are_square(tmp_path: Path) -> None:
    for number in range(3):
        Image.new("RGB", (9, 9), (number, 0, 0)).save(tmp_path / f"{number}.png")
    listing = open_source(tmp_path)
    one, other = (open_images(listing, side=SIDE, frame=frame) for frame in ("crop", "letterbox"))  # type: ignore[arg-type]
    assert np.array_equal(one.pixels, other.pixels)
    assert one.fingerprint != other.fingerprint


def test_several_processes_frame_alike(tmp_path: Path) -> None:
    listing = open_source(photos(tmp_path / "a", 120))
    one, two = (
        open_images(listing, side=SIDE, frame="letterbox", workers=workers, cache=tmp_path / str(workers))
        for workers in (1, 2)
    )
    assert same(one, two)


def test_arrays() -> None:
    oblong = np.random.default_rng(0).integers(0, 256, (4, 5, 9, 3), np.uint8)
    boxed = open_images(open_source(oblong), frame="letterbox")
    assert boxed.pixels.shape == (4, 9, 9, 3)
    assert np.array_equal(boxed.pixels[:, 2:7], oblong)
    assert boxed.fingerprint != open_images(open_source(oblong)).fingerprint
    grey = open_images(open_source(oblong[..., 0]), frame="letterbox").pixels
    assert np.array_equal(grey[:, 2:7], np.repeat(oblong[..., :1], 3, axis=-1))
    square = oblong[:, :5, :5]
    assert np.shares_memory(open_images(open_source(square), frame="letterbox").pixels, square)
    rows = np.random.default_rng(0).normal(size=(7, 3))
    crop, box = (open_images(open_source(rows), frame=frame) for frame in ("crop", "letterbox"))  # type: ignore[arg-type]
    assert crop.fingerprint == box.fingerprint  # rows have no frame


# The size to store at


def framed(frame: Frame, image_size: int = 0) -> Config:
    return make_config({"train": {"frame": frame, "image_size": image_size}})


@pytest.mark.parametrize("frame,side", [("crop", 20), ("letterbox", 50)])
def test_the_training_size_follows_the_edge_that_fills_the_square(tmp_path: Path, frame: Frame, side: int) -> None:
    for number in range(3):
        Image.new("RGB", (50, 20), (number, 0, 0)).save(tmp_path / f"{number}.png")
    listing = open_source(tmp_path)
    assert typical_side(listing.sizes, frame) == side
    config = deciding.with_image_size(framed(frame), listing)
    assert config.train.image_size == side
    assert opening.open_for(config, listing).side == side  # not enlarged on the disk


@pytest.mark.parametrize(
    "sides,image_size,stored",
    [((28, 28, 28), 0, 28), ((20, 28, 100), 0, 42), ((30, 32, 40), 96, 40), ((2, 3, 4), 0, 8), ((300, 400), 96, 144)],
)
def test_small_files_are_not_enlarged_on_the_disk(
    tmp_path: Path, sides: tuple[int, ...], image_size: int, stored: int
) -> None:
    for number, side in enumerate(sides):
        Image.new("RGB", (side, side + 3), (number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    listing = open_source(tmp_path)
    config = deciding.with_image_size(framed("crop", image_size), listing)
    assert deciding.store_side(config, listing) == stored
    assert opening.open_for(config, listing).side == stored


def test_where_no_file_can_be_read_the_size_is_as_before(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"no image")
    listing = open_source(tmp_path)
    config = deciding.with_image_size(framed("crop"), listing)
    assert deciding.store_side(config, listing) == 144


# From the command line and from Python


def test_a_run_keeps_its_frame(tmp_path: Path, photo_folder: Path, own_cache: Path) -> None:
    fit = ("fit", photo_folder, "--clusters", 3, "--out", tmp_path / "run", *TINY)
    worked(*fit, "--set", "train.frame=letterbox")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["train"]["frame"] == "letterbox"
    stores = list(own_cache.glob("*/*.npy"))
    worked("predict", tmp_path / "run", photo_folder, "--out", tmp_path / "new.csv")
    assert (tmp_path / "new.csv").read_bytes() == (tmp_path / "run" / "assignments.csv").read_bytes()
    assert list(own_cache.glob("*/*.npy")) == stores  # it read what training had decoded
    assert "train.frame (letterbox, now crop): resume with the same settings" in command(*fit, "--resume").complaint
    assert (
        "train.frame is 'pad': expected one of 'crop', 'letterbox'"
        in command(*fit, "--set", "train.frame=pad").complaint
    )


def test_open_images_of_several_sizes() -> None:
    images = [striped(120, 40), striped(40, 40), striped(30, 90)]
    assert are_open(images)
    assert not are_open(["a.png", "b.png"])
    assert not are_open(np.zeros((2, 8, 8, 3)))
    boxes = opening.squares_for(framed("letterbox"), images, None)
    assert boxes.shape == (3, 120, 120, 3)
    assert boxes[0, 60, 3].tolist() == [200, 0, 0]
    assert boxes[0, 60, 116].tolist() == [0, 0, 200]


@pytest.mark.parametrize(("size", "side"), [(0, 100), (67, 100), (50, 100), (49, 73), (8, 12)])
def test_open_images_keep_the_size_of_the_largest_unless_it_is_much_larger_than_needed(size: int, side: int) -> None:
    mixed = [Image.new("L", (100, 140), 50), Image.new("RGBA", (50, 20), (1, 2, 3, 255)), Image.new("RGB", (9, 9))]
    squares = opening.squares_for(framed("crop", size), mixed, None)
    assert squares.shape == (3, side, side, 3)
    assert (squares[0] == 50).all()
    assert (squares[1] == (1, 2, 3)).all()
    later = opening.squares_for(framed("crop", size), mixed[2:], None, replace(FACTS, side=side))
    assert np.array_equal(later, squares[2:])
    assert opening.squares_for(framed("crop", 32), mixed, None, FACTS).shape[1] == 48  # of a run that does not know


def test_an_open_image_of_a_damaged_file(tmp_path: Path) -> None:
    striped(300, 200).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:200])
    with Image.open(tmp_path / "a.png") as image, pytest.raises(InputError, match="a PIL image cannot be read"):
        as_squares([image, striped(10, 20)], 8, "letterbox")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_estimator(tmp_path: Path) -> None:
    """Files, open images and an array of the same oblong pictures are seen in the same frame."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 120, (24, 8, 16, 3))
    pixels[np.arange(24), :, :, np.arange(24) % 3] += 120
    images = [Image.fromarray(picture) for picture in pixels.astype(np.uint8)]
    settings = {"train": {"batch_size": 8, "image_size": 16, "backbone": "small", "frame": "letterbox"},
                "anchored": {"n_features": 8, "hidden": 16, "instance_queue": 64}}  # fmt: skip
    model = TwinContrastClustering(3, settings=settings, epochs=2, device="cpu", random_state=0).fit(images)
    assert model.config_.train.frame == "letterbox"
    expected = model.predict_proba(images)
    several = [*images, Image.new("RGB", (5, 7))]  # now of two sizes
    np.testing.assert_allclose(model.predict_proba(several)[:24], expected, atol=1e-5)
    for number, image in enumerate(images):
        image.save(tmp_path / f"{number:02d}.png")
    np.testing.assert_allclose(model.predict_proba(tmp_path), expected, atol=1e-5)
    again = TwinContrastClustering(3, settings=settings, epochs=1, device="cpu", random_state=0).fit(several)
    assert len(again.labels_) == 25
