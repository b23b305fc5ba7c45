"""`update`: a row for every new image and none twice, whatever is killed meanwhile."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from update_runs import counts, pictures, rows_of, updated

import twincluster
from by_hand import json_rows
from command_line import TINY, colours, worked
from twincluster.data import open_source
from twincluster.run_images import RunImages
from twincluster.runs import Assignments, Run
from twincluster.update import update


def test_new_images_get_the_rows_that_predict_gives_them(place: Path) -> None:
    more = pictures(place / "more", n=30, seed=1)
    (more / "empty.png").touch()
    before = (place / "run" / "assignments.csv").read_bytes()
    worked("predict", place / "run", more, "--out", place / "expected.csv")
    text = worked("update", place / "run", more).out
    assert (place / "run" / "assignments.csv").read_bytes().startswith(before)
    rows, expected = rows_of(place / "run"), Assignments.read(place / "expected.csv")
    assert len(rows) == 45 + 31
    for path, cluster, status in zip(expected.paths, expected.clusters, expected.status, strict=True):
        assert rows[f"{more}/{path}"] == (cluster, status)
    assert rows[f"{more}/empty.png"] == (-1, "unreadable: empty file")
    assert "31 inputs in more/: 31 new, 0 changed, 0 already in the run; 1 could not be read" in text
    assert text.splitlines()[-1] == "the new images look like the training images"


def test_what_was_done_is_kept(place: Path) -> None:
    more = pictures(place / "more", n=30, seed=1)
    found = updated(place / "run", more)
    (record,) = json_rows(place / "run" / "updates.jsonl")
    assert {name: record[name] for name in found} == found
    assert (record["location"], record["files"], len(record["fingerprint"])) == (str(more), True, 64)
    assert record["time"].endswith("+00:00")
    assert record["version"] == twincluster.__version__
    training, new = np.array(found["sizes"]["training"]), np.array(found["sizes"]["new"])
    assert (training + new).tolist() == Run.open(place / "run").read_assignments().sizes(3)
    assert training.sum() == 45


def test_nothing_is_doubled_and_nothing_written_twice(place: Path) -> None:
    more = pictures(place / "more", n=9, seed=1)
    worked("update", place / "run", more)
    (place / "list.txt").write_text("\n".join(["more/red/00.png", "photos/red/00.png", "more/../more/red/03.png"]))
    before = {file.name: file.read_bytes() for file in (place / "run").iterdir() if file.is_file()}
    for source, known in ((more, 9), (place / "photos", 45), (more / "red", 3), (place / "list.txt", 3)):
        assert counts(updated(place / "run", source)) == (0, 0, known, 0)
        assert "nothing to compare: no new images" in worked("update", place / "run", source).out
    assert {file.name: file.read_bytes() for file in (place / "run").iterdir() if file.is_file()} == before


def test_the_runs_own_folder_with_more_in_it(place: Path) -> None:
    before, photos = rows_of(place / "run"), place / "photos"
    shutil.copy(photos / "blue" / "02.png", photos / "red" / "00.png")  # another picture under an old name
    shutil.copy(photos / "blue" / "02.png", photos / "blue" / "new.png")
    (photos / "red" / "03.png").write_bytes(b"no longer a picture")
    (photos / "red" / "broken.jpg").write_bytes(b"never was one")
    assert counts(updated(place / "run", photos)) == (2, 2, 43, 2)
    after = rows_of(place / "run")
    assert list(after) == [*before, "blue/new.png", "red/broken.jpg"]
    assert after["red/00.png"] == after["blue/new.png"] == before["blue/02.png"]
    assert after["red/03.png"] == after["red/broken.jpg"] == (-1, "unreadable: not a known image format")
    others = set(before) - {"red/00.png", "red/03.png"}
    assert {name: after[name] for name in others} == {name: before[name] for name in others}


def test_the_store_of_images_that_were_moved_outlives_what_comes_into_their_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, run = place / "photos", place / "run"
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(place / "cache"))
    worked("fit", photos, "--clusters", 3, "--out", place / "own", *TINY)  # decoded here, unlike what was copied
    before = set((place / "cache").glob("*/*.npy"))
    worked("export", place / "own", "--to", "folders", place / "sorted", "--mode", "move")
    pictures(photos, n=9, seed=5)
    for file in photos.rglob("*.png"):
        file.rename(file.with_stem(f"later-{file.stem}"))
    assert counts(updated(place / "own", photos)) == (9, 0, 0, 0)
    assert before <= set((place / "cache").glob("*/*.npy"))
    worked("predict", run, photos, "--out", place / "new.csv")
    worked("fit", photos, "--clusters", 3, "--out", place / "second", *TINY)
    seen, why = RunImages(Run.open(place / "own"), device="cpu").pictures()
    assert seen is not None, why
    assert [row in seen for row in range(54)] == [True] * 54


def test_a_file_that_is_away_keeps_its_row_until_it_comes_back_changed(place: Path) -> None:
    (place / "list.txt").write_text("photos/red/00.png\nlater.png\n")
    before, kept = rows_of(place / "run"), (place / "photos" / "red" / "00.png").read_bytes()
    (place / "photos" / "red" / "00.png").unlink()
    assert counts(updated(place / "run", place / "list.txt")) == (1, 0, 1, 1)
    rows = rows_of(place / "run")
    assert rows["red/00.png"] == before["red/00.png"]
    assert rows[f"{place}/later.png"] == (-1, "unreadable: missing file")
    (place / "later.png").write_bytes(kept)
    assert counts(updated(place / "run", place / "list.txt")) == (0, 1, 1, 0)
    assert rows_of(place / "run")[f"{place}/later.png"] == before["red/00.png"]


def test_a_list_may_name_a_file_twice(place: Path) -> None:
    pictures(place / "more", n=3, seed=1)
    (place / "list.txt").write_text("more/red/00.png\nmore/red/00.png\n")
    assert counts(updated(place / "run", place / "list.txt")) == (1, 0, 1, 0)


def test_two_folders_with_the_same_names_are_two_sets_of_rows(place: Path) -> None:
    for number, parent in enumerate(("january", "february")):
        assert counts(updated(place / "run", pictures(place / parent / "new", n=3, seed=number))) == (3, 0, 0, 0)
    assert len(rows_of(place / "run")) == 51


def test_arrays(tmp_path: Path) -> None:
    images, more = colours()[0], colours(40, seed=1)[0]
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "more.npy", more)
    run = tmp_path / "run"
    worked("fit", tmp_path / "images.npy", "--clusters", 3, "--out", run, *TINY)
    assert counts(updated(run, tmp_path / "more.npy")) == (40, 0, 0, 0)
    assert list(rows_of(run))[47:50] == ["47", f"{tmp_path}/more.npy:0", f"{tmp_path}/more.npy:1"]
    more[17] = 255 - more[17]
    np.save(tmp_path / "more.npy", more)
    assert counts(updated(run, tmp_path / "more.npy")) == (0, 1, 39, 0)
    np.save(tmp_path / "images.npy", np.concatenate([images, more[:5]]))
    assert counts(updated(run, tmp_path / "images.npy")) == (5, 0, 48, 0)
    rows = rows_of(run)
    assert list(rows)[-1] == "52"
    assert [rows[str(48 + row)] for row in range(5)] == [rows[f"{tmp_path}/more.npy:{row}"] for row in range(5)]


def test_two_updates_at_once_wait_for_each_other(place: Path) -> None:
    sources = [pictures(place / name, n=6, seed=seed) for seed, name in enumerate(("one", "two", "three"))]

    def add(source: Path) -> int:
        return update(Run.open(place / "run"), open_source(source), location=str(source), device="cpu").added

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(add, sources)) == [6, 6, 6]
    assert len(rows_of(place / "run")) == 45 + 18
    assert len(Run.open(place / "run").read_updates()) == 3


# -- a kill ------------------------------------------------------------------------------------------------------------

KILLED = """
import os, shutil, signal, stat, sys
from pathlib import Path
from twincluster.data import open_source
from twincluster.runs import Run
from twincluster.update import update

whole, place, source = map(Path, sys.argv[1:])
calls = 0

def die(number):
    global calls
    calls += 1
    if calls == number:
        os.kill(os.getpid(), signal.SIGKILL)

def attempt(number):
    fsync, replace = os.fsync, os.replace
    def torn(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            return fsync(file)
        if calls + 1 == number:
            os.truncate(file, os.fstat(file).st_size // 2)
        die(number)
        fsync(file)
    os.fsync = torn
    real = Path.replace
    Path.replace = lambda self, target: (die(number), real(self, target), die(number))[1]
    update(Run.open(run), open_source(source), location=str(source), device="cpu")

shutil.copytree(whole, place / "first")  # imports what each child would have to import for itself
update(Run.open(place / "first"), open_source(source), location=str(source), device="cpu")
number = 0
while True:
    number += 1
    run = place / str(number)
    shutil.copytree(whole, run)
    child = os.fork()
    if not child:
        attempt(number)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        shutil.rmtree(run)
        break
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
print(number - 1)
"""


def test_a_kill_at_any_moment_leaves_the_old_table_or_the_new(place: Path) -> None:
    """A process that kills itself before and after each time that something reaches the disk, torn or whole."""
    more, old = pictures(place / "more", n=24, seed=1), (place / "run" / "assignments.csv").read_bytes()
    (place / "killed").mkdir()
    shutil.copytree(place / "run", place / "whole")
    worked("update", place / "whole", more)
    new = (place / "whole" / "assignments.csv").read_bytes()
    environment = {**os.environ, "PYTHONPATH": str(Path(twincluster.__file__).parents[1])}
    script = [sys.executable, "-c", KILLED, str(place / "run"), str(place / "killed"), str(more)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    moments = int(done.stdout)
    assert moments >= 20  # seven files or more
    seen, kinds = set(), set()
    for number in range(1, moments + 1):
        run = place / "killed" / str(number)
        table = (run / "assignments.csv").read_bytes()
        assert table in (old, new)
        seen.add(table)
        assert len(Run.open(run).read_assignments().paths) == 45 + 24 * (table == new)
        has_line = bool(Run.open(run).read_updates())
        found = updated(run, more)  # the same command finishes what was begun
        assert (run / "assignments.csv").read_bytes() == new
        assert counts(found) == ((0, 0, 24, 0) if has_line else (24, 0, 0, 0))
        (record,) = json_rows(run / "updates.jsonl")
        assert record["drift"] == json_rows(place / "whole" / "updates.jsonl")[0]["drift"] is not None
        assert not (run / "updating.json").exists()
        assert (run / "stamps.csv").read_bytes() == (place / "whole" / "stamps.csv").read_bytes()
        kinds.add(has_line)
    assert (seen, kinds) == ({old, new}, {False, True})
