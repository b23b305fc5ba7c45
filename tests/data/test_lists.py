"""Lists of paths: what becomes a row, where files are looked for, labels, and a run from end to end."""

import csv
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from sourcing import complaint, picture

from command_line import TINY, command, worked
from twincluster.data import open_images, open_source
from twincluster.runs import Run

ODD = (
    'say "hi".png',
    "it's.png",
    "a, b; c.png",
    " two  spaces .png",
    "#1.png",
    "größe.png",
    os.fsdecode(b"caf\xe9.png"),
)


def parquet(file: Path, columns: dict[str, object]) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), file)
    return file


def table(path: Path, rows: list[list[str]], **options: str) -> Path:
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.writer(file, **options).writerows(rows)  # type: ignore[arg-type]
    return path


def test_txt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = picture(tmp_path / "elsewhere" / "3.png")
    file = tmp_path / "lists" / "photos.txt"
    picture(tmp_path / "lists" / "b" / "1.png")
    picture(tmp_path / "2.png")
    file.write_text(f"# mine\n\nb/1.png\r\n../2.png\n   \n{absolute}\ngone.png\nb/1.png\n./b/1.png", newline="")
    monkeypatch.chdir(tmp_path / "elsewhere")  # where the command is given does not matter
    listing = open_source("../lists/photos.txt")
    assert listing.name == "photos.txt"
    assert listing.paths == ("b/1.png", "../2.png", str(absolute), "gone.png", "b/1.png", "./b/1.png")
    images = open_images(listing, side=8, workers=1)
    assert images.status == ("ok", "ok", "ok", "unreadable: missing file", "ok", "ok")
    assert images.usable.tolist() == [0, 1, 2, 4, 5]
    assert (listing.labels, listing.split, listing.skipped) == (None, None, 0)


@pytest.mark.parametrize("kind", ["txt", "csv", "semicolons", "tabs", "parquet", "binary parquet"])
def test_odd_names(tmp_path: Path, kind: str) -> None:
    """Every row shows the pixels of its own file."""
    for number, name in enumerate(ODD):
        picture(tmp_path / name, (number * 20, 0, 0))
    names = list(ODD)
    if kind == "txt":
        names = [f"./{name}" if name.startswith("#") else name for name in names]
        (file := tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbf" + b"".join(os.fsencode(n) + b"\n" for n in names))
    elif "parquet" in kind:
        names = names if kind == "binary parquet" else names[:-1]  # text has no place for what is no UTF-8
        values = [os.fsencode(name) for name in names] if kind == "binary parquet" else names
        file = parquet(tmp_path / "list.parquet", {"path": values, "size": [1] * len(values)})
    else:
        mark = {"csv": ",", "semicolons": ";", "tabs": "\t"}[kind]
        rows = [["size", "path"], *(["1", name] for name in names)]
        file = table(tmp_path / "list.csv", rows, delimiter=mark)
    images = open_images(open_source(file), side=8, workers=1)
    assert images.pixels[:, 4, 4, 0].tolist() == [number * 20 for number in range(len(names))]
    assert images.listing.paths[0] == 'say "hi".png'
    if len(names) == len(ODD):
        assert images.listing.paths[-1] == r"caf\xe9.png"


def test_a_name_with_a_newline_in_a_table(tmp_path: Path) -> None:
    picture(tmp_path / "two\nlines.png")
    file = table(tmp_path / "list.csv", [["path"], ["two\nlines.png"], ["two\nlines.png"]])
    listing = open_source(file)
    assert listing.paths == (r"two\nlines.png",) * 2
    assert open_images(listing, side=8, workers=1).status == ("ok", "ok")


def test_which_column(tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    for content, expected in {
        "path,label\na.png,cat\n\nb.png\n": ("a.png", "b.png"),  # an empty line is no row, a short one is
        " label , path \ncat,a.png\ncat,\n": ("a.png", ""),
        "file\na.png\nb.png\n": ("a.png", "b.png"),
        "a.png\nb.png\n": ("a.png", "b.png"),  # no heading
        "photos/1\nphotos/2\n": ("photos/1", "photos/2"),
        '"path"\r\n"a.png"\r\na.png\r\n': ("a.png", "a.png"),
    }.items():
        file.write_text(content, newline="")
        assert open_source(file).paths == expected
    only = parquet(tmp_path / "only.parquet", {"file": ["a.png", None], "__index_level_0__": [7, 8]})
    assert open_source(only).paths == ("a.png", "")
    assert open_images(open_source(only), side=8, workers=1).usable.tolist() == []
    assert open_source(parquet(tmp_path / "x.parquet", {"image": [3, 4], "path": ["b", "a"]})).paths == ("b", "a")


def test_bad_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "list.csv"
    for content, says in {
        "": "list.csv has no columns",
        "path\n": "has 0 samples",
        "file,label\na.png,cat\n": "list.csv has the columns file, label: rename the column of the files to path",
        "path\na.png\nb, c.png\n": "2 values in line 3, but 1 column: put names that contain a comma in double quotes",
        "path,label\na,b.png,cat\n": "3 values in line 2, but 2 columns",
        'path,label\na.png,cat\n"b.png,cat\nc.png,dog\n': "list.csv cannot be read (unexpected end of data): close",
    }.items():
        file.write_text(content)
        assert says in complaint(file)
    (tmp_path / "wide.txt").write_text("a.png\nb.png\n", encoding="utf-16")
    assert "wide.txt contains zero bytes" in complaint(tmp_path / "wide.txt")
    (tmp_path / "none.txt").write_text("# nothing yet\n")
    assert "none.txt has 0 samples" in complaint(tmp_path / "none.txt")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and no more")
    assert "damaged.parquet cannot be read" in complaint(tmp_path / "damaged.parquet")
    says = "two.parquet has the columns file, size: rename the column of the files to path"
    assert complaint(parquet(tmp_path / "two.parquet", {"file": ["a"], "size": [1]})) == says
    assert "column path has a value of type int in row 0" in complaint(
        parquet(tmp_path / "int.parquet", {"path": [1, 2]})
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'twincluster[parquet]'" in complaint(tmp_path / "two.parquet")


def test_labels_from_the_list_itself(tmp_path: Path) -> None:
    """Row by row, so that a file that stands there twice may have two; and only when they are asked for."""
    rows = [["path", "label"], ["./a.png", "cat"], ["b.png", "dog"], ["./a.png", "ant"], ["c.png", ""]]
    files = [
        table(tmp_path / "list.csv", rows),
        parquet(
            tmp_path / "l.parquet",
            {"path": [row[0] for row in rows[1:]], "label": ["cat", "dog", "ant", None]},
        ),
    ]
    for file in files:
        assert open_source(file).labels is None
        listing = open_source(file, labels=str(file))
        assert listing.labels is not None
        assert listing.labels.tolist() == [1, 2, 0, -1]
        assert listing.class_names == ("ant", "cat", "dog")
    numbers = parquet(tmp_path / "numbers.parquet", {"path": ["a.png", "b.png"], "label": [4, 2]})
    listing = open_source(numbers, labels=str(numbers))
    assert listing.labels is not None
    assert listing.labels.tolist() == [4, 2]
    truth = table(tmp_path / "truth.csv", [["path", "label"], ["a.png", "4"], ["b.png", "2"]])
    other = open_source(table(tmp_path / "other.csv", [["path"], ["b.png"], ["x.png"]]), labels=str(truth))
    assert other.labels is not None
    assert other.labels.tolist() == [2, -1]  # from another table they are found by path
    (tmp_path / "link.csv").symlink_to(files[0])
    again = open_source(tmp_path / "link.csv", labels=f"{tmp_path}/../{tmp_path.name}/list.csv")
    assert again.labels is not None
    assert again.labels.tolist() == [1, 2, 0, -1]
    empty = table(tmp_path / "empty.csv", [["path", "label"], ["a.png", ""], ["b.png", " "]])
    assert "the column label is empty" in complaint(empty, labels=str(empty))
    bare = table(tmp_path / "bare.csv", [["path"], ["a.png"], ["b.png"]])
    assert "bare.csv has no column label" in complaint(bare, labels=str(bare))
    folders = table(tmp_path / "folders.csv", [["path"], ["cat/1.png"], ["dog/1.png"]])
    assert open_source(folders, labels="folders").class_names == ("cat", "dog")


def test_a_list_that_grows_keeps_what_was_decoded(tmp_path: Path) -> None:
    for number in range(4):
        picture(tmp_path / f"{number}.png", (number * 50, 0, 0))
    file = tmp_path / "list.txt"
    file.write_text("3.png\n0.png\n")
    open_images(open_source(file), side=8, workers=1)
    file.write_text("0.png\n1.png\n3.png\n")
    calls: list[tuple[int, int]] = []
    images = open_images(open_source(file), side=8, workers=1, progress=lambda *call: calls.append(call))
    assert calls == [(2, 3), (3, 3)]
    assert images.pixels[:, 4, 4, 0].tolist() == [0, 50, 150]


def test_a_link_to_a_list_means_the_files_beside_the_link(tmp_path: Path) -> None:
    for folder, red in (("one", 50), ("two", 200)):
        for name in ("1.png", "2.png"):
            os.utime(picture(tmp_path / folder / name, (red, 0, 0)), (0, 0))
    (tmp_path / "one" / "list.txt").write_text("1.png\n2.png\n")
    (tmp_path / "two" / "list.txt").symlink_to(tmp_path / "one" / "list.txt")
    for folder, red in (("one", 50), ("two", 200)):
        images = open_images(open_source(tmp_path / folder / "list.txt"), side=8, workers=1)
        assert images.pixels[:, 4, 4, 0].tolist() == [red, red]


def test_a_run_on_a_list(photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line: the rows of the list, in its order, as they are written there."""
    monkeypatch.chdir(tmp_path)
    found = sorted(photo_folder.glob("*/*.*"))[::-1]
    written = [str(path.relative_to(photo_folder)) for path in found]
    written[5:5] = ["red-rows/gone.png", "./" + written[1], written[1]]
    labels = [path.removeprefix("./").split("/")[0] for path in written]
    file = table(photo_folder / "list.csv", [["path", "label"], *map(list, zip(written, labels, strict=True))])
    done = worked("fit", file, "-k", 3, "--labels", file, "--out", "run", *TINY)
    assert f"{len(written)} inputs in list.csv, 3 clusters" in done.out
    assert "ACC" in done.out
    with open("run/assignments.csv", newline="") as rows:
        assert [row["path"] for row in csv.DictReader(rows)] == written
    assignments = Run("run").read_assignments()
    assert assignments.status[5] == "unreadable: missing file"
    assert assignments.status[6] == "ok"
    assert len({int(assignments.clusters[row]) for row in (1, 6, 7)}) == 1
    assert "blue-rings" in worked("evaluate", "run", "--labels", file).out
    assert "blue-rings" not in worked("evaluate", "run").out  # only when they are asked for
    worked("predict", "run", file, "--out", "new.parquet")
    new = pyarrow.parquet.read_table("new.parquet")
    assert new["path"].to_pylist() == written
    assert np.array_equal(np.array(new["cluster"].fill_null(-1)), assignments.clusters)


def test_a_list_of_nothing_that_is_there(tmp_path: Path) -> None:
    file = table(tmp_path / "list.csv", [["path"], ["a.png"], ["b.png"]])
    done = command("fit", file, "-k", 2, "--out", tmp_path / "run", *TINY)
    assert "none of the 2 images in list.csv can be read (a.png: missing file)" in done.complaint
