"""A person who knows the truth corrects a messy folder in a real browser: examples/messy_browser.py, small."""

import csv
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from explorer_server import cache_in
from PIL import Image

from browsing import Browser

sys.path += [str(Path(__file__).parents[1] / "teach"), str(Path(__file__).parents[2] / "examples")]

from messy_browser import Visit
from messy_folder import JUNK, Amounts, make
from taught_runs import untaught_run

from twincluster.data import open_source
from twincluster.runs import Edits, Run

AMOUNTS = Amounts(kinds=3, images=120, copies=8, frames=5, screenshots=6, spoilt=6)
COLOURS = ((200, 60, 40), (50, 170, 60), (50, 70, 200))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of bright checked pictures for each of three colours."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for kind, colour in enumerate(COLOURS):
        (folder / f"kind {kind}").mkdir()
        for number in range(40):
            cells = rng.integers(0, 2, (4, 4)).repeat(16, 0).repeat(16, 1)[..., None]
            pixels = np.clip(np.array(colour) + 40 * cells + rng.integers(0, 30, (64, 64, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"kind {kind}" / f"{number}.png")
    return folder


@pytest.fixture
def messy(photos: Path, tmp_path: Path) -> Iterator[tuple[Run, dict[str, str]]]:
    """A run whose clusters are the kinds, but for junk and for every eighth image."""
    truth = make(photos, tmp_path / "messy", AMOUNTS)
    kinds = sorted(set(truth.values()) - {JUNK})
    paths = open_source(tmp_path / "messy" / "images").paths
    labels = [kinds.index(truth[path]) if truth[path] != JUNK else number for number, path in enumerate(paths)]
    clusters = np.array([(label + (number % 8 == 0)) % len(kinds) for number, label in enumerate(labels)])
    with cache_in(tmp_path / "cache"):
        yield untaught_run(tmp_path / "run", tmp_path / "messy" / "images", clusters), truth


def test_a_messy_folder_holds_what_it_promises(photos: Path, tmp_path: Path) -> None:
    truth = make(photos, tmp_path, AMOUNTS)
    counts = Counter(truth.values())
    assert (sum(counts.values()), counts[JUNK]) == (120, 12)
    assert {path.relative_to(tmp_path / "images").as_posix() for path in tmp_path.rglob("*.jpg")} == set(truth)
    with (tmp_path / "truth.csv").open(newline="") as file:
        assert {row["path"]: row["label"] for row in csv.DictReader(file)} == truth
    contents = Counter(path.read_bytes() for path in tmp_path.rglob("*.jpg"))
    assert sum(contents.values()) - len(contents) >= 1, "some copies are the same to the byte"
    assert make(photos, tmp_path / "again", AMOUNTS) == truth


def test_a_person_corrects_a_messy_folder_through_a_kill_two_tabs_an_undo_and_a_reload(
    browser: Browser, messy: tuple[Run, dict[str, str]]
) -> None:
    run, truth = messy
    visit = Visit(run.folder, truth, browser, quiet=True)
    before = visit.share
    share = visit.correct()
    assert before < 0.85
    assert share >= 0.9, visit.log
    assert visit.actions <= 60
    said = "\n".join(visit.log)
    for step in ("junk", "killed", "second tab", "undone", "loaded again"):
        assert step in said
    kinds = Counter(line["kind"] for line in Edits(run).history[0])
    assert kinds["accept"] >= 1
    assert kinds["junk"] == 2
    assert kinds["confirm"] >= 1
    assert kinds["rename"] == 1
