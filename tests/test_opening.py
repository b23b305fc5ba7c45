"""Which recipe images get where nobody named one: it depends on the device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from small_encoders import colour_encoder
from twincluster import resolve as deciding
from twincluster.config import configure, differences
from twincluster.data import FEW, open_source
from twincluster.model import open_for
from twincluster.resolve import ENOUGH, MANY, check_method, choose_recipe

IMAGES = np.zeros((MANY, 2, 2, 3), np.uint8)
ROWS = np.zeros((4, 8), np.float32)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained here: a machine without a GPU only has to say that it has one."""
    monkeypatch.setattr(deciding, "resolve_device", lambda name: "cuda" if name == "auto" else name)


def chosen(source: Any, settings: dict[str, Any], base: str = "default") -> list[str]:
    """Return the settings in which the choice differs from a recipe."""

    def recipe(name: str) -> Any:
        return configure(name, settings, {})

    config, why = choose_recipe(open_source(source), recipe, None, {})
    assert why is None
    return differences(config, check_method(recipe(base)))


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_has_its_own_recipe_for_images() -> None:
    changed = chosen(IMAGES, {"anchored": {"balance": 0.5}})
    assert {"anchored.instance", "augment.hole", "train.batch_size"} <= set(changed)
    assert "anchored.balance" not in changed
    assert "train.backbone" not in chosen(IMAGES, {"train": {"backbone": "resnet34"}})


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(
    ("source", "settings", "base"),
    [
        (IMAGES, {"train": {"device": "cpu"}, "method": "tcc"}, "default"),
        (IMAGES, {"method": "tcc"}, "default"),
        (IMAGES, {"train": {"encoder": "pretrained"}}, "pretrained"),
        (ROWS, {}, "rows"),
        (IMAGES[1:], {}, "default"),
    ],
    ids=["another method on the CPU", "another method", "a pretrained network", "rows", "few images"],
)
def test_everything_else_keeps_its_settings(source: np.ndarray, settings: dict[str, Any], base: str) -> None:
    assert not chosen(source, settings, base)


@pytest.mark.parametrize("named", [{}, {"backbone": "auto"}], ids=["left out", "auto"])
@pytest.mark.parametrize(
    ("shape", "frame", "method", "recipe"),
    [
        ((8, 8), "crop", "anchored", "cpu"),
        ((16, 16, 3), "crop", "anchored", "cpu"),
        ((17, 17, 3), "crop", "anchored", "pretrained"),
        ((256, 256), "crop", "anchored", "pretrained"),
        ((16, 64, 3), "crop", "anchored", "cpu"),
        ((16, 64, 3), "letterbox", "anchored", "pretrained"),
        ((96, 96, 3), "crop", "tcc", "default"),
        ((97, 97, 3), "crop", "tcc", "pretrained"),
    ],
    ids=str,
)
def test_without_a_gpu_a_pretrained_network_sees_all_but_tiny_images(
    named: dict[str, str], shape: tuple[int, ...], frame: str, method: str, recipe: str
) -> None:
    settings: dict[str, Any] = {"method": method, "train": {"device": "cpu", "frame": frame, **named}}

    def made(name: str) -> Any:
        return configure(name, settings, {})

    listing = open_source(np.zeros((4, *shape), np.uint8))
    config, why = choose_recipe(listing, made, None, {})
    assert not differences(config, check_method(made(recipe)))
    assert ("using a pretrained network" in (why or "")) == (recipe == "pretrained")
    settings["train"]["backbone"] = "resnet18"
    config, why = choose_recipe(listing, made, None, {})
    assert not differences(config, check_method(made("cpu" if method == "anchored" else "default")))
    assert why is None


def test_without_a_gpu_images_that_are_to_be_learned_at_a_tiny_size_are() -> None:
    def made(name: str) -> Any:
        return configure(name, {"train": {"device": "cpu", "image_size": 16}}, {})

    config, why = choose_recipe(open_source(np.zeros((4, 28, 28), np.uint8)), made, None, {})
    assert (differences(config, check_method(made("cpu"))), why) == ([], None)


def drawings(count: int = ENOUGH, side: int = 24) -> np.ndarray:
    """Lines of ink on paper."""
    images = np.full((count, side, side), 255, np.uint8)
    for number, image in enumerate(images):
        image[4 + number % 12 :][:3] = 0
    return images


@pytest.mark.parametrize("as_files", [False, True], ids=["array", "files"])
def test_without_a_gpu_small_drawings_are_trained_on_at_a_tiny_size(
    tmp_path: Path, own_cache: Path, as_files: bool
) -> None:
    def made(name: str) -> Any:
        return configure(name, {"train": {"device": "cpu"}}, {})

    source: Any = drawings()
    if as_files:
        for number, image in enumerate(source):
            Image.fromarray(image).save(tmp_path / f"{number}.png")
        (tmp_path / "broken.png").write_bytes(b"")
        source = tmp_path
    config, why = choose_recipe(open_source(source), made, None, {})
    assert differences(config, check_method(made("cpu"))) == ["train.image_size"]
    assert config.train.image_size == 16
    assert "--backbone pretrained" in (why or "")
    assert not list(own_cache.iterdir()), "a look at a few leaves nothing behind"


@pytest.mark.parametrize(
    ("images", "settings"),
    [
        (np.where(drawings() == 0, 140, drawings()), {}),
        (drawings(side=65), {}),
        (drawings(MANY), {}),
        (drawings(ENOUGH - 1), {}),
        (drawings(), {"train": {"image_size": 24}}),
    ],
    ids=["grey lines", "large", "many", "few", "of a size that is asked for"],
)
def test_other_images_get_the_pretrained_network(images: np.ndarray, settings: dict[str, Any]) -> None:
    def made(name: str) -> Any:
        return configure(name, {"train": {"device": "cpu"} | settings.get("train", {})}, {})

    config, _ = choose_recipe(open_source(images), made, None, {})
    assert config.train.encoder == "pretrained"


def test_features_of_a_few_images_are_not_kept(own_cache: Path) -> None:
    """Who asks about image after image would fill the disk."""
    config = configure("pretrained", {}, {})
    array = np.random.default_rng(0).integers(0, 256, (FEW + 1, 8, 8, 3), np.uint8)
    some = open_for(config, open_source(array[:FEW]), encoder=colour_encoder(), device="cpu")
    assert not list(own_cache.iterdir())
    more = open_for(config, open_source(array), encoder=colour_encoder(), device="cpu")
    assert len(list((own_cache / "features").glob("*.npy"))) == 1
    np.testing.assert_array_equal(some.pixels, more.pixels[:FEW])
