"""What was learned decides about images that the run does not know; the run's own model and rows never change."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from taught_runs import COUNT, colour_folder, colour_run, opened

from command_line import command, worked
from twincluster.core import InputError
from twincluster.runs import TAUGHT_FILE, Edits, Run
from twincluster.teacher import Teacher

NEW = 30


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return colour_run(tmp_path)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return colour_folder(tmp_path / "new", NEW, seed=1)


def accepted(run: Run) -> Teacher:
    """Answers about four pictures of each colour, and all that would then move accepted; red is cluster 1, not 0."""
    teacher = Teacher(opened(run))
    for colour in range(3):
        teacher.edits.answer(range(colour, 12, 3), (colour + 1) % 3)
    state = teacher.edits.state
    teacher.accept(state, teacher.proposals(state))
    return teacher


def predicted(run: Run, source: Path, out: Path) -> np.ndarray:
    worked("predict", run.folder, source, "--out", out)
    with out.open() as file:
        return np.array([int(row["cluster"] or -1) for row in csv.DictReader(file)])


def test_predict_gives_new_images_the_clusters_that_were_taught(run: Run, new: Path, tmp_path: Path) -> None:
    before = predicted(run, new, tmp_path / "before.csv")
    files = {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file()}
    accepted(run)
    after = predicted(run, new, tmp_path / "after.csv")
    colours = (np.arange(NEW) % 3 + 1) % 3
    assert (after == colours).mean() > 0.95
    assert (before == colours).mean() < 0.9
    assert {name: (run.folder / name).read_bytes() for name in files} == files


def test_answers_that_nobody_has_accepted_change_nothing_for_new_images(run: Run, new: Path, tmp_path: Path) -> None:
    before = predicted(run, new, tmp_path / "before.csv")
    Teacher(opened(run)).edits.answer([0, 3, 6], 1)
    assert predicted(run, new, tmp_path / "after.csv").tolist() == before.tolist()
    assert not (run.folder / TAUGHT_FILE).exists()


def test_known_images_keep_what_the_edits_say(run: Run, tmp_path: Path) -> None:
    edits = accepted(run).edits
    edits.move([20], 0)
    found = predicted(run, run.folder.parent / "images", tmp_path / "known.csv")
    assert found.tolist() == edits.state.clusters.tolist()


def test_undo_takes_the_lesson_back_and_redo_brings_it_back(run: Run, new: Path, tmp_path: Path) -> None:
    before = predicted(run, new, tmp_path / "before.csv")
    teacher = accepted(run)
    taught = predicted(run, new, tmp_path / "taught.csv")
    learned = load_file(run.folder / TAUGHT_FILE)
    teacher.edits.undo()
    assert not (run.folder / TAUGHT_FILE).exists()
    assert predicted(run, new, tmp_path / "undone.csv").tolist() == before.tolist()
    teacher.edits.redo()
    assert predicted(run, new, tmp_path / "redone.csv").tolist() == taught.tolist()
    again = load_file(run.folder / TAUGHT_FILE)
    assert all(np.array_equal(again[name], learned[name]) for name in learned)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 64
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def of_other_edits(path: Path) -> None:
    content = path.read_bytes()
    edits = Edits(Run.open(path.parent))
    edits.undo()
    edits.rename(0, "other")
    edits.accept([50], [0])
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [Path.unlink, damage, cut, of_other_edits])
def test_a_lesson_that_is_missing_damaged_or_stale_is_learned_again(harm, run: Run, new: Path, tmp_path: Path) -> None:
    accepted(run)
    expected = predicted(run, new, tmp_path / "before.csv")
    harm(run.folder / TAUGHT_FILE)
    assert predicted(run, new, tmp_path / "after.csv").tolist() == expected.tolist()
    edits = Edits(Run.open(run.folder))
    assert edits.taught is not None  # the file is sound again: nothing here can learn


def test_a_damaged_lesson_that_cannot_be_learned_again_is_one_line(
    run: Run, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted(run)
    damage(run.folder / TAUGHT_FILE)
    shutil.rmtree(run.folder.parent / "images")
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(tmp_path / "empty"))
    complaint = command("predict", run.folder, new, "--out", tmp_path / "out.csv").complaint
    assert "taught.safetensors is damaged or of other edits, and cannot be made again" in complaint
    assert "put back a copy, or undo edit 4" in complaint
    assert not (tmp_path / "out.csv").exists()


def test_later_merges_and_splits_route_on_top(run: Run, new: Path, tmp_path: Path) -> None:
    teacher = accepted(run)
    taught = predicted(run, new, tmp_path / "taught.csv")
    teacher.edits.merge([2, 0])
    merged = predicted(run, new, tmp_path / "merged.csv")
    assert merged.tolist() == np.where(taught == 0, 2, taught).tolist()
    state = teacher.edits.split(1, 2)
    parts = sorted(set(state.names) - {2})
    split = predicted(run, new, tmp_path / "split.csv")
    assert set(split[taught == 1]) <= set(parts)
    assert (split[taught != 1] == merged[taught != 1]).all()


def test_new_images_are_never_junk_by_themselves(run: Run, new: Path, tmp_path: Path) -> None:
    teacher = Teacher(opened(run))
    teacher.edits.mark_junk(range(0, 30, 3))
    teacher.edits.answer(range(1, 30, 3), 1)
    state = teacher.edits.state
    teacher.accept(state, teacher.proposals(state))
    assert teacher.edits.state.junk[60]  # a proposal that a person has accepted
    worked("predict", run.folder, new, "--out", tmp_path / "new.csv")
    assert "junk" not in (tmp_path / "new.csv").read_text()
    worked("update", run.folder, new)
    assert not Edits(run).state.junk[COUNT:].any()


def test_update_gives_new_images_the_clusters_that_were_taught(run: Run, new: Path, tmp_path: Path) -> None:
    accepted(run)
    expected = predicted(run, new, tmp_path / "new.csv")
    rows = (run.folder / "assignments.csv").read_text()
    worked("update", run.folder, new)
    assert (run.folder / "assignments.csv").read_text().startswith(rows)
    shutil.rmtree(new)  # what was said of them is kept with the lesson
    state = Edits(run).state
    assert state.clusters[COUNT:].tolist() == expected.tolist()
    assert not state.guessed.any()
    worked("export", run.folder, tmp_path / "all.csv", "--to", "csv")
    with (tmp_path / "all.csv").open() as file:
        assert [int(row["cluster"]) for row in csv.DictReader(file)][COUNT:] == expected.tolist()


def test_images_of_an_update_stay_where_they_are_when_the_next_lesson_is_accepted(run: Run, new: Path) -> None:
    accepted(run)
    worked("update", run.folder, new)
    teacher = Teacher(opened(run))
    before = teacher.edits.state
    teacher.edits.accept([50], [0], head=teacher.lesson(before).head)
    now = Edits(run).state
    assert np.delete(now.clusters, 50).tolist() == np.delete(before.clusters, 50).tolist()
    assert not now.shown[COUNT:].any()
    (run.folder / TAUGHT_FILE).unlink()
    assert Edits(run).state.clusters.tolist() == now.clusters.tolist()


def test_images_of_an_update_whose_lesson_is_lost_are_looked_at_again(run: Run, new: Path) -> None:
    accepted(run)
    worked("update", run.folder, new)
    expected = Edits(run).state.clusters
    (run.folder / TAUGHT_FILE).unlink()
    assert Edits(run).state.guessed[COUNT:].all()  # knows no features
    assert opened(run).edits.state.clusters.tolist() == expected.tolist()
    assert not opened(run).edits.state.guessed.any()


def test_a_shared_copy_knows_what_was_taught_and_names_no_image(run: Run, new: Path, tmp_path: Path) -> None:
    accepted(run)
    expected = predicted(run, new, tmp_path / "own.csv")
    worked("export", run.folder, tmp_path / "shared", "--to", "huggingface")
    shared = Run.open(tmp_path / "shared")
    assert predicted(shared, new, tmp_path / "copy.csv").tolist() == expected.tolist()
    assert b".png" not in (shared.folder / TAUGHT_FILE).read_bytes()
    damage(shared.folder / TAUGHT_FILE)
    complaint = command("predict", shared.folder, new, "--out", tmp_path / "out.csv").complaint
    assert "put back a copy" in complaint


def test_a_state_of_the_past_leaves_out_what_came_later_and_what_was_undone(run: Run) -> None:
    edits = Edits(run)
    edits.confirm([0])
    edits.rename(0, "gone")
    edits.undo()
    edits.rename(0, "kept")
    edits.confirm([1])
    past = edits.before(edits.state.number)
    assert (past.names[0], int(past.shown.sum())) == ("kept", 1)


def test_an_edit_that_was_accepted_on_an_old_view_is_refused(run: Run) -> None:
    teacher = Teacher(opened(run))
    state = teacher.edits.answer(range(0, 12, 3), 1)
    groups = teacher.proposals(state)
    teacher.edits.rename(0, "meanwhile")
    with pytest.raises(InputError, match="somebody else has edited"):
        teacher.accept(state, groups)
    assert not (run.folder / TAUGHT_FILE).exists()
