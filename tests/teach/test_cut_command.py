"""`twincluster cut`: another number of clusters, which every other command follows."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from taught_runs import colour_folder, untaught_run

from command_line import command, worked
from twincluster.runs import TREE_FILE, Edits, Run, read_tree

HOLDER = """
import pathlib, sys
from twincluster.core import hold
with hold(pathlib.Path(sys.argv[1]), "training"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """90 pictures of three colours in three right clusters, and no tree yet."""
    return untaught_run(tmp_path / "run", colour_folder(tmp_path / "images"), np.arange(90) % 3)


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_command_follows_a_cut(run: Run, tmp_path: Path) -> None:
    said = worked("cut", run.folder, "--clusters", 5).out
    assert said.startswith("made the tree of the clusters from the features, because there was none\n5 clusters, 3 be")
    state = Edits(run).state
    assert len(state.names) == 5
    worked("export", run.folder, tmp_path / "all.csv", "--to", "csv")
    assert [int(row["cluster"]) for row in table(tmp_path / "all.csv")] == state.clusters.tolist()
    worked("predict", run.folder, tmp_path / "images", "--out", tmp_path / "same.csv")
    assert [int(row["cluster"]) for row in table(tmp_path / "same.csv")] == state.clusters.tolist()
    colour_folder(tmp_path / "new", 30, seed=1)
    worked("predict", run.folder, tmp_path / "new", "--out", tmp_path / "new.csv")
    assert {int(row["cluster"]) for row in table(tmp_path / "new.csv")} <= set(state.names)
    found = json.loads(worked("evaluate", run.folder, "--json").out)
    assert found["clusters"] == sorted(state.names)
    assert found["sizes"] == [state.sizes()[cluster] for cluster in sorted(state.names)]
    assert found["corrections"] == 0
    worked("report", run.folder)
    assert worked("cut", run.folder, "--undo").out.startswith("3 clusters, 5 before")
    assert "out of date (cut since)" in (run.folder / "report.html").read_text()
    assert (np.array([int(row["cluster"]) for row in table(run.folder / "assignments.csv")]) == np.arange(90) % 3).all()


def test_levels_and_branches(run: Run) -> None:
    worked("cut", run.folder)
    said = worked("cut", run.folder).out
    assert said.startswith("3 clusters now; the tree has 1 to 18\n")
    levels = json.loads(worked("cut", run.folder, "--json").out)
    assert (levels["clusters"], levels["from"], levels["to"]) == (3, 1, 18)
    done = json.loads(worked("cut", run.folder, "--open", 0, "--open", 2, "--json").out)
    assert (done["clusters"], done["before"]) == (5, 3)
    assert len(json.loads(worked("cut", run.folder, "--close", 3, "--json").out)["sizes"]) == 4


def test_a_fit_writes_a_tree_with_its_own_clusters_as_a_level(tmp_path: Path) -> None:
    colour_folder(tmp_path / "images")
    words = ["--backbone", "small", "--epochs", "1", "--set", "train.image_size=8", "--set", "train.batch_size=16"]
    worked("fit", tmp_path / "images", "--clusters", 3, *words, "--out", tmp_path / "fit")
    run = Run.open(tmp_path / "fit")
    tree, why = read_tree(run)
    assert tree is not None, why
    clusters = run.read_assignments().clusters
    level = tree.leaves_in(tree.cut(len(np.unique(clusters))))[tree.leaf]
    assert len(set(zip(level.tolist(), clusters.tolist(), strict=True))) == len(np.unique(clusters))
    assert "made the tree" not in worked("cut", run.folder, "--clusters", 6).out


def test_a_missing_or_damaged_tree_is_made_again_and_a_cut_stays(run: Run) -> None:
    worked("cut", run.folder, "--clusters", 6)
    clusters, file, first = Edits(run).state.clusters, run.folder / TREE_FILE, read_tree(run)[0]
    file.write_bytes(file.read_bytes()[:-9])
    assert "because the old one was damaged" in worked("cut", run.folder, "--clusters", 4).out
    again = read_tree(run)[0]
    assert first is not None
    assert again is not None
    assert all(np.array_equal(array, again.tensors()[name]) for name, array in first.tensors().items())
    file.unlink()
    assert "because there was none" in worked("cut", run.folder, "--clusters", 6).out
    assert Edits(run).state.clusters.tolist() == clusters.tolist()


def test_bad_input_is_one_line(run: Run, tmp_path: Path) -> None:
    worked("cut", run.folder)
    assert "the tree has 1 to 18 clusters, not 400" in command("cut", run.folder, "--clusters", 400).complaint
    for odd in ("1.5", "x", "-1", ""):
        assert "expected a whole number of at least 0" in command("cut", run.folder, f"--open={odd}").complaint
    assert "cluster 9 does not exist" in command("cut", run.folder, "--open", 9).complaint
    assert "nothing would change" in command("cut", run.folder, "--clusters", 3).complaint
    assert "the last edit is not a cut" in command("cut", run.folder, "--undo").complaint
    assert "omit --clusters" in command("cut", run.folder, "--undo", "--clusters", 3).complaint
    assert "is not a run" in command("cut", tmp_path / "nowhere").complaint
    with subprocess.Popen([sys.executable, "-c", HOLDER, run.folder], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert "is being written by process" in command("cut", run.folder, "--clusters", 4).complaint
        other.kill()
    assert not Edits(run).any


def test_a_run_whose_images_are_gone_says_so(run: Run, tmp_path: Path, own_cache: Path) -> None:
    shutil.rmtree(tmp_path / "images")
    shutil.rmtree(own_cache)
    said = command("cut", run.folder, "--clusters", 4).complaint
    assert "has no usable tree.safetensors (there was none)" in said


def test_an_update_is_not_undone_below_a_cut_that_names_its_images(run: Run, tmp_path: Path) -> None:
    """Without its rows, a later cut could not be read, and all corrections would be lost with it."""
    worked("cut", run.folder, "--clusters", 5)
    worked("update", run.folder, colour_folder(tmp_path / "new"))
    worked("cut", run.folder, "--clusters", 8)
    refused = command("update", run.folder, "--undo").complaint
    assert "has corrections by hand of images of that update" in refused
    assert worked("cut", run.folder, "--undo").out.startswith("5 clusters, 8 before")
