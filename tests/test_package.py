"""The package as a stranger meets it: light to import and complete when installed.

The fixtures that every other test relies on are checked here too.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
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


def test_the_documentation_builds_without_warnings_and_the_network(tmp_path: Path) -> None:
    """MkDocs checks every link and anchor; strict makes each warning a failure."""
    refused = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, timeout=600,
        env=os.environ | refused | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    assert "predict_proba" in (site / "reference" / "python" / "index.html").read_text()
    commands = (site / "reference" / "commands" / "index.html").read_text()
    assert "--clusters" in commands
    listed = (site / "llms.txt").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f"({page.stem}/)" in listed
        assert (site / page.stem / "index.html").exists()
    outside = [
        (page.name, address)
        for page in site.rglob("*.html")
        for address in re.findall(r"""(?:src|href)="(https?://[^"]+\.(?:js|css|woff2?))\"""", page.read_text())
    ]
    assert not outside, "nothing is fetched from elsewhere"


@pytest.mark.stress
def test_a_wheel_alone_clusters_a_folder_and_explains_itself(tmp_path: Path) -> None:
    """`uvx` installs the wheel into an empty environment; needs the network, or packages that uv has kept."""
    uv = [sys.executable, "-m", "uv"]
    if subprocess.run([*uv, "--version"], capture_output=True).returncode:
        pytest.skip("uv is not installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    photos = tmp_path / "photos"
    photos.mkdir()
    random = np.random.default_rng(0)
    for number in range(24):
        picture = random.integers(0, 256, (3, 4, 3), np.uint8)
        Image.fromarray(picture).resize((120, 90), Image.Resampling.BICUBIC).save(photos / f"{number}.jpg")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PATH", "SSL_", "UV_", "PIP_", "REQUESTS_"))
    }
    cache = subprocess.run([*uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    alone = kept | {
        "HOME": str(tmp_path / "home"),
        "UV_CACHE_DIR": cache,
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    for words in (
        ["fit", "photos", "--clusters", "3", "--epochs", "5", "--out", "run"],
        ["export", "run", "--to", "parquet", "all.parquet"],
        ["export", "run", "--to", "onnx", "run.onnx"],
        ["doctor"],
    ):
        done = subprocess.run(
            [*uv, "tool", "run", "--python", sys.executable, "--from", str(wheel), "twincluster", *words],
            cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert "no problems found" in done.stdout
    assert "data:image/" in (tmp_path / "run" / "report.html").read_text()
