"""Copies are found however they were made, images of the same kind are not, and no chain becomes a group."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from twincluster.clustering import find_copies, groups_of, odd_ones
from twincluster.clustering.copies import Copies
from twincluster.data import Looks

SIDE = 160


def scene(seed: int) -> Image.Image:
    """Clouds of colour with discs and bars on them, different in every scene."""
    random = np.random.default_rng(seed)
    clouds = Image.fromarray(random.integers(0, 256, (7, 9, 3)).astype(np.uint8)).resize(
        (240, 180), Image.Resampling.BICUBIC
    )
    pixels = np.asarray(clouds).astype(int)
    down, across = np.mgrid[:180, :240]
    for _ in range(25):
        y, x, size = random.integers(0, 180), random.integers(0, 240), random.integers(6, 30)
        shape = (down - y) ** 2 + (across - x) ** 2 < size**2
        if random.random() < 0.5:
            shape = (abs(down - y) < size) & (abs(across - x) < size / 3)
        pixels[shape] = random.integers(0, 256, 3)
    return Image.fromarray(np.clip(pixels + random.normal(0, 6, pixels.shape), 0, 255).astype(np.uint8))


def decoded(picture: Image.Image) -> np.ndarray:
    edge = min(picture.size)
    left, top = (picture.width - edge) // 2, (picture.height - edge) // 2
    return np.asarray(picture.crop((left, top, left + edge, top + edge)).resize((SIDE, SIDE), Image.Resampling.LANCZOS))


def recompressed(picture: Image.Image, path: Path, quality: int) -> Image.Image:
    picture.save(path / "again.jpg", quality=quality)
    return Image.open(path / "again.jpg").convert("RGB")


def moment_later(picture: Image.Image) -> Image.Image:
    width, height = picture.size
    part = picture.crop((int(0.03 * width), int(0.01 * height), int(0.98 * width), int(0.96 * height)))
    return ImageEnhance.Brightness(part.resize((width, height))).enhance(1.12)


def copies_of(pixels: list[np.ndarray], features: np.ndarray | None = None) -> tuple[Copies, Looks]:
    looks = Looks.of(np.stack(pixels), range(len(pixels)))
    flaws = looks.flaws()
    found = find_copies(
        looks.grey, looks.coloured, flaws["blurred"][0], looks.detailed(flaws["screenshot"][0]), features
    )
    return found, looks


@pytest.mark.parametrize("quality", [30, 60, 95])
def test_every_way_to_make_a_copy_is_found_and_nothing_else(tmp_path: Path, quality: int) -> None:
    originals = [scene(seed) for seed in range(24)]
    changed = [
        recompressed(originals[0], tmp_path, quality),
        originals[1].resize((120, 90)),
        originals[2].resize((480, 360)),
        moment_later(originals[3]),
        originals[4].filter(ImageFilter.GaussianBlur(12)),
        originals[5].crop((6, 4, 236, 178)),
    ]
    found, _ = copies_of([decoded(picture) for picture in (*originals, *changed)])
    assert found.pairs.tolist() == [[at, 24 + at] for at in range(6)]
    assert (found.alike > 0.6).all()


def test_features_that_are_close_are_not_enough() -> None:
    pixels = [decoded(scene(seed)) for seed in range(12)]
    features = np.ones((12, 64)) + 0.01 * np.random.default_rng(0).normal(size=(12, 64))
    assert not len(copies_of(pixels, features)[0].pairs)


def test_features_find_what_thumbnails_alone_leave_open() -> None:
    pixels = [decoded(scene(seed)) for seed in range(24)]
    later = moment_later(moment_later(scene(3)))
    random = np.random.default_rng(0)
    features = random.normal(size=(25, 64))
    features[24] = features[3]
    found, _ = copies_of([*pixels, decoded(later)], features)
    assert found.pairs.tolist() == [[3, 24]]


def test_only_pairs_with_fresh_images_are_compared() -> None:
    pixels = [decoded(scene(seed)) for seed in (0, 1, 0, 1)]
    looks = Looks.of(np.stack(pixels), range(4))
    nothing, detailed = np.zeros(4, bool), np.ones(4, bool)
    fresh = np.array([False, False, False, True])
    found = find_copies(looks.grey, looks.coloured, nothing, detailed, None, fresh)
    assert found.pairs.tolist() == [[1, 3]]
    whole = find_copies(looks.grey, looks.coloured, nothing, detailed, None)
    assert whole.pairs.tolist() == [[0, 2], [1, 3]]


def test_digits_that_look_alike_are_no_copies() -> None:
    from sklearn.datasets import load_digits

    digits = (load_digits().images[:600] * 15.9).astype(np.uint8)[..., None].repeat(3, -1)
    digits[599] = digits[0]
    looks = Looks.of(digits, range(600))
    found = find_copies(looks.grey, looks.coloured, np.zeros(600, bool), looks.detailed(np.zeros(600, bool)), None)
    assert found.pairs.tolist() == [[0, 599]]
    assert not any(mask.any() for mask, _ in looks.flaws().values())


def test_groups_are_not_chained() -> None:
    chain = Copies(np.array([[0, 1], [1, 2], [2, 3]]), np.array([0.9, 0.8, 0.7]))
    nothing = np.zeros(4, bool)
    assert groups_of(chain, np.arange(4), nothing) == [(1, 0, 0.9), (3, 2, 0.7)]
    assert groups_of(chain, np.array([3, 0, 1, 2]), nothing) == [(0, 1, 0.9), (2, 1, 0.8)]


def test_the_best_image_is_never_a_blurred_one_and_no_blurred_copy_is_lost() -> None:
    pairs = Copies(np.array([[0, 1], [1, 2]]), np.array([0.9, 0.8]))
    spoilt = np.array([True, False, False])
    assert groups_of(pairs, np.array([0, 2, 1]), spoilt) == [(1, 2, 0.8), (0, 1, 0.9)]


def test_an_image_far_from_all_others_is_odd() -> None:
    random = np.random.default_rng(0)
    features = np.eye(5, 32)[np.arange(500) % 5] + 0.1 * random.normal(size=(500, 32))
    features[123] = -np.ones(32)
    values = odd_ones(features)
    assert values.argmax() == 123
    assert np.count_nonzero(values) <= 5
    assert not odd_ones(features[:20]).any()  # too few to tell


def test_no_images_and_one_image() -> None:
    nothing = np.zeros(0, bool)
    assert not len(
        find_copies(np.zeros((0, 32, 32), np.uint8), np.zeros((0, 16, 16, 3), np.uint8), nothing, nothing, None).pairs
    )
    looks = Looks.of(np.zeros((1, 8, 8, 3), np.uint8), [0])
    assert not len(find_copies(looks.grey, looks.coloured, np.zeros(1, bool), np.ones(1, bool), None).pairs)
