"""What `update` says of new images, an honest word about drift first, and what `evaluate` and `report` make of them."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from update_runs import counts, pictures, rows_of, updated

from by_hand import json_rows
from command_line import TINY, colours, command, worked
from twincluster.data import open_source
from twincluster.estimator import TwinContrastClustering
from twincluster.nn import build_backbone
from twincluster.runs import Run
from twincluster.update import update

# -- drift -------------------------------------------------------------------------------------------------------------


def test_other_images_are_told_to_be_different(place: Path) -> None:
    other = place / "other"
    other.mkdir()
    random = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(random.choice((0, 255), (12, 12, 3)).astype(np.uint8)).save(other / f"{number}.png")
    done = worked("update", place / "run", other)
    assert "do not look like the training images" in done.out.splitlines()[-1]
    assert done.out.splitlines()[-1].endswith("fit again with all images")
    assert json_rows(place / "run" / "updates.jsonl")[0]["drift"]["verdict"] == "different"


def test_another_mix_is_told_and_is_no_drift(place: Path) -> None:
    more = pictures(place / "more", n=90, seed=1)
    found = updated(place / "run", more / "red")
    (cluster,) = np.flatnonzero(found["sizes"]["new"])
    assert found["drift"]["verdict"] == "alike"
    assert found["sizes"]["new"][cluster] == 30
    said = worked("update", place / "run", pictures(place / "again", n=60, seed=2) / "red").out
    assert f"clusters whose share differs from the training images: {cluster} 100% (was 33%)" in said
    assert "about as frequent" in worked("update", place / "run", pictures(place / "third", n=60, seed=3)).out
    few = worked("update", place / "run", pictures(place / "fourth", n=6, seed=4)).out
    assert "too few new images to tell" in few
    assert "frequent" not in few  # six images cannot show it


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
    assert "1 new, 0 changed, 0 already in the run; 1 could not be read" in said
    assert said.splitlines()[-1] == "nothing to compare: no new image can be read"


# -- other runs --------------------------------------------------------------------------------------------------------


def test_a_run_of_an_earlier_version(place: Path) -> None:
    for name in ("reference.safetensors", "stamps.csv"):
        (place / "run" / name).unlink()
    before = (place / "run" / "assignments.csv").read_bytes()
    assert counts(updated(place / "run", place / "photos")) == (0, 0, 45, 0)
    assert (place / "run" / "assignments.csv").read_bytes() == before
    said = worked("update", place / "run", pictures(place / "more", n=30, seed=1)).out
    assert "this run was made by an earlier version" in said
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
    pictures(photos / "more", n=70, seed=1)
    assert counts(updated(run, photos)) == (70, 0, 45, 0)
    kept = [np.load(file, mmap_mode="r").shape for file in (own_cache / "features").glob("*.npy")]
    assert sorted(kept) == [(45, 96), (70, 96)]
    rows = np.zeros((20, 96), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    assert "contains rows of 96 numbers" in command("update", run, tmp_path / "rows.npy").complaint


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
    assert "has rows added by twincluster update" in command(*again).complaint


def test_rows_beyond_those_of_the_training_are_damage_without_an_update(place: Path) -> None:
    with (place / "run" / "assignments.csv").open("a") as file:
        file.write("x.png,1,0.5000,ok\n")
    assert "its checksum does not match" in command("update", place / "run", place / "photos").complaint
    (place / "run" / "checksums.json").unlink()
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
    assert "30 of them were added after training, by twincluster update" in text


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
    assert "expected 45 labels" in command("evaluate", place / "run", "--labels", place / "wrong.npy").complaint
    (place / "some.csv").write_text(f"path,label\nred/00.png,red\n{more}/blue/02.png,blue\n")
    assert np.sum(scores(place / "run", "--labels", place / "some.csv")["confusion"]) == 2
    assert "without 73 unlabelled" in worked("evaluate", place / "run", "--labels", place / "some.csv").out


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


# -- the report --------------------------------------------------------------------------------------------------------


def test_the_images_of_the_training_are_found_in_a_folder_that_has_grown(place: Path) -> None:
    before = scores(place / "run", "--labels", "folders")
    pictures(place / "photos" / "more", n=6, seed=1)
    assert "moved or changed" in worked("evaluate", place / "run").out  # the run does not know of them
    worked("update", place / "run", place / "photos")
    after = scores(place / "run", "--labels", "folders")
    assert after["silhouette"] == before["silhouette"] is not None
    assert "without pictures" not in worked("report", place / "run").out
    (place / "photos" / "red" / "00.png").unlink()
    assert "moved or changed" in worked("evaluate", place / "run").out


def test_a_report_says_that_it_is_older_than_the_table(place: Path) -> None:
    page = place / "run" / "report.html"
    hidden = '<p class="warning" id="since" hidden></p>'
    assert hidden in page.read_text()
    worked("update", place / "run", place / "photos")  # nothing new
    assert hidden in page.read_text()
    for number in (6, 9):
        worked("update", place / "run", pictures(place / f"more{number}", n=number, seed=number))
        text = page.read_text()
        assert f"out of date ({number} images added, 0 changed since)" in text
        assert text.count('id="since"') == 1
        assert hidden not in text
    worked("report", place / "run")
    assert hidden in page.read_text()
