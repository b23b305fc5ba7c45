"""Labels: from folders, from tables and arrays, and what is said when they do not fit."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twincluster.core import InputError
from twincluster.data import open_source


def picture(path: Path, colour: tuple[int, int, int] = (9, 9, 9), size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, format="PNG")
    return path


def colours(count: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)


def complaint(source: object, **options: object) -> str:
    """The one line a user reads."""
    with pytest.raises(InputError) as caught:
        open_source(source, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _animals(root: Path) -> Path:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "stray.png"):
        picture(root / name)
    return root


def test_labels_from_folders(tmp_path: Path) -> None:
    listing = open_source(_animals(tmp_path / "photos"), labels="folders")
    assert listing.labels is not None
    assert dict(zip(listing.paths, listing.labels.tolist(), strict=True)) == {
        "cat/1.png": 0,
        "cat/2.png": 0,
        "dog/1.png": 1,
        "stray.png": -1,
    }
    assert listing.class_names == ("cat", "dog")


def test_labels_from_folders_below_train_and_test(tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "train/dog/1.png", "val/cat/1.png", "val/dog/big/1.png"):
        picture(tmp_path / name)
    listing = open_source(tmp_path, labels="folders")
    assert listing.class_names == ("cat", "dog", "dog/big")
    assert listing.labels is not None
    assert listing.labels.tolist() == [0, 1, 0, 2]


def test_numbers_as_folder_names_are_names(tmp_path: Path) -> None:
    for name in ("10/1.png", "7/1.png"):
        picture(tmp_path / name)
    listing = open_source(tmp_path, labels="folders")
    assert listing.class_names == ("10", "7")
    assert listing.labels is not None
    assert listing.labels.tolist() == [0, 1]


def test_labels_from_csv(tmp_path: Path) -> None:
    root = _animals(tmp_path / "photos")
    picture(root / os.fsdecode(b"caf\xe9\n.png"))
    table = tmp_path / "labels.csv"
    table.write_bytes(
        b'path,label\r\ndog/1.png,dog\r\n./cat/1.png,cat\r\nnot/there.png,bird\r\n"caf\xe9\n.png",cafe\r\n'
    )
    listing = open_source(root, labels=str(table))
    assert listing.labels is not None
    expected = {"cat/1.png": "cat", "dog/1.png": "dog", r"caf\xe9\n.png": "cafe"}
    names = listing.class_names or ()
    found = {p: names[code] for p, code in zip(listing.paths, listing.labels.tolist(), strict=True) if code >= 0}
    assert found == expected
    table.write_text("\ufeffpath,label,note\ncaf\\xe9\\n.png,3,x\ncat/1.png,1\ncat/2.png,-1\n", encoding="utf-8")
    listing = open_source(root, labels=str(table))
    assert listing.labels is not None
    assert dict(zip(listing.paths, listing.labels.tolist(), strict=True)) == {
        r"caf\xe9\n.png": 3,
        "cat/1.png": 1,
        "cat/2.png": -1,
        "dog/1.png": -1,
        "stray.png": -1,
    }
    assert listing.class_names is None


def test_labels_by_row_number_and_from_npy(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\n2,5\n0,4\n")
    listing = open_source(colours(3), labels=str(tmp_path / "labels.csv"))
    assert listing.labels is not None
    assert listing.labels.tolist() == [4, -1, 5]
    np.save(tmp_path / "labels.npy", np.array([2, 1, 0], np.uint8))
    listing = open_source(colours(3), labels=str(tmp_path / "labels.npy"))
    assert listing.labels is not None
    assert listing.labels.dtype == np.int64
    assert listing.labels.tolist() == [2, 1, 0]
    assert open_source("digits", labels="none").labels is None
    assert open_source("digits", labels="none").class_names is None


def test_bad_labels(tmp_path: Path) -> None:
    root = _animals(tmp_path / "photos")
    assert "no folders" in complaint("digits", labels="folders")
    assert "no folders" in complaint(root / "cat", labels="folders")
    assert "no such file" in complaint(root, labels="absent.csv")
    assert "expected none, folders, or a .csv, .parquet or .npy file" in complaint(root, labels="folder")
    table = tmp_path / "labels.csv"
    for content, says in {
        "file,label\na,1\n": "must name the columns path and label",
        "": "must name the columns path and label",
        "path,label\nelse.png,1\n": "no path matches an input",
        "path,label\ncat/1.png,a\ncat/1.png,b\n": "two labels for cat/1.png",
    }.items():
        table.write_text(content)
        assert says in complaint(root, labels=str(table))
    np.save(tmp_path / "short.npy", np.arange(3))
    assert "expected 4 labels" in complaint(root, labels=str(tmp_path / "short.npy"))
    np.save(tmp_path / "float.npy", np.ones(4))
    assert "integers or names" in complaint(root, labels=str(tmp_path / "float.npy"))


def test_a_table_of_labels_may_be_parquet_or_use_semicolons(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    np.save(tmp_path / "x.npy", np.zeros((4, 8, 8), np.uint8))
    parquet.write_table(pa.table({"label": ["b", "a", "b"], "path": ["0", "1", "3"]}), tmp_path / "l.parquet")
    (tmp_path / "l.csv").write_text("path;label\n0;b\n1;a\n3;b\n")
    for name in ("l.parquet", "l.csv"):
        listing = open_source(tmp_path / "x.npy", labels=str(tmp_path / name))
        assert listing.labels is not None
        assert listing.labels.tolist() == [1, 0, -1, 1]
