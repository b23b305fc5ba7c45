"""The script that takes the pictures of README and docs still finds all it points at, clicks and waits for."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_runs import made_run

from benchmarks.report import find_browser
from browsing import REQUIRED
from twincluster.pages import write_report

SCRIPT = Path(__file__).parents[2] / "docs" / "screenshots.py"


def test_every_picture_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_browser() is None:
        (pytest.fail if REQUIRED else pytest.skip)("no Chromium: `make browser` installs Debian's, as root")
    loaded = importlib.util.spec_from_file_location("screenshots", SCRIPT)
    assert loaded is not None
    assert loaded.loader is not None
    script = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(script)
    np.save(tmp_path / "greys.npy", np.repeat(np.arange(40, dtype=np.uint8) * 6, 8 * 8 * 3).reshape(-1, 8, 8, 3))
    run = made_run(tmp_path / "run", tmp_path / "greys.npy", 2)
    write_report(run)
    monkeypatch.setattr(script, "FOLDER", tmp_path)
    script.main(run.folder)
    shown = {path.name: Image.open(path).convert("RGB") for path in tmp_path.glob("*.png")}
    pictures = {path.name for path in SCRIPT.parent.glob("*.png")}
    assert {name for name in pictures if name.startswith(("report", "explorer"))} == set(shown)
    for name, image in shown.items():
        assert len(image.getcolors(1 << 20) or ()) > 20, name  # a page, and not an empty one
    assert shown["report-phone.png"].width == script.PHONE["width"]
