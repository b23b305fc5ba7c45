"""One run for all tests of a file: none of them trains, and those that move images take a copy."""

import shutil
from pathlib import Path

import pytest
from photo_runs import edit, make_photos, make_run

from by_hand import change_json
from twincluster.runs import Run


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    """In the place of the one that every test has for itself: pictures are decoded once."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TWINCLUSTER_CACHE", str(cache))
        yield cache


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, own_cache: Path) -> Run:
    folder = tmp_path_factory.mktemp("photos")
    run = make_run(folder / "run", make_photos(folder / "photos"))
    edit(run)
    return run


@pytest.fixture
def run(original: Run, tmp_path: Path) -> Run:
    """An edited run of its own, on the pictures of all."""
    shutil.copytree(original.folder, tmp_path / "run")
    return Run.open(tmp_path / "run")


@pytest.fixture
def own_photos(original: Run, run: Run, tmp_path: Path) -> Path:
    """Pictures of its own too, which `run` is about; none of them is decoded again unless a test asks for it."""
    photos = tmp_path / "photos"
    shutil.copytree(original.folder.parent / "photos", photos)
    change_json(run.folder / "config.json", lambda content: content["data"].update(location=str(photos)))
    return photos
