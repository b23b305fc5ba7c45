"""Folders: what is found in them, in which order, under which names, and what is said when there is nothing."""

import csv
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import twincluster
from twincluster.core import InputError
from twincluster.data import open_source, printable


def picture(path: Path, colour: tuple[int, int, int] = (9, 9, 9), size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, format="PNG")
    return path


def complaint(source: object, **options: object) -> str:
    """The one line a user reads."""
    with pytest.raises(InputError) as caught:
        open_source(source, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_searched_recursively_in_sorted_order(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name in ("b/2.PNG", "a/x/1.jpeg", "z.jpg", "a/2.png", "B/3.webp"):
        picture(root / name)
    (root / "notes.txt").write_text("x")
    (root / "a" / "Thumbs.db").write_text("x")
    listing = open_source(root)
    assert listing.paths == ("B/3.webp", "a/2.png", "a/x/1.jpeg", "b/2.PNG", "z.jpg")
    assert listing.files == tuple(str(root / path) for path in listing.paths)
    assert (listing.name, listing.skipped, listing.labels) == ("photos/", 2, None)
    assert open_source(str(root) + "/").paths == listing.paths


def test_a_name_that_is_all_suffix_is_no_image(tmp_path: Path) -> None:
    for name in (".png", "..png", ".a.png", "...b.PnG", "c.png.", "d.png.txt", "e.tar.jpeg", "png"):
        picture(tmp_path / name)
    listing = open_source(tmp_path)
    assert listing.paths == ("...b.PnG", ".a.png", "e.tar.jpeg")
    assert listing.skipped == 5


def test_runs_among_the_images_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name in ("1.png", "config.json/2.png", "runs/photos/clusters.png", "runs/photos/figures/map.png", "runs/3.png"):
        picture(root / name)
    for name in ("config.json", "metrics.jsonl"):
        (root / "runs" / "photos" / name).touch()
    listing = open_source(root)
    assert (listing.paths, listing.skipped) == (("1.png", "config.json/2.png", "runs/3.png"), 0)
    assert open_source(root / "runs" / "photos").paths == ("clusters.png", "figures/map.png")  # whoever asks for them


def test_a_folder_named_from_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        picture(tmp_path / "photos" / f"{number}.png")
    monkeypatch.chdir(tmp_path / "photos")
    listing = open_source(".")
    monkeypatch.chdir(tmp_path)
    assert listing.name == "photos/"
    assert listing.files is not None
    assert all(os.path.exists(str(file)) for file in listing.files)  # still found from elsewhere


def test_links_are_followed_once_and_circles_end(tmp_path: Path) -> None:
    root, outside = tmp_path / "photos", tmp_path / "outside"
    picture(root / "real" / "1.png")
    picture(outside / "2.png")
    picture(tmp_path / "beside" / "3.png")
    (root / "real" / "circle").symlink_to("..")
    (root / "up").symlink_to(tmp_path)  # above the folder: what lies beside it was not named
    (root / "a-link-to-real").symlink_to("real")
    (root / "elsewhere").symlink_to(outside)
    (root / "itself").symlink_to("itself")
    (root / "gone.png").symlink_to("nowhere")
    (root / "again.png").symlink_to("real/1.png")
    assert open_source(root).paths == ("again.png", "elsewhere/2.png", "gone.png", "real/1.png")


def test_two_files_of_one_name(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png")
    picture(tmp_path / "dog" / "1.png")
    assert open_source(tmp_path).paths == ("cat/1.png", "dog/1.png")


def test_odd_names_take_one_line_and_stay_apart(tmp_path: Path) -> None:
    names = [b"a b.png", b"it's.png", b'"quoted", really.png', b"two\nlines.png", b"two\\nlines.png", b"caf\xe9.png"]
    names += ["café.png".encode(), b"tab\t.png", b"esc\x1b.png", "\u2028.png".encode(), "家.png".encode()]
    for name in names:
        picture(tmp_path / os.fsdecode(name))
    listing = open_source(tmp_path)
    files = [os.path.basename(str(file)) for file in listing.files or ()]
    written = {os.fsencode(file): path for file, path in zip(files, listing.paths, strict=True)}
    assert written[b"a b.png"] == "a b.png"
    assert written[b"it's.png"] == "it's.png"
    assert written[b"two\nlines.png"] == r"two\nlines.png"
    assert written[b"two\\nlines.png"] == r"two\\nlines.png"
    assert written[b"caf\xe9.png"] == r"caf\xe9.png"
    assert written["café.png".encode()] == "café.png"
    assert written["家.png".encode()] == "家.png"
    assert written[b"esc\x1b.png"] == r"esc\x1b.png"
    assert len(set(listing.paths)) == len(names)
    assert all(len(path.encode().decode().splitlines()) == 1 for path in listing.paths)


@given(st.binary(max_size=12).map(os.fsdecode), st.binary(max_size=12).map(os.fsdecode))
def test_written_names_are_one_to_one_and_fit_a_line(one: str, other: str) -> None:
    assert (printable(one) == printable(other)) == (one == other)
    assert len(printable(one).encode().decode().splitlines()) <= 1
    table = io.StringIO()
    csv.writer(table).writerow([printable(one), "x"])
    assert next(csv.reader(io.StringIO(table.getvalue(), newline=""))) == [printable(one), "x"]


def test_a_subfolder_that_may_not_be_read_is_said() -> None:
    """As another user, because root may read everything; in a folder that user may enter."""
    code = (
        "import os, sys; from twincluster.data.sources import open_source; locked = sys.argv[1] + '/locked'; "
        "os.chmod(locked, 0); os.geteuid() or os.setuid(65534); print(open_source(sys.argv[1], at_least=1).paths)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(twincluster.__file__).parents[1])}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        picture(Path(folder, "a.png"))
        picture(Path(folder, "locked", "b.png"))
        command = [sys.executable, "-c", code, folder]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        os.chmod(Path(folder, "locked"), 0o755)
    assert run.stdout.strip() == "('a.png',)", run.stderr
    assert "locked cannot be read" in run.stderr


def test_bad_folders_and_paths(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty/ is empty" in complaint(tmp_path / "empty")
    (tmp_path / "texts" / "in").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "texts" / "in" / f"{number}.txt").write_text("x")
    assert "no images (3 other files)" in complaint(tmp_path / "texts")
    assert "no such file, folder or data set" in complaint(tmp_path / "absent")
    assert "did you mean digits?" in complaint("digit")
    assert "did you mean cifar10?" in complaint("cifar-10")
    assert "name a data set: digits, " in complaint("x" * 5000)
    picture(tmp_path / "one" / "a.png")
    assert "has 1 sample" in complaint(tmp_path / "one")
    assert open_source(tmp_path / "one", at_least=1).paths == ("a.png",)
    assert "single image" in complaint(tmp_path / "one" / "a.png")
    (tmp_path / "list.docx").write_text("x")
    assert "expected a folder, .npy or .npz" in complaint(tmp_path / "list.docx")
    assert r"no\nsuch" in complaint("no\nsuch")
