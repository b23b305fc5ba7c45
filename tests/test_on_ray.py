"""Predicting on a real local Ray: the rows of `twincluster predict`, from bytes, from paths and from pixels."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from command_line import TINY, colours, worked
from twincluster import on_ray
from twincluster.core import InputError
from twincluster.data import decode, open_source
from twincluster.methods import base as inference
from twincluster.model import load_network, predict
from twincluster.nn import build_backbone
from twincluster.run_images import RunImages
from twincluster.runs import EDITS_FILE as EDITS
from twincluster.runs import Assignments, Edits, Run

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.* deprecated")  # what Ray does inside


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One small Ray for all tests here."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # no word to its makers
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", object_store_memory=128 << 20
    )
    import ray.data as data

    data.DataContext.get_current().enable_progress_bars = False
    yield data
    ray.shutdown()


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trained on files of 18 pixels, which are decoded at 18 because there is nothing to gain from the usual 24."""
    folder = tmp_path_factory.mktemp("small")
    write(folder / "photos", colours(36, 18)[0])
    worked("fit", folder / "photos", "--clusters", 3, "--out", folder / "run", *TINY)
    return Run(folder / "run")


def write(folder: Path, pixels: np.ndarray) -> Path:
    folder.mkdir()
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(folder / f"{number:02d}.png")
    return folder


def worker(run: Run, **options: Any) -> on_ray.Worker:
    """What runs in Ray, without it."""
    settings: dict[str, Any] = {"column": None, "keep_images": False, "device": "cpu"}
    return on_ray.Worker(name="run", files=on_ray.files_of(run), **(settings | options))


Rows = dict[str, tuple[int, float, str]]


def by_path(rows: list[dict[str, Any]], *others: str) -> Rows:
    """Rows that have the columns of a prediction, the path, and these others."""
    assert all(row.keys() == {"path", "cluster", "confidence", "status", *others} for row in rows)
    return {row["path"]: (row["cluster"], row["confidence"], row["status"]) for row in rows}


def assert_same(found: Rows, expected: Assignments, names: list[str]) -> None:
    assert sorted(found) == sorted(names)
    clusters, confidence, status = zip(*(found[name] for name in names), strict=True)
    assert list(clusters) == expected.clusters.tolist()
    assert list(status) == list(expected.status)
    np.testing.assert_allclose(confidence, expected.confidence, rtol=0, atol=1e-5)


def test_bytes_and_paths(cluster: Any, small_run: Run, photo_folder: Path) -> None:
    """Photographs of all sizes, two of them broken."""
    listing = open_source(photo_folder)
    expected = predict(small_run, listing, "cpu")
    assert [status for status in expected.status if status != "ok"] == [
        "incomplete", "unreadable: empty file",
    ]  # fmt: skip
    names = [str(file) for file in listing.files or ()]
    read = cluster.read_binary_files(names, include_paths=True)
    by_bytes = on_ray.predict(small_run.folder, read, batch_size=7).take_all()
    assert_same(by_path(by_bytes), expected, names)  # and the bytes are not carried on
    missing = "/nowhere/at/all.png"
    paths = cluster.from_items([{"path": name, "camera": 7} for name in [*names, missing]])
    pool = cluster.ActorPoolStrategy(size=2)
    found = by_path(on_ray.predict(small_run, paths, batch_size=16, compute=pool).take_all(), "camera")
    cluster_of, confidence, status = found.pop(missing)
    assert (cluster_of, np.isnan(confidence), status) == (-1, True, "unreadable: missing file")
    assert_same(found, expected, names)


def test_pixels_of_any_size(cluster: Any, small_run: Run) -> None:
    """As Ray hands them to a worker."""
    arrays = {(12, 12): colours(6, 12)[0], (20, 20): colours(6, 20)[0], (30, 20): colours(6, 30)[0][:, :, :20]}
    items = [
        {"path": f"{size}-{number}", "image": picture}
        for size, pixels in arrays.items()
        for number, picture in enumerate(pixels)
    ]
    result = worker(small_run)(cluster.from_items(items).take_batch(len(items)))
    found = by_path([dict(zip(result, row, strict=True)) for row in zip(*result.values(), strict=True)])
    for size, pixels in arrays.items():
        names = [f"{size}-{number}" for number in range(6)]
        expected = predict(small_run, open_source(pixels), "cpu")
        assert_same({name: found[name] for name in names}, expected, names)


def test_shards_as_ray_reads_them(cluster: Any, small_run: Run, tmp_path: Path) -> None:
    import webdataset

    with webdataset.TarWriter(f"{tmp_path}/s.tar") as writer:
        for number, picture in enumerate(colours(8, 16)[0]):
            written = io.BytesIO()
            Image.fromarray(picture).save(written, "PNG")
            writer.write({"__key__": f"{number}", "png": written.getvalue(), "cls": number % 3})
    expected = predict(small_run, open_source(tmp_path / "s.tar"), "cpu")
    read = cluster.read_webdataset(str(tmp_path / "s.tar"), decoder=None)
    result = worker(small_run, column="png")(read.take_batch(8))
    assert result["cluster"][np.argsort(result["__key__"])].tolist() == expected.clusters.tolist()
    assert "png" not in result


def test_edits_hold_for_every_image(cluster: Any, small_run: Run, photo_folder: Path, tmp_path: Path) -> None:
    """A split decides by features, a merge takes one part of it along, and names come with the rows."""
    shutil.copytree(small_run.folder, tmp_path / "run")
    run = Run(tmp_path / "run")
    own = RunImages(run).training
    assert own is not None
    pixels, network, edits = own.pixels, load_network(run), Edits(run)
    assert EDITS not in on_ray.files_of(run)
    largest = max(edits.state.sizes().items(), key=lambda item: item[1])[0]
    others = [other for other in range(3) if other != largest]
    state = edits.split(largest, 2, lambda rows: inference.embed(network, pixels, rows).numpy())
    parts = [part for part in state.names if part > 2]
    edits.merge([others[0], parts[0]], name="both, <b>")
    edits.mark_junk(edits.state.members(parts[1])[:1])
    listing = open_source(photo_folder)
    expected = predict(run, listing, "cpu")
    assert len({*expected.clusters.tolist()} - {-1}) > 1
    names = [str(file) for file in listing.files or ()]
    rows = on_ray.predict(run, cluster.from_items([{"path": name} for name in names]), batch_size=16).take_all()
    assert_same(by_path(rows, "name"), expected, names)
    assert {row["path"]: row["name"] for row in rows} == dict(zip(names, expected.names or (), strict=True))
    assert b"00.png" not in on_ray.files_of(run)[EDITS]


def test_what_an_image_gets_does_not_depend_on_the_others(small_run: Run, photo_folder: Path, tmp_path: Path) -> None:
    """Files smaller than the run decodes at are not enlarged, unless a larger one comes with them."""
    small = write(tmp_path / "small", colours(4, 11, seed=1)[0])
    alone = predict(small_run, open_source(small), "cpu")
    (small / "z.jpg").write_bytes((photo_folder / "green-columns" / "00.jpg").read_bytes())
    together = predict(small_run, open_source(small), "cpu")
    assert together.clusters[:4].tolist() == alone.clusters.tolist()
    assert together.confidence[:4].tolist() == alone.confidence.tolist()
    assert small_run.data.side == 18


def test_a_worker_with_an_encoder_leaves_nothing_behind(tmp_path: Path, own_cache: Path) -> None:
    torch.manual_seed(0)
    save_file(build_backbone("small", side=32, n_inputs=3).state_dict(), weights := tmp_path / "weights.safetensors")
    photos = write(tmp_path / "photos", colours(30, 20)[0])
    worked("fit", photos, "--clusters", 3, "--out", tmp_path / "run", "--backbone", f"small:{weights}@32", *TINY[:4])
    run, listing = Run(tmp_path / "run"), open_source(photos)
    expected = predict(run, listing, "cpu")
    before = sorted(own_cache.rglob("*"))
    files = listing.files or ()
    batch = {"bytes": np.array([Path(str(file)).read_bytes() for file in files], dtype=object)}
    result = worker(run)(batch)
    assert result["cluster"].tolist() == expected.clusters.tolist()
    np.testing.assert_allclose(result["confidence"], expected.confidence, rtol=0, atol=1e-5)
    assert sorted(own_cache.rglob("*")) == before
    save_file(build_backbone("small", side=32, n_inputs=3).state_dict(), weights)
    with pytest.raises(InputError, match="the weights of the encoder have changed since run was trained"):
        worker(run)


def test_values_that_are_no_images(small_run: Run, tmp_path: Path) -> None:
    """Nothing at all, no bytes, and a TGA, which only its name tells."""
    Image.fromarray(colours(1)[0][0]).save(tga := tmp_path / "a.tga")
    content = tga.read_bytes()
    batch = {
        "jpg": np.array([None, b"", content, content], dtype=object),
        "path": np.array([None, "b", "c", str(tga)], dtype=object),
    }
    result = worker(small_run, column="jpg", keep_images=True)(batch)
    assert result["status"].tolist() == [
        "unreadable: no image", "unreadable: empty file", "unreadable: not a known image format", "ok",
    ]  # fmt: skip
    assert decode(tga, 8)[1] == "ok"
    assert result["cluster"][:3].tolist() == [-1, -1, -1]
    assert result["cluster"][3] >= 0
    assert list(result) == ["jpg", "path", "cluster", "confidence", "status"]
    with pytest.raises(InputError, match=r"pixels of an image must be \(h,w\) or \(h,w,c\)"):
        worker(small_run)({"image": np.zeros((3, 5), np.uint8)})
    with pytest.raises(InputError, match="the dataset needs one of the columns bytes, image, path, but has id, jpg"):
        worker(small_run)({"id": np.arange(3), "jpg": np.arange(3)})
    with pytest.raises(InputError, match="the dataset needs a column webp, but has id"):
        worker(small_run, column="webp")({"id": np.arange(3)})


def test_runs_that_cannot_predict_images(small_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(30, 4)))
    worked("fit", tmp_path / "rows.npy", "--clusters", 3, "--out", tmp_path / "rows", "--epochs", 1, "--device", "cpu")
    with pytest.raises(InputError, match="was trained on rows of numbers"):
        on_ray.predict(tmp_path / "rows", None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not a run"):
        on_ray.predict(tmp_path, None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(InputError, match=r"pip install 'twincluster\[ray\]'"):
        on_ray.predict(small_run, None)  # type: ignore[arg-type]


def test_ray_is_imported_only_when_it_is_used() -> None:
    code = "import sys, twincluster.cli.app, twincluster.fit, twincluster.on_ray; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
