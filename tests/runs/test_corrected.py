"""`predict` on a run that was edited: names, merges and splits hold for new images, moved ones stay moved."""

import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest

from by_hand import change_json
from command_line import TINY, colours, worked
from twincluster.core import InputError
from twincluster.data import open_source
from twincluster.model import Model
from twincluster.run_images import RunImages
from twincluster.runs import JUNK, Assignments, EditLog, Edits, Run, carry_over, unbind


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corrected")
    np.save(folder / "images.npy", colours(36)[0])
    np.save(folder / "new.npy", colours(30, seed=1)[0])
    worked("fit", folder / "images.npy", "-k", 3, "--out", folder / "run", *TINY)
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Run:
    shutil.copytree(original / "run", tmp_path / "run")
    return Run.open(tmp_path / "run")


def predicted(run: Run, source: Path) -> pandas.DataFrame:
    out = run.folder.parent / "out.csv"
    worked("predict", run.folder, source, "--out", out, "--device", "cpu")
    return pandas.read_csv(out, keep_default_na=False)


def embed(run: Run, rows: np.ndarray) -> np.ndarray:
    images = RunImages(run).training
    assert images is not None
    return Model.load(run, "cpu").embed(images, rows).numpy()


def test_without_edits_nothing_changes(run: Run, original: Path) -> None:
    assert list(predicted(run, original / "new.npy").columns) == ["path", "cluster", "confidence", "status"]
    edits = Edits(run)
    edits.rename(0, "x")
    edits.undo()
    assert list(predicted(run, original / "new.npy").columns) == ["path", "cluster", "confidence", "status"]


def test_merged_and_renamed_clusters_keep_their_names(run: Run, original: Path) -> None:
    model = predicted(run, original / "new.npy")
    edits = Edits(run)
    edits.merge([0, 2], name="both, <b>")
    found = predicted(run, original / "new.npy")
    assert found.cluster.tolist() == [{0: 0, 1: 1, 2: 0}[cluster] for cluster in model.cluster]
    assert found.name.tolist() == [{0: "both, <b>", 1: "1"}[cluster] for cluster in found.cluster]
    assert found.confidence.tolist() == model.confidence.tolist()


def test_a_split_cluster_is_decided_by_the_nearest_part(run: Run, original: Path) -> None:
    model = predicted(run, original / "new.npy")
    largest = int(model.cluster.mode()[0])
    state = Edits(run).split(largest, 2, lambda rows: embed(run, rows))
    found = predicted(run, original / "new.npy")
    centres = {part: embed(run, state.members(part)) for part in (3, 4)}
    centres = {part: rows.mean(0) / np.linalg.norm(rows.mean(0)) for part, rows in centres.items()}
    network = Model.load(run, "cpu")
    features = network.embed(network.open(open_source(original / "new.npy"))).numpy()
    for row, cluster in enumerate(model.cluster):
        near = {part: float(features[row] @ centre) for part, centre in centres.items()}
        if abs(near[3] - near[4]) < 1e-4:
            continue
        assert found.cluster[row] == (max(near, key=near.get) if cluster == largest else cluster)
    assert set(found.cluster) <= {0, 1, 2, 3, 4} - {largest}


def test_images_that_the_run_knows_stay_where_they_were_put(run: Run, original: Path, tmp_path: Path) -> None:
    edits = Edits(run)
    edits.move([0, 1], name="by hand")
    state = edits.mark_junk([2])
    found = predicted(run, original / "images.npy")
    assert found.cluster.tolist()[:3] == ["3", "3", ""]
    assert (found.name[0], found.status[2], found.name[2]) == ("by hand", "junk", "")
    said = worked("predict", run.folder, original / "images.npy", "--out", tmp_path / "again.csv").out
    assert "36 rows in" in said
    assert "unreadable" not in said
    assert [int(cluster) for cluster in found.cluster[3:]] == state.clusters[3:].tolist()
    # the same pixels from elsewhere are other images
    shutil.copy(original / "images.npy", tmp_path / "elsewhere.npy")
    again = predicted(run, tmp_path / "elsewhere.npy")
    assert again.cluster.tolist() == Assignments.read(run.folder / "assignments.csv").clusters.tolist()


def test_a_changed_image_is_a_new_one(run: Run, original: Path, tmp_path: Path) -> None:
    Edits(run).move([0, 1], name="by hand")
    own = tmp_path / "images.npy"
    pixels = np.load(original / "images.npy")
    pixels[1] = pixels[5]
    np.save(own, pixels)
    change_json(run.folder / "config.json", lambda content: content["data"].update(location=str(own)))
    found, model = predicted(run, own), run.read_assignments().clusters
    assert found.cluster[0] == 3
    assert found.cluster[1] == model[5]


def test_a_run_with_corrections_that_is_trained_on_keeps_them(run: Run, original: Path) -> None:
    edits = Edits(run)
    edits.rename(0, "x")
    edits.move([0, 1], name="by hand")
    edits.mark_junk([2])
    log, model = (run.folder / "edits.jsonl").read_bytes(), run.model.read_bytes()
    worked("fit", original / "images.npy", "-k", 3, "--out", run.folder, "--epochs", 2, *TINY[2:], "--resume")
    assert run.model.read_bytes() != model
    state = Edits(Run.open(run.folder)).state
    assert (state.names[0], state.names[3]) == ("x", "by hand")
    assert state.examples[:3].tolist() == [3, 3, JUNK]
    assert (run.folder / "edits.jsonl").read_bytes().splitlines()[1:] == log.splitlines()[1:]


def test_corrections_outlast_a_kill_before_the_new_model_is_written(run: Run, original: Path) -> None:
    Edits(run).rename(0, "x")
    unbind(run)  # what is done before the training
    assert Edits(Run.open(run.folder)).state.names[0] == "x"
    worked("fit", original / "images.npy", "-k", 3, "--out", run.folder, "--epochs", 2, *TINY[2:], "--resume")
    assert Edits(Run.open(run.folder)).state.names[0] == "x"
    run.model.write_bytes(run.model.read_bytes()[:-1])
    with pytest.raises(InputError):  # bound to the new model
        _ = Edits(Run.open(run.folder)).state


def test_corrections_are_said_of_other_clusters_where_their_number_has_changed(run: Run) -> None:
    edits = Edits(run)
    edits.rename(1, "kept")
    state = edits.confirm(np.flatnonzero(edits.state.clusters == 1)[:5])
    now = (state.clusters + 1) % 4
    unbind(run)
    carry_over(run, state, now, 4)
    lines = EditLog(run.folder / "edits.jsonl").read()
    assert (lines[0]["clusters"], lines[0]["model"], lines[1]["kind"]) == (4, "", "answer")
    assert lines[1]["names"] == [{"cluster": 2, "name": "kept", "new": False}]
    assert lines[1]["to"] == [2] * 5
