"""A finished run to update, trained once for all tests here."""

import shutil
from pathlib import Path

import pytest
from update_runs import pictures

from by_hand import change_json
from command_line import TINY, worked


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos/, 45 pictures, and run/, which was trained on them for long enough to know them."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:  # before any test has a cache of its own
        patch.setenv("TWINCLUSTER_CACHE", str(place / "cache"))
        worked("fit", pictures(place / "photos"), "--clusters", 3, "--out", place / "run", "--epochs", 12, *TINY[2:])
    return place


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy to change; the run in it was trained on the photos in it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, copy_function=shutil.copy2)
    moved = str(tmp_path / "photos")
    change_json(tmp_path / "run" / "config.json", lambda content: content["data"].update(location=moved))
    return tmp_path
