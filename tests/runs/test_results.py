"""Run folders: tables that keep every row and every type, settings that come back as they were, damage that is told."""

import csv
import json
import math
import pickle
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import twincluster
from by_hand import change_json, json_rows
from command_line import colours, command
from twincluster.config import Config, DataShape, make_config
from twincluster.core import InputError, strict_json
from twincluster.data import open_images, open_source
from twincluster.methods import METHODS, Network
from twincluster.model import load_network
from twincluster.resolve import data_shape, resolve
from twincluster.runs import Assignments, Run, RunData, check_table

NAMES = ("a.png", "b, with a comma.png", 'c "quoted".png', "d\\n.png", "sub/é 猫.jpg", " spaces .gif", "=1+1.png")
FACTS = {
    "source": "x",
    "location": None,
    "files": False,
    "fingerprint": "f",
    "inputs": 7,
    "readable": 6,
    "split": "all",
}
SHAPE = {"n_samples": 7, "side": 4, "n_inputs": 1, "mean": [0.5], "std": [0.5]}


@pytest.fixture
def assignments() -> Assignments:
    clusters = np.array([0, 2, 1, -1, 2, 0, 0])
    confidence = np.array([0.5, 0.25, 1.0, np.nan, 1 / 3, 0.98765, 0.7])
    return Assignments(
        NAMES, clusters, confidence, tuple("unreadable: empty file" if k < 0 else "ok" for k in clusters)
    )


# -- tables ----------------------------------------------------------------------------------------------------------


def test_csv_has_a_row_per_input_and_reads_back(tmp_path: Path, assignments: Assignments) -> None:
    assignments.write(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "cluster", "confidence", "status"]
    assert [row["path"] for row in rows] == list(NAMES)
    assert (rows[3]["cluster"], rows[3]["confidence"], rows[3]["status"]) == ("", "", "unreadable: empty file")
    assert rows[4]["confidence"] == "0.3333"
    again = Assignments.read(tmp_path / "table.csv")
    assert (again.paths, again.status) == (assignments.paths, assignments.status)
    assert again.clusters.tolist() == assignments.clusters.tolist()
    np.testing.assert_allclose(again.confidence, assignments.confidence, atol=5e-5)
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


def test_parquet_has_the_same_columns_with_types(tmp_path: Path, assignments: Assignments) -> None:
    assignments.write(tmp_path / "table.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "table.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        "path": "string", "cluster": "int32", "confidence": "float", "status": "string",
    }  # fmt: skip
    assert table["path"].to_pylist() == list(NAMES)
    assert table["cluster"].to_pylist() == [0, 2, 1, None, 2, 0, 0]
    assert table["confidence"].to_pylist()[3] is None
    np.testing.assert_allclose(np.array(table["confidence"].to_pylist(), float), assignments.confidence, rtol=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == ["table.parquet"]


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=("Cs", "Cc"))), st.integers(-1, 5))))
def test_any_table_survives_the_disk(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]]) -> None:
    paths, clusters = tuple(path for path, _ in rows), np.array([k for _, k in rows], np.int64)
    confidence = np.where(clusters < 0, np.nan, 0.5)
    file = tmp_path_factory.mktemp("table") / "table.csv"
    Assignments(paths, clusters, confidence, ("ok",) * len(rows)).write(file)
    again = Assignments.read(file)
    assert again.paths == paths
    assert again.clusters.tolist() == clusters.tolist()


def test_sizes_count_empty_clusters(assignments: Assignments) -> None:
    assert assignments.sizes(5) == [3, 1, 2, 0, 0]


def test_a_table_is_replaced_and_its_folder_made(tmp_path: Path, assignments: Assignments) -> None:
    target = tmp_path / "new" / "deep" / "table.CSV"
    check_table(target)
    target.parent.mkdir(parents=True)
    target.write_text("old")
    assignments.write(target)
    assert Assignments.read(target).paths == NAMES
    assignments.write(tmp_path / "other" / "table.csv")
    assert (tmp_path / "other" / "table.csv").exists()


def test_names_that_cannot_become_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("table.txt", "table", "table.csv.gz"):
        with pytest.raises(InputError, match="expected a file name that ends in .csv or .parquet"):
            check_table(tmp_path / name)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a folder: name a file"):
        check_table(tmp_path / "folder.csv")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_table(tmp_path / "table.csv")
    with pytest.raises(InputError, match=r"pip install 'twincluster\[parquet\]', or name a .csv file"):
        check_table(tmp_path / "table.parquet")


# -- the folder ------------------------------------------------------------------------------------------------------


def small_run(folder: Path) -> tuple[Run, Config, DataShape, Network]:
    """A run as training leaves it, without the training."""
    images = open_images(open_source(colours()[0]))
    anchored = {"hidden": 8, "n_features": 4, "instance_queue": 8}
    train = {"backbone": "small", "batch_size": 8, "epochs": 1, "device": "cpu"}
    config = resolve(make_config({"n_clusters": 3, "seed": 5, "train": train, "anchored": anchored}), images)
    shape = data_shape(config, images)
    network = METHODS["anchored"](config, shape).online
    run = Run.create(folder)
    run.write_config(config, shape, RunData(**FACTS))
    run.save_model(network)
    return run, config, shape, network


def test_settings_come_back_as_they_were(tmp_path: Path) -> None:
    run, config, shape, network = small_run(tmp_path / "run")
    again = Run.open(tmp_path / "run")
    assert (again.config, again.shape, again.data) == (config, shape, RunData(**FACTS))
    content = json.loads((tmp_path / "run" / "config.json").read_text())
    assert content["config"]["seed"] == 5
    assert set(content["versions"]) == {"twincluster", "torch", "numpy", "python"}
    assert content["versions"]["twincluster"] == twincluster.__version__
    assert 0 not in (content["config"]["train"]["image_size"], content["config"]["train"]["epochs"])
    assert "auto" not in content["config"]["train"].values()
    loaded = load_network(run)
    assert not loaded.training
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in network.state_dict().items())
    assert not list(run.folder.glob("*.partial"))


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    Run.create(tmp_path / "empty")
    Run.create(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    small_run(tmp_path / "run")
    (tmp_path / "file").write_text("a letter")
    with pytest.raises(
        InputError, match="run exists and is not empty: choose another --out, or continue it with --res"
    ):
        Run.create(tmp_path / "run")
    with pytest.raises(InputError, match="exists and is not empty: choose another --out$"):
        Run.create(tmp_path)
    with pytest.raises(InputError, match="file is a file: choose another --out$"):
        Run.create(tmp_path / "file")
    with pytest.raises(InputError, match="is not a run: it has no config.json"):
        Run.open(tmp_path / "a")
    with pytest.raises(InputError, match="is not a run: the folder does not exist"):
        Run.open(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [
    b"", b"{", b"[]", b"null", b'{"config": {}}', b"\xff\xfe", b"cbuiltins\nexec\n",
    b'{"config": {"seed": "x"}, "shape": {}, "data": {}}', b'{"config": {"speed": 1}, "shape": {}, "data": {}}',
    b'{"config": {}, "shape": {"side": 3}, "data": {}}', b'{"config": {}, "shape": [], "data": {}}',
    *(json.dumps({"config": {}, "shape": SHAPE | change, "data": FACTS}).encode() for change in (
        {"side": "?"}, {"side": -1}, {"mean": ["x"]}, {"std": []}, {"std": None},
    )),
], ids=range(16))  # fmt: skip
def test_damaged_settings_are_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    small_run(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_bytes(content)
    np.save(tmp_path / "new.npy", colours()[0])
    complaint = command("predict", tmp_path / "run", tmp_path / "new.npy", "--out", tmp_path / "new.csv").complaint
    assert "config.json cannot be read as a run's settings" in complaint
    assert not (tmp_path / "new.csv").exists()


@pytest.mark.parametrize("place,value", [
    (("config", "method"), "no-such-method"), (("config", "anchored", "hidden"), 9), (("config", "n_clusters"), 4),
    (("config", "train", "backbone"), "no-such-backbone"),
], ids=str)  # fmt: skip
def test_settings_that_do_not_fit_the_model(tmp_path: Path, place: tuple[str, ...], value: object) -> None:
    run, *_ = small_run(tmp_path / "run")
    change_json(
        run.folder / "config.json", lambda content: reduce(getitem, place[:-1], content).update({place[-1]: value})
    )
    with pytest.raises(InputError) as refusal:
        load_network(Run.open(run.folder))
    assert "damaged or from different runs" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("damage", ["empty", "half", "noise", "pickle", "other"])
def test_a_damaged_model_is_told_in_one_line(tmp_path: Path, damage: str) -> None:
    run, *_ = small_run(tmp_path / "run")
    model = run.folder / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes({
        "empty": b"", "half": whole[: len(whole) // 2], "noise": bytes(range(256)) * 9,
        "pickle": pickle.dumps({"head.weight": [0.5]}), "other": b"\x02\0\0\0\0\0\0\0{}",
    }[damage])  # fmt: skip
    np.save(tmp_path / "new.npy", colours()[0])
    complaint = command("predict", run.folder, tmp_path / "new.npy", "--out", tmp_path / "new.csv").complaint
    assert "model.safetensors and its config.json are damaged or from different runs" in complaint


def test_a_run_without_its_files_says_how_to_go_on(tmp_path: Path) -> None:
    run, *_ = small_run(tmp_path / "run")
    with pytest.raises(InputError, match="has no assignments yet: continue the run with --resume"):
        run.read_assignments()
    (run.folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="has no model yet: continue the run with"):
        load_network(run)


def test_damaged_assignments_are_told(tmp_path: Path, assignments: Assignments) -> None:
    run, *_ = small_run(tmp_path / "run")
    run.write_assignments(assignments)
    assert run.read_assignments().paths == NAMES
    (run.folder / "checksums.json").unlink()
    table = run.folder / "assignments.csv"
    whole = table.read_text()
    for damaged in (whole.replace("a.png,0", "a.png,zero"), whole.replace("path,", "name,"), "\0", whole + "\xff"):
        table.write_bytes(damaged.encode("latin-1", "ignore"))
        with pytest.raises(InputError, match="assignments.csv (cannot be read as a table|does not fit)"):
            run.read_assignments()
    for other in (
        whole.replace("a.png,0", "a.png,3"),
        whole.replace("a.png,0", "a.png,-2"),
        whole.replace("a.png", ""),
    ):
        table.write_text("\n".join(line for line in other.splitlines() if not line.startswith(",")) + "\n")
        with pytest.raises(InputError, match=r"does not fit its config.json \(7 inputs, 3 clusters\)"):
            run.read_assignments()


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_are_strict_json_and_survive_a_torn_line(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    assert run.read_metrics() == []
    run.truncate_metrics(3)
    for epoch in range(4):
        run.append_metrics({"epoch": epoch, "loss": math.nan if epoch == 1 else 0.1 * epoch, "histogram": [1, 2]})
    rows = json_rows(run.folder / "metrics.jsonl")
    assert [row["loss"] for row in rows] == [0.0, None, 0.2, 0.1 * 3]
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "lo')
    assert run.read_metrics() == rows
    run.truncate_metrics(2)
    assert run.read_metrics() == rows[:2]


def test_numbers_that_are_none_become_null() -> None:
    nested = {"a": math.nan, "b": [1.5, math.inf, (-math.inf, "text", None, True)], "c": {"d": 3}}
    assert json.loads(strict_json(nested)) == {"a": None, "b": [1.5, None, [None, "text", None, True]], "c": {"d": 3}}
