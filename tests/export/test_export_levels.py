"""Levels of the tree in exports: columns of tables, and nested folders."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import command, worked
from twincluster.runs import Edits, Run

sys.path.append(str(Path(__file__).parents[1] / "teach"))
from taught_runs import colour_folder, untaught_run  # isort: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return untaught_run(tmp_path / "run", colour_folder(tmp_path / "images"), np.arange(90) % 3)


def test_tables_get_a_column_for_each_level(run: Run, tmp_path: Path) -> None:
    edits = Edits(run)
    edits.rename(0, "=red")
    edits.mark_junk([5])
    worked("export", run.folder, tmp_path / "all.csv", "--to", "csv", "--levels", "6,2,3")
    with (tmp_path / "all.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "cluster", "confidence", "status", "name", "level_2", "level_3", "level_6"]
    assert [row["level_3"] for row in rows] == [row["name"] for row in rows]
    assert {row["level_3"] for row in rows} == {"'=red", "1", "2", ""}
    assert [row["level_6"] for row in rows if row["status"] == "junk"] == [""]
    for coarse, fine in (("level_2", "level_3"), ("level_3", "level_6")):
        pairs = {(row[coarse], row[fine]) for row in rows if row["status"] == "ok"}
        assert len(pairs) == int(fine[-1])  # each branch lies in one
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    worked("export", run.folder, tmp_path / "all.parquet", "--to", "parquet", "--levels", "6")
    column = parquet.read_table(tmp_path / "all.parquet")["level_6"].to_pylist()
    assert [name or "" for name in column] == [row["level_6"] for row in rows]


def test_folders_are_nested(run: Run, tmp_path: Path) -> None:
    worked("cut", run.folder, "--clusters", 4)
    edits = Edits(run)
    edits.move([0, 1, 2], name="mine")
    worked("export", run.folder, tmp_path / "out", "--to", "folders", "--levels", "3,6")
    state = edits.state
    found = [file.relative_to(tmp_path / "out") for file in (tmp_path / "out").rglob("*.png")]
    assert len(found) == 90
    assert {file.parent for file in found if file.stem in ("000", "001", "002")} == {Path("mine")}
    for cluster, name in state.names.items():
        inside = [file for file in found if int(file.stem) in state.members(cluster)]
        assert all(name in file.parts for file in inside)
    assert max(len(file.parts) for file in found) > 2


def test_levels_that_cannot_be_had_are_one_line(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "all.csv"
    assert (
        "the tree has 1 to 18 clusters, not 99"
        in command("export", run.folder, out, "--to", "csv", "--levels", "99").complaint
    )
    for odd in ("3;4", "", "a", "-1", "3,,4"):
        assert "for example 3,10" in command("export", run.folder, out, "--to", "csv", f"--levels={odd}").complaint
    done = command("export", run.folder, tmp_path / "all.onnx", "--to", "onnx", "--levels", "3")
    assert "--levels belongs to" in done.complaint
    assert not out.exists()
