"""problems.csv: what fit, update and report write, what is read back, and what is said of a damaged table."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command_line import TINY, worked
from twincluster.core import InputError
from twincluster.runs import Problem, Run, in_words, read_problems, write_problems

SOME = (
    Problem("a, b.png", "near_copy", 0.91, "c.png"),
    Problem("a, b.png", "dark", 0.05),
    Problem("d.png", "tiny", 40),
)


def rows_of(run: Path) -> list[tuple[str, str, str]]:
    with (run / "problems.csv").open(encoding="utf-8") as file:
        return [(row["path"], row["kind"], row["copy_of"]) for row in csv.DictReader(file)]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixteen pictures of noise, a copy of one under another name, one that is all blue, and one that is black."""
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(tmp_path / "cache"))
    random, folder = np.random.default_rng(0), tmp_path / "photos"
    folder.mkdir()
    for number in range(16):
        Image.fromarray(random.integers(0, 256, (24, 24, 3)).astype(np.uint8)).save(folder / f"{number:02d}.png")
    Image.open(folder / "03.png").save(folder / "copy.png")
    Image.new("RGB", (24, 24), (80, 120, 200)).save(folder / "blue.png")
    Image.new("RGB", (24, 24)).save(folder / "black.png")
    return folder


EXPECTED = [
    ("black.png", "dark", ""),
    ("black.png", "blank", ""),
    ("blue.png", "blank", ""),
    ("copy.png", "exact_copy", "03.png"),
]


def test_fit_writes_all_problems_and_leaves_them_out_on_request(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    said = worked("fit", photos, "--clusters", 2, "--out", run, *TINY)
    assert "to clean up: exact copies 1, dark 1, blank 2; see problems.csv" in said.out
    assert rows_of(run) == EXPECTED
    other = tmp_path / "other"
    worked("fit", photos, "--clusters", 2, "--out", other, "--no-problems", *TINY)
    assert not (other / "problems.csv").exists()
    worked("report", other, "--no-problems")
    assert not (other / "problems.csv").exists()
    worked("report", other)  # a run of an earlier version has none
    assert rows_of(other) == EXPECTED


def test_update_compares_new_images_with_all_and_keeps_the_other_rows(photos: Path, tmp_path: Path) -> None:
    run, more = tmp_path / "run", tmp_path / "more"
    worked("fit", photos, "--clusters", 2, "--out", run, *TINY)
    more.mkdir()
    Image.open(photos / "05.png").save(more / "again.png")
    Image.fromarray(np.random.default_rng(9).integers(0, 256, (24, 24, 3)).astype(np.uint8)).save(more / "new.png")
    said = worked("update", run, more)
    assert "to clean up among them: exact copies 1" in said.out
    assert rows_of(run) == [*EXPECTED, (str(more / "again.png"), "exact_copy", "05.png")]
    worked("update", run, "--undo")
    table = Run.open(run).read_assignments()
    found = read_problems(run, table.paths)
    assert found is not None
    assert [(each.path, each.kind, each.copy_of) for each in found] == EXPECTED
    worked("update", run, more, "--no-problems")
    assert len(rows_of(run)) == 5  # as the first update left it


def test_a_table_survives_the_disk_and_rows_that_are_gone_are_left_out(tmp_path: Path) -> None:
    assert read_problems(tmp_path, ["x"]) is None
    write_problems(tmp_path, SOME)
    assert read_problems(tmp_path, ["a, b.png", "c.png", "d.png"]) == SOME
    assert read_problems(tmp_path, ["a, b.png"]) == SOME[1:2]
    assert in_words(SOME) == "near copies 1, dark 1, tiny 1"


@pytest.mark.parametrize("old,new", [("near_copy", "clone"), ("0.91", "nan"), ("0.91", "much"), ("value", "worth")])
def test_a_damaged_table_is_named_with_the_remedy(tmp_path: Path, old: str, new: str) -> None:
    write_problems(tmp_path, SOME)
    path = tmp_path / "problems.csv"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=r"problems\.csv .*delete it, and `twincluster report` writes it again"):
        read_problems(tmp_path, ["d.png"])
    (tmp_path / "checksums.json").unlink()
    with pytest.raises(InputError, match=r"problems\.csv .*delete it"):
        read_problems(tmp_path, ["d.png"])
