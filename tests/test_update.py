"""`update`: a row for every new image and none twice, whatever is killed meanwhile, and an honest word about drift."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import twincluster
from command_line import TINY, colours, command, worked
from twincluster import TwinContrastClustering
from twincluster.backbones import build_backbone
from twincluster.images.sources import open_source
from twincluster.results import Assignments, Run
from twincluster.update import update

KINDS = ("red", "green", "blue")


def pictures(folder: Path, n: int = 45, seed: int = 0) -> Path:
    """PNG files of three colours, in a sub-folder each."""
    for number, (pixels, kind) in enumerate(zip(*colours(n, seed=seed), strict=True)):
        (folder / KINDS[kind]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / KINDS[kind] / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos/, 45 pictures, and run/, which was trained on them for long enough to know them."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:  # before any test has a cache of its own
        patch.setenv("TWINCLUSTER_CACHE", str(place / "cache"))
        worked("fit", pictures(place / "photos"), "--clusters", 3, "--out", place / "run", "--epochs", 12, *TINY[2:])
    return place


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy to change; the run in it was trained on the photos in it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, copy_function=shutil.copy2)
    settings = tmp_path / "run" / "config.json"
    settings.write_text(settings.read_text().replace(str(finished), str(tmp_path)))
    return tmp_path


def rows_of(run: Path) -> dict[str, tuple[int, str]]:
    table = Run.open(run).read_assignments()
    assert len(set(table.paths)) == len(table.paths)
    return {path: (int(k), said) for path, k, said in zip(table.paths, table.clusters, table.status, strict=True)}


def updated(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(worked("update", *arguments, "--json").out, parse_constant=pytest.fail)
    return found


def counts(found: dict[str, Any]) -> tuple[int, ...]:
    return tuple(found[name] for name in ("added", "changed", "kept", "unreadable"))


# -- rows ------------------------------------------------------------------------------------------------------------


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
    assert "31 inputs in more/: 31 new, 0 changed, 0 known already; 1 could not be read" in text
    assert text.splitlines()[-1] == "the new images look like those the run was trained on"


def test_what_was_done_is_kept(place: Path) -> None:
    more = pictures(place / "more", n=30, seed=1)
    found = updated(place / "run", more)
    (record,) = Run.open(place / "run").read_updates()
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
        assert "nothing to compare: there is no new image" in worked("update", place / "run", source).out
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
import os, shutil, signal, sys
from pathlib import Path
from twincluster import disk
from twincluster.images.sources import open_source
from twincluster.results import Run
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
        if calls + 1 == number:
            os.truncate(file, os.fstat(file).st_size // 2)
        die(number)
        fsync(file)
    disk.os.fsync = torn
    real = Path.replace
    Path.replace = lambda self, target: (die(number), real(self, target), die(number))[1]
    update(Run.open(run), open_source(source), location=str(source), device="cpu")

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
    assert int(done.stdout) == 12  # four files, three moments each
    seen = set()
    for number in range(1, 13):
        run = place / "killed" / str(number)
        table = (run / "assignments.csv").read_bytes()
        assert table in (old, new)
        seen.add(table)
        assert len(Run.open(run).read_assignments().paths) == 45 + 24 * (table == new)
        found = updated(run, more)  # the same command finishes what was begun
        assert (run / "assignments.csv").read_bytes() == new
        if number < 12:  # the last kill comes when everything is done
            assert counts(found) == (24, 0, 0, 0)
            assert found["drift"] is not None
        assert Run.open(run).read_updates()[-1]["drift"] == Run.open(place / "whole").read_updates()[0]["drift"]
        assert (run / "stamps.csv").read_bytes() == (place / "whole" / "stamps.csv").read_bytes()
    assert seen == {old, new}


# -- drift -------------------------------------------------------------------------------------------------------------


def test_other_images_are_told_to_be_different(place: Path) -> None:
    other = place / "other"
    other.mkdir()
    random = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(random.choice((0, 255), (12, 12, 3)).astype(np.uint8)).save(other / f"{number}.png")
    done = worked("update", place / "run", other)
    assert "do not look like those the run was trained on" in done.out.splitlines()[-1]
    assert done.out.splitlines()[-1].endswith("fit again with all images")
    assert Run.open(place / "run").read_updates()[0]["drift"]["verdict"] == "different"


def test_another_mix_is_told_and_is_no_drift(place: Path) -> None:
    more = pictures(place / "more", n=90, seed=1)
    found = updated(place / "run", more / "red")
    (cluster,) = np.flatnonzero(found["sizes"]["new"])
    assert found["drift"]["verdict"] == "alike"
    assert found["sizes"]["new"][cluster] == 30
    said = worked("update", place / "run", pictures(place / "again", n=60, seed=2) / "red").out
    assert f"clusters of another share than among the training images: {cluster} 100% (was 33%)" in said
    assert "about as frequent" in worked("update", place / "run", pictures(place / "third", n=60, seed=3)).out


def test_figures_of_the_new_images_alone(place: Path) -> None:
    """Re-giving known images does not dilute what is said of the new ones."""
    more = pictures(place / "photos" / "more", n=30, seed=1)
    alone = dataclasses.asdict(update(Run.open(copy_of(place)), open_source(more), location=str(more)))["drift"]
    assert updated(place / "run", place / "photos")["drift"] == {**alone, "expected": 0.05}
    assert alone["images"] == 30


def copy_of(place: Path) -> Path:
    shutil.copytree(place / "run", place / "copy")
    return place / "copy"


def test_unreadable_images_alone(place: Path) -> None:
    (place / "bad").mkdir()
    (place / "bad" / "1.png").write_bytes(b"no picture")
    said = worked("update", place / "run", place / "bad").out
    assert "1 new, 0 changed, 0 known already; 1 could not be read" in said
    assert said.splitlines()[-1] == "nothing to compare: none of the new images can be read"


# -- other runs --------------------------------------------------------------------------------------------------------


def test_a_run_of_an_earlier_version(place: Path) -> None:
    for name in ("reference.safetensors", "stamps.csv"):
        (place / "run" / name).unlink()
    before = (place / "run" / "assignments.csv").read_bytes()
    assert counts(updated(place / "run", place / "photos")) == (0, 0, 45, 0)
    assert (place / "run" / "assignments.csv").read_bytes() == before
    said = worked("update", place / "run", pictures(place / "more", n=30, seed=1)).out
    assert "was not kept with this run, which an earlier version made" in said
    assert len(rows_of(place / "run")) == 75
    shutil.copy(place / "photos" / "blue" / "02.png", place / "photos" / "red" / "00.png")
    assert counts(updated(place / "run", place / "photos")) == (0, 1, 44, 0)  # by now there are stamps


def test_a_run_that_the_estimator_saved(tmp_path: Path) -> None:
    settings = {"train.backbone": "small", "train.image_size": 16, "anchored.hidden": 16, "anchored.n_features": 8,
                "anchored.instance_queue": 64, "train.batch_size": 16}  # fmt: skip
    model = TwinContrastClustering(3, epochs=3, settings=settings, device="cpu", random_state=0).fit(colours()[0])
    model.save(tmp_path / "run")
    more = pictures(tmp_path / "more", n=30, seed=1)
    found = updated(tmp_path / "run", more)
    assert counts(found) == (30, 0, 0, 0)
    assert found["drift"]["images"] == 30
    expected = model.predict(more)
    assert [cluster for cluster, _ in rows_of(tmp_path / "run").values()][48:] == expected.tolist()
    again = TwinContrastClustering.load(tmp_path / "run")
    np.testing.assert_array_equal(again.labels_, model.labels_)  # what was trained on
    again.save(tmp_path / "second")
    assert counts(updated(tmp_path / "second", more)) == (30, 0, 0, 0)


class Colour(nn.Module):
    side, mean, std = 12, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)).repeat(1, 4)


def test_an_encoder_of_ones_own_is_told_in_one_line(tmp_path: Path) -> None:
    settings = {"train.batch_size": 16, "augment.neighbours": 3}
    model = TwinContrastClustering(3, backbone=Colour(), settings=settings, epochs=9, device="cpu", random_state=0)
    model.fit(colours()[0]).save(tmp_path / "run")
    complaint = command("update", tmp_path / "run", pictures(tmp_path / "more", n=6)).complaint
    assert "Colour is a module of your own" in complaint
    assert len(rows_of(tmp_path / "run")) == 48


def test_a_pretrained_encoder_sees_the_new_images_only(tmp_path: Path, own_cache: Path) -> None:
    torch.manual_seed(0)
    save_file(build_backbone("small", side=32, n_inputs=3).state_dict(), tmp_path / "w.safetensors")
    photos, run = pictures(tmp_path / "photos"), tmp_path / "run"
    worked("fit", photos, "-k", 3, "--out", run, "--backbone", f"small:{tmp_path / 'w.safetensors'}", "--epochs", 2,
           "--device", "cpu", "--set", "train.batch_size=16", "--set", "augment.neighbours=3")  # fmt: skip
    pictures(photos / "more", n=6, seed=1)
    assert counts(updated(run, photos)) == (6, 0, 45, 0)
    kept = [np.load(file, mmap_mode="r").shape for file in (own_cache / "features").glob("*.npy")]
    assert sorted(kept) == [(6, 96), (45, 96)]
    rows = np.zeros((20, 96), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    assert "holds rows of 96 numbers" in command("update", run, tmp_path / "rows.npy").complaint


@pytest.mark.parametrize("source,complaint", [("nowhere", "no such file"), ("empty", "is empty")])
def test_bad_input_changes_nothing(place: Path, source: str, complaint: str) -> None:
    (place / "empty").mkdir()
    before = sorted(file.name for file in (place / "run").iterdir())
    assert complaint in command("update", place / "run", place / source).complaint
    assert "is not a run" in command("update", place / "photos", place / "photos").complaint
    assert sorted(file.name for file in (place / "run").iterdir()) == before


def test_more_training_would_make_the_new_rows_wrong(place: Path) -> None:
    worked("update", place / "run", pictures(place / "more", n=6, seed=1))
    again = ("fit", place / "photos", "--clusters", 3, "--out", place / "run", "--resume", *TINY)
    assert "has rows of later images" in command(*again).complaint


def test_rows_beyond_those_of_the_training_are_damage_without_an_update(place: Path) -> None:
    with (place / "run" / "assignments.csv").open("a") as file:
        file.write("x.png,1,0.5000,ok\n")
    assert "does not fit its config.json" in command("update", place / "run", place / "photos").complaint


# -- evaluate ----------------------------------------------------------------------------------------------------------


def scores(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(worked("evaluate", *arguments, "--json").out)
    return found


def test_folders_of_later_images_are_classes_too(place: Path) -> None:
    (place / "list.txt").write_text("more/red/00.png\nmore/green/01.png\n")
    pictures(place / "more", n=30, seed=1)
    worked("update", place / "run", place / "list.txt")
    listed = scores(place / "run", "--labels", "folders")
    assert listed["class_names"] == ["blue", "green", "more/green", "more/red", "red"]  # as they stand in the list
    worked("update", place / "run", place / "more")
    found = scores(place / "run", "--labels", "folders")
    assert (found["inputs"], found["added"], np.sum(found["confusion"])) == (75, 30, 75)
    assert found["class_names"] == ["blue", "green", "red"]
    text = worked("evaluate", place / "run", "--labels", "folders").out
    assert "30 of them were added after the training, by twincluster update" in text


def test_labels_for_some_rows(place: Path) -> None:
    more = pictures(place / "more", n=30, seed=1)
    worked("update", place / "run", more)
    found = scores(place / "run", "--labels", "folders")
    assert found["class_names"] == ["blue", "green", "red"]
    table = Run.open(place / "run").read_assignments()
    np.save(place / "first.npy", np.maximum(table.clusters[:45], 0))
    np.save(place / "all.npy", np.maximum(table.clusters, 0))
    np.save(place / "wrong.npy", np.zeros(50, int))
    assert np.sum(scores(place / "run", "--labels", place / "first.npy")["confusion"]) == 45
    assert np.sum(scores(place / "run", "--labels", place / "all.npy")["confusion"]) == 75
    assert "45 labels are needed" in command("evaluate", place / "run", "--labels", place / "wrong.npy").complaint
    (place / "some.csv").write_text(f"path,label\nred/00.png,red\n{more}/blue/02.png,blue\n")
    assert np.sum(scores(place / "run", "--labels", place / "some.csv")["confusion"]) == 2
    assert "without 73 that have no label" in worked("evaluate", place / "run", "--labels", place / "some.csv").out


def test_what_came_later_is_scored_with_the_part_that_was_not_trained_on(tmp_path: Path) -> None:
    images, labels = colours()
    np.savez(tmp_path / "images.npz", images=images, labels=labels, split=np.arange(48) // 3 % 3 == 0)
    np.savez(tmp_path / "more.npz", images=colours(9, seed=1)[0])
    worked("fit", tmp_path / "images.npz", "--clusters", 3, "--out", tmp_path / "run", "--split", "train", *TINY)
    assert np.sum(scores(tmp_path / "run")["confusion"]) == 18
    worked("update", tmp_path / "run", tmp_path / "more.npz")
    found = scores(tmp_path / "run")
    assert (np.sum(found["confusion"]), found["inputs"], found["scored_on"]) == (18, 57, "test")  # no labels for more
    assert found["silhouette"] is not None
    np.save(tmp_path / "truth.npy", np.concatenate([labels, colours(9)[1]]))
    assert np.sum(scores(tmp_path / "run", "--labels", tmp_path / "truth.npy")["confusion"]) == 18 + 9
