"""`fit --from RUN`: what a person has said of one run is said of another, image by image."""

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from taught_runs import colour_folder

from command_line import TINY, command, worked
from twincluster.run_images import RunImages
from twincluster.runs import JUNK, NONE, Edits, Run, read_contents
from twincluster.teacher import Teacher, same_images, take_over

COUNT = 48


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images and a run on them with examples in named clusters, an example without a name and junk."""
    place = tmp_path_factory.mktemp("corrected")
    source = colour_folder(place / "images", COUNT)
    worked("fit", source, "-k", 3, "--out", place / "run", *TINY)
    edits = Edits(Run.open(place / "run"))
    edits.answer([0, 3, 6, 9], name="red")
    edits.answer([1, 4, 7], name="green")
    edits.move([20], 0)
    edits.mark_junk([30, 31])
    edits.answer([12], 3, sample=True)
    return place


def refit(corrected: Path, out: Path, source: Path, *more: object) -> str:
    return worked("fit", source, "--out", out, *TINY, "--from", corrected / "run", *more).out


def rows_of(run: Path) -> dict[str, int]:
    return {path: row for row, path in enumerate(Run.open(run).read_assignments().paths)}


def test_examples_names_and_junk_come_along_whatever_the_number_of_clusters(corrected: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (corrected / "run").rglob("*") if path.is_file()}
    said = refit(corrected, tmp_path / "run", corrected / "images", "-k", 5, "--set", "augment.noise=0.2")
    assert f"from {corrected / 'run'}: 9 examples, 2 names and 2 junk\n" in said
    state = Edits(Run.open(tmp_path / "run")).state
    names = {name: cluster for cluster, name in state.names.items()}
    assert (state.examples[[0, 3, 6, 9, 12]] == names["red"]).all()
    assert (state.examples[[1, 4, 7]] == names["green"]).all()
    assert (state.examples[[30, 31]] == JUNK).all()
    assert int(state.shown.sum()) == 11
    assert np.flatnonzero(state.sample != NONE).tolist() == [12]
    assert state.sample[12] == Run.open(tmp_path / "run").read_assignments().clusters[12]
    assert before == {path: path.read_bytes() for path in (corrected / "run").rglob("*") if path.is_file()}
    Edits(Run.open(tmp_path / "run")).undo()  # one edit
    assert not Edits(Run.open(tmp_path / "run")).any


def test_images_are_known_by_what_they_show_wherever_they_lie(corrected: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    for number in range(COUNT):
        (moved / str(number % 2)).mkdir(parents=True, exist_ok=True)
        with Image.open(corrected / "images" / f"{number:03d}.png") as image:
            image.save(moved / str(number % 2) / f"{COUNT - number}.bmp")  # other bytes, the same pixels
    said = refit(corrected, tmp_path / "run", moved, "-k", 3)
    assert "9 examples, 2 names and 2 junk" in said
    state, rows = Edits(Run.open(tmp_path / "run")).state, rows_of(tmp_path / "run")
    red = [rows[f"{number % 2}/{COUNT - number}.bmp"] for number in (0, 3, 6, 9, 12)]
    assert {state.names[cluster] for cluster in state.examples[red]} == {"red"}


def test_images_are_known_though_they_are_decoded_in_another_way(corrected: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(corrected / "images", moved)
    for file in sorted(moved.iterdir()):
        file.rename(moved / f"other-{file.name}")
    said = refit(corrected, tmp_path / "run", moved, "-k", 3, "--set", "train.frame=letterbox")
    kinds = {content.rpartition("-")[0] for content in read_contents(tmp_path / "run").values()}
    assert not kinds & {content.rpartition("-")[0] for content in read_contents(corrected / "run").values()}
    assert "9 examples, 2 names and 2 junk" in said


def test_what_no_longer_fits_is_listed(corrected: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    shutil.copytree(corrected / "images", place / "images")
    worked("fit", place / "images", "-k", 3, "--out", place / "run", *TINY)
    take_over(RunImages(Run.open(corrected / "run")), RunImages(Run.open(place / "run")))
    fewer = place / "images"
    (fewer / "003.png").unlink()
    (fewer / "006.png").unlink()
    Image.fromarray(np.full((12, 12, 3), 9, np.uint8)).save(fewer / "030.png")
    said = refit(place, tmp_path / "run", fewer, "-k", 3)
    assert "7 examples, 2 names and 2 junk" in said
    assert "1 image known by path alone: what is in the files has changed" in said
    assert "2 examples of images that this run does not have, such as 003.png" in said


def test_other_images_with_the_same_names_in_another_folder_take_nothing_over(corrected: Path, tmp_path: Path) -> None:
    other = colour_folder(tmp_path / "other", COUNT, seed=1)
    said = refit(corrected, tmp_path / "run", other, "-k", 3)
    assert "0 examples, 0 names and 0 junk\n" in said
    assert "11 examples left out: other images have their paths here, such as 000.png" in said
    assert "that this run does not have" not in said
    assert "known by path alone" not in said
    assert not Edits(Run.open(tmp_path / "run")).state.shown.any()


def test_a_run_without_hashes_computes_them_when_it_is_opened(corrected: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(corrected / "run", old)
    (old / "contents.csv").unlink()
    assert RunImages(Run.open(old)).contents() == RunImages(Run.open(corrected / "run")).contents()
    assert not (old / "contents.csv").exists()


def test_hashes_are_of_the_pixels_and_update_adds_those_of_new_images(corrected: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(corrected / "run", run)
    contents = read_contents(run)
    assert len(contents) == len(set(contents.values())) == COUNT
    copy = tmp_path / "new" / "copy.png"
    copy.parent.mkdir()
    shutil.copy(corrected / "images" / "005.png", copy)
    worked("update", run, copy.parent)
    assert read_contents(run)[str(copy)] == contents["005.png"]
    assert Edits(Run.open(run)).state.names == Edits(Run.open(corrected / "run")).state.names


def test_a_named_cluster_without_examples_gives_its_name_to_where_its_images_are(
    corrected: Path, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for place in (old, new):
        shutil.copytree(corrected / "run", place)
        (place / "edits.jsonl").unlink()
    Edits(Run.open(old)).rename(2, "named")
    lines = take_over(RunImages(Run.open(old)), RunImages(Run.open(new)))
    assert "0 examples, 1 name and 0 junk" in lines[0]
    assert Edits(Run.open(new)).state.names[2] == "named"
    assert not Edits(Run.open(new)).state.shown.any()


def test_copies_of_one_image_take_what_was_said_of_their_own_path_first(corrected: Path, tmp_path: Path) -> None:
    source = tmp_path / "images"
    shutil.copytree(corrected / "images", source)
    shutil.copy(source / "000.png", source / "001.png")
    worked("fit", source, "-k", 3, "--out", tmp_path / "old", *TINY)
    Edits(Run.open(tmp_path / "old")).mark_junk([1])
    rows, _, _ = same_images(RunImages(Run.open(tmp_path / "old")), RunImages(Run.open(tmp_path / "old")))
    assert rows.tolist() == list(range(COUNT))


@pytest.mark.parametrize("fault", ["no run", "no corrections", "damaged", "own corrections"])
def test_corrections_that_cannot_be_taken_over_are_refused_before_any_work(
    fault: str, corrected: Path, tmp_path: Path
) -> None:
    old, out, more, expected = tmp_path / "old", tmp_path / "out", (), ""
    shutil.copytree(corrected / "run", old)
    if fault == "no run":
        shutil.rmtree(old)
        expected = "is not a run"
    elif fault == "no corrections":
        (old / "edits.jsonl").unlink()
        expected = "has no corrections to take over: leave out --from"
    elif fault == "damaged":
        (old / "edits.jsonl").write_text("{}\n")
        expected = "edits.jsonl is damaged in line 1"
    else:
        out, more = corrected / "run", ("--resume",)
        expected = "has corrections of its own"
    done = command("fit", corrected / "images", "-k", 3, "--out", out, *TINY, "--from", old, *more)
    assert expected in done.complaint
    assert not (tmp_path / "out").exists()


def test_what_was_taught_goes_on_in_the_new_run(corrected: Path, tmp_path: Path) -> None:
    refit(corrected, tmp_path / "run", corrected / "images", "-k", 4)
    teacher = Teacher(RunImages(Run.open(tmp_path / "run")))
    state = teacher.edits.state
    red = next(cluster for cluster, name in state.names.items() if name == "red")
    state = teacher.accept(state, teacher.proposals(state))
    assert (state.clusters[[15, 18, 21, 24]] == red).all()
    worked("export", tmp_path / "run", tmp_path / "all.csv", "--to", "csv")
    table = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text())))
    assert {row["status"] for row in table} == {"ok", "junk"}
