"""One run for all tests of a file, and a copy of it that is served: none of them trains."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from explorer_server import Served, cache_in, copied, serving
from PIL import Image

from report_runs import hostile_folder, made_run  # isort: skip
from twincluster.data import open_source
from twincluster.runs import Run, stamps_of, write_stamps


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """26 pictures in three clusters under names that try to be markup, an oblong one, and a file that is no picture."""
    folder = tmp_path_factory.mktemp("served")
    with cache_in(folder / "cache"):
        source = hostile_folder(folder / "images")
        Image.new("RGB", (70, 40), "navy").save(source / "oblong.png")
        run, listing = made_run(folder / "run", source, 3), open_source(source)
        write_stamps(run.folder, dict(zip(listing.paths, stamps_of(listing), strict=True)))
        yield run


@pytest.fixture
def served(original: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(original.folder.parent / "cache"))
    with serving(copied(original, tmp_path / "run")) as found:
        yield found
