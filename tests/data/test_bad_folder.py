"""Folders as people have them, from the command line to the table: a row for every file, and why some are bad."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from colours import is_problem
from PIL import Image
from test_decode_heic import BEGINNING
from test_decode_large import grey_jpeg, write_png

import twincluster
from command_line import TINY, worked
from twincluster.data import printable
from twincluster.runs import Assignments

ODD_NAMES = (b"a b.png", b"it's.png", b'"quoted", really.png', b"two\nlines.png", b"two\\nlines.png", b"caf\xe9.png")

# As another user, because root may read everything. The first run loads all that the second, with fewer rights, needs.
AS_ANOTHER = """
import os, sys
from twincluster.cli import main
images, folder, out, *options = sys.argv[1:]
os.environ["TWINCLUSTER_CACHE"] = out + "/cache-of-the-first"
assert main(["fit", images, "--clusters", "3", "--out", out + "/first", *options]) == 0
os.geteuid() or (os.setgroups([]), os.setgid(65534), os.setuid(65534))
os.environ["TWINCLUSTER_CACHE"] = out + "/cache"
status = main(["fit", folder, "--clusters", "3", "--out", out + "/run", *options])
sys.exit(status or main(["predict", out + "/run", folder, "--out", out + "/new.csv"]))
"""


def noise(seed: int, size: tuple[int, int] = (20, 24)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 120, (*size, 3))
    pixels[:, :, seed % 3] += 120
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that any user may write to; the folders of pytest are closed to others."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        yield Path(place)
        for path in Path(place).rglob("locked*"):
            path.chmod(0o755)


def sound_files(folder: Path) -> dict[bytes, str]:
    """Pictures of every kind under every kind of name, and what is to be said of each: ok."""
    for number in range(12):
        noise(number).save(folder / f"{number:02d}.jpg")
    for number, name in enumerate(ODD_NAMES):
        noise(number).save(folder / os.fsdecode(name), format="PNG")
    for twin in ("cat", "dog"):
        (folder / twin).mkdir()
        noise(5).save(folder / twin / "same.png")
    noise(1).convert("L").save(folder / "grey.png")
    noise(2).quantize(8).save(folder / "palette.gif")
    noise(3).convert("CMYK").save(folder / "cmyk.jpg")
    noise(4).convert("RGBA").save(folder / "alpha.webp")
    noise(5).save(folder / "moves.gif", save_all=True, append_images=[noise(6)])
    noise(6).save(folder / "scan.tiff")
    noise(7).save(folder / "draw.bmp")
    noise(8, (1, 1)).save(folder / "dot.png")
    Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 160).save(folder / "deep.png")
    (folder / "huge.jpg").write_bytes(grey_jpeg(30_000))
    (folder / "link.png").symlink_to("cat/same.png")
    return {os.fsencode(path.relative_to(folder)): "ok" for path in folder.rglob("*") if not path.is_dir()}


def bad_files(folder: Path) -> dict[bytes, str]:
    """Files that cannot be read, and why."""
    whole = (folder / "00.jpg").read_bytes()
    (folder / "empty.png").touch()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "text.jpg").write_text("not a picture at all\n" * 50)
    write_png(folder / "huge.png", 30_000, bits=1, colour=0, lines=False)
    (folder / "telephone.heic").write_bytes(BEGINNING)
    (folder / "gone.png").symlink_to("nowhere")
    (folder / "circle.png").symlink_to("circle.png")
    (folder / "circle").symlink_to(folder)
    os.mkfifo(folder / "pipe.png")
    noise(0).save(folder / "locked.png")
    (folder / "locked.png").chmod(0)
    (folder / "locked").mkdir()
    noise(0).save(folder / "locked" / "a.png")
    (folder / "locked").chmod(0)
    (folder / "notes.txt").write_text("no picture, and not called one")
    return {
        b"empty.png": "unreadable: empty file",
        b"cut.jpg": "incomplete",
        b"text.jpg": "unreadable: not a known image format",
        b"huge.png": "too_large",
        b"telephone.heic": "",  # damaged, or in need of an extra
        b"gone.png": "unreadable: missing file",
        b"circle.png": "unreadable: too many levels of symbolic links",
        b"pipe.png": "unreadable: not a regular file",
        b"locked.png": "unreadable: no permission",
    }


def test_every_file_has_its_row_and_its_reason(open_to_all: Path) -> None:
    folder = open_to_all / "photos"
    folder.mkdir()
    expected = sound_files(folder) | bad_files(folder)
    np.save(open_to_all / "images.npy", np.stack([np.asarray(noise(seed)) for seed in range(12)]))
    environment = {**os.environ, "PYTHONPATH": str(Path(twincluster.__file__).parents[1])}
    command = [sys.executable, "-c", AS_ANOTHER, open_to_all / "images.npy", folder, open_to_all, *TINY]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert "photos/locked cannot be read (Permission denied): left out" in run.stderr
    table = Assignments.read(open_to_all / "run" / "assignments.csv")
    assert len(table.paths) == len(set(table.paths)) == len(expected)
    status = dict(zip(table.paths, table.status, strict=True))
    for name, said in expected.items():
        found = status.pop(printable(os.fsdecode(name)))
        assert found == "ok" if said == "ok" else found.startswith(said) and is_problem(found), name
    assert not status
    assert (open_to_all / "new.csv").read_bytes() == (open_to_all / "run" / "assignments.csv").read_bytes()


def test_all_images_identical(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(24):
        noise(0).save(tmp_path / "photos" / f"{number}.png")
    done = worked("fit", tmp_path / "photos", "--clusters", 3, "--out", tmp_path / "run", *TINY)
    assert "warning: the clusters collapsed: one of 3 contains 100% of the images (the images are equal, or" in done.err
    assert done.err.count("warning") == 1
    table = Assignments.read(tmp_path / "run" / "assignments.csv")
    assert set(table.status) == {"ok"}
    assert np.ptp(table.clusters) == 0  # what is the same cannot be told apart
    assert np.isfinite(table.confidence).all()


def test_five_hundred_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "twincluster.clustering.neighbours.FEWEST", 10**9
    )  # a map by PCA: t-SNE takes longer than the fit
    (tmp_path / "photos").mkdir()
    for number in range(500):
        noise(number, (12, 12)).save(tmp_path / "photos" / f"{number:03d}.png")
    worked("fit", tmp_path / "photos", "--clusters", 3, "--out", tmp_path / "run", *TINY, "--set", "train.image_size=8")
    table = Assignments.read(tmp_path / "run" / "assignments.csv")
    assert table.paths == tuple(f"{number:03d}.png" for number in range(500))
    assert set(table.status) == {"ok"}
    assert set(table.clusters.tolist()) <= {0, 1, 2}


def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(12):
        noise(number).save(tmp_path / "photos" / f"{number:02d}.png")
    worked("fit", tmp_path / "photos", "--clusters", 3, "--out", tmp_path / "run", *TINY)
    shutil.rmtree(tmp_path / "photos")
    assert "the images have moved or changed since" in worked("evaluate", tmp_path / "run").out
