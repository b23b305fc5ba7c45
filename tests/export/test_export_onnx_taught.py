"""Merges, splits and what was taught, inside the ONNX file: the clusters that `twincluster predict` gives."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from command_line import TINY, colours, worked
from small_runs import rows
from twincluster.export.onnx import Routing
from twincluster.model import Model
from twincluster.run_images import RunImages
from twincluster.runs import Assignments, Edits, Run
from twincluster.teacher import Teacher

COUNT = 48


def fitted(place: Path, values: np.ndarray, *more: object) -> Run:
    np.save(place / "data.npy", values)
    worked("fit", place / "data.npy", "-k", 3, "--out", place / "run", *more)
    return Run.open(place / "run")


def teach(run: Run) -> Teacher:
    """Every third row is of one kind; two are junk."""
    teacher = Teacher(RunImages(run, device="cpu"))
    for one in range(3):
        teacher.edits.answer(range(one, 15, 3), (one + 1) % 3)
    teacher.edits.mark_junk([40, 41])
    state = teacher.edits.state
    teacher.accept(state, teacher.proposals(state))
    return teacher


def test_the_file_gives_the_clusters_that_were_taught_merged_and_split(tmp_path: Path) -> None:
    run, new = fitted(tmp_path, colours(COUNT)[0], *TINY), colours(30, seed=1)[0]
    edits = teach(run).edits
    edits.split(1, 2)
    edits.merge([2, 0])
    said = worked("export", run.folder, tmp_path / "model.onnx", "--to", "onnx").out
    assert "returns probabilities, embedding, cluster and confidence; cluster includes all corrections" in said
    found = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(["cluster", "confidence"], {"images": new})
    np.save(tmp_path / "new.npy", new)
    worked("predict", run.folder, tmp_path / "new.npy", "--out", tmp_path / "new.csv")
    expected = Assignments.read(tmp_path / "new.csv")
    assert found[0].tolist() == expected.clusters.tolist()
    assert np.abs(found[1] - expected.confidence).max() < 1e-3
    assert len(set(found[0].tolist())) > 1


def test_the_file_follows_a_cut(tmp_path: Path) -> None:
    run, new = fitted(tmp_path, colours(COUNT)[0], *TINY), colours(60, seed=1)[0]
    worked("cut", run.folder, "--clusters", 6)
    worked("export", run.folder, tmp_path / "model.onnx", "--to", "onnx")
    (found,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(["cluster"], {"images": new})
    np.save(tmp_path / "new.npy", new)
    worked("predict", run.folder, tmp_path / "new.npy", "--out", tmp_path / "new.csv")
    assert found.tolist() == Assignments.read(tmp_path / "new.csv").clusters.tolist()
    assert set(found.tolist()) <= set(Edits(run).state.names)
    assert len(set(found.tolist())) > 1


def routed(run: Run, state, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By the graph, and as `predict` does it."""
    model = Model.load(run, "cpu")
    opened = model.open(RunImages(run).listing)
    kinds, chances = model.kinds(opened), model.predict(opened)
    tensors = [torch.from_numpy(kind) for kind in kinds]
    found, sure = Routing(state)(chances, tensors[-1], *tensors[:-1])
    expected, certain = state.decide(chances.argmax(1).numpy(), chances.amax(1).numpy(), kinds)
    assert np.allclose(sure.numpy(), certain, atol=1e-5)
    return found.numpy(), expected


def test_rows_are_routed_by_both_kinds_of_features(tmp_path: Path) -> None:
    run = fitted(tmp_path, rows(COUNT), "--epochs", 1, "--device", "cpu")
    teacher = teach(run)
    for change in (lambda: None, lambda: teacher.edits.split(1, 2), lambda: teacher.edits.merge([2, 0])):
        change()
        found, expected = routed(run, teacher.edits.state, rows(COUNT))
        assert found.tolist() == expected.tolist()
    assert len(set(found.tolist())) > 1


def test_merges_and_splits_alone_are_routed_too(tmp_path: Path) -> None:
    run = fitted(tmp_path, rows(COUNT), "--epochs", 1, "--device", "cpu")
    edits = RunImages(run, device="cpu").edits
    edits.merge([1, 2])
    edits.split_off(1, edits.state.members(1)[:4])  # without features: new ones stay with the others
    edits.split(0, 2)
    found, expected = routed(run, edits.state, rows(COUNT))
    assert found.tolist() == expected.tolist()
    assert set(found.tolist()) <= set(Edits(run).state.names)
