"""Find dark, bright, blank, blurred and tiny images and screenshots among photographs, each by its own kind."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from messy_folder import black, screenshot

from twincluster.data import Looks

SIDE = 160


def photograph(seed: int) -> Image.Image:
    """Clouds of colour under a texture, with slanted edges."""
    random = np.random.default_rng(seed)
    clouds = Image.fromarray(random.integers(0, 256, (6, 6, 3)).astype(np.uint8)).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )
    down, across = np.mgrid[:SIDE, :SIDE]
    waves = 40 * np.sign(np.sin((down * random.uniform(0.1, 0.3) + across * random.uniform(0.1, 0.3)) + seed))
    noise = random.normal(0, 8, (SIDE, SIDE, 1))
    return Image.fromarray(np.clip(np.asarray(clouds) + waves[..., None] + noise, 0, 255).astype(np.uint8))


def flaws_of(pictures: list[Image.Image], tmp_path: Path | None = None) -> dict[str, list[int]]:
    pixels = np.stack([np.asarray(picture.convert("RGB").resize((SIDE, SIDE))) for picture in pictures])
    files: list[Path] = []
    if tmp_path is not None:
        for number, picture in enumerate(pictures):
            files.append(tmp_path / f"{number}.png")
            picture.save(files[-1])
    found = Looks.of(pixels, range(len(pictures)), files).flaws()
    return {kind: np.flatnonzero(mask).tolist() for kind, (mask, _) in found.items() if mask.any()}


def test_photographs_have_no_flaws() -> None:
    assert flaws_of([photograph(seed) for seed in range(30)]) == {}


def test_each_flaw_is_named(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    spoilt = {
        "dark": black((SIDE, SIDE), random),
        "bright": photograph(40).point(lambda level: 235 + level // 13),
        "blank": Image.new("RGB", (SIDE, SIDE), (90, 120, 200)),
        "blurred": photograph(41).filter(ImageFilter.GaussianBlur(8)),
        "screenshot": screenshot(random).crop((0, 140, 360, 500)),
        "tiny": photograph(42).resize((40, 40)),
    }
    pictures = [*(photograph(seed) for seed in range(30)), *spoilt.values()]
    found = flaws_of(pictures, tmp_path)
    assert found == {kind: [30 + number] for number, kind in enumerate(spoilt)}


@pytest.mark.parametrize("kind", ["dark", "screenshot"])
def test_what_most_of_a_source_is_is_no_problem(kind: str) -> None:
    random = np.random.default_rng(0)
    made = [black((SIDE, SIDE), random) if kind == "dark" else screenshot(random) for _ in range(40)]
    assert kind not in flaws_of([*(photograph(seed) for seed in range(20)), *made])


def test_small_arrays_have_no_blur_and_no_screens() -> None:
    small = np.zeros((30, 28, 28, 3), np.uint8)
    small[:, 6:22, 10:14] = 255
    found = Looks.of(small, range(30)).flaws()
    assert not any(mask.any() for mask, _ in found.values())


def test_originals_that_were_enlarged_are_not_called_blurred(tmp_path: Path) -> None:
    pictures = [photograph(seed) for seed in range(8)]
    small = [photograph(seed).resize((90, 90)).filter(ImageFilter.GaussianBlur(4)) for seed in range(8, 10)]
    assert "blurred" not in flaws_of([*pictures, *small], tmp_path)
