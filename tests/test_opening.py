"""Which recipe images get where nobody named one: it depends on the device."""

from typing import Any

import numpy as np
import pytest

from twincluster import opening
from twincluster.config import differences
from twincluster.derive import MANY
from twincluster.images.sources import open_source
from twincluster.opening import by_device
from twincluster.options import configure

IMAGES = np.zeros((MANY, 2, 2, 3), np.uint8)
ROWS = np.zeros((4, 8), np.float32)


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained here: a machine without a GPU only has to say that it has one."""
    monkeypatch.setattr(opening, "resolve_device", lambda name: "cuda" if name == "auto" else name)


def chosen(source: Any, settings: dict[str, Any]) -> list[str]:
    """In which settings what is used differs from the default recipe."""

    def recipe(name: str) -> Any:
        return configure(name, settings, {})

    config, note = by_device(recipe("default"), open_source(source), recipe)
    assert note is None
    return differences(config, recipe("default"))


def test_a_gpu_has_its_own_recipe_for_images() -> None:
    changed = chosen(IMAGES, {"anchored": {"balance": 0.5}})
    assert {"anchored.instance", "augment.hole", "train.batch_size"} <= set(changed)
    assert "anchored.balance" not in changed
    assert "train.backbone" not in chosen(IMAGES, {"train": {"backbone": "resnet34"}})


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (IMAGES, {"train": {"device": "cpu"}}),
        (IMAGES, {"method": "tcc"}),
        (IMAGES, {"train": {"encoder": "pretrained"}}),
        (ROWS, {}),
        (IMAGES[1:], {}),
    ],
    ids=["on the CPU", "another method", "a pretrained network", "rows", "few images"],
)
def test_everything_else_keeps_its_settings(source: np.ndarray, settings: dict[str, Any]) -> None:
    assert not chosen(source, settings)
