"""Paths, names and numbers that are legal but odd: expanded, escaped, or refused in one short line."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from command_line import TINY, colours, command, worked
from twincluster import TwinContrastClustering
from twincluster.core import InputError
from twincluster.data import open_source
from twincluster.export.tables import write_csv
from twincluster.run_images import RunImages
from twincluster.runs import Assignments, Edits, Run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, and an empty working folder beside it."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


# -- the home folder ---------------------------------------------------------------------------------------------------


def test_a_tilde_is_the_home_folder_in_every_option_and_argument(home: Path) -> None:
    np.save(home / "images.npy", colours()[0])
    np.save(home / "labels.npy", colours()[1])
    worked("fit", "~/images.npy", "-k", 3, "--out=~/run", *TINY)
    worked("predict", "~/run", "~/images.npy", "-o=~/new.csv")
    worked("export", "~/run", "~/all.csv", "--to", "csv")
    worked("evaluate", "~/run", "--labels=~/labels.npy")
    worked("recipes", "default", "--toml")
    (home / "mine.toml").write_text("[train]\nepochs = 3\n")
    assert "epochs = 3" in worked("recipes", "~/mine.toml").out
    assert {path.name for path in home.iterdir()} >= {"run", "new.csv", "all.csv"}
    assert os.listdir() == []


def test_the_home_folder_of_nobody_is_refused() -> None:
    np.save("images.npy", colours()[0])
    complaint = command("fit", "images.npy", "-k", 3, "--out=~nobody-of-this-name/run", *TINY).complaint
    assert complaint == (
        "~nobody-of-this-name is not a home folder: check the name, or write ./~nobody-of-this-name/run for a path in "
        "this folder"
    )
    assert os.listdir() == ["images.npy"]


def test_a_folder_here_that_is_called_like_a_home_folder() -> None:
    Path("~odd").mkdir()
    np.save("images.npy", colours()[0])
    worked("fit", "images.npy", "-k", 3, "--out=~odd/run", *TINY)
    assert Path("~odd/run/config.json").is_file()


# -- long words --------------------------------------------------------------------------------------------------------

LONG = "x" * 131_072


@pytest.mark.parametrize(
    "words",
    [
        ("fit", LONG, "-k", 3), ("predict", LONG, ".", "--out", "x.csv"), ("predict", ".", ".", "--out", f"{LONG}.csv"),
        ("recipes", f"{LONG}.toml"), ("fit", "digits", "--recipe", f"{LONG}.toml"), ("fit", "digits", "--out", LONG),
        ("fit", "digits", f"--{LONG}"), (LONG,), ("fit", "digits", "--set", f"{LONG}=1"), ("methods", LONG),
        ("fit", "digits", "-k", LONG), ("fit", "digits", "--epochs", "9" * 5000),
    ],
)  # fmt: skip
def test_a_very_long_word_is_not_printed_whole(words: tuple[object, ...]) -> None:
    assert len(command(*words).complaint) < 3000


@pytest.mark.parametrize("name", ["list.csv", "list.txt", "list.parquet"])
def test_a_path_that_no_system_takes_is_refused(name: str) -> None:
    paths = ["a.png", LONG, "b.png"]
    if name.endswith("parquet"):
        parquet.write_table(pa.table({"path": paths}), name)
    else:
        Path(name).write_text("\n".join([*(["path"] if name.endswith("csv") else []), *paths]) + "\n")
    complaint = command("fit", name, "-k", 2, "--out", "run", *TINY).complaint
    assert complaint == f"{name}: the path in row 1 has 131,072 letters, more than any system takes: take it out"
    with pytest.raises(InputError, match="the path in row 1 has 131,072 letters"):
        open_source(paths)


def test_a_damaged_table_is_not_printed_whole(tmp_path: Path) -> None:
    damaged = tmp_path / "table.csv"
    for row in (f"a.png,{LONG[:100_000]},0.5,ok", f"a.png,1,{LONG[:100_000]},ok", f'a.png,1,7,"{LONG}"', LONG):
        damaged.write_text(f"path,cluster,confidence,status\n{row}\n")
        with pytest.raises(InputError) as refused:
            Assignments.read(damaged)
        assert len(str(refused.value)) < 3000


@pytest.mark.parametrize(
    "setting",
    [
        "a" + ".a" * 5000 + "=1", "tcc" + ".a" * 900 + "=1", "train.epochs=" + "[" * 100_000,
        "train.epochs=" + "{a=" * 3000 + "1" + "}" * 3000, "x.y=" + "{a=" * 300 + "1" + "}" * 300,
    ],
    ids=range(5),
)  # fmt: skip
def test_settings_that_are_nested_deeply_are_refused(setting: str) -> None:
    assert command("fit", "digits", "-k", 10, "--out", "run", "--set", setting).complaint
    assert os.listdir() == []


# -- tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["list.csv", "list.parquet"])
@pytest.mark.parametrize("column", ["path", "label"])
def test_two_columns_of_one_name_are_refused(name: str, column: str) -> None:
    names = ["path", "label", column]
    if name.endswith("parquet"):
        parquet.write_table(pa.Table.from_arrays([pa.array(["a.png", "b.png"])] * 3, names=names), name)
    else:
        Path(name).write_text(f"{','.join(names)}\na.png,x,c.png\nb.png,x,d.png\n")
    complaint = command("fit", name, "-k", 2, "--out", "run", *TINY).complaint
    assert complaint == f"{name} has 2 columns {column}: rename all but one"


def test_names_that_begin_like_a_formula_in_any_disguise_are_marked() -> None:
    escaped = {"\n=1+1.png": "\\n=1+1.png", "\t=1.png": "\\t=1.png", "a.png": "a.png"}
    names = [*escaped, " =1+1.png", "\uff1d1+1.png", "\uff20x.png", "\u00a0=1.png", " plain.png"]
    Path("photos").mkdir()
    for name in names:
        Image.new("RGB", (12, 12), "red").save(Path("photos", name))
    run = _run_on("photos")
    Edits(run).move([0], name="\uff1dHYPERLINK(1)")
    write_csv(RunImages(run), Path("all.csv"))
    with open("all.csv", newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert {row[0] for row in rows} == {escaped.get(name, f"./{name}") for name in names}
    assert "'\uff1dHYPERLINK(1)" in {row[4] for row in rows}


def _run_on(source: str) -> Run:
    worked("fit", source, "-k", 2, "--out", "run", *TINY)
    return Run.open("run")


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_numbers_beyond_single_precision_are_told_apart_from_nan() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 3))
    for value, said in ((1e300, "contains 1e+300 in row 3, which single precision"), (np.nan, "contains NaN or inf")):
        rows[3, 1] = value
        np.save("rows.npy", rows)
        assert said in command("fit", "rows.npy", "-k", 2, "--out", "run", *TINY).complaint
    rows[3, 1] = -1e300
    with pytest.raises(InputError, match=r"contains 1e\+300 in row 3, which single precision cannot hold"):
        TwinContrastClustering(2).fit(rows)


def test_dates_and_durations_are_no_rows() -> None:
    dates = np.arange(40).reshape(20, 2).astype("datetime64[D]")
    mixed = pandas.DataFrame({"when": dates[:, 0], "much": np.arange(20.0)})
    for rows in (dates, dates - dates[0], pandas.DataFrame(dates), mixed, list(map(list, dates))):
        with pytest.raises(InputError, match="^X holds dates or durations: give them as numbers"):
            TwinContrastClustering(2, epochs=1).fit(rows)
    np.save("dates.npy", dates)
    assert "got datetime64[D] (20, 2)" in command("fit", "dates.npy", "-k", 2, "--out", "run", *TINY).complaint


# -- words of libraries ------------------------------------------------------------------------------------------------


def test_libtiff_does_not_speak_on_the_terminal() -> None:
    random = np.random.default_rng(3)
    Path("photos").mkdir()
    for number in range(12):
        picture = Image.fromarray(random.integers(0, 255, (40, 40, 3), np.uint8)).convert("1")
        file = Path("photos", f"{number}.tif")
        picture.save(file, compression="group4")
        content = bytearray(file.read_bytes())
        for place in random.integers(8, len(content), number):
            content[place] ^= 255
        file.write_bytes(content)
    code = (
        "from twincluster.data import open_images, open_source\n"
        "images = open_images(open_source('photos'), side=16, workers=1)\n"
        "assert 'ok' in images.status and len(set(images.status)) > 1, images.status"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
