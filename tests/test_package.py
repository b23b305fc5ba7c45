"""The package as a stranger meets it: light to import and complete when installed.

The fixtures that every other test relies on are checked here too.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

import twincluster

ROOT = Path(__file__).parents[1]
HEAVY = {"PIL", "scipy", "sklearn", "torch", "torchvision"}


def imported_by(*arguments: str) -> set[str]:
    """The top-level packages that `python ARGUMENTS` imports, as the interpreter itself reports them."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    timed = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in timed}


def test_the_probe_sees_heavy_imports() -> None:
    assert {"numpy", "PIL"} <= imported_by("-c", "import numpy, PIL.Image")


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "import twincluster"),
        ("-c", "import twincluster.config.schema"),
        ("-m", "twincluster", "--help"),
        ("-m", "twincluster", "fit", "--help"),
        ("-m", "twincluster", "--version"),
    ],
    ids=" ".join,
)
def test_stays_light(arguments: tuple[str, ...]) -> None:
    imported = imported_by(*arguments)
    assert "twincluster" in imported
    assert not imported & HEAVY


def test_help_names_every_command() -> None:
    done = subprocess.run([sys.executable, "-m", "twincluster", "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for command in ("demo", "fit", "predict", "evaluate", "report", "recipes", "methods", "reproduce"):
        assert command in done.stdout


def test_estimator_is_listed_and_loaded_on_demand() -> None:
    from twincluster.estimator import TwinContrastClustering

    assert "TwinContrastClustering" in dir(twincluster)
    assert twincluster.TwinContrastClustering is TwinContrastClustering
    with pytest.raises(AttributeError, match="no attribute 'TwinContrast'"):
        twincluster.TwinContrast  # noqa: B018


def test_wheel_is_complete(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"twincluster-{twincluster.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("twincluster/")}
        metadata = archive.read(f"twincluster-{twincluster.__version__}.dist-info/METADATA").decode()
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "twincluster").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected
    assert "twincluster/py.typed" in packed
    assert {"twincluster/config/recipes/default.toml", "twincluster/config/recipes/digits.toml"} <= packed
    assert "License-Expression: Apache-2.0" in metadata


def test_digits_fixture(digits) -> None:
    images, labels = digits
    assert (images.shape, images.dtype.name, labels.shape) == ((1797, 8, 8), "uint8", (1797,))
    assert (images.min(), images.max(), len(set(labels.tolist()))) == (0, 255, 10)


def test_photo_folder_fixture(photo_folder: Path) -> None:
    readable, broken = 0, []
    for path in sorted(photo_folder.rglob("*.*")):
        try:
            with Image.open(path) as image:
                image.load()
            readable += 1
        except OSError:
            broken.append(path.name)
    assert readable == 60
    assert sorted(broken) == ["empty.png", "notes.txt", "truncated.jpg"]


def test_cache_is_inside_the_test_folder(own_cache: Path) -> None:
    assert os.environ["TWINCLUSTER_CACHE"] == str(own_cache)
    assert not own_cache.is_relative_to(Path.home() / ".cache")
    assert list(own_cache.iterdir()) == []
