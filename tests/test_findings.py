"""`evaluate`: the right rows against the right labels, whoever gives them, as text and as strict JSON."""

import csv
import dataclasses
import io
import json
import math
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from by_hand import change_json
from command_line import COLOURS, TINY, colours, colours_file, command, worked
from twincluster.clustering import knn_accuracy, score, silhouette
from twincluster.data import open_images, open_source
from twincluster.methods import base as inference
from twincluster.model import load_network
from twincluster.run_images import Findings, findings_of
from twincluster.runs import Assignments, Edits, Run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with colours.npz, a run on all of it and one on its train part."""
    folder = tmp_path_factory.mktemp("finished")
    source = colours_file(folder)
    worked("fit", source, "--clusters", 3, "--out", folder / "all", *TINY)
    worked("fit", source, "--clusters", 3, "--out", folder / "train", "--split", "train", *TINY)
    return folder


@pytest.fixture
def workplace(finished: Path, tmp_path: Path) -> Path:
    """A copy to move and damage; the runs remember where the source was, so it is a copy in the run's sense too."""
    shutil.copytree(finished, tmp_path / "copy")
    moved = str(tmp_path / "copy" / "colours.npz")
    for name in ("all", "train"):
        change_json(tmp_path / "copy" / name / "config.json", lambda content: content["data"].update(location=moved))
    return tmp_path / "copy"


def as_json(*arguments: object) -> dict[str, Any]:
    """What `evaluate --json` prints, read by a parser that takes no NaN."""

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    found: dict[str, Any] = json.loads(worked("evaluate", *arguments, "--json").out, parse_constant=refuse)
    return found


# -- with labels -----------------------------------------------------------------------------------------------------


def test_the_sets_own_labels_are_used_unless_told_otherwise(finished: Path) -> None:
    clusters, (_, labels) = Run(finished / "all").read_assignments().clusters, colours()
    found = as_json(finished / "all")
    codes = np.array([sorted(COLOURS).index(COLOURS[label]) for label in labels])
    expected = score(codes, clusters)
    assert (found["acc"], found["nmi"], found["ari"]) == (expected.acc, expected.nmi, expected.ari)
    assert found["confusion"] == expected.confusion.tolist()
    assert found["class_names"] == ["blue", "green", "red"]
    assert found["scored_on"] == "all"
    assert found["sizes"] == np.bincount(clusters, minlength=3).tolist()
    without = as_json(finished / "all", "--labels", "none")
    assert "acc" not in without
    assert (without["knn"], without["scored_on"], without["class_names"]) == (None, None, None)


def test_a_run_on_one_part_is_scored_on_the_other(finished: Path) -> None:
    clusters, (_, labels) = Run(finished / "train").read_assignments().clusters, colours()
    test = np.arange(48) // 3 % 3 == 0
    found = as_json(finished / "train")
    assert found["scored_on"] == "test"
    assert np.sum(found["confusion"]) == test.sum() == 18
    assert found["acc"] == score(labels[test], clusters[test]).acc
    assert "on the test part" in worked("evaluate", finished / "train").out


def test_corrections_by_hand_are_told_and_not_counted(workplace: Path) -> None:
    run = workplace / "all"
    before = as_json(run)
    edits = Edits(Run.open(run))
    edits.rename(0, "red")
    edits.merge([1, 2])
    assert as_json(run) == before | {"corrections": 2}
    told = worked("evaluate", run).out.splitlines()
    assert "these are the model's own clusters, without 2 corrections by hand; twincluster report includes them" in told
    edits.undo()
    assert "\nthese are the model's own clusters, without 1 correction by hand; " in worked("evaluate", run).out
    edits.undo()
    assert as_json(run) == before
    assert "by hand" not in worked("evaluate", run).out


def test_labels_from_files(finished: Path, tmp_path: Path) -> None:
    clusters = Run(finished / "all").read_assignments().clusters
    np.save(tmp_path / "same.npy", (clusters + 1) % 3)
    assert as_json(finished / "all", "--labels", tmp_path / "same.npy")["acc"] == 1.0
    with (tmp_path / "some.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *((row, f"kind {clusters[row]}") for row in range(12))])
    found = as_json(finished / "all", "--labels", tmp_path / "some.csv")
    assert found["acc"] == 1.0
    assert np.sum(found["confusion"]) == 12
    assert found["class_names"] == [f"kind {cluster}" for cluster in sorted(set(clusters[:12].tolist()))]


def test_labels_from_folders(tmp_path: Path, photo_folder: Path) -> None:
    worked("fit", photo_folder, "--clusters", 3, "--out", tmp_path / "run", *TINY)
    assert "no labels: name --labels folders" in worked("evaluate", tmp_path / "run").out
    found = as_json(tmp_path / "run", "--labels", "folders")
    assert (found["inputs"], found["unreadable"], np.sum(found["confusion"])) == (62, 2, 60)
    assert (found["incomplete"], found["too_large"]) == (1, 0)
    assert found["class_names"] == ["blue-rings", "green-columns", "red-rows"]
    text = worked("evaluate", tmp_path / "run", "--labels", "folders").out
    assert f"ACC {found['acc']:.4f}  NMI {found['nmi']:.4f}  ARI {found['ari']:.4f}  on the whole set" in text
    assert "62 inputs, 2 unreadable (1 incomplete), 3 clusters" in text
    header = next(line for line in text.splitlines() if line.startswith("cluster "))
    assert header.split() == ["cluster", "blue-rings", "green-columns", "red-rows"]


def test_labels_that_lie_in_the_shards(tmp_path: Path) -> None:
    images, labels = colours(24)
    with tarfile.open(tmp_path / "s-000.tar", "w") as archive:
        for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
            picture = io.BytesIO()
            Image.fromarray(pixels).save(picture, "PNG")
            for name, content in ((f"{number}.png", picture.getvalue()), (f"{number}.cls", str(label).encode())):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    worked("fit", tmp_path / "s-000.tar", "--clusters", 3, "--out", tmp_path / "run", *TINY)
    found = as_json(tmp_path / "run", "--labels", "cls")
    table = Run(tmp_path / "run").read_assignments()
    assert found["acc"] == score(np.array([labels[int(Path(path).stem)] for path in table.paths]), table.clusters).acc


def test_figures_are_those_of_the_features(finished: Path) -> None:
    run, images = Run(finished / "train"), open_images(open_source(finished / "colours.npz"))
    features = inference.embed(load_network(run), images.pixels, images.usable)
    found, clusters = as_json(run.folder), run.read_assignments().clusters
    assert found["silhouette"] == pytest.approx(silhouette(features.numpy(), clusters), abs=1e-5)
    labels, split = images.listing.labels, images.listing.split
    assert labels is not None
    assert split is not None
    assert found["knn"] == knn_accuracy(features, labels, split == 1)
    assert found["confidence"] == pytest.approx(run.read_assignments().confidence.mean())


@pytest.mark.parametrize("labels,complaint", [
    ("folders", "colours.npz has no folders to take labels from: choose a .csv, .parquet or .npy file instead"),
    ("truth.csv", "labels truth.csv: no such file; check the path"),
    ("truth.txt", "labels truth.txt: expected none, folders, or a .csv, .parquet or .npy file"),
    ("short.npy", "labels short.npy: expected 48 labels, one per input, got shape (47,)"),
    ("float.npy", "labels float.npy: expected integers or names, got float64; save the labels as integers"),
    ("unknown.npy", "no row has both a label and a cluster: check that the labels belong to these images"),
    ("other.csv", "labels other.csv: no path matches an input; write paths as in '0'"),
], ids=lambda value: value.split(":")[0])  # fmt: skip
def test_bad_labels(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("short.npy", np.zeros(47, int))
    np.save("float.npy", np.zeros(48))
    np.save("unknown.npy", np.full(48, -1))
    Path("other.csv").write_text("path,label\ncat.png,cat\n")
    assert command("evaluate", finished / "all", "--labels", labels).complaint == complaint


# -- a source that is gone -------------------------------------------------------------------------------------------


def test_a_source_that_moved_leaves_the_scores(workplace: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "truth.npy", colours()[1])
    before = as_json(workplace / "all", "--labels", tmp_path / "truth.npy")
    assert before["silhouette"] is not None
    (workplace / "colours.npz").rename(workplace / "moved.npz")
    after = as_json(workplace / "all", "--labels", tmp_path / "truth.npy")
    assert (after["acc"], after["silhouette"], after["knn"]) == (before["acc"], None, None)
    assert "acc" not in as_json(workplace / "all")
    assert "the images have moved or changed since" in worked("evaluate", workplace / "all").out


def test_a_source_that_changed_is_not_taken_for_the_same(workplace: Path) -> None:
    images, labels = colours(seed=1)
    np.savez(workplace / "colours.npz", images=images, labels=labels)
    assert as_json(workplace / "all")["silhouette"] is None


def test_without_the_source_one_part_cannot_be_told_from_the_other(workplace: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "truth.npy", colours()[1])
    (workplace / "colours.npz").unlink()
    complaint = command("evaluate", workplace / "train", "--labels", tmp_path / "truth.npy").complaint
    assert "was trained on the train part of colours.npz" in complaint
    assert complaint.endswith("back, which has moved or changed")
    assert worked("evaluate", workplace / "train").status == 0  # sizes and confidence need no part


def test_a_named_set_is_found_where_it_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = colours(side=32)
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    np.save(tmp_path / "data" / "cifar10" / "images.npy", images)
    np.save(tmp_path / "data" / "cifar10" / "labels.npy", labels)
    monkeypatch.chdir(tmp_path)
    worked("fit", "cifar10", "--data-root", "data", "--clusters", 3, "--out", "run", *TINY)
    monkeypatch.chdir(tmp_path.parent)
    found = as_json(tmp_path / "run")
    assert found["silhouette"] is not None
    assert found["class_names"][:3] == ["airplane", "automobile", "bird"]


# -- how it is told --------------------------------------------------------------------------------------------------


def findings(clusters: list[int], labels: list[int] | None, **more: Any) -> Findings:
    count = len(clusters)
    table = Assignments(tuple(map(str, range(count))), np.array(clusters), np.full(count, np.nan), ("ok",) * count)
    scores = score(np.array(labels), np.array(clusters)) if labels is not None else None
    blank = Findings(table, max(clusters, default=1) + 1, scores, None, "all", None, None)
    return dataclasses.replace(blank, **more)


def test_clusters_stand_in_the_order_of_their_classes() -> None:
    names = ("a class of a long name", "x", "no row has it")
    text = findings([2, 2, 2, 0, 0, 1], [0, 0, 0, 1, 1, 1], class_names=names, n_clusters=4).to_text()
    assert text.splitlines()[-4:] == [
        "cluster  a class of a l  x",
        "      2               3  0",
        "      0               0  2",
        "      1               0  1",
    ]
    assert "sizes 2 1 3 0" in text


def test_a_wide_matrix_is_left_to_json() -> None:
    labels = list(range(41))
    found = findings([k % 2 for k in labels], labels)
    assert "the confusion matrix is too wide to print: see --json" in found.to_text()
    assert np.shape(json.loads(found.to_json())["confusion"]) == (2, 41)


def test_figures_that_do_not_exist_are_null() -> None:
    found = json.loads(
        findings([-1, -1], None, silhouette=math.nan, n_clusters=2).to_json(), parse_constant=pytest.fail
    )
    assert (found["confidence"], found["silhouette"], found["sizes"]) == (None, None, [0, 0])
    assert "mean confidence" not in findings([-1, -1], None).to_text()


def test_one_cluster_has_no_silhouette(workplace: Path) -> None:
    run = Run(workplace / "all")
    table = run.read_assignments()
    run.write_assignments(dataclasses.replace(table, clusters=np.zeros_like(table.clusters)))
    assert as_json(workplace / "all")["silhouette"] is None
    assert findings_of(run, None, None).absent is None
    assert "silhouette" not in worked("evaluate", workplace / "all").out
