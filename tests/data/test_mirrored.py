"""Whether images can be told from their mirror images, which decides whether training may flip them."""

import numpy as np
import pytest
from numpy.typing import NDArray

from small_runs import images_of
from twincluster.config import load_recipe, make_config
from twincluster.data import left_differs_from_right
from twincluster.resolve import resolve


def blobs(count: int, side: int = 24) -> NDArray[np.uint8]:
    """A bright spot anywhere in the image: as likely on the left as on the right."""
    draw = np.random.default_rng(0)
    down, across = np.mgrid[:side, :side]
    middle = draw.uniform(3, side - 4, (count, 2, 1, 1))
    spot = np.exp(-((down - middle[:, 0]) ** 2 + (across - middle[:, 1]) ** 2) / 12)
    grey = 200 * spot + draw.uniform(0, 40, (count, 1, 1))
    return np.repeat(grey.astype(np.uint8)[..., None], 3, 3)


def arrows(count: int) -> NDArray[np.uint8]:
    """The same spots, each with a tail to its right."""
    images = blobs(count).astype(np.float64)
    for shift in (3, 6):
        images[:, :, shift:] += 0.6 * images[:, :, :-shift] / (shift / 3)
    return (images / images.max() * 255).astype(np.uint8)


def every(images: NDArray[np.uint8]) -> bool:
    return left_differs_from_right(images, np.arange(len(images)))


def test_digits_differ_from_their_mirror_images(digits: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> None:
    images = np.repeat(digits[0].reshape(-1, 8, 8, 1), 3, 3)
    assert every(images)
    assert every(images[:, :, ::-1])
    both = np.concatenate([images[::2], images[1::2, :, ::-1]])  # as many of either kind
    assert not every(both)


def test_what_may_be_anywhere_does_not_and_arrows_do() -> None:
    assert not every(blobs(600))
    assert every(arrows(600))


def test_brightness_and_contrast_do_not_count() -> None:
    dim = (arrows(600) * np.random.default_rng(1).uniform(0.2, 1, (600, 1, 1, 1))).astype(np.uint8)
    assert every(dim)


def test_a_scene_that_was_taken_ten_times_does_not_tell_of_itself() -> None:
    draw = np.random.default_rng(0)
    scenes = np.kron(draw.integers(0, 256, (60, 6, 6, 3)), np.ones((1, 4, 4, 1)))
    frames = np.repeat(scenes, 10, 0) + draw.normal(0, 8, (600, 24, 24, 3))
    assert not every(frames.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_few_images_say_nothing(count: int) -> None:
    assert not every(arrows(count))


def test_images_without_anything_on_them_say_nothing() -> None:
    assert not every(np.zeros((200, 8, 8, 3), np.uint8))


def test_only_the_images_that_can_be_used_are_looked_at() -> None:
    images = np.concatenate([blobs(600), arrows(600)])
    assert not left_differs_from_right(images, np.arange(600))
    assert left_differs_from_right(images, np.arange(600, 1200))


@pytest.mark.parametrize("recipe", ["default", "cpu", "gpu", "mnist"])
def test_recipes_for_any_images_leave_flips_to_the_images(recipe: str) -> None:
    config = make_config({"train": {"device": "cpu"}, "n_clusters": 2}, make_config(load_recipe(recipe).settings))
    assert resolve(config, images_of(blobs(300))).augment.flip == 0.5
    assert resolve(config, images_of(arrows(300))).augment.flip == 0.0


def test_who_says_how_often_to_flip_is_obeyed() -> None:
    config = make_config({"train": {"device": "cpu"}, "n_clusters": 2, "augment": {"flip": 0.25}})
    assert resolve(config, images_of(arrows(300))).augment.flip == 0.25
