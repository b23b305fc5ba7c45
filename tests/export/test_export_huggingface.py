"""A folder to share: it predicts as the run does, edits included, and gives away nothing of the machine."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
import yaml

from command_line import TINY, colours, colours_file, command, worked
from twincluster.estimator import TwinContrastClustering
from twincluster.methods import base as inference
from twincluster.model import load_network
from twincluster.run_images import RunImages
from twincluster.runs import Edits, Run, provenance


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("labelled")
    worked("fit", colours_file(folder), "-k", 3, "--out", folder / "run", *TINY)
    return Run.open(folder / "run")


@pytest.fixture
def colourful(labelled: Run, tmp_path: Path) -> Run:
    shutil.copytree(labelled.folder, tmp_path / "colourful")
    return Run.open(tmp_path / "colourful")


def head_of(card: str) -> dict:
    _, head, _ = card.split("---\n", 2)
    return yaml.safe_load(head)


def test_the_card_has_scores_names_and_the_fingerprint(colourful: Run, tmp_path: Path) -> None:
    Edits(colourful).rename(1, "<script>|\n# cats")
    done = worked("export", colourful.folder, tmp_path / "out", "--to", "huggingface")
    assert "with scores" in done.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md", "assignments.csv", "checksums.json", "config.json", "edits.jsonl", "labels.json",
        "model.safetensors", "provenance.json",
    ]  # fmt: skip
    card = (tmp_path / "out" / "README.md").read_text()
    evaluated = json.loads(worked("evaluate", colourful.folder, "--json").out)
    metrics = {one["type"]: one["value"] for one in head_of(card)["model-index"][0]["results"][0]["metrics"]}
    assert metrics == {
        "accuracy": round(evaluated["acc"], 4), "nmi": round(evaluated["nmi"], 4), "ari": round(evaluated["ari"], 4)
    }  # fmt: skip
    assert f"`{colourful.data.fingerprint}`" in card
    assert f"seed: {colourful.config.seed}" in card
    assert "| 1 | &lt;script&gt;\\|\\\\n\\# cats |" in card
    assert "<script>" not in card
    made = provenance.read(colourful.folder)
    assert f"training time: {made.facts()['training time']}" in card
    assert f"begun: {made.facts()['begun']}" in card  # 2026-01-31 09:05 UTC
    assert provenance.read(tmp_path / "out") == made.without_commands() != made
    assert json.loads((tmp_path / "out" / "labels.json").read_text())["1"] == "<script>|\n# cats"


def test_images_that_were_added_later_are_told_apart(colourful: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "new.npy", colours(20, seed=3)[0])
    worked("update", colourful.folder, tmp_path / "new.npy")
    worked("export", colourful.folder, tmp_path / "out", "--to", "huggingface")
    known = len(colourful.read_assignments().paths) - 20
    said = f"* images: {known}, of which {known} could be read; 20 more were added after training"
    assert said in (tmp_path / "out" / "README.md").read_text().splitlines()


def test_nothing_of_the_machine_goes_along(run: Run, tmp_path: Path) -> None:
    worked("export", run.folder, tmp_path / "out", "--to", "huggingface")
    for path in (tmp_path / "out").iterdir():
        content = path.read_bytes()
        for secret in (b"pytest", b"/tmp", b"0.png", b"empty.png"):
            assert secret not in content, (path.name, secret)
    assert "without scores" in worked("export", run.folder, tmp_path / "again", "--to", "huggingface").out
    assert "model-index" not in (tmp_path / "again" / "README.md").read_text()


def test_it_predicts_as_the_run_does(colourful: Run, tmp_path: Path) -> None:
    edits = Edits(colourful)
    images = RunImages(colourful).training
    assert images is not None
    network = load_network(colourful)
    largest = int(np.argmax(colourful.read_assignments().sizes(3)))
    edits.split(largest, 2, lambda rows: inference.embed(network, images.pixels, rows).numpy())
    edits.rename(3, "first part")
    edits.mark_junk([0])
    edits.move([1], name="secret")
    edits.undo()
    np.save(tmp_path / "new.npy", colours(20, seed=3)[0])
    worked("export", colourful.folder, tmp_path / "out", "--to", "huggingface")
    assert "secret" not in (tmp_path / "out" / "edits.jsonl").read_text()
    tables = []
    for folder in (colourful.folder, tmp_path / "out"):
        worked("predict", folder, tmp_path / "new.npy", "--out", tmp_path / "new.csv")
        tables.append(pandas.read_csv(tmp_path / "new.csv"))
    pandas.testing.assert_frame_equal(*tables)
    assert set(tables[0].cluster) & {3, 4}
    loaded = TwinContrastClustering.load(tmp_path / "out")
    assert loaded.labels_.tolist() == Edits(Run.open(tmp_path / "out")).state.clusters.tolist()


def test_a_folder_that_holds_something_is_left_alone(colourful: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    assert "not empty" in command("export", colourful.folder, tmp_path / "out", "--to", "huggingface").complaint
