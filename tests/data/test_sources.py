"""Sources: arrays and objects of Python, and what is said when they are no good."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sourcing import colours, complaint, picture, prepared

import twincluster
from twincluster.data import open_source

# Arrays


def test_npy_and_npz(tmp_path: Path) -> None:
    images = colours(6)
    np.save(tmp_path / "a.npy", images)
    np.savez(tmp_path / "named.npz", images=images, labels=[0, 1, -7, 1, 0, 2], split=[0, 0, 0, 0, 1, 1], more=images)
    np.savez_compressed(tmp_path / "only.npz", x=images, labels=["cat", "dog", "", "cat", "cat", "ant"])
    mapped = open_source(tmp_path / "a.npy")
    assert isinstance(mapped.array, np.memmap)
    named, only = open_source(tmp_path / "named.npz"), open_source(str(tmp_path / "only.npz"))
    for listing in (mapped, named, only):
        assert listing.array is not None
        assert np.array_equal(listing.array, images)
        assert listing.paths == tuple("012345")
    assert named.labels is not None
    assert named.labels.tolist() == [0, 1, -1, 1, 0, 2]
    assert named.split is not None
    assert named.split.dtype == np.int8
    assert only.labels is not None
    assert only.labels.tolist() == [1, 2, -1, 1, 1, 0]
    assert only.class_names == ("ant", "cat", "dog")
    assert (mapped.name, named.name) == ("a.npy", "named.npz")


def test_prepared_folder_with_and_without_its_parts(tmp_path: Path) -> None:
    images = prepared(tmp_path / "set")
    listing = open_source(tmp_path / "set")
    assert isinstance(listing.array, np.memmap)
    assert np.array_equal(listing.array, images)
    assert listing.labels is not None
    assert listing.labels.dtype == np.int64
    assert listing.labels.tolist() == [row % 3 for row in range(12)]
    (tmp_path / "set" / "labels.npy").unlink()
    (tmp_path / "set" / "split.npy").unlink()
    bare = open_source(tmp_path / "set")
    assert (bare.labels, bare.split) == (None, None)


def test_arrays_from_python() -> None:
    grey = colours(3)[..., 0]
    assert open_source(grey).array is grey
    assert open_source(colours(3)).paths == ("0", "1", "2")
    rows = np.random.default_rng(0).normal(size=(5, 3))
    listing = open_source(rows)
    assert listing.array is not None
    assert listing.array.dtype == np.float32
    assert np.array_equal(listing.array, rows.astype(np.float32))
    for same in (rows.tolist(), list(rows)):
        assert np.array_equal(open_source(same).array, listing.array)
    assert open_source(np.arange(6).reshape(3, 2)).array.dtype == np.float32  # type: ignore[union-attr]
    import torch

    assert np.array_equal(open_source(torch.from_numpy(grey)).array, grey)  # type: ignore[arg-type]


def test_rows_of_float32_stay_memory_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((4, 3), np.float32))
    assert isinstance(open_source(tmp_path / "rows.npy").array, np.memmap)


@pytest.mark.parametrize("kind", [np.int16, np.uint16])
def test_the_advice_for_deep_images_is_right_beyond_the_first_of_them(kind: type) -> None:
    """Where differences are wrapped around the darkest pixels become the brightest."""
    limits = np.iinfo(kind)
    images = np.linspace(limits.min + 1000, limits.max, 300 * 64).reshape(300, 8, 8).astype(kind)
    images[-1] = limits.min  # below all that were looked at
    advice = complaint(images).partition("and cast, ")[2]
    found = eval(advice, {"images": images})
    assert found.dtype == np.uint8
    assert found[-1].max() == 0
    assert (np.diff(found[:-1].ravel().astype(int)) >= 0).all()


def test_bad_arrays(tmp_path: Path) -> None:
    expected = "expected uint8 images (n,h,w[,c]) or float rows (n,d)"
    rows = np.ones((5, 3))
    for bad in (np.nan, np.inf, -np.inf):
        rows[3, 1] = bad
        assert "NaN or infinity in row 3" in complaint(rows)
    assert "multiply by 255" in complaint(np.random.default_rng(0).random((4, 8, 8, 3)))
    assert expected in complaint(np.zeros((4, 8, 8), np.float32))
    assert "cast the values" in complaint(colours(4).astype(np.int64))
    for shape in ((4,), (4, 8, 8, 3, 1), (4, 0, 8, 3), (4, 8, 8, 2)):
        assert expected in complaint(np.zeros(shape, np.uint8))
    assert "channels last" in complaint(np.zeros((4, 3, 8, 8), np.uint8))
    assert "one colour image" in complaint(np.zeros((48, 64, 3), np.uint8))
    assert expected in complaint(np.array([{}, []], object))
    assert expected in complaint(np.ones((4, 3), complex))
    assert "no columns" in complaint(np.ones((4, 0)))
    assert "has 1 sample," in complaint(colours(1))
    assert "has 0 samples," in complaint(np.ones((0, 3)))
    assert open_source(colours(1), at_least=1).paths == ("0",)
    assert expected in complaint([[1.0, 2.0], [3.0]])
    assert expected in complaint([])
    assert expected in complaint(7)
    np.save(tmp_path / "object.npy", np.array([{}, []], object), allow_pickle=True)
    (tmp_path / "damaged.npy").write_bytes(b"\x93NUMPY garbage")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "damaged.npz").write_bytes(b"PK garbage")
    np.savez(tmp_path / "object.npz", images=np.array([{}, []], object))
    np.save(tmp_path / "cut.npy", colours(9))
    os.truncate(tmp_path / "cut.npy", 300)
    for name in ("object.npy", "damaged.npy", "empty.npy", "damaged.npz", "object.npz", "cut.npy"):
        assert complaint(tmp_path / name).startswith(f"{name}: not a readable array of plain numbers")
    np.savez(tmp_path / "two.npz", x=colours(2), y=colours(2))
    assert "two.npz contains x, y" in complaint(tmp_path / "two.npz")
    np.savez(tmp_path / "labels.npz", images=colours(3), labels=[0, 1])
    assert "expected 3 labels" in complaint(tmp_path / "labels.npz")
    np.savez(tmp_path / "split.npz", images=colours(3), split=[0, 1, 2])
    assert "split must hold 0 (train) or 1 (test)" in complaint(tmp_path / "split.npz")


def test_loading_an_array_never_runs_code(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "trapped"),)

    np.save(tmp_path / "trap.npy", np.array([Trap(), Trap()], object), allow_pickle=True)
    complaint(tmp_path / "trap.npy")
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "a" / "2.png")
    complaint(tmp_path / "a", labels=str(tmp_path / "trap.npy"))
    assert not (tmp_path / "trapped").exists()


# Sequences


def test_sequences_of_paths(tmp_path: Path) -> None:
    files = [picture(tmp_path / f"{number}.dat") for number in (2, 1)]
    for source in (files, [str(file) for file in files], np.array([str(file) for file in files])):
        listing = open_source(source)
        assert listing.files == tuple(str(file) for file in files)  # in the order given
        assert listing.paths == tuple(str(file) for file in files)


def test_a_single_image_is_no_source() -> None:
    assert "pass a list" in complaint(Image.new("RGB", (4, 4)))


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, twincluster.data.images; print({'torch', 'torchvision', 'sklearn', 'scipy'} & {*sys.modules})"
    environment = {**os.environ, "PYTHONPATH": str(Path(twincluster.__file__).parents[1])}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert said.stdout.strip() == "set()"
